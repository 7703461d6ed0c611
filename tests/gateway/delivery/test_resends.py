"""Messages that are resent when a session resumes, and those that never are (sections 4.3 and 4.4)."""

import asyncio
import time

import pytest

from gateway.node.node import Node
from store.api import Fetched, subscription_queue
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RawClient, ack
from tests.waiting import patience, until

VERSIONS = pytest.mark.parametrize("version", [4, 5])


async def connect(node: Node, version: int = 5, expiry: int = 1000) -> RawClient:
    return await RawClient.connect(node.ports.mqtt, b"c", version, False, expiry=expiry)


async def publish(node: Node, *payloads: bytes, qos: int, properties: bytes = b"") -> None:
    client = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for payload in payloads:
        await client.publish(b"t", payload, qos, properties=properties)
    await client.disconnect()


@pytest.mark.mqtt5("3.3.1-1", "4.3.3-3", "4.3.3-4", "4.3.3-5", "4.3.3-6", "4.4.0-1")
@pytest.mark.mqtt311("3.3.1-1", "4.3.3-1", "4.4.0-1")
@VERSIONS
async def test_a_qos_2_exchange_resumes_at_each_step(node: Node, version: int) -> None:
    client = await connect(node, version)
    await client.subscribe((b"t", 2))
    await publish(node, b"x", qos=2)
    first = await client.message()
    assert (first.qos, first.dup) == (2, False)
    for _ in range(2):  # until PUBREC, PUBLISH
        await client.drop()
        client = await connect(node, version)
        again = await client.message()
        assert (again.packet_id, again.payload, again.qos, again.dup) == (first.packet_id, b"x", 2, True)
    client.send(ack(PUBREC, first.packet_id))
    assert (await client.expect(PUBREL)).packet_id == first.packet_id
    for _ in range(2):  # until PUBCOMP, PUBREL and no PUBLISH
        await client.drop()
        client = await connect(node, version)
        assert (await client.expect(PUBREL)).packet_id == first.packet_id
        await client.quiet()
    client.send(ack(PUBCOMP, first.packet_id))
    await client.quiet()
    await client.drop()
    client = await connect(node, version)
    await client.quiet()


@pytest.mark.mqtt5("4.4.0-1")
@pytest.mark.parametrize("expiry", [0, 1000])
async def test_nothing_is_resent_on_the_same_connection(node: Node, expiry: int) -> None:
    """However long an acknowledgement takes, and whatever else is acknowledged and sent."""
    client = await connect(node, expiry=expiry)
    await client.subscribe((b"t", 2))
    await publish(node, b"1", qos=1)
    await publish(node, b"2", qos=2)
    held = [await client.message() for _ in range(2)]
    client.send(ack(PUBREC, held[1].packet_id))
    await client.expect(PUBREL)
    for _ in range(10):
        await publish(node, b"x", qos=1)
        assert [m.payload for m in await client.take(1)] == [b"x"]
    session = node._sessions.open_sessions[b"c"][0]
    await until(lambda: not session.changed)
    await client.quiet()


@pytest.mark.mqtt5("4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("reason", [0x80, 0x97])
async def test_a_refusal_acknowledges_too(node: Node, qos: int, kind: int, reason: int) -> None:
    client = await connect(node)
    await client.subscribe((b"t", 2))
    await publish(node, b"refused", b"next", qos=qos)
    refused, following = [await client.message() for _ in range(2)]
    client.send(wire.packet(kind << 4, wire.u16(refused.packet_id) + bytes([reason])))
    await client.quiet()
    await client.drop()
    client = await connect(node)
    again = await client.message()
    assert (again.payload, again.packet_id, again.dup) == (b"next", following.packet_id, True)
    await client.quiet()


@pytest.mark.mqtt5("4.3.3-7", "3.3.2-6")
@pytest.mark.parametrize("qos", [1, 2])
async def test_sent_messages_do_not_expire(node: Node, monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    """It is sent again with nothing left of its time; what was not sent is not."""
    client = await connect(node)
    await client.subscribe((b"t", 2))
    await publish(node, b"x", qos=qos, properties=b"\x02" + wire.u32(60))
    first = await client.message()
    assert wire.properties(first.properties) == [(0x02, 60)]
    await client.drop()
    await until(lambda: b"c" not in node._sessions.open_sessions)
    await publish(node, b"y", qos=qos, properties=b"\x02" + wire.u32(60))
    for module in ("catch_up", "log_catch_up", "resends"):
        monkeypatch.setattr(f"gateway.delivery.{module}.time", lambda: time.time() + 61)
    client = await connect(node)
    again = await client.message()
    assert (again.payload, again.packet_id, again.dup) == (b"x", first.packet_id, True)
    assert wire.properties(again.properties) == [(0x02, 0)]
    await client.quiet()
    assert node.counters.dropped_expired == 1


@pytest.mark.mqtt5("3.3.2-5", "3.3.2-6")
@pytest.mark.parametrize("expiry", [0, 1000])
async def test_the_time_a_message_waits_is_taken_from_its_expiry(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    """Behind a full window, in a session of either kind."""
    node = await make_node(mqtt__max_in_flight=1)
    client = await connect(node, expiry=expiry)
    await client.subscribe((b"t", 1))
    for seconds in (100, 100, 20, 50):
        await publish(node, b"%d" % seconds, qos=1, properties=b"\x02" + wire.u32(seconds))
    first = await client.message()
    assert wire.properties(first.properties) == [(0x02, 100)]
    for module in ("catch_up", "log_catch_up", "resends"):
        monkeypatch.setattr(f"gateway.delivery.{module}.time", lambda: time.time() + 30)
    client.send(ack(PUBACK, first.packet_id))
    waited = await client.take(2)
    assert [m.payload for m in waited] == [b"100", b"50"]
    for message, published in zip(waited, (100, 50), strict=True):
        ((identifier, left),) = wire.properties(message.properties)
        assert identifier == 0x02
        assert published - 35 < left <= published - 30  # type: ignore[operator]
    await client.quiet()


@pytest.mark.mqtt311("4.6.0-4")
@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
async def test_pubrels_are_in_the_order_of_the_pubrecs(node: Node, version: int, clean: bool) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    await client.subscribe((b"t", 2))
    await publish(node, *[b"%d" % i for i in range(8)], qos=2)
    order = [(await client.message()).packet_id for _ in range(8)]
    order = order[::2] + order[1::2][::-1]
    client.send(*[ack(PUBREC, packet_id) for packet_id in order])
    assert [(await client.expect(PUBREL)).packet_id for _ in order] == order


@pytest.mark.mqtt5("4.1.0-1", "4.1.0-2", "3.1.2-23")
@pytest.mark.mqtt311("4.1.0-2")
@VERSIONS
async def test_a_session_does_not_expire_while_it_is_connected(make_node: MakeNode, version: int) -> None:
    node = await make_node(mqtt__max_session_expiry=1)
    client = await connect(node, version, expiry=1)
    await client.subscribe((b"t", 1))
    await publish(node, b"open", qos=1)
    held = await client.message()
    engine = node._engine
    assert engine is not None
    some_day = int(time.time() * 1000) + 1_000_000
    assert await engine.sessions_expired(some_day, 10) == []
    await client.drop()
    while not await engine.sessions_expired(some_day, 10):  # noqa: ASYNC110
        await asyncio.sleep(0)
    client = await connect(node, version, expiry=1)
    assert client.session_present
    assert (await client.message()).packet_id == held.packet_id
    assert await engine.sessions_expired(some_day, 10) == []


@pytest.mark.mqtt5("4.3.2-3")
@pytest.mark.mqtt311("4.3.2-1")
@VERSIONS
async def test_a_message_of_qos_1_is_open_until_puback(node: Node, version: int) -> None:
    client = await connect(node, version)
    await client.subscribe((b"t", 1))
    await publish(node, b"x", qos=1)
    first = await client.message()
    assert (first.qos, first.dup) == (1, False)
    for _ in range(2):
        await client.drop()
        client = await connect(node, version)
        packet = await client.expect(PUBLISH)
        again = client.parse(packet)
        assert (again.packet_id, again.dup) == (first.packet_id, True)
    client.send(ack(PUBACK, first.packet_id))
    await client.quiet()
    await client.drop()
    client = await connect(node, version)
    await client.quiet()


@pytest.mark.mqtt5("3.3.4-9")
async def test_a_resend_waits_while_a_shared_subscription_uses_the_window(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared message comes while the message of the resend is being read."""
    client = await connect(node)
    await client.subscribe((b"t", 1), (b"$share/g/s", 1))
    await publish(node, b"x", qos=1)
    first = await client.message()
    await client.disconnect()
    fetch, is_reading, go_on = Engine.fetch, asyncio.Event(), asyncio.Event()

    async def slow(engine: Engine, queue: bytes, *range_: int) -> Fetched:
        if queue == subscription_queue(b"t"):
            is_reading.set()
            await go_on.wait()
        return await fetch(engine, queue, *range_)

    monkeypatch.setattr(Engine, "fetch", slow)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=1000, receive_maximum=1)
    async with patience():
        await is_reading.wait()
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.publish(b"s", b"shared")
    shared = await client.message()
    assert shared.payload == b"shared"
    go_on.set()
    await client.quiet()
    client.send(ack(PUBACK, shared.packet_id))
    again = await client.message()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
