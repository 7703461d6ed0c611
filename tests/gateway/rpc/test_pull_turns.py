"""Pulls that are far behind get a share of the loop's time while devices are served, and all of it otherwise."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk import Client, OutgoingMessage
from gateway.rpc.pull_turns import PullTurns, Turn
from tests.gateway.conftest import MakeNode
from tests.waiting import patience

FAR = (10, 1000)  # records that a pull has read, and those that are left


class Machine:
    """A clock with its timers, the CPU time of the loop, and the messages of devices. Time passes only here."""

    def __init__(self, share: float = 0.1) -> None:
        self.now = 1000.0
        self.cpu = 50.0
        self.messages = 0
        self.is_quiet = False
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future
        self.call_soon = asyncio.get_running_loop().call_soon
        self.turns = PullTurns(share, self.traffic, cast("asyncio.AbstractEventLoop", self), lambda: self.cpu)

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
        await turn.come(*FAR)
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


async def test_a_reader_that_keeps_up_neither_waits_nor_pays() -> None:
    machine = Machine()
    await machine.pull(0.01)
    await settled()
    for _ in range(3):
        turn = Turn(machine.turns)
        await turn.timed(machine._read(5.0))
        await turn.come(10, 40)
    await machine.pass_until(machine.now + 0.1)
    await machine.pull(0.01)
    assert not machine.timers
    waits = asyncio.create_task(Turn(machine.turns).come(10, 41))
    await settled()
    assert not waits.done()
    waits.cancel()


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
