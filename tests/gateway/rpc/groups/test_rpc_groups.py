"""Consumer groups over gRPC and a real store: leases, redelivery and long polling."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest
import uvloop

import record
from cloud_sdk import Client
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.rpc.groups.long_polling import LongPolling, WaitingMembers, parent_source
from gateway.rpc.wakeups import Wakeups
from store.api import PopRequest, PopResult, Start, partition_of, topic_queue
from store.config import StoreConfig
from store.control import TopicPartitions
from store.engine import Engine
from store.errors import StoreBusy, StoreError
from tests.gateway.rpc.conftest import ServerFactory, everything
from tests.waiting import patience, until

Lease = tuple[int, int, int]  # partition, offset, deliveries


class Member:
    """One member of group `g` on parent `home`, call by call."""

    def __init__(self, port: int, group: str = "g", *, dead_letters: bool = False) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = SluiceStub(self._channel)
        self._group = group
        self._dead_letters = dead_letters

    async def __aenter__(self) -> "Member":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def receive(
        self,
        *,
        records: int = 0,
        size: int = 0,
        invisible_ms: int = 60_000,
        wait_ms: int = 0,
        earliest: bool = True,
        most: int = 0,
    ) -> dict[bytes, Lease]:
        """Payload → lease."""
        reply = await self.stub.Receive(
            pb.ReceiveRequest(
                group=self._group,
                parent="home",
                dead_letters=self._dead_letters,
                max_records=records,
                max_bytes=size,
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
                from_earliest=earliest,
                max_deliveries=most,
            )
        )
        leases = [(run.partition, run.offset + i, run.deliveries) for run in reply.runs for i in range(run.count)]
        starts = record.split(reply.frames)
        return {record.decode(reply.frames, at)[6]: lease for at, lease in zip(starts, leases, strict=True)}

    async def acknowledge(
        self, done: Sequence[Lease], again: Sequence[Lease] = (), delay_ms: int | None = 0
    ) -> list[Lease]:
        reply = await self.stub.Acknowledge(
            pb.AcknowledgeRequest(
                group=self._group,
                parent="home",
                dead_letters=self._dead_letters,
                done=[_run(lease) for lease in done],
                again=[pb.Postponed(run=_run(lease), delay_ms=delay_ms) for lease in again],
            )
        )
        return [(run.partition, run.offset + i, run.deliveries) for run in reply.expired for i in range(run.count)]


def _run(lease: Lease) -> pb.Run:
    partition, offset, deliveries = lease
    return pb.Run(partition=partition, offset=offset, count=1, deliveries=deliveries)


async def fill(client: Client, count: int, topic: str = "home/t") -> list[bytes]:
    payloads = [b"%03d" % i for i in range(count)]
    await asyncio.gather(*(client.send(topic, payload) for payload in payloads))
    return payloads


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20))
    yield engine
    await engine.close()


@pytest.fixture
async def port(engine: Engine, serve: ServerFactory) -> int:
    return await serve(engine)


@pytest.fixture
async def sender(port: int):
    async with Client(f"127.0.0.1:{port}", retry_seconds=5) as client:
        yield client


class Gate:
    """Delays or refuses the appends of groups."""

    def __init__(self, engine: Engine) -> None:
        self._groups = engine._groups
        self._offer = engine._groups._offer
        self.calls = 0
        self.held: list[tuple] | None = None
        self.refusal: StoreError | None = None

    def __call__(self, *arguments):
        self.calls += 1
        if self.refusal is not None:
            return self.refusal
        if self.held is None:
            return self._offer(*arguments)
        self.held.append(arguments)
        return None

    def open(self) -> None:
        held, self.held = self.held or [], None
        for arguments in held:
            self._offer(*arguments)


@pytest.fixture
def gate(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(engine)
    monkeypatch.setattr(engine._groups, "_offer", gate)
    return gate


async def test_members_share_and_get_no_leased_messages(port: int, sender: Client) -> None:
    payloads = await fill(sender, 10)
    async with Member(port) as one, Member(port) as other:
        first = await one.receive(records=6)
        second = await other.receive(records=6)
        assert sorted([*first, *second]) == payloads
        assert await one.receive() == {}
        assert await one.acknowledge(list(first.values())) == []
        assert await one.acknowledge(list(first.values())) == list(first.values())  # not held any more
        assert await other.acknowledge([], list(second.values())) == []
        again = await one.receive()
        assert sorted(again) == sorted(second)
        assert {deliveries for _, _, deliveries in again.values()} == {2}


async def test_groups_do_not_see_each_other(port: int, sender: Client) -> None:
    payloads = await fill(sender, 3)
    async with Member(port, "a") as a, Member(port, "b") as b:
        assert sorted(await a.receive()) == sorted(await b.receive()) == payloads


async def test_acknowledgements_out_of_order_survive_a_restart(tmp_path: Path, serve: ServerFactory) -> None:
    engine = await Engine.open(tmp_path / "own", StoreConfig(segment_size=1 << 20))
    port = await serve(engine)
    async with Client(f"127.0.0.1:{port}") as sender, Member(port) as member:
        payloads = await fill(sender, 6)
        leases = await member.receive()
        await member.acknowledge([leases[b"001"], leases[b"004"]])
        await member.acknowledge([], [leases[b"002"]])
        (group,) = await engine.groups(None, 10)
        (state,) = [each for each in group.queues if each.next]
        assert (state.floor, state.next, state.unfinished, state.lag) == (0, 6, 4, 4)
    await engine.close()
    engine = await Engine.open(tmp_path / "own", StoreConfig(segment_size=1 << 20))
    async with Member(await serve(engine)) as member:
        assert list(await member.receive()) == [b"002"]
        rest = [leases[payload] for payload in payloads if payload not in {b"001", b"002", b"004"}]
        assert await member.acknowledge(rest) == []
        assert await member.receive() == {}
    await engine.close()


async def test_an_acknowledgement_waits_for_its_commit(port: int, sender: Client, gate: Gate) -> None:
    await fill(sender, 2)
    async with Member(port) as member:
        leases = await member.receive()
        gate.held = []
        acks = [asyncio.create_task(member.acknowledge([leases[payload]])) for payload in (b"000", b"001")]
        await until(lambda: len(gate.held or ()) == 2)
        assert not any(ack.done() for ack in acks)
        gate.open()
        assert await asyncio.gather(*acks) == [[], []]


async def test_a_receive_waits_for_its_commit(port: int, sender: Client, gate: Gate) -> None:
    await fill(sender, 2)
    async with Member(port) as member:
        gate.held = []
        receive = asyncio.create_task(member.receive())
        await until(lambda: len(gate.held or ()) == 1)
        assert not receive.done()
        gate.open()
        assert len(await receive) == 2


async def test_a_busy_store_delays_acknowledgements(port: int, sender: Client, gate: Gate) -> None:
    await fill(sender, 1)
    async with Member(port) as member:
        leases = await member.receive()
        gate.refusal = StoreBusy("full")
        ack = asyncio.create_task(member.acknowledge(list(leases.values())))
        calls = gate.calls
        await until(lambda: gate.calls >= calls + 2)
        await sender.send("home/t", b"more")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await member.receive()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.refusal = None
        assert await ack == []
        assert list(await member.receive()) == [b"more"]


async def test_an_expired_lease_comes_again_before_newer_messages(port: int, sender: Client) -> None:
    await fill(sender, 4)
    async with Member(port) as member, Member(port) as other:
        lost = await member.receive(records=2, invisible_ms=50)
        assert list(lost) == [b"000", b"001"]
        again: dict[bytes, Lease] = {}
        async with patience():
            while not again:
                again = await _only_returned(other, lost)
        assert list(again)[:2] == [b"000", b"001"]
        assert await member.acknowledge(list(lost.values())) == list(lost.values())


async def _only_returned(member: Member, wanted: dict[bytes, Lease]) -> dict[bytes, Lease]:
    """Receive a batch. If it has no wanted message, return its leases and an empty result."""
    got = await member.receive(records=2)
    if got.keys() & wanted.keys():
        return got
    await member.acknowledge([], list(got.values()))
    return {}


async def test_an_expired_lease_ends_a_wait(port: int, sender: Client) -> None:
    await fill(sender, 1)
    async with Member(port) as member:
        await member.receive(invisible_ms=100)
        assert list(await member.receive(wait_ms=20_000)) == [b"000"]


async def test_a_lease_made_during_a_wait_ends_it_when_it_expires(port: int, sender: Client) -> None:
    async with Member(port) as member:
        waits = [asyncio.create_task(member.receive(wait_ms=20_000, invisible_ms=100)) for _ in range(2)]
        await sender.send("home/t", b"x")
        leases = [lease for wait in waits for lease in (await wait).values()]
        assert sorted(deliveries for _, _, deliveries in leases) == [1, 2]


async def test_a_wait_ends_with_a_message_of_its_parent(port: int, sender: Client) -> None:
    async with Member(port) as member:
        wait = asyncio.create_task(member.receive(wait_ms=20_000))
        await sender.send("garden/t", b"not ours")
        await sender.send("home/t", b"ours")
        assert list(await wait) == [b"ours"]
        assert await member.receive(wait_ms=10) == {}


def test_a_line_is_woken_when_something_is_due_on_the_loop_of_a_node() -> None:
    """uvloop's handle of a delay of 0 is not a timer and does not have its time."""

    async def wake() -> None:
        line, waiter = WaitingMembers(parent_source(b"g", b"home", 1)), asyncio.Event()
        line.waiters[waiter] = None
        for _ in range(2):
            line.schedule_wake(PopResult([], 0, is_limited=False))
        async with patience():
            await waiter.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wake())


async def test_a_released_message_ends_a_wait(port: int, sender: Client) -> None:
    await fill(sender, 1)
    async with Member(port) as member, Member(port) as other:
        leases = await member.receive()
        wait = asyncio.create_task(other.receive(wait_ms=20_000))
        await member.acknowledge([], list(leases.values()))
        assert list(await wait) == [b"000"]


async def test_a_delay_ends_a_wait_when_it_is_over(port: int, sender: Client) -> None:
    await fill(sender, 1)
    async with Member(port) as member, Member(port) as other:
        leases = await member.receive()
        wait = asyncio.create_task(other.receive(wait_ms=20_000))
        await member.acknowledge([], list(leases.values()), 100)
        assert list(await wait) == [b"000"]


async def test_dead_letters_end_a_wait(port: int, sender: Client) -> None:
    await fill(sender, 2)
    async with Member(port) as member, Member(port, dead_letters=True) as dead:
        wait = asyncio.create_task(dead.receive(wait_ms=20_000))
        lease = (await member.receive(records=1))[b"000"]
        await member.acknowledge([], [lease])
        assert list(await member.receive(most=1)) == [b"001"]
        assert list(await wait) == [b"000"]
        assert (await wait)[b"000"] == (0, 0, 1)
        assert await dead.acknowledge([(0, 0, 1)]) == []
        assert await dead.receive() == {}


async def test_a_cancelled_wait_leases_nothing(port: int, sender: Client, engine: Engine) -> None:
    async with Member(port) as member, Member(port) as other:
        waits = [asyncio.create_task(member.receive(wait_ms=20_000)) for _ in range(3)]
        await until(lambda: engine._views.pops.groups() == 1)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await sender.send("home/t", b"x")
        assert list(await other.receive(wait_ms=20_000)) == [b"x"]


async def test_a_new_group_starts_where_it_says_and_stays_there(
    engine: Engine, serve: ServerFactory, sender: Client
) -> None:
    await fill(sender, 3)
    port = await serve(engine)
    async with Member(port) as member:
        assert await member.receive(earliest=False) == {}
    await sender.send("home/t", b"new")
    restarted = await serve(engine)
    async with Member(restarted) as member:
        assert list(await member.receive(earliest=True)) == [b"new"]


async def test_limits_mean_fewer_messages(tmp_path: Path, serve: ServerFactory) -> None:
    config = StoreConfig(segment_size=1 << 20, max_group_leases=4, max_group_window=6)
    engine = await Engine.open(tmp_path / "limited", config)
    port = await serve(engine)
    async with Client(f"127.0.0.1:{port}") as sender, Member(port) as member:
        await fill(sender, 10)
        leases = await member.receive()
        assert len(leases) == 4
        assert await member.receive() == {}
        await member.acknowledge(list(leases.values())[1:])  # the first is not acknowledged: the window stands
        assert list(await member.receive()) == [b"004", b"005"]
        assert await member.receive() == {}
        wait = asyncio.create_task(member.receive(wait_ms=20_000))
        await member.acknowledge([leases[b"000"]])
        assert list(await wait) == [b"006", b"007"]
    await engine.close()


async def test_too_many_groups_are_a_status(tmp_path: Path, serve: ServerFactory) -> None:
    engine = await Engine.open(tmp_path / "limited", StoreConfig(segment_size=1 << 20, max_groups=1))
    port = await serve(engine)
    async with Member(port, "a") as a, Member(port, "b") as b:
        assert await a.receive() == {}
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await b.receive()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await a.stub.RemoveGroup(pb.RemoveGroupRequest(group="a"))
        assert await b.receive() == {}
    await engine.close()


async def test_a_reply_is_bounded_by_bytes(port: int, sender: Client) -> None:
    await asyncio.gather(*(sender.send("home/t", b"%d" % i + b"." * 1_000) for i in range(10)))
    async with Member(port) as member:
        assert len(await member.receive(size=1)) == 1
        assert len(await member.receive(size=3_500)) == 3
        assert len(await member.receive()) == 6


async def test_partitions_take_turns(port: int, sender: Client) -> None:
    topics = {record.tag_of(topic.encode(), b"") % 4: topic for topic in (f"home/{number}" for number in range(40))}
    for topic in topics.values():
        await fill(sender, 4, topic)
    assert sorted(each.end for each in await sender.partitions("home")) == [4, 4, 4, 4]
    async with Member(port) as member:
        seen = [next(iter((await member.receive(records=1)).values()))[0] for _ in range(8)]
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_receive_also_settles(port: int, sender: Client, engine: Engine) -> None:
    await fill(sender, 4)

    def request(wait_ms: int, done: Sequence[Lease], again: Sequence[Lease]) -> pb.ReceiveRequest:
        return pb.ReceiveRequest(
            group="g",
            parent="home",
            invisible_ms=60_000,
            wait_ms=wait_ms,
            done=[_run(lease) for lease in done],
            again=[pb.Postponed(run=_run(lease), delay_ms=0) for lease in again],
        )

    def unfinished() -> int:
        return sum(each.unfinished for each in map(engine._views.pops.find, [b"g"] * 4, source.queues) if each)

    source = parent_source(b"g", b"home", 4)
    async with Member(port) as member:
        leases = list((await member.receive()).values())
        waiting = asyncio.ensure_future(member.stub.Receive(request(20_000, leases[:2], ())))
        await until(lambda: unfinished() == 2)
        assert not waiting.done()
        await sender.send("home/t", b"x")
        assert [run.offset for run in (await waiting).runs] == [4]
        reply = await member.stub.Receive(request(20_000, leases[1:3], leases[3:]))
        assert [(run.offset, run.count, run.deliveries) for run in reply.runs] == [(3, 1, 2)]
        assert [(run.offset, run.count, run.deliveries) for run in reply.expired] == [(1, 1, 1)]
        await sender.send("home/t", b"y")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await member.stub.Receive(request(0, [(9, 0, 1)], ()))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(await member.receive()) == [b"y"]  # it leased nothing


WRONG = [
    pb.ReceiveRequest(group="", parent="home", invisible_ms=1),
    pb.ReceiveRequest(group="g" * 300, parent="home", invisible_ms=1),
    pb.ReceiveRequest(group="g", parent="home/bath", invisible_ms=1),
    pb.ReceiveRequest(group="g", parent="+", invisible_ms=1),
    pb.ReceiveRequest(group="g", parent="home", invisible_ms=0),
    pb.ReceiveRequest(group="g", parent="home", invisible_ms=2**31),
    pb.ReceiveRequest(group="g", parent="home", invisible_ms=1, max_deliveries=251),
    pb.AcknowledgeRequest(group="", parent="home"),
    pb.AcknowledgeRequest(group="g", parent="home", done=[pb.Run(partition=4, count=1, deliveries=1)]),
    pb.AcknowledgeRequest(group="g", dead_letters=True, done=[pb.Run(partition=1, count=1, deliveries=1)]),
    pb.AcknowledgeRequest(group="g", parent="home", done=[pb.Run(count=40_000), pb.Run(count=40_000)]),
    pb.AcknowledgeRequest(group="g", parent="home", done=[pb.Run()] * 65_537),
    pb.AcknowledgeRequest(group="g", parent="home", done=[pb.Run()] * 32_769, again=[pb.Postponed()] * 32_768),
    pb.AcknowledgeRequest(group="g", parent="home", again=[pb.Postponed(run=pb.Run(count=1), delay_ms=2**31)]),
    pb.AcknowledgeRequest(group="g", parent="home", again=[pb.Postponed(run=pb.Run(count=1), error="x" * 257)]),
    pb.ResetGroupRequest(group="g", parent="home", offsets=[pb.PartitionOffset()] * 5),
    pb.ResetGroupRequest(group="g", parent="a/b"),
    pb.RemoveGroupRequest(group="\0"),
]


@pytest.mark.parametrize("request_", WRONG, ids=lambda request: type(request).__name__)
async def test_wrong_requests_are_named(port: int, request_) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = getattr(SluiceStub(channel), type(request_).__name__.removesuffix("Request"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details()


async def test_groups_are_listed_with_all_kinds_of_queues(engine: Engine, port: int, sender: Client) -> None:
    await fill(sender, 2)
    for queue in (topic_queue(b"home/t"), b"fhome/+", b"dg"):
        await engine.pop(PopRequest(b"other", [queue], 1, 1_000, 1_000, Start.EARLIEST))
    async with Member(port) as member:
        await member.receive(records=1)
        page = await member.stub.Groups(pb.GroupsRequest(limit=1))
        assert ([group.name for group in page.groups], page.more) == (["g"], True)
        assert sorted((each.parent, each.partition) for each in page.groups[0].queues) == [
            ("home", i) for i in range(4)
        ]
        assert sum(each.lag for each in page.groups[0].queues) == 2
        page = await member.stub.Groups(pb.GroupsRequest(after="g"))
        (other,) = page.groups
        told = [(each.WhichOneof("source"), each.lag, each.unfinished) for each in other.queues]
        assert (told, page.more) == ([("dead_letters", 0, 0), ("filter", 0, 0), ("topic", 2, 1)], False)


async def test_a_message_wakes_one_of_many_waiting_members(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pops = 0
    pop = engine.pop

    async def counted(*arguments: object, **named: object) -> PopResult:
        nonlocal pops
        pops += 1
        return await pop(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "pop", counted)
    groups = LongPolling(engine, Wakeups(engine), everything())
    source = parent_source(b"g", b"home", 4)
    request = PopRequest(source.group, source.queues, 1, 1_000, 60_000, Start.EARLIEST)
    members = [asyncio.create_task(groups.receive(source, request, 60)) for _ in range(40)]
    await until(lambda: pops == 41)  # the first looks again: the group has begun
    await asyncio.sleep(0.05)
    engine.append([record.frame(1, 0, 0, b"home/t", b"", b"", b"x")], lambda _: None)
    await asyncio.wait(members, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(100):
        await asyncio.sleep(0)
    assert sum(member.done() for member in members) == 1
    assert pops <= 43
    left = [member for member in members if not member.done()]
    for _ in range(2):
        left.pop(0).cancel()  # the first in the line gives up
    for number in range(len(left)):
        engine.append([record.frame(1, 0, 0, b"home/%d" % number, b"", b"", b"x")], lambda _: None)
    assert [sum(run.count for run in popped.runs) for popped in await asyncio.gather(*left)] == [1] * len(left)
    groups.stop()
    assert (groups._lines, groups._wakeups._waiting) == ({}, {})


async def test_a_waiting_member_gets_messages_of_a_partition_that_is_added(engine: Engine) -> None:
    """As at a gateway, whose store is restarted with more partitions."""
    groups = LongPolling(engine, Wakeups(engine), everything())
    count = engine.partition_count(b"home")
    source = parent_source(b"g", b"home", count)
    request = PopRequest(source.group, source.queues, 1, 1_000, 60_000, Start.LATEST)
    member = asyncio.create_task(groups.receive(source, request, 3_600))
    await until(lambda: engine._groups._views.pops.queues_of(b"g") == count)
    topics = [b"home/%d" % number for number in range(100)]
    added = next(each for each in topics if partition_of(record.tag_of(each, b""), 4 * count) >= count)
    for frame in (TopicPartitions(4 * count).frame(b"home"), record.frame(1, 0, 0, added, b"", b"", b"x")):
        engine.append([frame], lambda _: None)
    async with patience():
        (run,) = (await member).runs
    assert run.queue not in source.queues
