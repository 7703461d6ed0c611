"""Requests that a producer sends again are stored once, also after a broken stream and a restart."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

import record
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from record.layout import Kind
from store import control
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine


def frames(*payloads: bytes) -> bytes:
    return b"".join(record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", payload) for payload in payloads)


def request(sequence: int, *payloads: bytes, first: bool = False, again: bool = False) -> pb.ProduceRequest:
    return pb.ProduceRequest(sequence=sequence, frames=frames(*payloads), producer=b"me" if first else b"", again=again)


class Bench:
    """An engine with a server on it, and a channel."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def start(self) -> None:
        self.engine = await Engine.open(self.path, StoreConfig(segment_size=1 << 16))
        self.server = RpcServer(self.engine, Authority(self.engine, 0))
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}")
        self.stub = SluiceStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0.1)
        await self.engine.close()

    async def produce(self, *requests: pb.ProduceRequest, ends: bool | None = None) -> list[pb.ProduceResult]:
        """The results of a stream, which breaks then (ends: None), or ends: as a client's that closes, or as if the
        node had not heard why."""
        call = self.stub.Produce(None)
        for each in requests:
            await call.write(each)
        results: list[pb.ProduceResult] = []
        while len(results) < len(requests):
            reply = await call.read()
            assert isinstance(reply, pb.ProduceReply)
            results += reply.results
        if ends is not None:
            if ends:
                await call.write(pb.ProduceRequest(ends=True))
                await call.read()
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        call.cancel()
        return results

    async def stored(self) -> list[bytes]:
        fetched = await self.engine.fetch(topic_queue(b"a/b"), 0, 1_000, 1 << 20)
        return [record.decode(fetched.data, start)[6] for start in record.split(fetched.data)]


@pytest.fixture
async def bench(tmp_path: Path):
    bench = Bench(tmp_path)
    await bench.start()
    yield bench
    await bench.stop()


async def test_a_resent_request_is_stored_once(bench: Bench) -> None:
    first = await bench.produce(request(1, b"1", b"2", first=True), request(2, b"3"))
    assert [len(each.positions) for each in first] == [2, 1]
    second = await bench.produce(request(1, b"1", b"2", first=True, again=True), request(2, b"3"), request(3, b"4"))
    assert [each.was_stored for each in second] == [True, True, False]
    assert [len(each.positions) for each in second] == [0, 0, 1]
    assert second[2].positions[0] > first[1].positions[0]
    assert await bench.stored() == [b"1", b"2", b"3", b"4"]


async def test_progress_survives_a_restart_until_the_client_closes(bench: Bench) -> None:
    await bench.produce(request(1, b"1", first=True), request(2, b"2"))
    await bench.stop()
    await bench.start()
    await bench.produce(request(2, b"2", first=True, again=True), request(3, b"3"), ends=True)
    assert await bench.stored() == [b"1", b"2", b"3"]
    while await bench.engine.producers(None, 10):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_stream_without_ends_may_have_broken(bench: Bench) -> None:
    """gRPC reports the end of the requests before it reports the broken connection."""
    await bench.produce(request(1, b"1", first=True), ends=False)
    await bench.produce(request(1, b"1", first=True, again=True), ends=False)
    assert await bench.stored() == [b"1"]


async def test_only_the_rest_of_a_torn_request_is_stored(bench: Bench) -> None:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    name = b"sdk/" + b"me".hex().encode()
    some = record.check_unsealed(frames(b"1", b"2"))
    bench.engine.append([control.Produced(1, 3).frame(name), *some], answer.set_result)  # as if the third had been cut
    await answer
    await bench.stop()
    await bench.start()
    (result,) = await bench.produce(request(1, b"1", b"2", b"3", first=True, again=True))
    assert result.was_stored
    assert await bench.stored() == [b"1", b"2", b"3"]


async def test_the_rest_of_a_torn_request_must_match_its_digest(bench: Bench) -> None:
    def returning(*payloads: bytes, digest: int) -> pb.ProduceRequest:
        asked = request(1, *payloads, first=True, again=True)
        asked.returns, asked.digest = True, digest
        return asked

    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    name = b"returning//" + b"me".hex().encode()
    some = record.check_unsealed(frames(b"1", b"2"))
    bench.engine.append([control.Produced(1, 3, 77).frame(name), *some], answer.set_result)  # the third was cut
    await answer
    await bench.stop()
    await bench.start()
    with pytest.raises(grpc.aio.AioRpcError, match="another order"):
        await bench.produce(returning(b"1", b"2", b"4", digest=78))
    assert await bench.stored() == [b"1", b"2"]
    (result,) = await bench.produce(returning(b"1", b"2", b"3", digest=77))
    assert (result.was_stored, result.stored_to) == (True, 1)
    assert await bench.stored() == [b"1", b"2", b"3"]
    (row,) = await bench.engine.producers(None, 10)
    assert (row.records, row.digest) == (1, 77)


async def test_a_newer_stream_of_a_producer_ends_the_older(bench: Bench) -> None:
    older = bench.stub.Produce(None)
    await older.write(request(1, b"1", first=True))
    assert isinstance(await older.read(), pb.ProduceReply)
    await bench.produce(request(1, b"1", first=True, again=True), request(2, b"2"))
    with pytest.raises(grpc.aio.AioRpcError, match="another stream"):
        await older.read()
    assert await bench.stored() == [b"1", b"2"]


async def test_a_name_that_is_too_long_is_refused(bench: Bench) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="64 bytes"):
        await bench.produce(pb.ProduceRequest(sequence=1, frames=frames(b"1"), producer=bytes(65)))
    assert await bench.stored() == []
