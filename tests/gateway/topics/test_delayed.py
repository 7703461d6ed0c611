"""`$delayed/<seconds>/topic`: a message that its subscribers get later, and what is no such topic."""

import time

import pytest

import record
from cloud_sdk import Client, InvalidArgument
from gateway.node.node import Node
from gateway.topics.destination import MAX_DELAY, InvalidDestination, frame_to, parse_destination
from record.layout import FLAG_ADDRESSED, FLAG_DELAYED
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBREC, RawClient, connect

NOW = 1_700_000_000_000  # ms
EXPIRY = 0x02


def engine_of(node: Node) -> Engine:
    assert node._engine is not None
    return node._engine


class HeldClock:
    """A clock for the nodes of a test. It stands until the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = int(time.time() * 1000)
        opened = Engine.open
        monkeypatch.setattr(Engine, "open", lambda path, config: opened(path, config, clock=lambda: self.now_ms))
        for module in ("connection.handle_publish", "delivery.catch_up", "delivery.log_catch_up", "delivery.router"):
            monkeypatch.setattr(f"gateway.{module}.time", lambda: self.now_ms / 1000)


@pytest.mark.parametrize(
    ("topic", "inner", "due"),
    [
        (b"$delayed/60/home/lamp", b"home/lamp", NOW + 60_000),
        (b"$delayed/4294967/t", b"t", NOW + MAX_DELAY * 1000),
        (b"$delayed/1700000060/t", b"t", NOW + 60_000),  # a time
        (b"$delayed/0/t", b"t", None),
        (b"$delayed/1600000000/t", b"t", None),  # a time that has passed
        (b"$delayed/00007/a//b", b"a//b", NOW + 7000),
        (b"$delayed/7//t", b"/t", NOW + 7000),
        (b"$delayed/7/$own/t", b"$own/t", NOW + 7000),
    ],
)
def test_destinations_of_delayed_messages(topic: bytes, inner: bytes, due: int | None) -> None:
    where = parse_destination(topic, NOW)
    assert (where.topic, where.due_ms, where.flags) == (inner, due, 0 if due is None else FLAG_DELAYED)


def test_a_message_for_later_to_an_inbox() -> None:
    where = parse_destination(b"$delayed/7/$inbox/lamp", NOW)
    assert (where.topic, where.due_ms, where.flags) == (b"$inbox/lamp", NOW + 7000, FLAG_DELAYED | FLAG_ADDRESSED)


@pytest.mark.parametrize(
    "topic",
    [
        b"$delayed",
        b"$delayed/",
        b"$delayed/7",
        b"$delayed/7/",
        b"$delayed//t",
        b"$delayed/soon/t",
        b"$delayed/-7/t",
        b"$delayed/+7/t",
        b"$delayed/7.5/t",
        b"$delayed/\xd9\xa7/t",  # a digit, though not of ASCII
        b"$delayed/1704294968/t",  # a time beyond the longest delay
        b"$delayed/9999999999999999999/t",
        b"$delayed/7/$delayed/7/t",
        b"$delayed/7/$share/g/t",
        b"$replay/earliest/t",
        b"$share/g/t",
        b"$inbox",
        b"$inbox/",
        b"$inbox/100%",
    ],
)
def test_names_that_cannot_be_published_to(topic: bytes) -> None:
    with pytest.raises(InvalidDestination) as refused:
        parse_destination(topic, NOW)
    assert refused.value.reason == 0x90


@pytest.mark.parametrize("topic", [b"$SYS", b"$SYS/x", b"$delayed/7/$SYS/x", b"$topics/x"])
def test_names_of_the_node_are_refused(topic: bytes) -> None:
    with pytest.raises(InvalidDestination) as refused:
        parse_destination(topic, NOW)
    assert refused.value.reason == 0x87


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_message_comes_when_it_is_due_and_not_before(node: Node, version: int, qos: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    await client.subscribe((b"t", 2))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", version)
    await publisher.publish(b"$delayed/0/t", b"at once", qos)
    began = time.time()
    await publisher.publish(b"$delayed/1/t", b"later", qos, 2)
    first, second = await client.take(2)
    assert (first.payload, second.payload) == (b"at once", b"later")
    assert (second.topic, second.qos) == (b"t", qos)
    assert time.time() - began >= 1


async def test_a_delayed_message_is_stored_before_its_acknowledgement_and_survives_a_restart(
    make_node: MakeNode,
) -> None:
    node = await make_node()
    device = await RawClient.connect(node.ports.mqtt, b"d", 4, False)
    await device.subscribe((b"home/+", 1))
    await device.disconnect()
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"$delayed/2/home/lamp", b"on")
    page = await engine_of(node).timers(None, 10)
    assert [(m.topic, m.publisher) for m in page.messages] == [(b"home/lamp", b"p")]
    await node.stop()
    node = await make_node()
    device = await RawClient.connect(node.ports.mqtt, b"d", 4, False)
    assert [(m.topic, m.payload) for m in await device.take(1)] == [(b"home/lamp", b"on")]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_bad_form_is_refused_with_its_reason(node: Node, qos: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"$delayed/soon/t", b"", qos, 7))
    reply = await client.expect(PUBACK if qos == 1 else PUBREC)
    assert (reply.packet_id, reply.reason) == (7, 0x90)
    assert any(b"$delayed/<seconds>/<topic>" in value for _, value in reply.properties if isinstance(value, bytes))
    client.send(wire.publish(5, b"$delayed/soon/t", b"", 0))
    await client.quiet()
    assert node.counters.messages_refused == 2


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_bad_form_closes_a_connection_of_3_1_1(node: Node, qos: int) -> None:
    """As other topic names that are none: 3.1.1 has no other way to say so."""
    client = await RawClient.connect(node.ports.mqtt, b"c")
    client.send(wire.publish(4, b"good", b"", 1, 1), wire.publish(4, b"$delayed/soon/t", b"", qos, 2))
    client.send(wire.publish(4, b"behind", b"", 1, 3))
    data = await client.reader.read()
    assert data in (b"", wire.packet(0x40, b"\0\1"))
    assert (await engine_of(node).topics(b"", None, 10)).names in ([b"good"], [])


@pytest.mark.mqtt5("3.3.2-6")
async def test_expiry_counts_from_when_it_was_published(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"t", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    properties = bytes((EXPIRY,)) + wire.u32(1)
    await publisher.publish(b"$delayed/2/t", b"too old by then", 1, 1, False, properties)
    await publisher.publish(b"$delayed/2/t", b"young", 1, 2, False, bytes((EXPIRY,)) + wire.u32(100))
    (message,) = await client.take(1)
    assert message.payload == b"young"
    assert dict(wire.properties(message.properties))[EXPIRY] <= 98  # type: ignore[operator]
    assert node.counters.dropped_expired == 1


async def test_a_copy_of_a_message_expires_when_the_message_would(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes its record while it waits."""
    clock = HeldClock(monkeypatch)
    node = await make_node(store__segment_size=80 << 10, store__retention_bytes=1, mqtt__max_packet_size=8000)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    expiry = wire.pair(b"key", b"value") + b"\x01\x01" + bytes((EXPIRY,)) + wire.u32(100)
    await publisher.publish(b"$delayed/3/t", b"later", 1, 1, False, expiry)
    for _ in range(30):
        await publisher.publish(b"noise", b"." * 7000)
    await engine_of(node)._retention.enforce()
    assert engine_of(node).stats().log_begin > 0
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"t", 1))
    clock.now_ms += 3500
    await engine_of(node).release_due()
    (message,) = await client.take(1)
    found = wire.properties(message.properties)
    assert dict(found)[EXPIRY] == 97  # what is left of 96.5 seconds
    assert (0x26, (b"key", b"value")) in found


async def test_retain_takes_effect_when_it_is_due(node: Node) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    watcher = await RawClient.connect(node.ports.mqtt, b"w")
    await watcher.subscribe((b"t", 1))
    await publisher.publish(b"$delayed/1/t", b"state", retain=True)
    assert await engine_of(node).retained(b"#", None, 10) == []
    await watcher.take(1)
    late = await RawClient.connect(node.ports.mqtt, b"late")
    await late.subscribe((b"t", 1))
    (message,) = await late.take(1)
    assert (message.payload, message.retain) == (b"state", True)


async def test_a_topic_alias_may_stand_for_a_delayed_name(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"t", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    alias = b"\x23\x00\x01"
    await publisher.publish(b"$delayed/1/t", b"1", 1, 1, False, alias)
    await publisher.publish(b"", b"2", 1, 2, False, alias)
    assert [m.payload for m in await client.take(2)] == [b"1", b"2"]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_will_may_be_for_later(node: Node, version: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"gone", 1))
    dying = await RawClient.open(node.ports.mqtt, version)
    dying.send(connect(version, b"d", will=(b"$delayed/1/gone", b"d")))
    await dying.packet()
    await dying.drop()
    (message,) = await client.take(1)
    assert (message.topic, message.payload) == (b"gone", b"d")


async def test_a_will_of_a_bad_form_is_refused_at_connect(node: Node) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"d", will=(b"$delayed/soon/gone", b"")))
    assert (await client.packet()).reason == 0x90


async def test_exactly_once_also_for_later(make_node: MakeNode) -> None:
    """QoS 2 of a durable session: its packet id is state though the message waits."""
    node = await make_node()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 4, False)
    publisher.send(wire.publish(4, b"$delayed/60/t", b"once", 2, 9))
    await publisher.expect(PUBREC)
    await publisher.drop()
    await node.stop()
    node = await make_node()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 4, False)
    publisher.send(wire.publish(4, b"$delayed/60/t", b"once", 2, 9, dup=True))
    await publisher.expect(PUBREC)
    assert len((await engine_of(node).timers(None, 10)).messages) == 1


def test_a_record_says_when_it_is_due() -> None:
    data = frame_to(parse_destination(b"$delayed/60/t", NOW), 1, 0, b"p", b"", b"x")
    assert record.trailer_of(data, 0) == NOW + 60_000


@pytest.mark.parametrize("version", [4, 5])
async def test_no_more_wait_than_may(make_node: MakeNode, version: int) -> None:
    node = await make_node(store__max_held=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    for _ in range(2):
        await client.publish(b"$delayed/600/t", b"x")
    client.send(wire.publish(version, b"$delayed/600/t", b"x", 1, 7))
    assert (await client.expect(PUBACK)).body[2:3] == (b"\x97" if version == 5 else b"")
    client.send(wire.publish(version, b"$delayed/600/t", b"x", 2, 8))
    assert (await client.expect(PUBREC)).body[2:3] == (b"\x97" if version == 5 else b"")
    client.send(wire.publish(version, b"$delayed/600/t", b"x", 0))
    await client.publish(b"$delayed/0/t", b"at once")
    await client.publish(b"t", b"x")
    engine = engine_of(node)
    assert (node.counters.messages_unheld, engine.stats().held) == (3, 2)
    (first, _) = (await engine.timers(None, 9)).messages
    await engine.recall([first.handle])
    await client.publish(b"$delayed/600/t", b"there is room again")
    assert engine.stats().held == 2


async def test_services_get_an_error_when_too_many_messages_are_held(make_node: MakeNode) -> None:
    node = await make_node(store__max_held=1)
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        await client.send("t", b"x", deliver_after=600.0)
        with pytest.raises(InvalidArgument, match="too many delayed messages"):
            await client.send("t", b"x", deliver_after=600.0)
        await client.send("t", b"x")


async def test_a_count_of_what_waits_is_right_after_a_restart(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    for number in range(3):
        await client.publish(b"$delayed/600/t", b"x")
        await client.publish(b"r/%d" % number, b"x", retain=True)
    await node.stop()
    again = await make_node()
    assert (engine_of(again).stats().held, engine_of(again).stats().retained) == (3, 3)
