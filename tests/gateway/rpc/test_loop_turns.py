"""Calls that read old messages get a share of the loop's time while devices are served, and all of it otherwise."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk import Client, OutgoingMessage
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.consuming.pull import PullCalls
from gateway.rpc.groups import long_polling
from gateway.rpc.groups.long_polling import LongPolling
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns, Turn
from store.api import Bounds, Fetched, PopRequest, PopResult, Run, Start, partition_queue
from tests.gateway.conftest import MakeNode
from tests.waiting import patience


class Machine:
    """A clock with its timers, the CPU time of the loop, and the messages of devices. Time passes only here."""

    def __init__(self, share: float = 0.1, longest_wait_s: float = 1.0) -> None:
        self.now = 1000.0
        self.cpu = 50.0
        self.messages = 0
        self.is_quiet = False
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future
        self.call_soon = asyncio.get_running_loop().call_soon
        loop = cast("asyncio.AbstractEventLoop", self)
        self.turns = LoopTurns(share, longest_wait_s, self.traffic, loop, lambda: self.cpu)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = (self.now + seconds, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def traffic(self) -> int:
        self.messages += not self.is_quiet
        return self.messages

    async def pass_until(self, end: float) -> None:
        """Let time pass, and let timers fire."""
        while due := min((timer for timer in self.timers if timer[0] <= end), default=None, key=lambda timer: timer[0]):
            self.timers.remove(due)
            self.now = max(self.now, due[0])
            due[1]()
            await settled()
        self.now = max(self.now, end)
        await settled()

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    async def pull(self, seconds: float) -> None:
        turn = Turn(self.turns)
        await turn.timed(self._read(seconds / 2))
        await turn.wait()
        turn.end_soon()
        self.work(seconds / 2)  # packs and sends
        await asyncio.sleep(0)  # until the client asks for more

    async def _read(self, seconds: float) -> None:
        self.work(seconds)


async def settled() -> None:
    """Everything that is ready has run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_turn_begins_when_the_one_before_is_paid() -> None:
    machine = Machine(0.1)
    await machine.pull(0.01)
    await settled()
    begun = machine.now - 0.005
    second = asyncio.create_task(machine.pull(0.01))
    await settled()
    await machine.pass_until(begun + 0.097)
    assert not second.done()
    await machine.pass_until(begun + 0.101)
    assert second.done()


@given(st.lists(st.floats(0.0005, 0.01), min_size=2, max_size=30), st.sampled_from([0.05, 0.1, 0.5, 0.9]))
async def test_readers_together_keep_to_the_share(works: list[float], share: float) -> None:
    machine = Machine(share)
    await machine.pull(max(works))
    await settled()
    began = machine.now

    async def read(works: list[float]) -> None:
        for work in works:
            await machine.pull(work)

    readers = [asyncio.create_task(read(works[number::3])) for number in range(3)]
    await settled()
    while not all(reader.done() for reader in readers):
        await machine.pass_until(min(at for at, _ in machine.timers))
    # The last turn of each reader may not be paid yet, and a timer that fires late gives up to 2 ms away.
    paid = sum(works) - 3 * max(works)
    assert machine.now - began >= paid / share - 0.002 * len(works)
    # Before the first turn is the pause of the one before it. A pull reads before its turn.
    assert machine.now - began <= (sum(works) + max(works)) / share + sum(works)


async def test_turns_are_taken_in_line_and_one_at_a_time() -> None:
    machine = Machine()
    await machine.pull(0.01)
    begun: list[int] = []

    async def pull(number: int) -> None:
        await machine.turns.wait()
        begun.append(number)

    pulls = [asyncio.create_task(pull(number)) for number in range(4)]
    await settled()
    pulls[1].cancel()
    machine.now += 0.5  # a timer that is late lets nobody overtake
    pulls.append(asyncio.create_task(pull(4)))
    await settled()
    for wanted in ([0], [0, 2], [0, 2, 3], [0, 2, 3, 4]):
        await machine.pass_until(machine.timers[0][0])
        assert begun == wanted


async def test_no_pull_waits_while_no_device_is_served() -> None:
    machine = Machine()
    await machine.pull(0.01)
    machine.is_quiet = True
    await machine.pass_until(machine.now + 0.2)
    for _ in range(3):
        await machine.pull(1.0)
    assert not machine.timers
    assert machine.turns.most_bytes() > 1 << 40


async def test_all_go_on_when_the_devices_fall_silent() -> None:
    machine = Machine()
    await machine.pull(0.01)
    pulls = [asyncio.create_task(machine.pull(0.01)) for _ in range(5)]
    await settled()
    machine.is_quiet = True
    quiet_since = machine.now
    await machine.pass_until(quiet_since + 0.09)
    assert not all(pull.done() for pull in pulls)  # a device may send again
    await machine.pass_until(quiet_since + 0.2)
    assert all(pull.done() for pull in pulls)


async def test_no_pull_waits_longer_than_a_second() -> None:
    machine = Machine(0.01)
    await machine.pull(10.0)  # is paid after a quarter of an hour
    pulls = [asyncio.create_task(machine.pull(0.0)) for _ in range(3)]
    await settled()
    since = machine.now
    await machine.pass_until(since + 0.99)
    assert not any(pull.done() for pull in pulls)
    machine.now = since + 1.0
    machine.timers.pop()[1]()
    await settled()
    assert sum(pull.done() for pull in pulls) == 1  # one in a turn of the loop
    await machine.pass_until(since + 1.0)
    assert all(pull.done() for pull in pulls)


class Partition:
    """A store with one partition of a thousand records."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.bulk = self

    def partition_count(self, _parent: bytes) -> int:
        return 1

    async def fetch(self, _queue: bytes, offset: int, records: int, _max_bytes: int, _without: int) -> Fetched:
        self.machine.work(0.02)
        return Fetched(offset, records, b"", Bounds(0, 1000))


async def test_a_reader_that_keeps_up_neither_waits_nor_pays() -> None:
    machine = Machine()
    await machine.pull(0.01)
    await settled()
    calls = PullCalls(cast("Any", Partition(machine)), cast("Any", None), RpcLimits(), machine.turns)

    def pull(offset: int) -> Coroutine[Any, Any, pb.PullReply]:
        return calls.pull(pb.PullRequest(parent="t", offset=offset, max_records=10))

    begun = machine.now
    for _ in range(3):
        await pull(950)
    waits = asyncio.create_task(pull(949))
    await settled()
    assert not waits.done()
    await machine.pass_until(begun + 0.101)
    assert waits.done()


class Backlogs:
    """A store whose groups have so many messages before them. A pop takes 10 ms of the loop."""

    def __init__(self, machine: Machine, **left: int) -> None:
        self.machine = machine
        self.left = left
        self.max_bytes: list[int] = []  # that pops were allowed
        self.groups = LongPolling(cast("Any", self), cast("Any", None), machine.turns)

    async def pop(self, request: PopRequest) -> PopResult:
        self.machine.work(0.01)
        self.max_bytes.append(request.max_bytes)
        group = request.group.decode()
        count = min(self.left[group], request.max_records)
        self.left[group] -= count
        runs = [Run(request.queues[0], 0, count, 1, b"")] if count else []
        return PopResult(runs, None, is_limited=False, left=self.left[group])

    async def batch(self, group: str, records: int = 256) -> PopResult:
        queues = (partition_queue(b"t", 0), partition_queue(b"t", 1))
        request = PopRequest(group.encode(), queues, records, 1 << 20, 1000, Start.EARLIEST)
        popped = await self.groups.pop(request)
        await asyncio.sleep(0)  # until its member asks for more
        return popped


async def test_groups_that_are_far_behind_take_turns() -> None:
    machine = Machine(0.25)
    store = Backlogs(machine, a=100_000, b=100_000)
    for group in "aabb":  # after the first pop it is known that a group is far behind
        await store.batch(group)
        await machine.pass_until(machine.now + 1.0)
    begun = machine.now
    first = asyncio.create_task(store.batch("a"))
    await settled()
    assert first.done()
    tasks = [asyncio.create_task(store.batch(group)) for group in "aba"]
    for at, done in ((0.037, 0), (0.041, 1), (0.077, 1), (0.081, 2), (0.121, 3)):
        await machine.pass_until(begun + at)
        assert sum(task.done() for task in tasks) == done
    assert store.max_bytes[0] == 1 << 20
    assert set(store.max_bytes[-3:]) == {64 << 10}


async def test_a_group_that_keeps_up_neither_waits_nor_pays() -> None:
    machine = Machine()
    store = Backlogs(machine, behind=100_000, live=0)
    for _ in range(2):
        await store.batch("behind")
    waiting = [asyncio.create_task(store.batch("behind")) for _ in range(5)]
    await settled()
    assert not all(task.done() for task in waiting)
    timers = list(machine.timers)
    for burst in (1, 256, 1_256):
        store.left["live"] += burst
        await store.batch("live")
        store.left["live"] = 0
    await settled()
    assert machine.timers == timers
    assert set(store.max_bytes[-3:]) == {1 << 20}
    for task in waiting:
        task.cancel()


async def test_a_group_that_has_caught_up_waits_no_more() -> None:
    machine = Machine()
    store = Backlogs(machine, a=1_300)
    for _ in range(5):
        await store.batch("a", 100)
        await machine.pass_until(machine.now + 1.0)
    for _ in range(5):
        await store.batch("a", 100)
    assert not machine.timers


async def test_a_group_leases_nothing_while_it_waits() -> None:
    machine = Machine()
    store = Backlogs(machine, a=100_000)
    for _ in range(2):
        await store.batch("a")
    left = store.left["a"]
    task = asyncio.create_task(store.batch("a"))
    await settled()
    task.cancel()
    await machine.pass_until(machine.now + 1.0)
    assert store.left["a"] == left
    await store.batch("a")
    assert store.left["a"] == left - 256


async def test_a_bounded_number_of_groups_is_known_to_be_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "_MAX_FAR", 2)
    store = Backlogs(Machine(), a=100_000, b=100_000, c=100_000)
    for group in "abc":
        await store.batch(group)
    assert [group for group, _ in store.groups._far] == [b"b", b"c"]


async def test_no_group_waits_while_no_device_is_served() -> None:
    machine = Machine()
    machine.is_quiet = True
    store = Backlogs(machine, a=100_000)
    for _ in range(5):
        await store.batch("a")
    assert not machine.timers
    assert set(store.max_bytes) == {1 << 20}


async def test_with_the_whole_loop_no_pull_waits() -> None:
    machine = Machine(1.0)
    for _ in range(3):
        await machine.pull(1.0)
    assert not machine.timers
    assert machine.turns.most_bytes() > 1 << 40


async def test_work_is_counted_without_the_time_in_which_it_waits() -> None:
    machine = Machine()
    gate = asyncio.Event()

    async def read() -> int:
        machine.work(0.25)
        await gate.wait()
        machine.work(0.5)
        return 7

    async def of_others() -> None:
        machine.work(8.0)
        gate.set()

    turn = Turn(machine.turns)
    other = asyncio.create_task(of_others())
    assert await turn.timed(read()) == 7
    await other
    assert turn._seconds == 0.75


async def test_errors_and_cancellation_reach_the_work() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("damaged")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def timed(work: Coroutine[Any, Any, None]) -> None:
        await Turn(Machine().turns).timed(work)

    with pytest.raises(ValueError, match="damaged"):
        await timed(fails())
    task = asyncio.create_task(timed(waits()))
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["waits"]


async def test_pulls_beside_devices_are_small_and_bring_everything(make_node: MakeNode) -> None:
    node = await make_node(store__partitions=1)
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=5) as client:
        await client.send_many([OutgoingMessage(f"old/{number}", bytes(1000)) for number in range(2000)])
        whole = await client.pull("old", 0, 0)
        assert whole.count > 200

        async def read() -> list[int]:
            counts: list[int] = []
            offset = 0
            while offset < 2000:
                node.counters.messages_received += 1  # as if a device had sent
                batch = await client.pull("old", 0, offset)
                assert batch.offset == offset
                offset = batch.next_offset
                counts.append(batch.count)
            return counts

        async with patience():
            counts = await read()
            while max(counts[1:]) > 80:  # this process was not run for a while, and no device seemed to be served
                counts = await read()
    assert sum(counts) == 2000


async def test_groups_beside_devices_get_everything_in_small_batches(make_node: MakeNode) -> None:
    node = await make_node(store__partitions=1)
    count = 3_000
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=5) as client:
        await client.send_many([OutgoingMessage(f"old/{number % 7}", b"%01000d" % number) for number in range(count)])

        async def drain(group: str) -> list[int]:
            counts: list[int] = []
            payloads: list[bytes] = []
            async with client.consumer(group, "old", max_records=256) as consumer:
                while sum(counts) < count:
                    node.counters.messages_received += 1  # as if a device had sent
                    deliveries = await consumer.batch(5.0)
                    payloads += [delivery.payload for delivery in deliveries]
                    await consumer.ack(deliveries)
                    counts.append(len(deliveries))
            assert sorted(payloads) == [b"%01000d" % number for number in range(count)]
            return counts

        async with patience():
            number = 0
            while True:
                counts = await drain(f"g{number}")
                if max(counts[1:20]) <= 80:
                    break
                number += 1  # this process was not run for a while, and no device seemed to be served
    assert counts[0] == 256
