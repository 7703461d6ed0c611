"""Hostile gRPC clients: they read no replies, send malformed requests and call unknown methods."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_sdk import Client, OutgoingMessage
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rocketmq.proto import rocketmq_pb2 as rocketmq
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import ReplyBudgets, reply_budget
from gateway.rpc.status import RequestError
from store.config import StoreConfig
from store.engine import Engine
from tests.waiting import PATIENCE_S, patience

ROCKET = "/apache.rocketmq.v2.MessagingService/"
METHODS = [
    (f"/{service.full_name}/{method.name}", method)
    for module in (pb, rocketmq)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


class Call:
    """A call's context."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.done: list[Callable[[object], None]] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.done.append(callback)

    def end(self) -> None:
        for callback in self.done:
            callback(self)


async def looked(unread: ReplyBudgets, call: Call, size: int) -> None:
    unread.open(call)
    async with reply_budget() as budget:
        budget.add(size)


async def test_a_connection_with_unread_replies_gets_no_more() -> None:
    unread = ReplyBudgets(100)
    calls = [Call("a") for _ in range(3)]
    for call in calls[:2]:
        await asyncio.create_task(looked(unread, call, 60))
    with pytest.raises(RequestError, match="has to read first: it has 120 bytes"):
        await asyncio.create_task(looked(unread, calls[2], 1))
    await asyncio.create_task(looked(unread, Call("b"), 1))  # another one
    calls[0].end()
    await asyncio.create_task(looked(unread, Call("a"), 1))


async def test_connections_without_calls_use_no_memory() -> None:
    unread = ReplyBudgets(100)
    calls = [Call("a"), Call("a"), Call("b")]
    for call in calls:
        await asyncio.create_task(looked(unread, call, 10))
    for call in calls:
        call.end()
    assert not unread._connections


async def test_few_calls_of_a_connection_read_at_a_time() -> None:
    unread, looking, go_on = ReplyBudgets(1), [], asyncio.Event()

    async def look(number: int) -> None:
        unread.open(Call("a"))
        async with reply_budget():
            looking.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(look(number)) for number in range(40)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(looking) == 16
    go_on.set()
    await asyncio.gather(*tasks)
    assert len(looking) == 40


@pytest.fixture
async def port(tmp_path: Path) -> Any:
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0), RpcLimits(max_unread_bytes=100_000))
    yield await server.start("127.0.0.1", 0)
    await server.stop(0.2)
    await engine.close()


async def test_only_the_connection_that_does_not_read_is_refused(port: int) -> None:
    codecs = (rocketmq.ReceiveMessageRequest.SerializeToString, rocketmq.ReceiveMessageResponse.FromString)
    metadata = (("x-mq-client-id", "c"),)
    request = rocketmq.ReceiveMessageRequest(group=rocketmq.Resource(name="g"), batch_size=8)
    request.message_queue.topic.name = "home"
    request.long_polling_timeout.FromSeconds(0)
    window = (("grpc.http2.bdp_probe", 0),)  # stays at 64 KiB, and does not grow to what the network holds
    endpoint = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(endpoint, options=window) as channel, Client(endpoint) as other:
        receive = channel.unary_stream(ROCKET + "ReceiveMessage", *codecs)
        assert len([each async for each in receive(request, metadata=metadata)]) == 1  # the group begins
        await other.send_many([OutgoingMessage("home/t", bytes(60_000)) for _ in range(16)])
        stalled = aiter(receive(request, metadata=metadata, timeout=60))
        assert (await anext(stalled)).status.code == rocketmq.OK
        (refused,) = [each async for each in receive(request, metadata=metadata)]
        assert refused.status.code == rocketmq.TOO_MANY_REQUESTS
        pulled = rocketmq.PullMessageRequest(group=request.group, message_queue=request.message_queue)
        codecs = (rocketmq.PullMessageRequest.SerializeToString, rocketmq.PullMessageResponse.FromString)
        (refused,) = [each async for each in channel.unary_stream(ROCKET + "PullMessage", *codecs)(pulled)]
        assert refused.status.code == rocketmq.TOO_MANY_REQUESTS
        stub = SluiceStub(channel)
        for call in (
            stub.Pull(pb.PullRequest(parent="home")),
            stub.Receive(pb.ReceiveRequest(parent="home", group="h", invisible_ms=1)),
            stub.Find(pb.FindRequest(parent="home", key="k")),
            stub.Find(pb.FindRequest(position=0)),
            stub.Topics(pb.TopicsRequest()),
            stub.Children(pb.ChildrenRequest()),
            stub.Timers(pb.TimersRequest()),
        ):
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with other.consumer("other", "home") as consumer:  # another connection
            assert len(await consumer.batch(5)) == 16
        assert len([each async for each in stalled]) == 9  # what it asked for, and the time
        async with patience():
            # Repeat until the node knows that the call is over.
            while len([each async for each in receive(request, metadata=metadata)]) < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def outcome(channel: Any, path: str, method: Any, request: bytes) -> tuple[grpc.StatusCode, list[bytes]]:
    """The code of a call and its replies."""
    metadata, replies = (("x-mq-client-id", "c"),), []
    with suppress(grpc.aio.AioRpcError):
        if method.client_streaming:
            call = channel.stream_stream(path)(metadata=metadata, timeout=PATIENCE_S)
            await call.write(request)
            replies = [each async for each in call]
        elif method.server_streaming:
            call = channel.unary_stream(path)(request, metadata=metadata, timeout=PATIENCE_S)
            replies = [each async for each in call]
        else:
            call = channel.unary_unary(path)(request, metadata=metadata, timeout=PATIENCE_S)
            replies = [await call]
    return await call.code(), replies


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path.rpartition("/")[2] for path, _ in METHODS])
async def test_malformed_requests_are_refused_without_log_lines(
    port: int, path: str, method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        code, replies = await outcome(channel, path, method, b"\xff" * 20)
    if code is grpc.StatusCode.OK:
        kind = getattr(rocketmq, method.output_type.name)
        assert [kind.FromString(reply).status.code for reply in replies] in ([], [rocketmq.BAD_REQUEST])
        assert replies or method.name == "Telemetry"  # which ends
    else:
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


async def test_a_method_of_a_later_version_is_unimplemented(port: int, caplog: pytest.LogCaptureFixture) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(ROCKET + "SyncLiteSubscription")(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path.rpartition("/")[2] for path, _ in METHODS])
async def test_a_node_still_serves_after_cancelled_calls(port: int, path: str, method: Any) -> None:
    """A call is given up at any moment: its deadline has passed, or it is cancelled after a few turns of the loop."""
    metadata = (("x-mq-client-id", "c"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, Client(f"127.0.0.1:{port}") as client:

        async def call(timeout: float) -> None:
            if method.client_streaming:
                stream = channel.stream_stream(path)(metadata=metadata, timeout=timeout)
                await stream.write(b"")
                await stream.read()
            elif method.server_streaming:
                await channel.unary_stream(path)(b"", metadata=metadata, timeout=timeout).read()
            else:
                await channel.unary_unary(path)(b"", metadata=metadata, timeout=timeout)

        for turns in range(12):
            task = asyncio.create_task(call(20))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(call(0), call(0.0001), return_exceptions=True)
        await client.send("home/t", b"x")
        assert sum(each.end - each.begin for each in await client.partitions("home")) == 1
