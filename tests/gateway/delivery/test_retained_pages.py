"""Many retained values for a new subscription: they come in pages, and what is published meanwhile follows."""

import pytest

from gateway.delivery import retained
from gateway.node.node import Node
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBLISH, SUBACK, UNSUBACK, Message, RawClient, ack
from tests.gateway.topics.test_delayed import HeldClock, engine_of


async def keep(node: Node, count: int) -> None:
    """Topics `r/00000` and so on, each with a retained value."""
    publisher = await RawClient.connect(node.ports.mqtt, b"keeper")
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        publisher.send(*[wire.publish(4, b"r/%05d" % i, b"old", 1, i - start + 1, retain=True) for i in numbers])
        for _ in numbers:
            await publisher.expect(PUBACK)
    await publisher.disconnect()


async def come(node: Node, durable: bool, window: int) -> RawClient:
    return await RawClient.connect(
        node.ports.mqtt, b"c", 5, not durable, expiry=100 if durable else 0, receive_maximum=window
    )


async def held_up(client: RawClient, *requests: tuple[bytes, int]) -> Message:
    """Subscribe; the first retained value, which nobody acknowledges for now."""
    client.send(wire.subscribe(5, 1, *requests))
    packets = [await client.packet(), await client.packet()]
    assert {packet.kind for packet in packets} == {SUBACK, PUBLISH}
    return client.parse(next(packet for packet in packets if packet.kind == PUBLISH))


@pytest.mark.mqtt5("3.3.1-9", "4.6.0-5")
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("window", [1, 3])
async def test_messages_wait_for_all_values(node: Node, durable: bool, window: int) -> None:
    await keep(node, 200)
    client = await come(node, durable, window)
    client.send(wire.subscribe(5, 1, (b"r/+", 1), (b"other", 1)))
    await client.expect(SUBACK)
    first = [await client.message() for _ in range(window)]
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    published = [b"r/00150", b"r/00000", b"other"]
    for topic in published:
        await publisher.publish(topic, b"new")
    client.send(*[ack(PUBACK, message.packet_id) for message in first])
    messages = first + await client.take(203 - window)
    await client.quiet()
    values = [(b"r/%05d" % i, b"old", True) for i in range(200)]
    assert [(m.topic, m.payload, m.retain) for m in messages[:200]] == values
    news = [(m.topic, m.payload, m.retain) for m in messages[200:]]
    assert sorted(news) == sorted((topic, b"new", False) for topic in published)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_value_replaced_meanwhile_comes_once_as_a_live_message(node: Node, durable: bool) -> None:
    await keep(node, 50)
    client = await come(node, durable, 1)
    first = await held_up(client, (b"r/+", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"r/00040", b"new", retain=True)
    await publisher.publish(b"r/00041", b"", retain=True)
    client.send(ack(PUBACK, first.packet_id))
    messages = [first, *await client.take(50 - 1)]
    await client.quiet()
    assert [(m.payload, m.retain) for m in messages if m.topic == b"r/00040"] == [(b"new", False)]
    assert [(m.payload, m.retain) for m in messages if m.topic == b"r/00041"] == [(b"", False)]
    assert len({m.topic for m in messages}) == 50


@pytest.mark.mqtt5("3.3.1-9")
@pytest.mark.parametrize("durable", [False, True])
async def test_a_delayed_retained_message_released_meanwhile_comes_once(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """Its record is older than the subscription; what lets it in is not."""
    clock = HeldClock(monkeypatch)
    node = await make_node()
    await keep(node, 50)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic in (b"r/00040", b"r/00060"):
        await publisher.publish(b"$delayed/9/" + topic, b"new", 1, 1, retain=True)
    client = await come(node, durable, 1)
    first = await held_up(client, (b"r/+", 1))
    clock.now_ms += 10_000
    await engine_of(node).release_due()
    client.send(ack(PUBACK, first.packet_id))
    messages = [first, *await client.take(50)]
    await client.quiet()
    assert sorted((m.topic, m.retain) for m in messages if m.payload == b"new") == [
        (b"r/00040", False),
        (b"r/00060", False),
    ]
    assert len({m.topic for m in messages}) == 51


@pytest.mark.parametrize("durable", [False, True])
async def test_values_that_are_published_right_behind_the_subscription_come_once(node: Node, durable: bool) -> None:
    """In one write: they are committed before SUBACK goes out."""
    client = await come(node, durable, 10)
    values = [wire.publish(5, b"r/a", b"v%d" % i, 1, i + 2, retain=True) for i in range(3)]
    client.send(wire.subscribe(5, 1, (b"r/#", 2)), *values)
    messages: list[Message] = []
    for _ in range(7):  # with SUBACK and three of PUBACK
        packet = await client.packet()
        if packet.kind == PUBLISH:
            messages.append(client.parse(packet))
            client.send(ack(PUBACK, messages[-1].packet_id))
    assert [(m.payload, m.retain) for m in messages] == [(b"v%d" % i, False) for i in range(3)]
    await client.quiet()


@pytest.mark.parametrize("durable", [False, True])
async def test_unsubscribing_ends_a_long_retained_answer(node: Node, durable: bool) -> None:
    await keep(node, 100)
    client = await come(node, durable, 1)
    first = await held_up(client, (b"r/+", 1), (b"r/00099", 1))
    client.send(wire.unsubscribe(5, 2, b"r/+"))
    await client.expect(UNSUBACK)
    client.send(ack(PUBACK, first.packet_id))
    (last,) = await client.take(1)
    assert (last.topic, last.retain) == (b"r/00099", True)
    await client.quiet()
    await client.unsubscribe(b"r/00099", packet_id=3)
    assert (await held_up(client, (b"r/+", 1))).topic == b"r/00000"  # once more, from the beginning


async def test_no_more_is_read_than_there_is_room_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(node, 300)
    engine = node._engine
    assert isinstance(engine, Engine)
    read = engine.retained
    limits: list[int] = []

    async def watched(topic_filter: bytes, after: bytes | None, limit: int) -> object:
        limits.append(limit)
        return await read(topic_filter, after, limit)

    monkeypatch.setattr(engine, "retained", watched)
    client = await come(node, False, 5)
    await held_up(client, (b"r/+", 1))
    for _ in range(4):
        await client.message()
    await client.quiet()
    assert sum(limits) == 5
    limits.clear()
    other = await RawClient.connect(node.ports.mqtt, b"o")
    other.send(wire.subscribe(4, 1, (b"r/+", 0)))
    await other.expect(SUBACK)
    for _ in range(300):
        await other.message()
    assert limits[:4] == [8, 16, 32, 64]
    assert max(limits) == 64


async def test_large_values_are_read_a_few_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "_PAGE_BYTES", 20_000)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for number in range(40):
        await publisher.publish(b"r/%05d" % number, bytes(5000), retain=True)
    engine = node._engine
    assert isinstance(engine, Engine)
    read = engine.retained
    limits: list[int] = []

    async def watched(topic_filter: bytes, after: bytes | None, limit: int) -> object:
        limits.append(limit)
        return await read(topic_filter, after, limit)

    monkeypatch.setattr(engine, "retained", watched)
    client = await RawClient.connect(node.ports.mqtt, b"o")
    client.send(wire.subscribe(4, 1, (b"r/+", 0)))
    await client.expect(SUBACK)
    for _ in range(40):
        await client.message()
    assert limits[0] == 8
    assert set(limits[1:]) == {3}


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_hundred_thousand_retained_messages_are_delivered(node: Node, qos: int) -> None:
    """All of them come, others are served meanwhile, and the node holds a window of them."""
    await keep(node, 100_000)
    client = await come(node, False, 100)
    client.send(wire.subscribe(5, 1, (b"#", qos)))
    await client.expect(SUBACK)
    other = await RawClient.connect(node.ports.mqtt, b"other")
    seen: list[bytes] = []
    while len(seen) < 100_000:
        (message,) = await client.take(1)
        assert message.retain
        seen.append(message.topic)
        if len(seen) % 20_000 == 0:
            other.send(b"\xc0\x00")
            await other.expect(PINGRESP)
            session = node._sessions.open_sessions[b"c"][0]
            assert len(session.exchanges.inflight) <= 100
            assert len(session.retained) <= 1
    assert seen == [b"r/%05d" % number for number in range(100_000)]
    await client.quiet()
