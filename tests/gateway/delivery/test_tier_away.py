"""A node whose tier does not answer: who reads old messages waits, and everybody else is served."""

from pathlib import Path

import grpc
import pytest

from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.node.node import Node
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.http.test_front import get
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient
from tests.waiting import until

OLD = 1000
REPLAY = b"$replay/earliest/home/#"


async def make(make_node: MakeNode, path: Path) -> Node:
    return await make_node(
        store__segment_size=68 << 10,
        store__partitions=1,
        store__tail_cache_bytes=0,
        mqtt__max_packet_size=1024,
        tier__store=f"file://{path}/tier",
        tier__retention_local_bytes=0,
        tier__cache_bytes=0,
    )


async def publish(client: RawClient, first: int, end: int) -> None:
    for number in range(first, end):
        client.send(wire.publish(4, b"home/t", b"%06d" % number + bytes(200), 1, number + 1))
    for _ in range(first, end):
        await client.expect(PUBACK)


async def move(engine: Engine) -> None:
    """Have all segments that are closed in the tier, and only there."""
    await engine._checkpointed()
    tiering = engine._retention._tiering
    assert tiering is not None
    await tiering.run_once()
    await engine._retention.enforce()
    assert engine._segments.begin == engine._segments.base_of(engine._log.end) > 0


@pytest.mark.parametrize("way", ["session", "replay", "shared"])
async def test_old_messages_come_when_the_tier_is_back(make_node: MakeNode, tmp_path: Path, way: str) -> None:
    node = await make(make_node, tmp_path)
    engine = node._engine
    assert engine is not None
    if way != "replay":
        waiting = await RawClient.connect(node.ports.mqtt, b"waiting", 5, False, expiry=0xFFFF_FFFF)
        await waiting.subscribe((b"home/#" if way == "session" else b"$share/g/home/#", 1))
        await waiting.drop()
        await until(lambda: b"waiting" not in node._sessions.open_sessions)
    publisher = await RawClient.connect(node.ports.mqtt, b"publisher")
    await publish(publisher, 0, OLD)
    await move(engine)
    (tmp_path / "tier").rename(tmp_path / "away")
    waiting = await RawClient.connect(node.ports.mqtt, b"waiting", 5, False, expiry=0xFFFF_FFFF)
    if way == "replay":
        await waiting.subscribe((REPLAY, 1))
    live = await RawClient.connect(node.ports.mqtt, b"live")
    await live.subscribe((b"home/#", 1))
    await publish(publisher, OLD, OLD + 10)
    assert [int(message.payload[:6]) for message in await live.take(10)] == [*range(OLD, OLD + 10)]
    tier = engine._tier
    assert tier is not None
    await until(lambda: tier.error)
    assert '"tier": "failing"' in (await get(node, "/health"))[1]
    (tmp_path / "away").rename(tmp_path / "tier")
    found = {int(message.payload[:6]) for message in await waiting.take(OLD + 10)}
    assert found == {*range(OLD + 10)}


async def test_a_pull_of_old_messages_is_told_to_come_again(make_node: MakeNode, tmp_path: Path) -> None:
    node = await make(make_node, tmp_path)
    engine = node._engine
    assert engine is not None
    publisher = await RawClient.connect(node.ports.mqtt, b"publisher")
    await publish(publisher, 0, OLD)
    await move(engine)
    (tmp_path / "tier").rename(tmp_path / "away")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        stub = SluiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Pull(pb.PullRequest(parent="home", partition=0, offset=0, max_records=1))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        found = await stub.Pull(pb.PullRequest(parent="home", partition=0, offset=OLD - 1, max_records=1))
        assert found.count == 1
