"""The `$SYS` tree: current values at once, then what changes, to who is connected; in no log, and nobody else's."""

from time import monotonic

import pytest

from gateway.broker.sys_topics import _Load
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBLISH, SUBACK, Message, RawClient
from tests.waiting import until

NAMES = {
    *(b"version", b"uptime", b"clients/connected", b"clients/maximum", b"messages/received", b"messages/sent"),
    *(b"publish/messages/received", b"publish/messages/sent", b"publish/messages/dropped", b"bytes/received"),
    *(b"subscriptions/count", b"store/messages/bytes"),
}


async def values(client: RawClient) -> dict[bytes, Message]:
    """The messages received so far, by topic; each topic once."""
    found: dict[bytes, Message] = {}
    client.send(b"\xc0\x00")
    while (packet := await client.packet()).kind != PINGRESP:
        assert packet.kind == PUBLISH
        message = client.parse(packet)
        assert message.topic not in found
        found[message.topic] = message
    return found


@pytest.fixture
async def quiet_node(make_node: MakeNode) -> Node:
    """Looks at its figures when a test says so."""
    return await make_node(mqtt__sys_interval_s=86_400)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_subscriber_gets_all_values_at_once(quiet_node: Node, version: int) -> None:
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", version)
    await client.subscribe((b"$SYS/#", 2))
    found = await values(client)
    assert {name.removeprefix(b"$SYS/broker/") for name in found} >= NAMES
    assert all(m.retain and m.qos == 0 for m in found.values())
    assert found[b"$SYS/broker/version"].payload == b"sluice 0.1.0"
    assert found[b"$SYS/broker/uptime"].payload == b"0 seconds"


async def test_later_figures_are_those_that_changed(quiet_node: Node) -> None:
    tree = quiet_node._sessions.sys_topics
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 5)
    await client.subscribe((b"$SYS/broker/+/+/received", 0), (b"$SYS/broker/clients/#", 0))
    await values(client)
    tree.publish_changes(monotonic())
    assert {name: m.payload for name, m in (await values(client)).items()} == {
        b"$SYS/broker/clients/connected": b"1",
        b"$SYS/broker/clients/maximum": b"1",
        b"$SYS/broker/clients/total": b"1",
    }
    other = await RawClient.connect(quiet_node.ports.mqtt, b"d")
    await other.publish(b"t", b"")
    await other.disconnect()
    tree.publish_changes(monotonic())
    found = await values(client)
    assert {name: (m.payload, m.retain) for name, m in found.items()} == {
        b"$SYS/broker/publish/messages/received": (b"1", False)
    }
    tree.publish_changes(monotonic())
    assert not await values(client)


async def test_figures_of_clients_retained_messages_and_bytes(quiet_node: Node) -> None:
    """Clients that are here and away, retained values, bytes to clients."""
    tree = quiet_node._sessions.sys_topics
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 5)
    wanted = (
        b"clients/connected",
        b"clients/disconnected",
        b"clients/total",
        b"retained messages/count",
        b"bytes/sent",
    )
    await client.subscribe(*[(b"$SYS/broker/" + name, 0) for name in wanted])
    await values(client)
    here = await RawClient.connect(quiet_node.ports.mqtt, b"here", 4, False)
    for client_id in (b"away", b"away too"):
        await (await RawClient.connect(quiet_node.ports.mqtt, client_id, 4, False)).disconnect()
    for topic in (b"a", b"b", b"c"):
        await client.publish(topic, b"value", retain=True)
    await client.publish(b"a", b"another", retain=True)
    await client.publish(b"b", b"", retain=True)
    await until(lambda: all(name not in quiet_node._sessions.open_sessions for name in (b"away", b"away too")))
    await values(client)
    tree.publish_changes(monotonic())
    found = {name.removeprefix(b"$SYS/broker/"): m.payload for name, m in (await values(client)).items()}
    assert int(found.pop(b"bytes/sent")) > 100
    assert found == {
        b"clients/connected": b"2",
        b"clients/disconnected": b"2",
        b"clients/total": b"4",
        b"retained messages/count": b"2",
    }
    await here.disconnect()


async def test_the_figures_are_published_at_intervals(make_node: MakeNode) -> None:
    node = await make_node(mqtt__sys_interval_s=1)
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"$SYS/broker/uptime", 0))
    first, second, third = [int((await client.message()).payload.split()[0]) for _ in range(3)]
    assert first < second < third


async def test_an_interval_of_0_disables_the_tree(make_node: MakeNode) -> None:
    node = await make_node(mqtt__sys_interval_s=0)
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"$SYS/#", 0))
    await client.quiet()


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
async def test_wildcards_at_the_front_do_not_match_the_tree(quiet_node: Node) -> None:
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c")
    await client.subscribe((b"#", 0), (b"+/broker/#", 0), (b"+/broker/uptime", 0))
    quiet_node._sessions.sys_topics.publish_changes(monotonic() + 60)
    await client.quiet()


async def test_figures_are_not_stored_or_queued(quiet_node: Node) -> None:
    engine = quiet_node._engine
    assert engine is not None
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 4, False)
    await client.subscribe((b"$SYS/broker/uptime", 1))
    await values(client)
    await client.disconnect()
    messages = engine.stats().messages
    for seconds in (60, 120, 180):
        quiet_node._sessions.sys_topics.publish_changes(monotonic() + seconds)
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 4, False)
    await client.quiet()
    quiet_node._sessions.sys_topics.publish_changes(monotonic() + 240)
    assert [m.payload for m in (await values(client)).values()] == [b"240 seconds"]
    assert engine.stats().messages == messages == 0


async def test_options_of_a_subscription_hold(quiet_node: Node) -> None:
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 5)
    topic = wire.text(b"$SYS/broker/uptime")
    identifier = wire.sized(b"\x0b\x07")
    client.send(wire.packet(0x82, wire.u16(1) + identifier + topic + bytes([0x28])))  # as published, none retained
    await client.expect(SUBACK)
    await client.quiet()
    quiet_node._sessions.sys_topics.publish_changes(monotonic() + 60)
    (message,) = (await values(client)).values()
    assert (message.retain, wire.properties(message.properties)) == (True, [(0x0B, 7)])


async def test_a_full_socket_gets_none_and_that_is_counted(quiet_node: Node) -> None:
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c")
    await client.subscribe((b"$SYS/broker/uptime", 0))
    await values(client)
    connection = quiet_node._sessions.open_sessions[b"c"][1]
    connection.congested = True
    quiet_node._sessions.sys_topics.publish_changes(monotonic() + 60)
    connection.congested = False
    await client.quiet()
    assert quiet_node.counters.dropped_qos0 == 1


async def test_clients_cannot_publish_to_the_tree(quiet_node: Node) -> None:
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"$SYS/broker/uptime", b"", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87
    old = await RawClient.connect(quiet_node.ports.mqtt, b"d")
    await old.publish(b"$SYS/broker/uptime", b"mine")  # acknowledged, and dropped
    assert quiet_node.counters.messages_refused == 2


async def test_subscriptions_are_counted(quiet_node: Node) -> None:
    router = quiet_node._sessions._router
    client = await RawClient.connect(quiet_node.ports.mqtt, b"c", 5)
    await client.subscribe((b"a", 0), (b"b/+", 1))
    await client.subscribe((b"a", 1))
    assert router.subscriptions == 2
    await client.unsubscribe(b"a", b"x")
    assert router.subscriptions == 1
    await client.disconnect()
    await until(lambda: not router.subscriptions)


def test_averages_come_to_a_steady_rate() -> None:
    load = _Load()
    total = 0
    for _ in range(600):
        total += 20
        one, five, fifteen = load.add(total, 10)
    assert one == pytest.approx(120, rel=0.001)
    assert five == pytest.approx(120, rel=0.001)
    assert fifteen == pytest.approx(120, rel=0.01)
    assert load.add(total, 60)[0] == pytest.approx(120 * 0.3679, rel=0.001)


async def test_figures_are_numbers_that_a_gateway_can_send(quiet_node: Node) -> None:
    figures = quiet_node._sessions.sys_topics.figures()
    assert figures["messages_received"] == 0
    assert {type(each) for each in figures.values()} == {int}
