"""Retained values that a persistent session is owed: they go on where a connection, or the node, broke off."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

import record
from gateway.management.areas.clients import ClientsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from record.layout import Kind
from store import control
from store.api import Appended, PendingRetained
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.delivery.test_retained_pages import keep
from tests.gateway.device import EVER, Device
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBLISH, SUBACK, RawClient, ack
from tests.waiting import patience, until

TOPICS = [b"r/%05d" % number for number in range(60)]


async def keep_twice(node: Node, count: int) -> None:
    """As `keep`, of QoS 2."""
    publisher = await RawClient.connect(node.ports.mqtt, b"keeper")
    for topic in TOPICS[:count]:
        await publisher.publish(topic, topic, 2, retain=True)
    await publisher.disconnect()


async def owed(node: Node) -> list[PendingRetained]:
    assert node._engine is not None
    state = await node._engine.session(b"c")
    assert state is not None
    return state.pending_retained


async def noted(node: Node) -> None:
    """Wait until all changes of the session are in the log."""
    session = node._sessions.open_sessions[b"c"][0]
    async with patience():
        while session.changed or session.exchanges.staging or not await owed(node):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def settled(node: Node) -> None:
    """Nothing is owed any more."""
    async with patience():
        while await owed(node):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def come(node: Node, window: int = 3) -> RawClient:
    return await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=window)


async def broken(make_node: MakeNode, node: Node, client: RawClient, how: str) -> Node:
    if how == "disconnect":
        client.send(b"\xe0\x00")
        while await client.reader.read(1 << 16):  # what was on its way
            pass
    elif how == "drop":
        await client.drop()
    elif how == "restart":
        await node.stop()
        node = await make_node()
    elif how == "crash":
        await noted(node)
        node = await crashed(make_node, node, "after")
    return node  # or taken over


async def subscribed(client: RawClient, *requests: tuple[bytes, int], packet_id: int = 1) -> None:
    client.send(wire.subscribe(5, packet_id, *requests))
    await client.expect(SUBACK)


@pytest.mark.mqtt5("3.1.2-5", "4.4.0-1")
@pytest.mark.parametrize("how", ["disconnect", "drop", "restart", "crash", "takeover"])
async def test_the_rest_comes_to_the_next_connection(make_node: MakeNode, how: str) -> None:
    node = await make_node()
    await keep(node, 60)
    client = await come(node)
    await subscribed(client, (b"r/+", 1))
    first = await client.take(20)
    open_ones = [await client.message()]
    await noted(node)
    node = await broken(make_node, node, client, how)
    client = await come(node)
    rest: list[bytes] = []
    while len(set(rest) | {m.topic for m in first}) < 60:
        (message,) = await client.take(1)
        assert message.retain
        assert message.dup or message.topic not in {m.topic for m in first + open_ones}
        rest.append(message.topic)
    assert rest == sorted(rest)
    assert len(rest) <= 43
    await settled(node)
    client = await come(node)
    await client.quiet()
    assert not node._sessions.open_sessions[b"c"][0].retained


@pytest.mark.mqtt5("4.3.3-3")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_retained_messages_of_qos_2_come_once_over_random_interruptions(make_node: MakeNode, seed: int) -> None:
    chance = random.Random(seed)
    node = await make_node()
    await keep_twice(node, 40)
    device = Device(node.ports.mqtt, b"c", 5, [1, 4, 10][seed % 3])
    await device.connect()
    await device.subscribe(b"r/+", 2)
    await noted(node)
    for number in range(10):
        for _ in range(chance.randrange(6)):
            await device.poll()
            device.acknowledge(chance.randrange(6))
        how = chance.choice(["crash", "disconnect", "drop"])
        if how == "crash":
            node = await crashed(make_node, node, f"after{number}")
            await device.killed()
            device.port = node.ports.mqtt
        else:
            await (device.disconnect() if how == "disconnect" else device.drop())
        await device.connect()
    async with patience():
        while len(device.seen) < 40 or device.owed or device.held or device.unsettled or device.earlier:
            device.acknowledge(len(device.owed))
            await device.poll()
        await device.poll()
    assert Counter(topic for topic, _, _ in device.seen) == Counter(TOPICS[:40])
    await settled(node)


@pytest.mark.mqtt5("3.1.2-5")
async def test_a_busy_store_gets_the_remaining_records_later(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await make_node()
    await keep(node, 60)
    client = await come(node)
    engine = node._engine
    assert engine is not None
    append = engine.append

    def busy(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        fields = [record.decode(frame, 0) for frame in frames]
        if any(each[0] == Kind.RETAINED_SENT and control.RetainedSent.parse(each[6]).pending for each in fields):
            monkeypatch.undo()
            asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))
        else:
            append(frames, done)

    monkeypatch.setattr(engine, "append", busy)
    await subscribed(client, (b"r/+", 1))
    first: list[bytes] = []
    while (packet := await client.packet()).kind == PUBLISH:
        first.append(client.parse(packet).topic)
    assert (packet.kind, packet.reason) == (DISCONNECT, 0x89)
    client = await come(node)
    rest: list[bytes] = []
    while len({*first, *rest}) < 60:
        rest += [message.topic for message in await client.take(1)]
    assert len(rest) <= 60
    await settled(node)


@pytest.mark.parametrize("how", ["disconnect", "crash"])
async def test_messages_still_follow_the_values_on_the_next_connection(make_node: MakeNode, how: str) -> None:
    node = await make_node()
    await keep(node, 60)
    client = await come(node)
    await subscribed(client, (b"r/+", 1))
    first = [await client.message() for _ in range(3)]
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"r/00050", b"new")
    client.send(*[ack(PUBACK, message.packet_id) for message in first])
    seen = [(m.topic, m.payload) for m in await client.take(5)]
    node = await broken(make_node, node, client, how)
    await publisher.drop()
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"r/00051", b"away")
    await publisher.publish(b"r/00052", b"kept", retain=True)
    client = await come(node)
    news = [(b"r/00050", b"new"), (b"r/00051", b"away"), (b"r/00052", b"kept")]
    while not set(news) <= set(seen):
        seen += [(m.topic, m.payload) for m in await client.take(1)]
    await client.quiet()
    assert [each for each in seen if each[1] != b"old"] == news
    assert all(payload == b"old" for _, payload in seen[:-3])
    assert {topic for topic, _ in seen} >= set(TOPICS[3:])
    assert (b"r/00052", b"old") not in seen


async def test_unsubscribing_ends_an_unfinished_retained_answer(make_node: MakeNode) -> None:
    node = await make_node()
    await keep(node, 60)
    client = await come(node, 1)
    await subscribed(client, (b"r/+", 1))
    message = await client.message()
    await noted(node)
    assert await client.unsubscribe(b"r/+", packet_id=2) == b"\0"
    assert not await owed(node)
    client.send(ack(PUBACK, message.packet_id))
    await client.disconnect()
    client = await come(node, 1)
    await client.quiet()


async def test_subscribing_again_restarts_the_answer_and_qos_0_drops_it(node: Node) -> None:
    await keep(node, 60)
    client = await come(node, 5)
    await subscribed(client, (b"r/+", 1))
    await client.take(10)
    open_ones = [await client.message() for _ in range(5)]
    await noted(node)
    client.send(wire.subscribe(5, 2, (b"r/+", 0)))
    while (await client.packet()).kind != SUBACK:
        pass
    client.send(*[ack(PUBACK, message.packet_id) for message in open_ones])
    topics = set()
    while len(topics) < 60:
        packet = await client.packet()
        if packet.kind == PUBLISH:
            topics.add(client.parse(packet).topic)
    await settled(node)


async def test_a_value_on_its_way_that_is_reclaimed_meanwhile_is_counted_for_the_session(make_node: MakeNode) -> None:
    node = await make_node(
        store__segment_size=68 << 10, store__retention_bytes=1, store__partitions=1, mqtt__max_packet_size=1024
    )
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic in TOPICS[:3]:
        await publisher.publish(topic, b"value", retain=True)
    client = await come(node, 2)
    await subscribed(client, (b"r/+", 1))
    for _ in range(2):
        await client.message()
    await client.disconnect()
    for number in range(200):
        await publisher.publish(b"other", bytes(900), 1, number + 1)
    assert node._engine is not None
    await node._engine._retention.enforce()
    client = await come(node, 2)
    (message,) = await client.take(1)  # the values are kept, and what is still owed of them comes
    assert message.topic == TOPICS[2]
    row = await ClientsService(node._engine, node._sessions).get_client(pb.GetClientRequest(client_id="c"), NODE_USER)
    assert row.dropped.reclaimed == 2


@pytest.mark.mqtt5("4.1.0-1", "4.4.0-1")
@pytest.mark.parametrize("count", [2, 5])
async def test_the_last_values_are_not_forgotten_before_they_are_acknowledged(make_node: MakeNode, count: int) -> None:
    """Nor are those of a request that is answered at once."""
    node = await make_node()
    await keep(node, count)
    client = await come(node)
    await subscribed(client, (b"r/+", 1))
    first = [await client.message() for _ in range(min(count, 3))]
    if count > 3:
        await noted(node)
        client.send(*[ack(PUBACK, message.packet_id) for message in first])
        first = [await client.message() for _ in range(count - 3)]
        await settled(node)
    session = node._sessions.open_sessions[b"c"][0]
    await until(lambda: not (session.retained or session.changed or session.exchanges.staging))
    other = await RawClient.connect(node.ports.mqtt, b"other")
    await other.publish(b"other", b"")  # the log has it, and the record that is before it
    node = await crashed(make_node, node, "after")
    client = await come(node)
    again = await client.take(len(first))
    assert [(m.packet_id, m.topic, m.dup, m.retain) for m in again] == [
        (m.packet_id, m.topic, True, True) for m in first
    ]
    await client.quiet()
