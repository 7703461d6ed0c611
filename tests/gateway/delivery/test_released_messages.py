"""Messages that were held reach every kind of reader when they enter their queues, once, and not before."""

import asyncio

import pytest

import record
from cloud_sdk import Client
from gateway.node.node import Node
from gateway.session.message_encoding import Message
from gateway.session.queue_cursor import QueueCursor
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_REVIVED, Kind
from store import control
from store.api import Appended
from tests.gateway.conftest import MakeNode
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.waiting import until

FAR = 1 << 50  # ms: no timer of the node comes near


def frame(payload: bytes, flags: int = 0, trailer: int | None = None, topic: bytes = b"a/t") -> bytes:
    return record.frame(Kind.MESSAGE, 1 | flags, 0, topic, b"p", b"", payload, trailer)


def delayed(payload: bytes, flags: int = 0) -> bytes:
    return frame(payload, FLAG_DELAYED | flags, FAR)


def half(payload: bytes) -> bytes:
    return frame(payload, FLAG_HALF)


async def append(node: Node, *frames: bytes) -> list[int]:
    """The positions of the records, which are committed."""
    assert node._engine is not None
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    node._engine.append(list(frames), answer.set_result)
    done = await answer
    assert done.error is None
    return list(done.positions)


async def history(node: Node) -> list[bytes]:
    """Everything that can happen to held messages, between others. Returns the payloads in the order of the queue."""
    (one, two, three, four, *_) = await append(node, *[delayed(b"d%d" % i) for i in range(1, 5)], frame(b"m1"))
    (five, six, seven, eight) = await append(node, half(b"h5"), half(b"h6"), half(b"h7"), delayed(b"h8", FLAG_HALF))
    await append(node, frame(b"m2"), control.TimersFired([two, one]).frame(), frame(b"m3"))
    await append(node, control.TimersRecalled([three]).frame(), control.TimersFired([three, two, two]).frame())
    await append(node, frame(b"m4"))
    await append(node, control.TransactionsEnded([six, five, eight], [seven]).frame(), frame(b"m5"))
    await append(node, control.TimersFired([seven, five]).frame(), control.TransactionsEnded([five], []).frame())
    await append(node, frame(b"r4", FLAG_REVIVED, four), frame(b"r4 again", FLAG_REVIVED, four), frame(b"m6"))
    await append(node, control.TimersFired([eight, four]).frame())
    return [b"m1", b"m2", b"d2", b"d1", b"m3", b"m4", b"h6", b"h5", b"m5", b"r4", b"m6", b"h8"]


@pytest.mark.parametrize("durable", [False, True], ids=["transient", "durable"])
@pytest.mark.parametrize("filters", [[b"a/t"], [b"a/+"], [b"#", b"a/t", b"a/+"]], ids=["topic", "filter", "all"])
@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("late", [False, True], ids=["live", "behind"])
async def test_every_session_gets_what_entered(
    make_node: MakeNode, durable: bool, filters: list[bytes], window: int, late: bool
) -> None:
    node = await make_node()
    options = {"expiry": 0xFFFF_FFFF, "receive_maximum": window} if durable else {"receive_maximum": window}
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, not durable, **options)
    await client.subscribe(*[(name, 1) for name in filters])
    if late and durable:
        await client.drop()
        await until(lambda: b"c" not in node._sessions.open_sessions)
        expected = await history(node)
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, **options)
    elif late:
        fill = [b"f%d" % i for i in range(window)]
        await append(node, *[frame(payload) for payload in fill])
        first = [await client.message() for _ in range(window)]
        expected = await history(node)
        client.send(*[ack(PUBACK, message.packet_id) for message in first])
    else:
        expected = await history(node)
    messages = await client.take(len(expected))
    assert [message.payload for message in messages] == expected
    assert not any(message.dup or message.retain for message in messages)
    await client.quiet()
    await append(node, frame(b"more"))
    assert [message.payload for message in await client.take(1)] == [b"more"]
    await client.quiet()
    assert node.counters.dropped_reclaimed == 0


@pytest.mark.parametrize("expiry", [0, 0xFFFF_FFFF], ids=["transient", "durable"])
async def test_qos_0_subscriptions_get_what_entered(make_node: MakeNode, expiry: int) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, expiry == 0, expiry=expiry)
    await client.subscribe((b"a/#", 0), (b"b", 1))
    (handle,) = await append(node, delayed(b"d"))
    await append(node, frame(b"1"), frame(b"own", topic=b"b"), control.TimersFired([handle]).frame(), frame(b"2"))
    messages = await client.take(4)
    assert [message.payload for message in messages if message.topic == b"a/t"] == [b"1", b"d", b"2"]
    assert {(message.payload, message.qos) for message in messages} == {(b"own", 1), (b"1", 0), (b"d", 0), (b"2", 0)}
    await client.quiet()


@pytest.mark.parametrize("expiry", [0, 0xFFFF_FFFF], ids=["transient", "durable"])
async def test_a_subscription_is_for_what_enters_from_then_on(make_node: MakeNode, expiry: int) -> None:
    node = await make_node()
    before, after = await append(node, delayed(b"before"), delayed(b"after"))
    await append(node, control.TimersFired([before]).frame())
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, expiry == 0, expiry=expiry)
    await client.subscribe((b"a/+", 1))
    await append(node, control.TimersFired([after]).frame())
    assert [message.payload for message in await client.take(1)] == [b"after"]
    await client.quiet()


async def test_many_sessions_that_are_behind_look_once(make_node: MakeNode) -> None:
    node = await make_node()
    clients = [await RawClient.connect(node.ports.mqtt, b"c%d" % i, 5) for i in range(10)]
    for client in clients:
        await client.subscribe((b"a/#", 1))
    handles = await append(node, *[delayed(b"%d" % i) for i in range(50)])
    engine = node._engine
    assert engine is not None
    fetches = 0
    fetch = engine.fetch

    async def counted(queue: bytes, offset: int, max_records: int, max_bytes: int) -> object:
        nonlocal fetches
        fetches += 1
        return await fetch(queue, offset, max_records, max_bytes)

    engine.fetch = counted  # type: ignore[method-assign, assignment]
    await append(node, control.TimersFired(handles).frame())
    for client in clients:
        assert [message.payload for message in await client.take(50)] == [b"%d" % i for i in range(50)]
    assert fetches == 1


async def test_a_waiting_pull_returns_released_messages(make_node: MakeNode) -> None:
    node = await make_node(store__partitions=1)
    (handle,) = await append(node, delayed(b"d"))
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        waiting = asyncio.create_task(client.pull("a", 0, 0, wait_seconds=20))
        service = node._services.rpc._service
        assert service is not None
        await until(lambda: service._wakeups._waiting)
        await append(node, control.TimersFired([handle]).frame())
        page = await waiting
        assert [message.payload for message in page] == [b"d"]
        assert page.end == 1


def test_a_cursor_knows_which_messages_it_has_read() -> None:
    def message(position: int, flags: int = 0, trailer: int | None = None) -> Message:
        return Message(record.seal([frame(b"", flags, trailer)], position, 1, 0, position), 0)

    cursor = QueueCursor(b"f", b"tf", 0, 0)
    cursor.end = 10
    cursor.read(0, message(1000))
    old = message(500, FLAG_DELAYED, 1)
    assert not cursor.has_read(old)
    cursor.read(1, old)
    assert cursor.has_read(old)
    assert cursor.has_read(message(900))
    assert not cursor.has_read(message(1100))
    for position in range(3000):
        cursor.read(2, message(position, FLAG_HALF))
    assert len(cursor._released) <= 1024
    assert cursor.has_read(message(2999, FLAG_HALF))
    assert not cursor.has_read(old)
    cursor.next = 10
    assert cursor.has_read(old)


async def test_the_record_of_released_messages_is_dropped_when_all_are_read(node: Node) -> None:
    """An idle subscriber keeps no place for what it once needed."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"a/t", 1))
    for round_ in range(3):
        handles = await append(node, *[delayed(b"%d" % round_) for _ in range(2)])
        await append(node, control.TimersFired(handles).frame())
        assert [message.payload for message in await client.take(2)] == [b"%d" % round_] * 2
        await client.quiet()
        session = node._sessions.open_sessions[b"c"][0]
        await until(lambda: not (session.catching_up or session.exchanges.inflight))
        assert session._pending is None
