"""Replays with an end, and replayed messages that say when and where they were stored."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable

import pytest

from gateway.node.node import Node
from gateway.topics.replay_range import ReplayPlace, parse_bounds
from store.log.writer import clock_ms
from tests.gateway.auth.test_rules import alice
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.delivery.test_replay import EVER, NOW, engine_of, numbers, payloads, publish
from tests.gateway.mqtt import wire
from tests.gateway.people import set_rules, set_user
from tests.gateway.raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, Message, RawClient, ack
from tests.waiting import patience, until

INFO = wire.pair(b"replay-info", b"1")


def end_of(message: Message) -> dict[str, object]:
    """What the message says that ends a replay."""
    assert (message.topic, message.qos, message.retain, message.dup) == (b"$replay/end", 0, False, False)
    found: dict[str, object] = json.loads(message.payload)
    return found


async def take_replay(client: RawClient) -> tuple[list[Message], dict[str, object]]:
    """The messages of a replay, acknowledged, and what its end says."""
    found: list[Message] = []
    while not found or found[-1].topic != b"$replay/end":
        found += await client.take(1)
    return found[:-1], end_of(found[-1])


def places(message: Message) -> dict[bytes, int]:
    """What a replayed message says of itself."""
    properties = wire.properties(message.properties)
    pairs = [value for identifier, value in properties if identifier == 0x26 and isinstance(value, tuple)]
    return {name: int(value) for name, value in pairs if name.startswith(b"replay-")}


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        (b"earliest..now", (ReplayPlace(), ReplayPlace(None, NOW))),
        (b"-60..-30", (ReplayPlace(None, NOW - 60_000), ReplayPlace(None, NOW - 30_000))),
        (b"-60..2030-01-01", (ReplayPlace(None, NOW - 60_000), ReplayPlace(None, 1_893_456_000_000))),
        (b"offset:3..offset:3", (ReplayPlace(3), ReplayPlace(3))),
        (b"offset:3..1000", (ReplayPlace(3), ReplayPlace(None, 1000))),
        (b"5..offset:9", (ReplayPlace(None, 5), ReplayPlace(9))),
        *[(words, None) for words in (b"..", b"..now", b"-60..", b"-30..-60", b"offset:4..offset:3", b"1...2")],
        *[
            (words, None)
            for words in (b"now..now", b"-60..earliest", b"1..2..3", b"x..now", b"-5..x", b"9999-01-01..now")
        ],
    ],
)
def test_the_meaning_of_from_and_to(words: bytes, bounds: tuple[ReplayPlace, ReplayPlace] | None) -> None:
    assert parse_bounds(words, b"t", NOW) == bounds


def test_offsets_are_of_one_topic() -> None:
    assert parse_bounds(b"earliest..offset:3", b"t/+", NOW) is None


@pytest.mark.parametrize("topic_filter", [b"home/bath", b"home/+", b"#"])
@pytest.mark.parametrize("expiry", [0, EVER])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_replay_ends_at_the_present(node: Node, version: int, expiry: int, topic_filter: bytes) -> None:
    await publish(node, b"home/bath", *numbers(0, 500))
    properties = {"expiry": expiry} if version == 5 else {}
    client = await RawClient.connect(node.ports.mqtt, b"c", version, expiry == 0, **properties)
    name = b"$replay/earliest..now/" + topic_filter
    assert await client.subscribe((name, 1)) == b"\1"
    messages, end = await take_replay(client)
    assert payloads(messages) == numbers(0, 500)
    assert {(m.topic, m.qos, m.retain, m.dup) for m in messages} == {(b"home/bath", 1, False, False)}
    following = {} if topic_filter != b"home/bath" else {"next": "offset:500"}
    assert end == {"replay": name.decode(), "messages": 500, "lost": 0, **following}
    await publish(node, b"home/bath", b"live")
    await client.quiet()
    session = node._sessions.open_sessions[b"c"][0]
    assert not session.subscriptions.values()
    assert not session.bounded_replays
    reasons = await client.unsubscribe(name)
    assert reasons == (b"\x11" if version == 5 else b"")


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_between_two_times(node: Node, topic_filter: bytes) -> None:
    engine = engine_of(node)
    times = []
    for first in (0, 5, 10):
        await publish(node, b"a/b", *numbers(first, first + 5))
        times.append(engine._views.store_time + 1)
        await until(functools.partial(lambda at: clock_ms() > at, times[-1]))
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"$replay/%d..%d/" % (times[0], times[1]) + topic_filter, 0))
    assert payloads((await take_replay(client))[0]) == numbers(5, 10)
    await client.subscribe((b"$replay/%d..9999-01-01/" % times[1] + topic_filter, 0))
    assert payloads((await take_replay(client))[0]) == numbers(10, 15)


async def test_a_client_continues_where_the_last_replay_ended(node: Node) -> None:
    await publish(node, b"a/b", *numbers(0, 10))
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"$replay/offset:2..offset:5/a/b", 1))
    messages, end = await take_replay(client)
    assert payloads(messages) == numbers(2, 5)
    await client.subscribe((b"$replay/%b..offset:99/a/b" % str(end["next"]).encode(), 1))
    messages, end = await take_replay(client)
    assert payloads(messages) == numbers(5, 10)
    assert end["next"] == "offset:10"


@pytest.mark.parametrize("topic_filter", [b"nothing", b"nothing/#"])
async def test_a_replay_of_nothing_ends_at_once(node: Node, topic_filter: bytes) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    words = wire.pair(b"replay", b"-60..now")
    assert await client.subscribe((topic_filter, 1), properties=words) == b"\1"
    messages, end = await take_replay(client)
    assert not messages
    assert (end["replay"], end["messages"]) == (f"$replay/-60..now/{topic_filter.decode()}", 0)


async def test_what_ends_before_it_begins_is_refused(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    assert await client.subscribe((b"$replay/-30..-60/a", 1)) == b"\x8f"
    assert await client.subscribe((b"a", 1), properties=wire.pair(b"replay", b"-30..-60")) == b"\x83"
    assert await client.subscribe((b"$share/g/a", 1), properties=wire.pair(b"replay", b"-60..now")) == b"\x83"


@pytest.mark.parametrize("expiry", [0, EVER])
@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_beside_a_subscription_of_the_same_filter(node: Node, topic_filter: bytes, expiry: int) -> None:
    await publish(node, b"a/b", *numbers(0, 50))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry, receive_maximum=10)
    await client.subscribe((topic_filter, 1))
    name = b"$replay/earliest..now/" + topic_filter
    await client.subscribe((name, 1))
    first = [await client.message() for _ in range(10)]
    assert await client.unsubscribe(name) == b"\0"
    client.send(*[ack(PUBACK, m.packet_id) for m in first])
    await client.quiet()
    await publish(node, b"a/b", b"live")
    assert payloads(await client.take(1)) == [b"live"]
    await client.subscribe((name, 1))
    messages, _ = await take_replay(client)
    assert payloads(messages) == [*numbers(0, 50), b"live"]


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_unsubscribing_the_filter_ends_its_replays(node: Node, topic_filter: bytes) -> None:
    """As MQTT-3.10.4-2 has it: a replay by the property has no other filter."""
    await publish(node, b"a/b", *numbers(0, 50))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=5)
    await client.subscribe((topic_filter, 1), properties=wire.pair(b"replay", b"earliest..now"))
    open_ones = [await client.message() for _ in range(5)]
    assert await client.unsubscribe(topic_filter) == b"\0"
    client.send(*[ack(PUBACK, m.packet_id) for m in open_ones])
    await client.quiet()


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_unsubscribing_ends_a_read_that_is_under_way(
    node: Node, monkeypatch: pytest.MonkeyPatch, topic_filter: bytes
) -> None:
    await publish(node, b"a/b", *numbers(0, 5))
    engine = engine_of(node)
    waiting, going_on = asyncio.Event(), asyncio.Event()

    def paused(method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*arguments: object) -> object:
            found = await method(*arguments)
            waiting.set()
            await going_on.wait()
            return found

        return call

    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    monkeypatch.setattr(
        engine,
        "read" if topic_filter == b"a/#" else "fetch",
        paused(engine.read if topic_filter == b"a/#" else engine.fetch),
    )
    name = b"$replay/-60..now/" + topic_filter
    await client.subscribe((name, 1))
    async with patience():
        await waiting.wait()
    assert await client.unsubscribe(name) == b"\0"
    going_on.set()
    await client.subscribe((b"$replay/-60..now/other", 1))
    messages, end = await take_replay(client)  # they are served one after the other
    assert (messages, end["replay"]) == ([], "$replay/-60..now/other")


async def test_a_replay_with_an_end_reports_what_retention_removed(make_node: MakeNode) -> None:
    settings = {"store__segment_size": 80 << 10, "mqtt__max_packet_size": 8000, "store__retention_bytes": 1}
    node = await make_node(**settings)
    await publish(node, b"a/b", *[bytes(4000)] * 60)
    engine = engine_of(node)
    await engine._retention.enforce()
    begin = (await engine.bounds(b"ta/b")).begin
    assert begin > 0
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"$replay/offset:0..now/a/b", 1))
    messages, end = await take_replay(client)
    assert (len(messages), end["messages"], end["lost"]) == (60 - begin, 60 - begin, begin)
    await client.subscribe((b"$replay/offset:0..offset:1/a/b", 1))
    messages, end = await take_replay(client)
    assert (len(messages), end["lost"], end["next"]) == (0, 1, "offset:1")


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_a_repeated_subscribe_continues(node: Node, topic_filter: bytes) -> None:
    await publish(node, b"a/b", *numbers(0, 50))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=5)
    name = b"$replay/earliest..now/" + topic_filter
    await client.subscribe((name, 1))
    open_ones = [await client.message() for _ in range(5)]
    assert await client.subscribe((name, 0)) == b"\0"
    client.send(*[ack(PUBACK, m.packet_id) for m in open_ones])
    messages, end = await take_replay(client)
    assert payloads(open_ones + messages) == numbers(0, 50)
    assert {m.qos for m in messages} == {0}
    assert end["messages"] == 50


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
async def test_a_lost_connection_ends_the_replay_but_no_exchange(
    make_node: MakeNode, topic_filter: bytes, killed: bool
) -> None:
    """QoS 2 in a persistent session: what was sent is finished, and nothing follows."""
    node = await make_node()
    await publish(node, b"a/b", *numbers(0, 20), qos=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=4)
    await client.subscribe((b"$replay/earliest..now/" + topic_filter, 2))
    sent = [await client.message() for _ in range(4)]
    client.send(ack(PUBREC, sent[0].packet_id))
    await client.expect(PUBREL)
    if killed:
        node = await crashed(make_node, node, "after")
    else:
        await client.drop()
        await until(lambda: b"c" not in node._sessions.open_sessions)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=EVER, receive_maximum=4)
    assert client.session_present
    assert (await client.expect(PUBREL)).packet_id == sent[0].packet_id
    client.send(ack(PUBCOMP, sent[0].packet_id))
    again = [await client.message() for _ in range(3)]
    expected = [(m.payload, m.packet_id, True, False) for m in sent[1:]]
    assert [(m.payload, m.packet_id, m.dup, m.retain) for m in again] == expected
    for message in again:
        client.send(ack(PUBREC, message.packet_id))
        await client.expect(PUBREL)
        client.send(ack(PUBCOMP, message.packet_id))
    await client.quiet()


async def test_only_wildcard_filters_count_against_the_limit(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_replays=2)
    await publish(node, b"a/b", *numbers(0, 300))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=1)
    names = [b"$replay/-60..now/a/b", b"$replay/-61..now/a/b", b"$replay/-60..now/a/+"]
    names += [b"$replay/-61..now/a/+", b"$replay/-62..now/a/+", b"$replay/-60/a/#"]
    client.send(wire.subscribe(5, 1, *[(name, 1) for name in names]))
    packet = await client.packet()
    assert packet.kind == SUBACK
    assert packet.body[-6:] == b"\1\1\1\1\x97\x97"


async def test_rules_are_those_of_the_filter(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["anonymous", "password"], mqtt__acl_default="deny")
    await set_user(node, "alice", b"wonderland")
    await set_rules(node, "alice", "allow both public/#")
    client = await alice(node, receive_maximum=1)
    for _ in range(2):
        await client.publish(b"public/a", b"1")
    assert await client.subscribe((b"$replay/earliest..now/#", 1)) == b"\x87"
    assert await client.subscribe((b"$replay/earliest..now/public/#", 1)) == b"\1"
    await client.message()
    await set_rules(node, "alice", "allow subscribe other")
    assert (await client.expect(DISCONNECT)).reason == 0x87


@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/#"])
@pytest.mark.parametrize("expiry", [0, EVER])
@pytest.mark.parametrize("words", [b"earliest", b"earliest..now"])
async def test_replayed_messages_say_where_they_were_stored(
    node: Node, words: bytes, expiry: int, topic_filter: bytes
) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    own = wire.pair(b"unit", b"K")
    for number in range(3):
        await publisher.publish(b"a/b", b"%d" % number, properties=own)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not expiry, expiry=expiry)
    await client.subscribe((b"$replay/" + words + b"/" + topic_filter, 1), properties=INFO)
    messages = await client.take(3)
    assert all(m.properties.startswith(own) for m in messages)
    engine = engine_of(node)
    stored = [await engine.message(places(m)[b"replay-position"]) for m in messages]
    assert [frame.endswith(m.payload) for frame, m in zip(stored, messages, strict=True)] == [True] * 3
    assert [places(m)[b"replay-time"] for m in messages] == sorted(places(m)[b"replay-time"] for m in messages)
    assert abs(places(messages[0])[b"replay-time"] - engine._views.store_time) < 60_000
    offsets = [places(m).get(b"replay-offset") for m in messages]
    assert offsets == ([0, 1, 2] if topic_filter == b"a/b" else [None] * 3)
    if words == b"earliest":
        await publisher.publish(b"a/b", b"live", properties=own)
        assert (await client.take(1))[0].properties == own


async def test_only_sessions_that_ask_get_the_position_of_a_message(node: Node) -> None:
    """Two sessions share what is read; one of them has asked."""
    await publish(node, b"a/b", *numbers(0, 5))
    for name, asks in ((b"c", True), (b"d", False), (b"e", True)):
        client = await RawClient.connect(node.ports.mqtt, name, 5, False, expiry=EVER)
        await client.subscribe((b"$replay/earliest/a/b", 1), properties=INFO if asks else b"")
        assert {bool(places(m)) for m in await client.take(5)} == {asks}
