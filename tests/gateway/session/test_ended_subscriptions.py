"""A subscription ends, or gets QoS 0, while another one that overlaps has yet to pass the same messages.

Nothing is lost, and what was begun is finished. A message that was pending then may come once more."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

import record
from gateway.node.node import Node
from gateway.session.session import Session
from record.layout import Kind
from store.api import Appended
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.device import Device, Publisher, check_delivery
from tests.gateway.people import set_rules
from tests.gateway.raw import PUBCOMP, PUBREC
from tests.gateway.session.pending import pending
from tests.gateway.topics.test_delayed import engine_of

OLD, YOUNG = b"n/b", b"n/#"
GRANTED = {b"n/b": 2, b"n/c": 2}


async def start(node: Node, window: int = 100) -> tuple[Device, Publisher]:
    """A device with both subscriptions, and who publishes."""
    device = Device(node.ports.mqtt, b"d", 4, window)
    await device.connect()
    await device.subscribe(OLD, 2)
    await device.subscribe(YOUNG, 2)
    return device, Publisher(node.ports.mqtt, b"p")


async def killed(make_node: MakeNode, node: Node, device: Device, name: str = "killed") -> Node:
    node = await crashed(make_node, node, name)
    await device.killed()
    device.port = node.ports.mqtt
    return node


async def end(node: Node, device: Device, way: str) -> None:
    device.may_repeat |= await pending(node, b"d", OLD)
    if way == "UNSUBSCRIBE":
        await device.unsubscribe(OLD)
    else:
        await device.subscribe(OLD, 0)


def session_of(node: Node) -> Session:
    return node._sessions.open_sessions[b"d"][0]


async def acknowledge(device: Device, kind: int) -> None:
    """Send an acknowledgement of this kind, and no other one."""
    while not [owed for owed in device.owed if owed[0] == kind]:
        await device.poll()
    device.owed.sort(key=lambda owed: owed[0] != kind)
    device.acknowledge(1)
    await device.poll()


@pytest.mark.mqtt5("3.10.4-3", "4.3.3-3")
@pytest.mark.mqtt311("3.10.4-3", "4.3.3-1")
@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
@pytest.mark.parametrize("completes", [False, True])
async def test_exchanges_of_an_ended_subscription_are_finished(make_node: MakeNode, way: str, completes: bool) -> None:
    """The younger one passed it behind a message that is not acknowledged, so the log does not know."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b"], [1, 2])
    await device.poll()
    if completes:
        for kind in (PUBREC, PUBCOMP):
            await acknowledge(device, kind)
    await end(node, device, way)
    await killed(make_node, node, device)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)


@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
@pytest.mark.parametrize("kills", [False, True])
async def test_ending_a_subscription_right_after_a_restart(make_node: MakeNode, way: str, kills: bool) -> None:
    """Messages of QoS 2 wait to be sent again, one of QoS 1 may have been sent, and of some nothing is left to do."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b", b"n/c", b"n/b", b"n/b"], [1, 1, 2, 2, 2])
    await device.poll()
    await acknowledge(device, PUBREC)
    node = await killed(make_node, node, device)
    device.window = 1
    await device.connect()
    await end(node, device, way)
    if kills:
        await killed(make_node, node, device, "again")
        await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)


@pytest.mark.mqtt5("3.10.4-3", "4.3.2-1")
async def test_of_qos_1_nothing_is_lost_that_a_younger_one_went_past(make_node: MakeNode) -> None:
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/b", b"n/b"], [1, 1])
    await device.poll()
    node._sessions._checkpoint._record(session_of(node))
    await publisher.burst([b"other"], [1])  # that is in the log by now
    node = await killed(make_node, node, device)
    device.version, device.window = 5, 1  # it reads no more than one again before its end
    await device.connect()
    device.seen.clear()
    await end(node, device, "UNSUBSCRIBE")
    await check_delivery(device, publisher.sent[:2], GRANTED)


@pytest.mark.mqtt5("4.3.2-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_passed_with_qos_0_are_sent_by_the_other_subscription(make_node: MakeNode, qos: int) -> None:
    """Its cursor is not in the log, and sends nothing that another one sends: that is not lost with its end."""
    node = await make_node()
    device, publisher = await start(node)
    await device.subscribe(OLD, 0)
    await publisher.burst([b"n/b", b"n/b"], [qos, qos])
    await device.poll()
    await device.unsubscribe(OLD)
    await killed(make_node, node, device)
    if qos == 1:
        device.seen.clear()
    await device.connect()
    await asyncio.wait_for(check_delivery(device, publisher.sent, GRANTED), 10)


@pytest.mark.mqtt5("4.3.2-1", "4.3.3-3")
@pytest.mark.parametrize("kills", [False, True])
async def test_rules_that_end_a_subscription_leave_the_other_its_messages(make_node: MakeNode, kills: bool) -> None:
    """n/# may be subscribed to no more, and n/b may: what both match comes."""
    node = await make_node()
    device = Device(node.ports.mqtt, b"d", 4, 100)
    await device.connect()
    await device.subscribe(b"n/#", 2)
    await device.subscribe(b"n/b", 2)
    publisher = Publisher(node.ports.mqtt, b"p")
    await publisher.burst([b"n/b", b"n/b", b"n/b"], [1, 2, 2])
    await device.poll()
    for kind in (PUBREC, PUBCOMP):
        await acknowledge(device, kind)
    if kills:
        node = await killed(make_node, node, device)
    device.may_repeat |= await pending(node, b"d", b"n/#")
    await set_rules(node, "", "deny subscribe n/x")
    await device.killed()
    before = len(device.seen)
    await device.connect()
    publisher.port, publisher.client = node.ports.mqtt, None
    await publisher.burst([b"n/b"], [2])  # behind all that was to come
    await asyncio.wait_for(check_delivery(device, publisher.sent, GRANTED), 10)
    assert publisher.sent[0] in device.seen[before:]  # it was not acknowledged


async def test_a_subscription_that_has_qos_0_in_between_begins_again(make_node: MakeNode) -> None:
    """Its cursor is younger then, in the log and in the session: the other one sends what both match."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b"], [2, 2])
    await device.poll()
    await end(node, device, "QoS 0")
    await publisher.burst([b"n/b", b"n/c"], [2, 2])
    await device.poll()
    await device.subscribe(OLD, 2)
    await publisher.burst([b"n/b", b"n/c"], [2, 2])
    await device.poll()
    session = session_of(node)
    cursors = session.subscriptions[YOUNG].cursor, session.subscriptions[OLD].cursor
    route = session.route(b"n/b")
    assert route is not None
    assert tuple(route.cursors) == cursors
    await killed(make_node, node, device)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)


@pytest.mark.mqtt5("3.10.4-3", "4.3.3-3")
@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
async def test_the_end_of_a_subscription_reaches_a_busy_store_with_the_connections_end(
    make_node: MakeNode, way: str
) -> None:
    """Until then the log has the subscription as it was."""
    node = await make_node()
    device, publisher = await start(node)
    if way == "UNSUBSCRIBE":
        await device.unsubscribe(YOUNG)
    await publisher.burst([b"n/b", b"n/b"], [1, 2])
    await device.poll()
    for kind in (PUBREC, PUBCOMP):
        await acknowledge(device, kind)
    store = engine_of(node)
    append = store.append

    def refuse(frames: Sequence[bytes], done: Callable[[Appended], None]) -> None:
        if record.decode(frames[-1], 0)[0] not in (Kind.SUBSCRIBED, Kind.UNSUBSCRIBED):
            append(frames, done)
            return
        store.append = append  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))

    store.append = refuse  # type: ignore[method-assign]
    with pytest.raises(EOFError):
        await end(node, device, way)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)


@pytest.mark.mqtt5("3.3.4-2")
@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
async def test_messages_that_all_cursors_passed_do_not_come_again(make_node: MakeNode, way: str) -> None:
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/b"] * 3, [1, 2, 2])
    while len(device.seen) < len(publisher.sent) or device.unsettled:
        await device.poll()
        device.acknowledge(len(device.owed))
    await device.disconnect()
    await device.connect()
    await end(node, device, way)
    assert not device.may_repeat
    await killed(make_node, node, device)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)
    assert len(device.seen) == len(publisher.sent)


async def test_a_pending_message_may_come_once_more_by_another_subscription(make_node: MakeNode) -> None:
    node = await make_node()
    device = Device(node.ports.mqtt, b"d", 5, 2)
    await device.connect()
    await device.subscribe(OLD, 2)
    await device.subscribe(YOUNG, 2)
    publisher = Publisher(node.ports.mqtt, b"p")
    await publisher.burst([b"n/c", b"n/b", b"n/c"], [2, 2, 2])
    await device.poll()
    await end(node, device, "UNSUBSCRIBE")
    assert publisher.sent[1][1] in device.may_repeat
    await check_delivery(device, publisher.sent, GRANTED)
