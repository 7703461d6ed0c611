"""The progress of durable sessions is recorded in records of bounded size, even if one session fails."""

import asyncio
from collections.abc import Callable

import pytest

import record
from gateway.node.node import Node
from record.layout import Kind
from store.api import Appended
from store.errors import RecordTooLarge
from tests.gateway.connection.test_limits import until
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBREC, SUBACK, RawClient, ack

RECORD = 1 << 18  # bytes
LENGTH = 60_000  # bytes of a filter


class Spy:
    """The store of a node's `SessionCheckpoint`: knows what was appended, and may fail."""

    def __init__(self, node: Node) -> None:
        self.frames: list[bytes] = []
        self.appends: list[int] = []  # bytes
        self.broken = b"-"  # who cannot be recorded
        self._store = node._sessions._checkpoint._store
        node._sessions._checkpoint._store = self  # type: ignore[assignment]

    def append(self, frames: list[bytes], done: Callable[[Appended], None]) -> None:
        if any(self.broken in frame for frame in frames):
            raise RuntimeError("a fault")
        self.frames += frames
        self.appends.append(sum(map(len, frames)))
        self._store.append(frames, done)


def topic(number: int) -> bytes:
    return (b"%d/" % number).ljust(LENGTH, b"x")


@pytest.mark.parametrize("urgent", [False, True])
async def test_a_closed_session_is_recorded_no_more(node: Node, urgent: bool) -> None:
    """A reader of the past may return late and report a change."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    session = node._sessions.open_sessions[b"c"][0]
    await client.drop()
    await until(lambda: session.closed)
    session.on_change(session, urgent)
    progress = node._sessions._checkpoint
    assert session not in progress._changed
    assert session not in progress._urgent


@pytest.mark.parametrize("qos", [1, 2])
async def test_many_long_filters_are_recorded_in_pieces(node: Node, qos: int) -> None:
    """Acknowledged offsets, and packet ids of QoS 2 with the filters that they came by."""
    count = 40
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    for number in range(count):
        client.send(wire.subscribe(5, 1, (topic(number), qos)))
        await client.expect(SUBACK)
    spy = Spy(node)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    publisher.send(b"".join(wire.publish(5, topic(number), b"", qos, 1 + number) for number in range(count)))
    for _ in range(count):
        await publisher.expect(PUBACK if qos == 1 else PUBREC)
    messages = await client.take(count)
    if qos == 1:
        client.send(b"".join(ack(PUBACK, message.packet_id) for message in messages))
        session = node._sessions.open_sessions[b"c"][0]
        await until(lambda: all(s.cursor is not None and s.cursor.durable == 1 for s in session.subscriptions.values()))
    else:
        client.send(b"".join(ack(PUBREC, message.packet_id) for message in messages))
    assert sum(map(len, spy.frames)) > count * LENGTH
    assert max(map(len, spy.frames)) < RECORD + LENGTH
    assert max(spy.appends) <= 1 << 20


async def test_a_packet_may_name_more_filters_than_a_record_holds(node: Node) -> None:
    """Where segments are small, and each byte of a name takes six in its record."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    names = [(b"%d/" % number).ljust(LENGTH, b"\1") for number in range(16)]
    assert await client.subscribe(*[(name, 1) for name in names]) == bytes([1]) * len(names)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for name in (names[0], names[-1]):
        await publisher.publish(name, b"1")
    assert {message.topic for message in await client.take(2)} == {names[0], names[-1]}
    assert await client.unsubscribe(*names) == bytes(len(names))
    await client.drop()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    assert client.session_present
    assert not node._sessions.open_sessions[b"c"][0].subscriptions


async def test_a_record_the_store_never_accepts_does_not_block_other_last_records(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A will among them."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100, will=(b"w", b"gone"))
    watcher = await RawClient.connect(node.ports.mqtt, b"w", 5)
    await watcher.subscribe((b"w", 0))
    assert node._engine is not None
    append = node._engine.append

    def refuse(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        if any(record.decode(frame, 0)[0] == Kind.UNSUBSCRIBED for frame in frames):
            asyncio.get_running_loop().call_soon(done, Appended(error=RecordTooLarge("too large")))
        else:
            append(frames, done)

    monkeypatch.setattr(node._engine, "append", refuse)
    client.send(wire.unsubscribe(5, 1, b"t"))
    assert (await client.expect(DISCONNECT)).reason == 0x83
    assert (await watcher.message()).payload == b"gone"
    state = await node._engine.session(b"c")
    assert state is not None
    assert state.closed_at


async def test_a_session_that_cannot_be_recorded_does_not_block_others(node: Node) -> None:
    first, second = [
        await RawClient.connect(node.ports.mqtt, name, 5, False, expiry=100) for name in (b"first", b"second")
    ]
    for client in (first, second):
        await client.subscribe((b"t", 1))
    Spy(node).broken = b"first"
    cursor = node._sessions.open_sessions[b"second"][0].subscriptions[b"t"].cursor
    assert cursor is not None
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for number in range(2):
        await publisher.publish(b"t", b"%d" % number)
        for client in (first, second)[number:]:
            (message,) = await client.take(1)
            client.send(ack(PUBACK, message.packet_id))
        await until(lambda number=number: cursor.durable == number + 1)  # type: ignore[misc]
        if not number:
            assert (await first.expect(DISCONNECT)).reason == 0x83
