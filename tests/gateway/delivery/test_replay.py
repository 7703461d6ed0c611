"""Replay: a subscription that begins with the earliest message, at a time or an offset, and comes to the present."""

import asyncio

import pytest

from gateway.mqtt.reasons import ReasonCode
from gateway.node.node import Node
from gateway.session.session import Session
from gateway.topics.replay_range import ReplayPlace, parse_start, split_replay
from record import split, store_time_of
from store.api import Chunk
from store.engine import Engine
from store.errors import StoreFailed
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.mqtt import wire
from tests.gateway.raw import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Message,
    RawClient,
    ack,
)
from tests.waiting import patience, until

NOW = 1_700_000_000_000
EVER = 0xFFFF_FFFF


def engine_of(node: Node) -> Engine:
    assert node._engine is not None
    return node._engine


async def publish(node: Node, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"")
    for payload in payloads:
        await client.publish(topic, payload, qos)
    await client.disconnect()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def subscribe(version: int, topic_filter: bytes, words: bytes, qos: int = 1, packet_id: int = 1) -> bytes:
    """Version 5 says it by the property, 3.1.1 by the filter."""
    if version == 4:
        return wire.subscribe(4, packet_id, (b"$replay/" + words + b"/" + topic_filter, qos))
    block = wire.sized(wire.pair(b"replay", words))
    return wire.packet(0x82, wire.u16(packet_id) + block + wire.text(topic_filter) + bytes([qos]))


async def replay(client: RawClient, topic_filter: bytes, words: bytes, qos: int = 1) -> bytes:
    """Subscribe, and return the reason codes."""
    client.send(subscribe(client.version, topic_filter, words, qos))
    reply = await client.expect(SUBACK)
    return wire.split_sized(reply.body[2:])[1] if client.version == 5 else reply.body[2:]


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (b"earliest", ReplayPlace(None, 0)),
        (b"offset:0", ReplayPlace(0)),
        (b"offset:17", ReplayPlace(17)),
        (b"-3600", ReplayPlace(None, NOW - 3_600_000)),
        (b"1700000000000", ReplayPlace(None, NOW)),
        (b"2023-11-14T22:13:20Z", ReplayPlace(None, NOW)),
        (b"2023-11-14T22:13:20", ReplayPlace(None, NOW)),
        (b"2023-11-14T23:13:20.500+01:00", ReplayPlace(None, NOW + 500)),
        (b"-99999999999999999", ReplayPlace(None, 0)),
        (b"0001-01-01", ReplayPlace(None, 0)),
        *[(words, None) for words in (b"", b"latest", b"-", b"offset:", b"offset:-1", b"offset:x", b"1.5", b"9" * 30)],
        *[(words, None) for words in (b"--5", b"+5", b"2023-13-01", b"\xd9\xa7", b"offset:" + b"9" * 30)],
    ],
)
def test_the_start_of_a_replay_is_parsed(words: bytes, place: ReplayPlace | None) -> None:
    assert parse_start(words, b"t", NOW) == place


def test_an_offset_is_of_one_topic() -> None:
    assert parse_start(b"offset:3", b"t/+", NOW) is None


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        (b"$replay/earliest/home/#", (b"earliest", b"home/#")),
        (b"$replay/-60//t", (b"-60", b"/t")),
        (b"home/#", (b"", b"home/#")),
        (b"$replays/x/y", (b"", b"$replays/x/y")),
        *[(name, (b"", b"")) for name in (b"$replay", b"$replay/", b"$replay/earliest", b"$replay/earliest/")],
        *[(name, (b"", b"")) for name in (b"$replay//t", b"$replay/earliest/$share/g")],
    ],
)
def test_a_replay_filter_is_split_into_from_and_filter(topic_filter: bytes, parts: tuple[bytes, bytes]) -> None:
    assert split_replay(topic_filter) == parts


@pytest.mark.parametrize("topic_filter", [b"home/bath", b"home/+", b"#"])
@pytest.mark.parametrize("expiry", [0, EVER])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_replay_delivers_the_past_then_the_present(
    node: Node, version: int, expiry: int, topic_filter: bytes
) -> None:
    await publish(node, b"home/bath", *numbers(0, 500))
    properties = {"expiry": expiry} if version == 5 else {}
    client = await RawClient.connect(node.ports.mqtt, b"c", version, expiry == 0, **properties)
    assert await replay(client, topic_filter, b"earliest") == b"\1"
    publishing = asyncio.create_task(publish(node, b"home/bath", *numbers(500, 700)))
    messages = await client.take(700)
    assert payloads(messages) == numbers(0, 700)
    assert {(m.topic, m.qos, m.retain, m.dup) for m in messages} == {(b"home/bath", 1, False, False)}
    await publishing
    await client.quiet()
    await publish(node, b"home/bath", b"live", qos=0)
    assert payloads(await client.take(1)) == [b"live"]
    session = node._sessions.open_sessions[b"c"][0]
    assert all(s.replay_cursor is None or s.replay_cursor.recorded for s in session.subscriptions.values())


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", [b"home/bath", b"home/+"])
async def test_the_quality_is_that_of_both(node: Node, topic_filter: bytes, qos: int) -> None:
    for sent in (0, 1, 2):
        await publish(node, b"home/bath", b"%d" % sent, qos=sent)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER)
    assert await replay(client, topic_filter, b"earliest", qos) == bytes([qos])
    found = [(int(m.payload), m.qos) for m in await client.take(3)]
    assert found == [(sent, min(qos, sent)) for sent in (0, 1, 2)]


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_replay_starts_at_an_offset(node: Node, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 10))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry)
    assert await replay(client, b"a/b", b"offset:7") == b"\1"
    await publish(node, b"a/b", b"10")
    assert payloads(await client.take(4)) == numbers(7, 11)
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
@pytest.mark.parametrize("words", ["time", "ago"])
async def test_a_replay_starts_at_a_time(node: Node, topic_filter: bytes, words: str) -> None:
    await publish(node, b"a/b", *numbers(0, 5))
    await asyncio.sleep(0.01)
    engine = engine_of(node)
    begin = await engine.offset_at(b"ta/b", 0)
    assert begin == 0
    await asyncio.sleep(0.01)
    start = engine._views.store_time + 5
    await publish(node, b"a/b", *numbers(5, 8))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    text = b"%d" % start if words == "time" else b"-3600"
    assert await replay(client, topic_filter, text) == b"\1"
    expected = numbers(5, 8) if words == "time" else numbers(0, 8)
    assert payloads(await client.take(len(expected))) == expected
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_a_time_to_come_is_now(node: Node, topic_filter: bytes) -> None:
    await publish(node, b"a/b", b"old")
    client = await RawClient.connect(node.ports.mqtt, b"c")
    assert await replay(client, topic_filter, b"9999-01-01") == b"\1"
    await publish(node, b"a/b", b"new")
    assert payloads(await client.take(1)) == [b"new"]


@pytest.mark.parametrize(
    ("topic_filter", "words", "reason", "reason_311"),
    [
        (b"a", b"whenever", 0x83, 0x80),
        (b"a", b"offset:5", 0x83, 0x80),  # there are none yet
        (b"a/+", b"offset:0", 0x83, 0x80),
        (b"$SYS/#", b"earliest", 0x83, 0x80),
        (b"$share/g/a", b"earliest", 0x83, 0x80),
        (b"$delayed/5/a", b"earliest", 0x8F, 0x80),
    ],
)
async def test_filters_that_cannot_be_replayed(
    node: Node, topic_filter: bytes, words: bytes, reason: int, reason_311: int
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(subscribe(5, topic_filter, words))
    reply = await client.expect(SUBACK)
    assert wire.split_sized(reply.body[2:])[1] == bytes([reason])
    assert any(identifier == 0x1F for identifier, _ in reply.properties)
    old = await RawClient.connect(node.ports.mqtt, b"d", 4)
    assert await replay(old, topic_filter, words) == bytes([reason_311])
    form = await RawClient.connect(node.ports.mqtt, b"e", 5)
    if not topic_filter.startswith(b"$") and words != b"offset:5":
        assert await form.subscribe((b"$replay/" + words + b"/" + topic_filter, 1)) == b"\x8f"


async def test_wildcard_replays_of_a_session_are_limited(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_replays=2)
    await publish(node, b"a/b", *numbers(0, 300))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=1)
    client.send(*[subscribe(5, b"a/" + b"+/" * i + b"#", b"earliest", packet_id=i + 1) for i in range(4)])
    reasons = []
    while len(reasons) < 4:
        packet = await client.packet()
        if packet.kind == SUBACK:
            reasons.append(packet.body[-1])
    assert sorted(reasons) == [1, 1, 0x97, 0x97]


async def drain(client: RawClient, count: int, window: int) -> list[Message]:
    """Messages, never more than `window` unacknowledged: the node waits for acknowledgements."""
    found: list[Message] = []
    while len(found) < count:
        batch = []
        for _ in range(min(window, count - len(found))):
            message = await client.message()
            batch.append(message)
            if message.qos == 0:
                continue
        found += batch
        await client.quiet()
        client.send(*[ack(PUBACK, m.packet_id) for m in batch if m.qos])
    return found


@pytest.mark.parametrize("expiry", [0, EVER])
@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_a_replay_keeps_to_the_receive_maximum(node: Node, topic_filter: bytes, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 60))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry, receive_maximum=5)
    await replay(client, topic_filter, b"earliest")
    await publish(node, b"a/b", *numbers(60, 80))
    assert payloads(await drain(client, 80, 5)) == numbers(0, 80)
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_the_replay_of_a_durable_session_continues_where_it_was(make_node: MakeNode, topic_filter: bytes) -> None:
    """Disconnected on the way, with messages open; the node is started anew meanwhile."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 100))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=10)
    await replay(client, topic_filter, b"earliest")
    first = await client.take(23)
    open_ones = [await client.message() for _ in range(10)]
    await client.quiet()
    await client.disconnect()
    await publish(node, b"a/b", *numbers(100, 120))
    await node.stop()
    node = await make_node()
    await publish(node, b"a/b", *numbers(120, 140))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=10)
    assert client.session_present
    again = await client.take(10)
    assert payloads(again) == payloads(open_ones)
    assert all(m.dup for m in again)
    assert [m.packet_id for m in again] == [m.packet_id for m in open_ones]
    # What a client does that subscribes on each connect: it goes on.
    rest = await client.take(5)
    client.send(subscribe(5, topic_filter, b"earliest"))
    found: list[Message] = []
    granted = False
    while len(found) < 102 or not granted:
        packet = await client.packet()
        if packet.kind == SUBACK:
            granted = True
            continue
        message = client.parse(packet)
        found.append(message)
        client.send(ack(PUBACK, message.packet_id))
    assert payloads(first + again + rest + found) == numbers(0, 140)
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_exactly_once_over_a_restart(make_node: MakeNode, topic_filter: bytes) -> None:
    """QoS 2 in a history: some complete, some with PUBREC, some just sent, when the connection breaks."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 40), qos=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=8)
    await replay(client, topic_filter, b"earliest", 2)
    seen: list[bytes] = []
    held: dict[int, bytes] = {}
    released = 0
    while released < 11:
        packet = await client.packet()
        if packet.kind == PUBREL:
            released += 1
            held.pop(packet.packet_id)
            if released <= 9:
                client.send(ack(PUBCOMP, packet.packet_id))
            continue
        message = client.parse(packet)
        assert message.packet_id not in held
        held[message.packet_id] = message.payload
        seen.append(message.payload)
        if len(seen) <= 13:
            client.send(ack(PUBREC, message.packet_id))
    await client.drop()
    await node.stop()
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=8)
    await publish(node, b"a/b", b"40", qos=2)
    while len(seen) < 41:
        packet = await client.packet()
        if packet.kind == PUBREL:
            held.pop(packet.packet_id, None)
            client.send(ack(PUBCOMP, packet.packet_id))
            continue
        message = client.parse(packet)
        if held.get(message.packet_id) != message.payload:
            assert message.packet_id not in held
            held[message.packet_id] = message.payload
            seen.append(message.payload)
        client.send(ack(PUBREC, message.packet_id))
    assert seen == numbers(0, 41)
    await client.settle()


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_exchange_that_was_recorded_is_finished_after_a_kill(make_node: MakeNode, leaves: bool) -> None:
    """The node is killed between PUBREL and PUBCOMP. PUBREL goes first afterwards, and the message comes again as a
    new one: the position recorded last lies before it."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 5), qos=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=1)
    await replay(client, b"a/#", b"earliest", 2)
    first = await client.message()
    client.send(ack(PUBREC, first.packet_id))
    await client.expect(PUBREL)
    node = await crashed(make_node, node, "after")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=1)
    assert (await client.expect(PUBREL)).packet_id == first.packet_id
    client.send(ack(PUBCOMP, first.packet_id))
    if leaves:
        await client.disconnect()
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=1)
    found = await client.take(5)
    assert [(m.payload, m.dup) for m in found] == [(number, False) for number in numbers(0, 5)]
    last = await client.expect(PUBREL)
    client.send(ack(PUBCOMP, last.packet_id))
    session = node._sessions.open_sessions[b"c"][0]
    await until(lambda: not (session.subscriptions[b"a/#"].replay_cursor is not None or session.exchanges.inflight))


async def test_after_a_kill_unacknowledged_messages_come_again(make_node: MakeNode) -> None:
    """With QoS 1 under the same packet ids, and with DUP (MQTT-3.3.1-1, MQTT-4.4.0-1)."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 30))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=10)
    await replay(client, b"a/#", b"earliest")
    before = [await client.message() for _ in range(10)]
    client.send(*[ack(PUBACK, m.packet_id) for m in before[5:]])
    await client.settle()
    node = await crashed(make_node, node, "after")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=10)
    again = [await client.message() for _ in range(10)]
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in before]
    client.send(*[ack(PUBACK, m.packet_id) for m in again])
    assert payloads(await client.take(20)) == numbers(10, 30)
    await client.quiet()


async def test_a_replay_survives_a_kill(make_node: MakeNode) -> None:
    """No last record: what was recorded on the way counts, so that some come twice and none is missing."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 50))
    engine = engine_of(node)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=4)
    await replay(client, b"a/#", b"earliest")
    await client.take(20)

    async def place() -> int:
        state = await engine.session(b"c")
        assert state is not None
        return state.subscriptions[0].replay

    before = await place()
    async with patience():
        while await place() <= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    state = await engine.session(b"c")
    assert state is not None
    assert before <= state.subscriptions[0].replay < state.subscriptions[0].start_position


async def test_beside_another_subscription_that_stays_live(node: Node) -> None:
    """The history is the new subscription's alone; the other one goes on meanwhile."""
    await publish(node, b"a/b", *numbers(0, 200))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=10)
    await client.subscribe((b"alarm", 1))
    await replay(client, b"a/#", b"earliest")
    first = await client.take(20)
    await publish(node, b"alarm", b"!")
    found = payloads(first)
    while found[-1] != b"!":
        found += payloads(await client.take(1))
    assert len(found) < 120
    while len(found) < 201:
        found += payloads(await client.take(1))
    assert [p for p in found if p != b"!"] == numbers(0, 200)
    await client.quiet()


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_messages_that_were_held_come_where_they_entered(node: Node, expiry: int) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"a/b", b"1")
    await publisher.publish(b"$delayed/1/a/b", b"3")
    await publisher.publish(b"a/b", b"2")
    watcher = await RawClient.connect(node.ports.mqtt, b"w")
    await watcher.subscribe((b"a/b", 1))
    await watcher.take(1)
    await publisher.publish(b"a/b", b"4")
    for topic_filter in (b"a/b", b"a/#"):
        client = await RawClient.connect(node.ports.mqtt, b"c" + topic_filter[2:], 5, not expiry, expiry=expiry)
        await replay(client, topic_filter, b"earliest")
        assert payloads(await client.take(4)) == numbers(1, 5)
        await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_retained_values_come_in_their_place_and_once(node: Node, topic_filter: bytes) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for number in numbers(0, 3):
        await publisher.publish(b"a/b", number, retain=True)
    client = await RawClient.connect(node.ports.mqtt, b"c", 4)
    await replay(client, topic_filter, b"earliest")
    assert [(m.payload, m.retain) for m in await client.take(3)] == [(n, False) for n in numbers(0, 3)]
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
@pytest.mark.parametrize("expiry", [0, EVER])
async def test_unsubscribing_ends_a_replay(node: Node, topic_filter: bytes, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 100))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry, receive_maximum=5)
    await replay(client, topic_filter, b"earliest")
    open_ones = [await client.message() for _ in range(5)]
    # Either name will do.
    assert await client.unsubscribe(b"$replay/earliest/" + topic_filter) == b"\0"
    client.send(*[ack(PUBACK, m.packet_id) for m in open_ones])
    await client.quiet()
    assert await client.unsubscribe(topic_filter) == b"\x11"
    # And it may begin anew.
    await replay(client, topic_filter, b"earliest")
    assert payloads(await client.take(100)) == numbers(0, 100)


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_unsubscribing_before_a_replay_begins(node: Node, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 10))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry)
    client.send(subscribe(5, b"a/#", b"earliest"), wire.unsubscribe(5, 2, b"a/#"))
    kinds = [(await client.packet()).kind for _ in range(2)]
    assert sorted(kinds) == [SUBACK, UNSUBACK]
    await publish(node, b"a/b", b"new")
    await client.quiet()
    assert not node._sessions.open_sessions[b"c"][0].subscriptions


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_log_that_cannot_be_read_closes_the_connection(
    node: Node, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    await publish(node, b"a/b", *numbers(0, 10))
    engine = engine_of(node)
    read = engine.read

    async def fails(position: int, size: int) -> Chunk:
        raise StoreFailed("not now")

    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry)
    monkeypatch.setattr(engine, "read", fails)
    await replay(client, b"a/#", b"earliest")
    assert (await client.expect(DISCONNECT)).body[0] == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    monkeypatch.setattr(engine, "read", read)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry)
    if not expiry:
        await replay(client, b"a/#", b"earliest")
    assert payloads(await client.take(10)) == numbers(0, 10)


async def test_reclaimed_messages_of_a_replay_are_counted(make_node: MakeNode) -> None:
    node = await make_node(store__segment_size=80 << 10, mqtt__max_packet_size=8000, store__retention_bytes=1)
    await publish(node, b"a/b", *[b"%d" % i + b"." * 2000 for i in range(100)])
    await engine_of(node)._retention.enforce()
    begin = (await engine_of(node).bounds(b"ta/b")).begin
    assert begin > 0
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await replay(client, b"a/b", b"offset:0")
    messages = await client.take(100 - begin)
    assert [int(m.payload.rstrip(b".")) for m in messages] == list(range(begin, 100))
    assert node.counters.dropped_reclaimed == begin
    other = await RawClient.connect(node.ports.mqtt, b"d", 5)
    await replay(other, b"a/#", b"-3600")
    assert [int(m.payload.rstrip(b".")) for m in await other.take(100 - begin)] == list(range(begin, 100))


@pytest.mark.parametrize("stays", [True, False])
async def test_a_replay_continues_behind_messages_that_retention_removed(make_node: MakeNode, stays: bool) -> None:
    """All that was left of the history is gone: the subscription goes on with its queue at once."""
    node = await make_node(
        store__segment_size=68 << 10, store__retention_bytes=1, store__partitions=1, mqtt__max_packet_size=1024
    )
    await publish(node, b"a/b", *numbers(0, 3))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=1)
    await replay(client, b"a/+", b"earliest")
    first = await client.message()
    history_end = node._sessions.open_sessions[b"c"][0].subscriptions[b"a/+"].replay_cursor
    assert history_end is not None
    if not stays:
        await client.drop()
    await publish(node, b"a/b", *[b"%d" % i + b"." * 900 for i in range(3, 203)])
    await engine_of(node)._retention.enforce()
    assert engine_of(node).stats().log_begin > history_end.end
    begin = (await engine_of(node).bounds(b"ta/b")).begin
    assert 3 < begin < 203
    if stays:
        client.send(ack(PUBACK, first.packet_id))
    else:
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER)
    assert [int(m.payload.rstrip(b".")) for m in await client.take(203 - begin)] == list(range(begin, 203))
    await publish(node, b"a/b", b"new")
    assert payloads(await client.take(1)) == [b"new"]
    await client.quiet()


async def test_a_replay_leaves_out_messages_beyond_the_age_of_their_parent(make_node: MakeNode) -> None:
    node = await make_node(store__retention_parents={"young": 1, "old": 1_000_000})
    for topic in (b"young/t", b"old/t"):
        await publish(node, topic, b"1")
    engine = engine_of(node)
    async with patience():
        while await engine.retention_floor(b"young") <= engine._views.store_time:
            await asyncio.sleep(0.1)
            await engine._retention.enforce()
    await publish(node, b"young/t", b"2")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await replay(client, b"#", b"earliest")
    assert [(m.topic, m.payload) for m in await client.take(2)] == [(b"old/t", b"1"), (b"young/t", b"2")]
    await client.quiet()


async def test_the_position_of_a_time(make_node: MakeNode) -> None:
    """Over many segments, at every store time there is."""
    node = await make_node(store__segment_size=80 << 10, mqtt__max_packet_size=8000)
    engine = engine_of(node)
    client = await RawClient.connect(node.ports.mqtt, b"p")
    for i in range(120):
        await client.publish(b"a", b"." * 3000, 1, i + 1)
    times: dict[int, int] = {}
    position, end = 0, engine.stats().log_end
    while position < end:
        chunk = await engine.read(position, 1 << 16)
        for start in split(chunk.data):
            times.setdefault(store_time_of(chunk.data, start), chunk.position + start)
        position = chunk.next_position
    assert len(times) > 5
    for store_time, first in times.items():
        assert await engine.position_at(store_time) == first
        behind = [at for other, at in times.items() if other > store_time]
        assert await engine.position_at(store_time + 1) == (behind[0] if behind else end)
    assert await engine.position_at(0) == 0
    assert await engine.position_at(1 << 60) == end


@pytest.fixture
async def crowd(node: Node) -> Node:
    await publish(node, b"a/b", *numbers(0, 300))
    return node


async def test_many_sessions_replay_at_once(crowd: Node) -> None:
    clients = [await RawClient.connect(crowd.ports.mqtt, b"c%d" % i, 4 + i % 2) for i in range(20)]
    for client in clients:
        client.send(subscribe(client.version, b"a/+", b"earliest"))
    for client in clients:
        await client.expect(SUBACK)
        assert payloads(await client.take(300)) == numbers(0, 300)
    assert crowd.counters.messages_replayed == 6000


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+"])
@pytest.mark.parametrize("expiry", [0, EVER])
async def test_replayed_messages_are_counted(node: Node, topic_filter: bytes, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 7), bytes(200))
    limit = b"\x27" + (100).to_bytes(4, "big")  # maximum packet size
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry, properties=limit)
    await replay(client, topic_filter, b"earliest")
    await client.take(7)
    await until(lambda: node.counters.dropped_oversized == 1)
    await client.quiet()  # the replay has ended, so the next message is not one of it
    await publish(node, b"a/b", b"new")
    assert payloads(await client.take(1)) == [b"new"]
    assert node.counters.messages_replayed == 7


async def test_a_replay_of_qos_0_that_is_asked_for_more(node: Node) -> None:
    """SUBSCRIBE with QoS 1 in the middle: the past goes on with QoS 0, and from there on nothing is missing."""
    await publish(node, b"a/b", *numbers(0, 400))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=5)
    replays = node._sessions._catch_up._replays
    run = asyncio.Event()
    serve = replays._serve

    async def slow(session: Session) -> None:
        await run.wait()
        await serve(session)

    replays._serve = slow  # type: ignore[method-assign]
    await replay(client, b"a/+", b"earliest", 0)
    assert await client.subscribe((b"a/+", 1), packet_id=2) == b"\1"
    await publish(node, b"a/b", *numbers(400, 420))
    run.set()
    found = [await client.message() for _ in range(405)]
    assert [(int(m.payload), m.qos) for m in found] == [(i, int(i >= 400)) for i in range(405)]
    await client.drop()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=5)
    assert payloads(await client.take(20)) == numbers(400, 420)
    await publish(node, b"a/b", b"new")
    assert payloads(await client.take(1)) == [b"new"]
    session = node._sessions.open_sessions[b"c"][0]
    assert session.subscriptions[b"a/+"].replay_cursor is None
    await client.quiet()
