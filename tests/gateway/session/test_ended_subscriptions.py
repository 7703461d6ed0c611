"""A subscription ends, or gets QoS 0, while a younger one that overlaps is behind it, and then the node is killed."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

import record
from gateway.node.node import Node
from gateway.session.session import Session
from record.layout import Kind
from store.api import Appended, Ended, Subscription
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.device import Device, Publisher, check_delivery
from tests.gateway.people import set_rules
from tests.gateway.raw import PUBCOMP, PUBREC, SUBACK, Packet
from tests.gateway.topics.test_delayed import HeldClock, engine_of

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


async def end(device: Device, way: str) -> None:
    if way == "UNSUBSCRIBE":
        await device.unsubscribe(OLD)
    else:
        await device.subscribe(OLD, 0)


def session_of(node: Node) -> Session:
    return node._sessions.held[b"d"][0]


async def ended(node: Node) -> list[Ended]:
    """What the log knows of subscriptions that ended."""
    state = await engine_of(node).session(b"d")
    assert state is not None
    return state.ended


async def acknowledge(device: Device, kind: int) -> None:
    """Send an acknowledgement of this kind, and no other one."""
    while not [owed for owed in device.owed if owed[0] == kind]:
        await device.poll()
    device.owed.sort(key=lambda owed: owed[0] != kind)
    device.acknowledge(1)
    await device.poll()


async def settled(device: Device) -> None:
    """Acknowledge what came, to the end."""
    while device.owed or device.held or device.unsettled:
        device.acknowledge(len(device.owed))
        await device.poll()


@pytest.mark.mqtt5("3.10.4-3", "4.3.3-3")
@pytest.mark.mqtt311("3.10.4-3", "4.3.3-1")
@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
@pytest.mark.parametrize("completes", [False, True])
async def test_what_is_on_its_way_comes_once(make_node: MakeNode, way: str, completes: bool) -> None:
    """The younger one went past it above a message that is not acknowledged: the log does not know."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b"], [1, 2])
    await device.poll()
    if completes:
        for kind in (PUBREC, PUBCOMP):
            await acknowledge(device, kind)
    await end(device, way)
    await killed(make_node, node, device)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)


@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
@pytest.mark.parametrize("kills", [False, True])
async def test_right_after_a_restart_when_it_has_read_nothing_yet(make_node: MakeNode, way: str, kills: bool) -> None:
    """Messages of QoS 2 wait to be sent again, one of QoS 1 may have been sent, and of some nothing is left to do."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b", b"n/c", b"n/b", b"n/b"], [1, 1, 2, 2, 2])
    await device.poll()
    await acknowledge(device, PUBREC)
    node = await killed(make_node, node, device)
    device.window = 1
    await device.connect()
    await end(device, way)
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
    node._sessions._progress._record(session_of(node))
    await publisher.burst([b"other"], [1])  # that is in the log by now
    node = await killed(make_node, node, device)
    device.version, device.window = 5, 1  # it reads no more than one again before its end
    await device.connect()
    device.seen.clear()
    await device.unsubscribe(OLD)
    await check_delivery(device, publisher.sent[:2], GRANTED)


@pytest.mark.mqtt5("4.3.2-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_it_went_past_with_qos_0_is_the_others(make_node: MakeNode, qos: int) -> None:
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
async def test_rules_that_end_it_leave_the_other_one_what_is_its_own(make_node: MakeNode, kills: bool) -> None:
    """n/# may be subscribed to no more, and n/b may: what both match comes, and with QoS 2 once."""
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
    await set_rules(node, "", "deny subscribe n/x")
    await device.killed()
    before = len(device.seen)
    await device.connect()
    publisher.port, publisher.client = node.ports.mqtt, None
    await publisher.burst([b"n/b"], [2])  # behind all that was to come
    await asyncio.wait_for(check_delivery(device, publisher.sent, GRANTED), 10)
    assert publisher.sent[0] in device.seen[before:]  # it was not acknowledged


@pytest.mark.mqtt5("4.3.3-3")
@pytest.mark.parametrize("way", ["UNSUBSCRIBE", "QoS 0"])
async def test_it_ends_before_the_younger_one_is_answered(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The younger one is in the log, and not yet made: it begins in front of what came by the old one meanwhile."""
    node = await make_node()
    device = Device(node.ports.mqtt, b"d", 4, 100)
    await device.connect()
    await device.subscribe(OLD, 2)
    publisher = Publisher(node.ports.mqtt, b"p")
    store = engine_of(node)
    asked, goes_on = asyncio.Event(), asyncio.Event()
    find = store.subscriptions

    async def find_slowly(client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, Subscription]:
        found = await find(client_id, filters)
        if YOUNG in filters:
            asked.set()
            await goes_on.wait()
        return found

    monkeypatch.setattr(store, "subscriptions", find_slowly)
    waits = asyncio.create_task(device.subscribe(YOUNG, 2))
    await asked.wait()
    waits.cancel()
    await publisher.burst([b"n/b"], [2])
    await device.poll()
    await end(device, way)
    goes_on.set()
    while YOUNG not in session_of(node).subscriptions:  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0.01)
    await publisher.burst([b"n/c"], [2])
    device._take = _without_subacks(device._take)  # type: ignore[method-assign]
    await check_delivery(device, publisher.sent, GRANTED)


def _without_subacks(take: Callable[[Packet], None]) -> Callable[[Packet], None]:
    return lambda packet: None if packet.kind == SUBACK else take(packet)


async def test_it_is_remembered_over_connections_and_no_longer_than_needed(make_node: MakeNode) -> None:
    node = await make_node()
    device, publisher = await start(node, 1)
    device.window = 1
    device.version = 5
    await device.connect()
    await publisher.burst([b"n/c", b"n/b"] * 10, [2] * 20)
    await device.poll()
    await device.unsubscribe(OLD)
    assert [(e.topic_filter, e.open) for e in await ended(node)] == [(OLD, [])]
    await device.disconnect()
    assert [e.topic_filter for e in await ended(node)] == [OLD]
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)
    while await ended(node):
        await device.poll()
    assert session_of(node).formers is None


async def test_nothing_is_remembered_where_no_other_one_overlaps(make_node: MakeNode) -> None:
    node = await make_node()
    device, publisher = await start(node)
    await device.subscribe(b"m/+", 2)
    await publisher.burst([b"n/c", b"n/b"], [2, 2])
    await device.unsubscribe(YOUNG)  # younger than the other
    await device.unsubscribe(OLD)
    assert await ended(node) == []
    assert session_of(node).formers is None
    await settled(device)


async def test_the_newest_of_many_of_one_millisecond_and_delayed_ones(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the old one came to is a time: what entered its queue then is known by position."""
    clock = HeldClock(monkeypatch)
    node = await make_node()
    device, publisher = await start(node, 3)
    delayed = Publisher(node.ports.mqtt, b"q")
    delayed._number = 500
    await delayed.burst([b"$delayed/9/n/b"] * 4, [2] * 4)
    await publisher.burst([b"n/c", b"n/b", b"n/b", b"n/c"], [2] * 4)
    clock.now_ms += 10_000
    await engine_of(node).release_due()
    await publisher.burst([b"n/b", b"n/c"] * 3, [2] * 6)
    sent = [*publisher.sent, *[(b"n/b", payload, qos) for _, payload, qos in delayed.sent]]
    device.acknowledge(2)
    await device.poll()
    await device.unsubscribe(OLD)
    for name in ("killed", "again"):
        node = await killed(make_node, node, device, name)
        await device.connect()
        device.acknowledge(1)
        await device.poll()
    while len(device.seen) < len(sent):
        device.acknowledge(len(device.owed))
        await device.poll()
    await settled(device)
    assert sorted(payload for _, payload, _ in device.seen) == sorted(payload for _, payload, _ in sent)


async def test_a_subscription_that_has_qos_0_in_between_begins_again(make_node: MakeNode) -> None:
    """Its cursor is younger then, in the log and in the session: the other one sends what both match."""
    node = await make_node()
    device, publisher = await start(node)
    await publisher.burst([b"n/c", b"n/b"], [2, 2])
    await device.poll()
    await device.subscribe(OLD, 0)
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
async def test_a_busy_store_hears_of_its_end_when_the_connection_ends(make_node: MakeNode, way: str) -> None:
    """The log would have the subscription as it was, and what is done by it would be done again."""
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
        await end(device, way)
    await device.connect()
    await check_delivery(device, publisher.sent, GRANTED)
