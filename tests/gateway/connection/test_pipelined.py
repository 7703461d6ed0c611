"""Packets sent before SUBACK came: each SUBSCRIBE and UNSUBSCRIBE counts by itself, in the order sent."""

import asyncio

import pytest

from gateway.node.node import Node
from gateway.topics.subscribe_request import SubscribeRequest
from store.api import Store, StoredSubscription
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.connection.test_slow_disk import slow_disk
from tests.gateway.crash import crashed
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBLISH, SUBACK, UNSUBACK, Packet, RawClient
from tests.gateway.session.test_durable import durable, publish
from tests.waiting import until


async def answers(client: RawClient, count: int) -> dict[int, tuple[int, int]]:
    """By packet id: the kind of an answer, and its (last) reason code."""
    found: dict[int, tuple[int, int]] = {}
    while len(found) < count:
        packet = await client.packet()
        assert packet.kind in (SUBACK, UNSUBACK), packet
        found[packet.packet_id] = packet.kind, packet.body[-1]
    return found


@pytest.mark.mqtt5("3.10.4-2", "3.10.4-4")
@pytest.mark.parametrize("name", [b"t", b"t/#", b"$share/g/t"])
@pytest.mark.parametrize("clean", [False, True])
async def test_unsubscribed_before_its_suback_is_gone(node: Node, name: bytes, clean: bool) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, clean, expiry=0 if clean else 100)
    client.send(wire.subscribe(5, 1, (name, 1)), wire.unsubscribe(5, 2, name), wire.unsubscribe(5, 3, name))
    assert await answers(client, 3) == {1: (SUBACK, 1), 2: (UNSUBACK, 0), 3: (UNSUBACK, 0x11)}
    await publish(node, b"t", b"1")
    await client.quiet()
    session = node._sessions.open_sessions[b"c"][0]
    assert not session.subscriptions
    assert not session.subscribing.names


@pytest.mark.parametrize("name", [b"t", b"t/#", b"$share/g/t"])
async def test_subscribed_again_before_its_suback_is_there(node: Node, name: bytes) -> None:
    client = await durable(node)
    client.send(
        wire.subscribe(5, 1, (name, 1)), wire.unsubscribe(5, 2, name), wire.subscribe(5, 3, (name, 2)), b"\xc0\x00"
    )
    kinds = []
    while len(kinds) < 4:
        kinds.append((await client.packet()).kind)
    await publish(node, b"t", b"1", qos=2)
    message = (await client.take(1))[0]
    assert (message.payload, message.qos) == (b"1", 2)


async def test_a_message_between_them_is_not_sent_by_what_is_gone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription is looked up while UNSUBSCRIBE is on its way to disk: it is not made any more, or what it sends
    would be known to nobody."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    subscriptions = Engine.subscriptions

    async def slow(engine: Engine, client_id: bytes, filters: list[bytes]) -> dict[bytes, StoredSubscription]:
        found = await subscriptions(engine, client_id, filters)
        asked.set()
        await go_on.wait()
        return found

    client = await durable(node)
    monkeypatch.setattr(Engine, "subscriptions", slow)
    client.send(wire.subscribe(5, 1, (b"t", 1)))
    await asked.wait()
    await publish(node, b"t", b"1")
    client.send(wire.unsubscribe(5, 2, b"t"), b"\xc0\x00")
    while (await client.packet()).kind != UNSUBACK:
        pass
    go_on.set()
    assert await answers_behind(client) == [SUBACK]


async def answers_behind(client: RawClient) -> list[int]:
    """Kinds of packets up to the first SUBACK, and none behind it."""
    kinds: list[int] = []
    while not kinds or kinds[-1] != SUBACK:
        packet = await client.packet()
        assert packet.kind != PUBLISH, packet
        kinds.append(packet.kind)
    await client.quiet()
    return [kind for kind in kinds if kind in (SUBACK, PUBACK)]


async def test_the_later_of_two_subscribes_wins_though_it_starts_slower(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has another filter that replays the past, which takes a while; the first is done meanwhile."""
    go_on = asyncio.Event()
    find = SubscribeRequest.find_start

    async def slow(request: SubscribeRequest, store: Store, delivered_end: int, is_durable: bool) -> None:
        await go_on.wait()
        await find(request, store, delivered_end, is_durable)

    monkeypatch.setattr(SubscribeRequest, "find_start", slow)
    node = await make_node()
    await publish(node, b"past/1", b"old")
    client = await durable(node)
    client.send(wire.subscribe(5, 1, (b"t", 0)), wire.subscribe(5, 2, (b"t", 1), (b"$replay/earliest/past/#", 1)))
    kinds: list[int] = [(await client.packet()).kind]
    go_on.set()
    while kinds.count(SUBACK) < 2 or PUBLISH not in kinds:
        packet = await client.packet()
        kinds.append(packet.kind)
        if packet.kind == PUBLISH:
            assert client.parse(packet).payload == b"old"
    await publish(node, b"t", b"1")
    message = client.parse(await next_message(client))
    assert (message.payload, message.qos) == (b"1", 1)
    again = await crashed(make_node, node, "copy")
    client = await durable(again)
    assert {m.payload for m in await client.take(2)} == {b"old", b"1"}


async def next_message(client: RawClient) -> Packet:
    while (packet := await client.packet()).kind != PUBLISH:
        pass
    return packet


# --- behind messages: what a connection sends counts in its order


@pytest.mark.mqtt5("3.3.1-5", "3.3.1-6")
@pytest.mark.mqtt311("3.3.1-5", "3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("clean", [False, True])
async def test_subscribe_does_not_overtake_the_end_of_a_retained_message(
    node: Node, version: int, qos: int, clean: bool
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    await client.publish(b"t", b"old", retain=True)
    client.send(
        wire.publish(version, b"t", b"", qos, 2, retain=True), wire.subscribe(version, 3, (b"t", 1)), b"\xc0\x00"
    )
    kinds = []
    while SUBACK not in kinds or PINGRESP not in kinds:
        kinds.append((await client.packet()).kind)
    assert sorted(kinds) == sorted([PUBACK] * qos + [SUBACK, PINGRESP])
    await client.quiet()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("clean", [False, True])
async def test_unsubscribe_does_not_overtake_a_message(node: Node, version: int, qos: int, clean: bool) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    await client.subscribe((b"t", 0))
    client.send(wire.publish(version, b"t", b"last", qos, 2), wire.unsubscribe(version, 3, b"t"))
    kinds = {(await client.packet()).kind for _ in range(2 + qos)}
    assert kinds == {PUBLISH, UNSUBACK, *[PUBACK] * qos}
    await publish(node, b"t", b"more")
    await client.quiet()


async def test_what_is_behind_a_waiting_subscribe_waits_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what comes in later reads, and what ends the connection."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, True)
    connection = node._sessions.open_sessions[b"c"][1]
    go_on = slow_disk(monkeypatch)
    client.send(wire.publish(5, b"t", b"1", 1, 1))
    while not connection.uncommitted:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.send(wire.subscribe(5, 2, (b"t", 0)), wire.publish(5, b"t", b"2", 1, 3), wire.unsubscribe(5, 4, b"t"))
    while not connection.awaits_commit:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.send(b"\xc0\x00" + wire.publish(5, b"t", b"3", 1, 5) + b"\xc0\x01\x00")
    for _ in range(100):
        await asyncio.sleep(0)
    go_on.set()
    packets = []
    while not packets or packets[-1].kind != 14:
        packets.append(await client.packet())
    assert [packet.packet_id for packet in packets if packet.kind in (PUBACK, SUBACK, UNSUBACK)][:4] == [1, 2, 3, 4]
    (message,) = [client.parse(packet) for packet in packets if packet.kind == PUBLISH]
    assert message.payload == b"2"
    assert packets[-1].body[0] == 0x81


@pytest.mark.mqtt5("3.14.4-3")
@pytest.mark.parametrize("end", ["network", "takeover"])
@pytest.mark.parametrize("is_durable", [False, True])
async def test_what_waits_behind_a_message_counts_when_the_connection_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch, end: str, is_durable: bool
) -> None:
    """A device leaves with one write. Its last message is published, UNSUBSCRIBE counts, and its will is dropped."""
    watcher = await RawClient.connect(node.ports.mqtt, b"w")
    await watcher.subscribe((b"will", 1), (b"status", 1))
    expiry = 100 if is_durable else 0
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not is_durable, expiry=expiry, will=(b"will", b"lost"))
    await client.subscribe((b"commands", 1))
    connection = node._sessions.open_sessions[b"c"][1]
    go_on = slow_disk(monkeypatch)
    client.send(
        wire.publish(5, b"t", b"1", 1, 1)
        + wire.unsubscribe(5, 2, b"commands")
        + wire.publish(5, b"status", b"offline", 0)
        + b"\xe0\x00"
    )
    await until(lambda: connection.awaits_commit)
    if end == "network":
        connection.transport.abort()
        await until(lambda: connection.closed)
        again = None
    else:
        again = asyncio.create_task(RawClient.connect(node.ports.mqtt, b"c", 5, clean=False, expiry=100))
        await until(lambda: connection.closed)
    go_on.set()
    message = await watcher.message()
    assert (message.topic, message.payload) == (b"status", b"offline")
    await publish(node, b"commands", b"go")
    other = await (again or RawClient.connect(node.ports.mqtt, b"c", 5, clean=False, expiry=100))
    await other.quiet()
    await watcher.quiet()


# --- messages of the same client right behind its SUBSCRIBE


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", [b"t", b"#", b"$share/g/t"])
@pytest.mark.parametrize("clean", [False, True])
async def test_a_subscription_gets_what_its_client_publishes_before_suback(
    node: Node, version: int, qos: int, granted: int, topic_filter: bytes, clean: bool
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    client.send(wire.subscribe(version, 1, (topic_filter, granted)), wire.publish(version, b"t", b"new", qos, 2))
    packets = [await client.packet()]
    while packets[-1].kind != SUBACK:
        packets.append(await client.packet())
    await publish(node, b"t", b"later", qos=2)
    while packets[-1].kind != PUBLISH or client.parse(packets[-1]).payload != b"later":
        packets.append(await client.packet())
    messages = [client.parse(packet) for packet in packets if packet.kind == PUBLISH]
    expected = [(b"new", min(qos, granted)), (b"later", granted)]
    assert [(message.payload, message.qos) for message in messages] == expected


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("clean", [False, True])
async def test_retained_values_come_before_what_is_published_before_suback(
    node: Node, granted: int, retain: bool, clean: bool
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, clean, expiry=0 if clean else 100)
    await client.publish(b"other", b"old", retain=True)
    await client.publish(b"t", b"old", retain=True)
    client.send(wire.subscribe(5, 1, (b"#", granted)), wire.publish(5, b"t", b"new", 1, 2, retain=retain))
    packets = [await client.packet()]
    while packets[-1].kind != PUBLISH or client.parse(packets[-1]).payload != b"new":
        packets.append(await client.packet())
    await publish(node, b"t", b"later")
    while packets[-1].kind != PUBLISH or client.parse(packets[-1]).payload != b"later":
        packets.append(await client.packet())
    messages = [client.parse(packet) for packet in packets if packet.kind == PUBLISH]
    found = [(message.topic, message.payload, message.retain) for message in messages]
    assert [each for each in found if each[1] != b"old"] == [(b"t", b"new", False), (b"t", b"later", False)]
    values = [(b"other", b"old", True), (b"t", b"old", True)]
    assert found[:-2] == values or (retain and found[:-2] == values[:1])  # it may be replaced before it is read


@pytest.mark.parametrize("topic_filter", [b"t", b"#"])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
@pytest.mark.parametrize("retain_handling", [0, 2])
@pytest.mark.parametrize("clean", [False, True])
async def test_a_message_behind_two_subscribes_of_one_filter_comes_once(
    node: Node, topic_filter: bytes, first: int, second: int, retain_handling: int, clean: bool
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, clean, expiry=0 if clean else 100)
    options = [qos | retain_handling << 4 for qos in (first, second)]
    subscribes = [wire.subscribe(5, number, (topic_filter, each)) for number, each in enumerate(options, 1)]
    client.send(*subscribes, wire.publish(5, b"t", b"new", 2, 3))
    packets = [await client.packet()]
    while [packet.kind for packet in packets].count(SUBACK) < 2:
        packets.append(await client.packet())
    await publish(node, b"t", b"later", qos=2)
    while packets[-1].kind != PUBLISH or client.parse(packets[-1]).payload != b"later":
        packets.append(await client.packet())
    messages = [client.parse(packet) for packet in packets if packet.kind == PUBLISH]
    assert [message.payload for message in messages] == [b"new", b"later"]
    assert messages[0].qos in (first, second)  # the first may be made when the second is not
    assert messages[1].qos == second
