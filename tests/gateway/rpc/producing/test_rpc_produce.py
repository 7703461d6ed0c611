"""Produce streams: acknowledgements, refusals, order and limits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio
import pytest

import record
from cloud_sdk import Client, InvalidArgument, OutgoingMessage, Unavailable
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authority import Authority
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.messages import MessageCheck
from record.layout import FLAG_TRACK_ID, Kind
from store.errors import RecordTooLarge, StoreBusy, StoreFailed
from tests.waiting import until


def frame(
    topic: bytes = b"home/t", payload: bytes = b"x", *, kind: int = Kind.MESSAGE, flags: int = 1, block: bytes = b""
) -> bytes:
    return record.frame(kind, flags, 0, topic, b"me", block, payload)


async def test_send_is_answered_with_its_position(client: Client, store) -> None:
    first = await client.send("home/bath/temp", b"20")
    second = await client.send("home/bath/temp", b"21")
    assert 0 <= first.position < second.position
    assert second.store_time > 0


async def test_sends_of_many_tasks_share_requests(client: Client, store) -> None:
    await client.send("home/t", b"open the stream")
    before = store.appends
    receipts = await asyncio.gather(*(client.send("home/t", b"%d" % i) for i in range(200)))
    assert len({receipt.position for receipt in receipts}) == 200
    assert store.appends - before < 10


async def test_nothing_is_answered_before_the_commit(client: Client, store) -> None:
    store.hold = True
    send = asyncio.create_task(client.send("home/t", b"x"))
    await until(lambda: store.appends == 1)
    assert not send.done()
    store.release()
    await send


async def test_each_invalid_record_is_refused_alone(store, serve) -> None:
    port = await serve(
        store, RpcLimits(max_message_bytes=500, max_user_properties=3, max_topic_length=9, max_topic_levels=4)
    )
    bad = [
        frame(b"a/b/c/d/e"),
        frame(b"a234567890"),
        frame(b"a/+"),
        frame(b""),
        frame(payload=b"x" * 600),
        frame(flags=3),
        frame(flags=1 | FLAG_TRACK_ID),
        frame(block=b"\x23\x00\x01"),
        frame(block=b"\x03\x00"),
        frame(block=b"\x26\0\0\0\0" * 4),
        record.frame(Kind.MESSAGE, 0, 0, b"t", b"\xff", b"", b""),
    ]
    frames = [frame(), *bad, frame(b"a/b/c/d")]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SluiceStub(channel).Produce(None)
        await call.write(pb.ProduceRequest(sequence=7, frames=b"".join(frames)))
        result = (await call.read()).results[0]
        assert (result.sequence, list(result.positions), result.error) == (7, [0, len(frame())], "")
        assert [each.index for each in result.rejected] == list(range(1, 12))
        assert [each.reason for each in result.rejected][:2] == [
            "the topic has 5 levels, the limit is 4",
            "the topic has 10 bytes, the limit is 9",
        ]
        for wrong in (b"junk", frame(kind=Kind.SESSION_ENDED), frame()[:-1]):
            await call.write(pb.ProduceRequest(sequence=8, frames=wrong))
            result = (await call.read()).results[0]
            assert result.sequence == 8
            assert result.error or result.rejected
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    assert sum(map(len, store.queues.values())) == 2


async def test_the_sdk_names_the_refused_message(store, serve) -> None:
    port = await serve(store, RpcLimits(max_message_bytes=500))
    async with Client(f"127.0.0.1:{port}", retry_seconds=1) as client:
        messages = [OutgoingMessage("a/b", b"x"), OutgoingMessage("a/b", b"x" * 600)]
        with pytest.raises(InvalidArgument, match="message 1: the record has"):
            await client.send_many(messages)
        await client.send("a/b", b"the stream goes on")


async def test_a_busy_store_ends_the_stream_and_nothing_overtakes(client: Client, store) -> None:
    await client.send("home/t", b"first")
    store.fail = StoreBusy("too much is waiting")
    appends = store.appends
    sends = asyncio.gather(*(client.send("home/t", b"%03d" % i) for i in range(50)))
    await until(lambda: store.appends >= appends + 2)
    store.fail = None
    later = client.send("home/t", b"later")
    await sends
    await later
    payloads = [record.decode(each, 0)[6] for queue in store.queues.values() for each in queue]
    assert payloads == [b"first", *(b"%03d" % i for i in range(50)), b"later"]


async def test_a_failed_store_is_unavailable(store, serve) -> None:
    port = await serve(store)
    store.fail = StoreFailed("the disk is gone")
    async with Client(f"127.0.0.1:{port}", retry_seconds=0.2) as client:
        with pytest.raises(Unavailable, match="the disk is gone"):
            await client.send("home/t", b"x")
        store.fail = RecordTooLarge("a segment holds less")
        with pytest.raises(InvalidArgument, match="a segment holds less"):
            await client.send("home/t", b"x")


async def test_a_stream_with_too_much_unanswered_is_not_read(store, serve) -> None:
    port = await serve(store, RpcLimits(max_unacknowledged_requests=4))
    store.hold = True
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SluiceStub(channel).Produce(None)
        for sequence in range(12):
            await call.write(pb.ProduceRequest(sequence=sequence, frames=frame()))
        await until(lambda: store.appends == 4)
        await SluiceStub(channel).Children(pb.ChildrenRequest())  # gives the node time to read on
        assert store.appends == 4
        store.release()
        answered: list[int] = []
        while len(answered) < 12:
            answered += [result.sequence for result in (await call.read()).results]
        assert answered == list(range(12))
        await call.done_writing()


async def test_a_stopping_node_answers_what_it_appended(store) -> None:
    from gateway.node.rpc_server import RpcServer

    server = RpcServer(store, Authority(store, 0))
    port = await server.start("127.0.0.1", 0)
    store.hold = True
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = SluiceStub(channel).Produce(None)
        await call.write(pb.ProduceRequest(sequence=1, frames=frame()))
        await until(lambda: store.appends == 1)
        stop = asyncio.create_task(server.stop(5))
        await asyncio.sleep(0)
        store.release()
        assert (await call.read()).results[0].sequence == 1
        await stop
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_in_use_is_an_error(store, serve) -> None:
    port = await serve(store)
    with pytest.raises(OSError, match="cannot listen"):
        await serve(store, port=port)


async def turns_during(work: Coroutine[Any, Any, Any]) -> int:
    """How often everything else on the loop has its turn while `work` runs."""
    turns = 0
    task = asyncio.create_task(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    task.result()
    return turns


async def test_a_large_request_is_checked_in_slices() -> None:
    check = MessageCheck(RpcLimits(), lambda: True)
    assert await turns_during(check.faults([frame()] * 512)) == 1
    assert await turns_during(check.faults([frame()] * 5_000)) == 10


async def test_a_large_request_keeps_its_place_in_the_stream(store, serve) -> None:
    port = await serve(store)
    sizes = [3_000, 1, 2_000, 1]
    requests = [
        pb.ProduceRequest(sequence=number, frames=frame(payload=b"%d" % number) * size)
        for number, size in enumerate(sizes)
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        results = [result async for reply in SluiceStub(channel).Produce(iter(requests)) for result in reply.results]
    assert [len(result.positions) for result in results] == sizes
    positions = [position for result in results for position in result.positions]
    assert positions == sorted(positions)
