"""The Consume stream of a group's member: batches, settlements, and the state after the stream ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import record
from cloud_sdk import Client
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.access.rights import Rights
from gateway.rpc.groups.consume import ConsumeStream
from gateway.rpc.groups.group_calls import GroupCalls
from gateway.rpc.limits import RpcLimits
from gateway.rpc.wakeups import Wakeups
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreFailed
from tests.gateway.rpc.conftest import everything
from tests.waiting import PATIENCE_S, until

Lease = tuple[int, int, int]  # partition, offset, deliveries


def run_of(lease: Lease) -> pb.Run:
    partition, offset, deliveries = lease
    return pb.Run(partition=partition, offset=offset, count=1, deliveries=deliveries)


def member(**asked: Any) -> pb.ReceiveRequest:
    usual = {"group": "g", "parent": "home", "invisible_ms": 60_000, "from_earliest": True, "max_records": 2}
    return pb.ReceiveRequest(**{**usual, **asked})


def request(number: int, done: Sequence[Lease] = (), **asked: Any) -> pb.ConsumeRequest:
    return pb.ConsumeRequest(number=number, done=[run_of(lease) for lease in done], **asked)


def leases_of(reply: pb.ConsumeReply) -> dict[bytes, Lease]:
    leases = [(run.partition, run.offset + i, run.deliveries) for run in reply.runs for i in range(run.count)]
    payloads = [record.decode(reply.frames, start)[6] for start in record.split(reply.frames)]
    return dict(zip(payloads, leases, strict=True))


def numbers_of(reply: pb.ConsumeReply) -> tuple[list[int], int | None]:
    """The settled requests and the batch number of a reply."""
    return [each.number for each in reply.settled], reply.batch if reply.HasField("batch") else None


async def end_of(call: Any) -> str:
    """The reason why a stream ended. It is available after all replies were read."""
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return str(await call.details())


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20))
    yield engine
    await engine.close()


@pytest.fixture
async def server(engine: Engine) -> AsyncIterator[RpcServer]:
    server = RpcServer(engine, Authority(engine, 0), RpcLimits(max_unacknowledged_requests=4))
    yield server
    await server.stop(0.2)


@pytest.fixture
async def channel(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, Client(f"127.0.0.1:{port}") as client:
        for number in range(6):
            await client.send("home/t", b"%d" % number)
        yield channel


@pytest.fixture
def call(channel: grpc.aio.Channel) -> Any:
    return SluiceStub(channel).Consume(timeout=PATIENCE_S)


async def unfinished(engine: Engine) -> int:
    (group,) = await engine.groups(None, 10)
    return sum(queue.unfinished for queue in group.queues)


async def test_a_batch_settles_the_one_before(call: Any, engine: Engine) -> None:
    await call.write(request(1, member=member(), wants=True))
    first = await call.read()
    assert (list(leases_of(first)), numbers_of(first)) == ([b"0", b"1"], ([1], 1))
    await call.write(request(2, list(leases_of(first).values()), wants=True))
    second = await call.read()
    assert (list(leases_of(second)), second.batch) == ([b"2", b"3"], 2)
    await call.write(request(3))  # answered after the earlier settlements
    numbers = numbers_of(second)[0]
    while 3 not in numbers:
        numbers += numbers_of(await call.read())[0]
    assert numbers == [2, 3]
    assert await unfinished(engine) == 2


@pytest.mark.parametrize(
    ("member_of", "asked", "late"),
    [
        ({}, {"wants": True}, True),
        ({}, {}, False),  # the client waits for the answer
        ({"ordered": True}, {"wants": True}, False),  # the next message of the key waits for the record
        ({}, {"wants": True, "again": 1}, False),
    ],
)
async def test_acknowledgements_that_nobody_waits_for_start_no_flush(
    call: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, member_of: dict[str, Any], asked: Any, late: bool
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(engine, "settle", noting_late(engine.settle, given))
    await call.write(request(1, member=member(**member_of), wants=True))
    first, second = leases_of(await call.read()).values()
    again = [pb.Postponed(run=run_of(second), delay_ms=0)] if asked.pop("again", 0) else []
    await call.write(request(2, [first], again=again, **asked))
    await until(lambda: given == [late])


async def test_a_stream_with_many_unanswered_settlements_starts_a_flush(
    call: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []

    async def settle(*arguments: Any) -> None:
        given.append(arguments[-1])
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "settle", settle)
    await call.write(request(1, member=member(max_records=1), wants=True))
    for number in range(2, 5):
        (lease,) = leases_of(await call.read()).values()
        await call.write(request(number, [lease], wants=True))
    await until(lambda: given == [True, False, False])  # of the four that may be unanswered one may be late


def noting_late(settle: Any, given: list[bool]) -> Any:
    async def noted(*arguments: Any) -> Any:
        given.append(arguments[-1])
        return await settle(*arguments)

    return noted


async def test_settlements_are_answered_in_order_with_their_errors(call: Any) -> None:
    await call.write(request(1, member=member(), wants=True))
    leases = list(leases_of(await call.read()).values())
    await call.write(request(2, leases))
    await call.write(request(3, leases))
    await call.write(request(4, [(99, 0, 1)]))
    settled: list[pb.Settled] = []
    while len(settled) < 3:
        settled += (await call.read()).settled
    assert [each.number for each in settled] == [2, 3, 4]
    assert [[(run.offset, run.count) for run in each.expired] for each in settled[:2]] == [[], [(0, 1), (1, 1)]]
    assert "there is no partition 99" in settled[2].error


async def test_settlements_are_answered_during_a_wait(call: Any) -> None:
    await call.write(request(1, member=member(max_records=6), wants=True))
    leases = leases_of(await call.read())
    await call.write(request(2, wants=True, wait_ms=50_000))
    await call.write(request(3, list(leases.values())[:5]))
    assert numbers_of(await call.read()) == ([2, 3], None)
    back = pb.Postponed(run=run_of(leases[b"5"]), delay_ms=0)
    await call.write(pb.ConsumeRequest(number=4, again=[back]))  # ends the wait
    replies = [await call.read(), await call.read()]
    assert sorted(numbers_of(reply) for reply in replies) in (
        [([], 2), ([4], None)],
        [([4], 2)],
        [([4], None), ([], 2)],
    )
    assert [lease for reply in replies for lease in leases_of(reply).items()] == [(b"5", (*leases[b"5"][:2], 2))]


async def test_stopping_a_wait_answers_an_empty_batch_and_a_later_request_gets_another(call: Any) -> None:
    await call.write(request(1, member=member(max_records=6), wants=True))
    leases = leases_of(await call.read())
    await call.write(request(2, stops=True))  # nothing to stop
    assert numbers_of(await call.read()) == ([2], None)
    await call.write(request(3, wants=True, wait_ms=50_000))
    await call.write(request(4, stops=True))
    reply = await call.read()
    assert (reply.batch, reply.runs) == (3, [])
    back = [pb.Postponed(run=run_of(lease), delay_ms=0) for lease in leases.values()]
    await call.write(pb.ConsumeRequest(number=5, again=back, wants=True, wait_ms=50_000))
    while not (reply := await call.read()).frames:
        assert not reply.HasField("batch")
    assert (len(leases_of(reply)), reply.batch) == (6, 5)


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([request(1, wants=True)], "invisible_ms"),
        ([request(1, member=member(group=""), wants=True)], "group's name"),
        ([request(1, member=member(wait_ms=5))], "fields of the request"),
        ([request(1, member=member(done=[pb.Run()]))], "fields of the request"),
        ([request(1, member=member()), request(2, member=member())], "the first request of a stream"),
        (
            [request(1, member=member(parent="empty"), wants=True, wait_ms=50_000), request(2, wants=True)],
            "already waits for a batch",
        ),
    ],
)
async def test_wrong_requests_end_the_stream(call: Any, requests: list[pb.ConsumeRequest], text: str) -> None:
    for each in requests:
        await call.write(each)
    assert text in await end_of(call)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_settlements_before_an_invalid_request_are_answered(call: Any, engine: Engine) -> None:
    await call.write(request(1, member=member(), wants=True))
    leases = list(leases_of(await call.read()).values())
    await call.write(request(2, leases, member=member()))
    assert "the first request of a stream" in await end_of(call)
    assert await unfinished(engine) == 2  # the wrong request settled nothing


async def test_a_closed_stream_answers_all_settlements(call: Any, engine: Engine) -> None:
    await call.write(request(1, member=member(), wants=True))
    await call.write(request(2, list(leases_of(await call.read()).values())))
    await call.done_writing()
    assert numbers_of(await call.read()) == ([2], None)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert await unfinished(engine) == 0


async def test_a_node_that_stops_ends_streams(call: Any, server: RpcServer) -> None:
    await call.write(request(1, member=member(max_records=6), wants=True))
    leases = list(leases_of(await call.read()).values())
    await call.write(request(2, leases, wants=True, wait_ms=50_000))
    await call.write(request(3))
    assert numbers_of(await call.read()) == ([2, 3], None)
    await server.stop(5)
    assert await end_of(call) == "the node is stopping"


async def test_a_store_that_fails_ends_the_stream(call: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await call.write(request(1, member=member(), wants=True))
    leases = list(leases_of(await call.read()).values())
    monkeypatch.setattr(engine._groups, "_offer", lambda *_: StoreFailed("the disk is gone"))
    await call.write(request(2, leases))
    with pytest.raises(grpc.aio.AioRpcError, match="the disk is gone"):
        await call.read()


async def test_a_wait_of_a_client_that_is_gone_leases_nothing(
    channel: grpc.aio.Channel, call: Any, engine: Engine, server: RpcServer
) -> None:
    service = server._service
    assert service is not None
    await call.write(request(1, member=member(max_records=6), wants=True))
    leases = leases_of(await call.read())
    await call.write(request(2, wants=True, wait_ms=50_000))
    await call.write(request(3))
    assert numbers_of(await call.read()) == ([2, 3], None)
    call.cancel()
    await until(lambda: not any(isinstance(each, ConsumeStream) for each in service._streams))
    other = SluiceStub(channel).Consume(timeout=PATIENCE_S)
    back = [pb.Postponed(run=run_of(lease), delay_ms=0) for lease in leases.values()]
    await other.write(pb.ConsumeRequest(number=1, member=member(max_records=6), again=back, wants=True, wait_ms=50_000))
    while not (reply := await other.read()).frames:
        pass
    assert set(leases_of(reply).values()) == {(*lease[:2], 2) for lease in leases.values()}
    assert not service.groups._lines


class Context:
    """A call whose client is gone when a batch is written."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def write(self, _reply: pb.ConsumeReply) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_batch_that_could_not_be_sent_is_available_again(engine: Engine, channel: Any) -> None:
    limits = RpcLimits()
    calls = GroupCalls(engine, Wakeups(engine), limits, everything())
    context: Any = Context()
    stream = ConsumeStream(calls, Rights(engine, 1), limits, context)

    async def requests() -> AsyncIterator[pb.ConsumeRequest]:
        yield request(1, member=member(max_deliveries=1), wants=True)

    serving = asyncio.create_task(stream.run(requests()))
    await context.asked.wait()
    assert await unfinished(engine) == 2
    serving.cancel()
    await asyncio.wait((serving,))
    await until(lambda: not calls._returns and stream._reader is not None and stream._reader.done())
    reply = await calls.receive(member(max_records=6, max_deliveries=1))
    assert {(run.offset, run.deliveries) for run in reply.runs} >= {(0, 1)}  # not a dead letter
    assert sum(run.count for run in reply.runs) == 6


async def test_a_client_that_settles_faster_than_the_log_is_not_read(
    call: Any, engine: Engine, server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call.write(request(1, member=member(max_records=6), wants=True))
    leases = list(leases_of(await call.read()).values())
    held: list[Any] = []
    offer = engine._groups._offer
    monkeypatch.setattr(engine._groups, "_offer", lambda *asked: held.append(asked))
    for number, lease in enumerate(leases, 2):
        await call.write(request(number, [lease]))
    await until(lambda: len(held) == 4)
    await asyncio.sleep(0.05)  # long enough for the node to read on
    assert len(held) == 4
    monkeypatch.setattr(engine._groups, "_offer", offer)
    for asked in held:
        offer(*asked)
    numbers: list[int] = []
    while len(numbers) < 6:
        numbers += numbers_of(await call.read())[0]
    assert numbers == [2, 3, 4, 5, 6, 7]
