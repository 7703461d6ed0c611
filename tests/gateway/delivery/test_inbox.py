"""`$inbox/<client id>`: messages to one client, which need not subscribe, also while it is away."""

import asyncio

import pytest

from cloud_sdk import Client, InvalidArgument
from gateway.auth.identity import Identity
from gateway.node.node import Node
from matcher.reserved import inbox_of
from store.api import SessionState
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack, connect
from tests.gateway.session.test_durable import publish
from tests.waiting import patience, until

EVER = 0xFFFF_FFFF
NOBODY = 0x10  # no matching subscribers


def engine_of(node: Node) -> Engine:
    assert node._engine is not None
    return node._engine


async def send(node: Node, client_id: bytes, *payloads: bytes, qos: int = 1) -> list[int]:
    """Publish to an inbox, and return the reason codes of version 5."""
    publisher = await RawClient.connect(node.ports.mqtt, b"", 5)
    reasons = []
    for number, payload in enumerate(payloads, 1):
        publisher.send(wire.publish(5, inbox_of(client_id), payload, qos, number))
        if qos:
            reasons.append((await publisher.expect(PUBACK if qos == 1 else PUBREC)).reason)
        if qos == 2:
            publisher.send(ack(PUBREL, number))
            await publisher.expect(PUBCOMP)
    await publisher.disconnect()
    return reasons


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [4, 5])
async def test_an_inbox_message_reaches_its_client_only(node: Node, version: int, clean: bool, qos: int) -> None:
    options = {} if version == 4 or clean else {"expiry": EVER}
    client = await RawClient.connect(node.ports.mqtt, b"lamp", version, clean, **options)
    other = await RawClient.connect(node.ports.mqtt, b"lamp2")
    await other.subscribe((b"#", 2), (b"+/lamp", 2), (b"+/+/#", 2))
    assert await send(node, b"lamp", b"1", b"2", b"3", qos=qos) == ([0, 0, 0] if qos else [])
    messages = await client.take(3)
    assert [(m.topic, m.payload, m.qos) for m in messages] == [(b"$inbox/lamp", n, qos) for n in (b"1", b"2", b"3")]
    await client.settle()
    await other.quiet()


@pytest.mark.parametrize("client_id", [b"a/b", b"a+b", b"#", b"100%", b"%2B", b"/", "Grüße/+".encode()])
async def test_any_client_id_will_do(node: Node, client_id: bytes) -> None:
    client = await RawClient.connect(node.ports.mqtt, client_id)
    assert await send(node, client_id, b"x") == [0]
    (message,) = await client.take(1)
    assert (message.topic, message.payload) == (inbox_of(client_id), b"x")


@pytest.mark.parametrize("before", [True, False])
async def test_a_message_that_comes_while_the_session_is_read_is_delivered(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The first one that is addressed to the session: what was read has no subscription to the inbox."""
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.disconnect()
    engine = engine_of(node)
    read = engine.session

    async def slowly(client_id: bytes) -> SessionState | None:
        if before:
            await send(node, b"lamp", b"1")
        state = await read(client_id)
        if not before:
            await send(node, b"lamp", b"1")
        return state

    with monkeypatch.context() as patch:
        patch.setattr(engine, "session", slowly)
        client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    assert [m.payload for m in await client.take(1)] == [b"1"]
    await send(node, b"lamp", b"2")
    assert [m.payload for m in await client.take(1)] == [b"2"]


async def test_an_offline_session_gets_inbox_messages_later(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.disconnect()
    assert await send(node, b"lamp", *[b"%d" % i for i in range(50)]) == [0] * 50
    await node.stop()
    node = await make_node()
    assert await send(node, b"lamp", b"50") == [0]
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    assert client.session_present
    assert [m.payload for m in await client.take(51)] == [b"%d" % i for i in range(51)]
    assert await send(node, b"lamp", b"live") == [0]
    assert [m.payload for m in await client.take(1)] == [b"live"]
    await client.disconnect()
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.quiet()
    state = await engine_of(node).session(b"lamp")
    assert state is not None
    assert [(s.topic_filter, s.qos, s.offset) for s in state.subscriptions] == [(b"$inbox/lamp", 2, 52)]


async def test_an_inbox_without_a_session_answers_no_matching_subscribers(node: Node) -> None:
    assert await send(node, b"lamp", b"1") == [NOBODY]
    assert await send(node, b"lamp", b"2", qos=2) == [NOBODY]
    transient = await RawClient.connect(node.ports.mqtt, b"lamp")
    await transient.disconnect()
    assert await send(node, b"lamp", b"3") == [NOBODY]
    assert node.counters.messages_unreached == 3
    bounds = await engine_of(node).bounds(b"t" + inbox_of(b"lamp"))
    assert (bounds.begin, bounds.end) == (0, 3)
    # A session that begins later has no part in it, unless its client asks for the past.
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.quiet()
    assert await client.subscribe((b"$replay/earliest/$inbox/lamp", 1)) == b"\1"
    assert [m.payload for m in await client.take(3)] == [b"1", b"2", b"3"]


async def test_one_read_of_several_is_answered_in_order(node: Node) -> None:
    """Reached and unreached among others, all in one commit."""
    here = await RawClient.connect(node.ports.mqtt, b"here")
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    topics = [b"t", b"$inbox/gone", b"$inbox/here", b"$delayed/9/$inbox/gone", b"$inbox/gone", b"t"]
    publisher.send(*[wire.publish(5, topic, b"", 1, number) for number, topic in enumerate(topics, 1)])
    replies = [await publisher.expect(PUBACK) for _ in topics]
    assert [(r.packet_id, r.reason) for r in replies] == [(1, 0), (2, NOBODY), (3, 0), (4, 0), (5, NOBODY), (6, 0)]
    assert (await here.message()).topic == b"$inbox/here"
    old = await RawClient.connect(node.ports.mqtt, b"q", 4)
    await old.publish(b"$inbox/gone", b"")  # 3.1.1 has no such words


async def test_a_new_session_begins_with_nothing(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.disconnect()
    await send(node, b"lamp", b"old")
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, True, expiry=EVER)
    await client.quiet()
    await send(node, b"lamp", b"new")
    assert [m.payload for m in await client.take(1)] == [b"new"]


async def test_inbox_messages_while_a_session_is_opened(node: Node) -> None:
    """Between its record and the moment that it is held."""
    renew, engine = node._authority.renew, node._engine
    assert engine is not None
    sent: list[int] = []

    async def slow(identity: Identity) -> bool:
        if not sent and await engine.session_row(b"lamp") is not None:
            sent.append(0)
            sent[:] = await send(node, b"lamp", b"1")
        return await renew(identity)

    node._authority.renew = slow  # type: ignore[method-assign]
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    assert sent == [0]
    assert [m.payload for m in await client.take(1)] == [b"1"]
    await send(node, b"lamp", b"2")
    assert [m.payload for m in await client.take(1)] == [b"2"]


@pytest.mark.parametrize("clean", [True, False])
async def test_inbox_messages_keep_the_window_and_the_order(node: Node, clean: bool) -> None:
    options = {} if clean else {"expiry": EVER}
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, clean, receive_maximum=3, **options)
    assert await send(node, b"lamp", *[b"%d" % i for i in range(40)]) == [0] * 40
    found = []
    while len(found) < 40:
        batch = [await client.message() for _ in range(min(3, 40 - len(found)))]
        await client.quiet()
        found += batch
        client.send(*[ack(PUBACK, m.packet_id) for m in batch])
    assert [m.payload for m in found] == [b"%d" % i for i in range(40)]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_delayed_message_reaches_an_inbox(node: Node, clean: bool) -> None:
    options = {} if clean else {"expiry": EVER}
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, clean, **options)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"$delayed/1/$inbox/lamp", b"later")
    (message,) = await client.take(1)
    assert (message.topic, message.payload) == (b"$inbox/lamp", b"later")
    await publisher.publish(b"$inbox/lamp", b"now")
    assert [m.payload for m in await client.take(1)] == [b"now"]


async def test_a_will_may_go_there(node: Node) -> None:
    keeper = await RawClient.connect(node.ports.mqtt, b"keeper")
    dying = await RawClient.open(node.ports.mqtt)
    dying.send(connect(4, b"d", will=(b"$inbox/keeper", b"d is gone")))
    await dying.packet()
    await dying.drop()
    assert [m.payload for m in await keeper.take(1)] == [b"d is gone"]


@pytest.mark.parametrize("version", [4, 5])
async def test_an_inbox_is_its_client_s_own(node: Node, version: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"a/b", version)
    names = (b"$inbox/c", b"$inbox/#", b"$inbox/+", b"$inbox/a/#", b"$inbox", b"$inbox/a/+", b"$share/g/$inbox/a/b")
    for topic_filter in names:
        assert await client.subscribe((topic_filter, 1)) == (b"\x80" if version == 4 else b"\x87"), topic_filter
    assert await client.subscribe((b"$inbox/a/b", 1), (b"$delayed/5/t", 1)) == (
        b"\1\x80" if version == 4 else b"\1\x8f"
    )
    await send(node, b"a/b", b"x", qos=2)
    (message,) = await client.take(1)
    assert message.qos == 1  # as it wished
    await client.unsubscribe(b"$inbox/a/b")
    await send(node, b"a/b", b"y", qos=2)
    assert [(m.payload, m.qos) for m in await client.take(1)] == [(b"y", 2)]


async def test_services_write_to_inboxes(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await client.disconnect()
    async with Client(f"127.0.0.1:{node.ports.grpc}") as service:
        await service.send("$inbox/lamp", b"on", qos=1)
        for topic in ("$SYS/x", "$delayed/5/t", "$inbox/", "$inbox/50%", "$topics/x"):
            with pytest.raises(InvalidArgument):
                await service.send(topic, b"")
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    assert [m.payload for m in await client.take(1)] == [b"on"]


async def test_an_expired_session_is_gone(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=1)
    await client.disconnect()
    assert await send(node, b"lamp", b"in time") == [0]
    engine = engine_of(node)
    async with patience():
        while await engine.session(b"lamp") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await send(node, b"lamp", b"late") == [NOBODY]


async def test_inbox_messages_that_may_repeat_after_a_crash_have_dup(make_node: MakeNode) -> None:
    """Of an inbox that began while its client was here: it goes no further than the log was told."""
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER, receive_maximum=4)
    payloads = [b"%d" % i for i in range(300)]
    await publish(node, b"$inbox/lamp", *payloads)
    first = await client.message()  # never acknowledged
    before = [first, *await client.take(255)]
    await client.quiet()
    session = node._sessions.open_sessions[b"lamp"][0]
    await until(lambda: not session.catching_up)
    await client.quiet()
    node = await crashed(make_node, node, "crashed")
    client = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER, receive_maximum=4)
    again = await client.take(300)
    assert [m.payload for m in again] == payloads
    assert [m.payload for m in again if m.dup] == [m.payload for m in before]
