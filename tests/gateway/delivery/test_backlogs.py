"""Many sessions with backlogs at once: one read for all, a turn for each, and a bound on what is on the way."""

import asyncio

import pytest

from gateway.delivery import catch_up
from gateway.delivery.shared_reads import BLOCK
from gateway.mqtt.reasons import ReasonCode
from gateway.node.node import Node
from gateway.session.session import Session
from store.api import Fetched
from store.engine import Engine
from store.errors import StoreFailed
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, RawClient, ack
from tests.waiting import patience, until

EVER = 0xFFFF_FFFF


async def back(node: Node, client_id: bytes, receive_maximum: int = 1000) -> RawClient:
    return await RawClient.connect(node.ports.mqtt, client_id, 5, False, expiry=EVER, receive_maximum=receive_maximum)


async def away(node: Node, sessions: int, topic_filter: bytes = b"t/+") -> list[bytes]:
    """Sessions that have subscribed and are offline."""
    names = [b"s%d" % number for number in range(sessions)]
    for name in names:
        client = await back(node, name)
        await client.subscribe((topic_filter, 1))
        await client.disconnect()
    return names


async def publish(node: Node, first: int, last: int, size: int = 0, version: int = 4, properties: bytes = b"") -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher", version)
    for start in range(first, last, 500):
        numbers = range(start, min(start + 500, last))
        payloads = [b"%06d" % i + bytes(size) for i in numbers]
        client.send(*[wire.publish(version, b"t/x", each, 1, i + 1, properties) for i, each in enumerate(payloads)])
        for _ in numbers:
            await client.expect(PUBACK)
    await client.disconnect()


def held(node: Node, client_id: bytes) -> Session:
    return node._sessions.open_sessions[client_id][0]


def watch_fetches(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(offset asked for, records that came) of each fetch from now on."""
    engine = node._engine
    assert isinstance(engine, Engine)
    seen: list[tuple[int, int]] = []
    fetch = engine.fetch

    async def watched(queue: bytes, offset: int, max_records: int, max_bytes: int) -> Fetched:
        fetched = await fetch(queue, offset, max_records, max_bytes)
        seen.append((offset, fetched.count))
        return fetched

    monkeypatch.setattr(engine, "fetch", watched)
    return seen


async def test_sessions_that_come_back_together_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node._sessions._catch_up.keep_reads_s = 0
    names = await away(node, 20)
    await publish(node, 0, 1000)
    fetches = watch_fetches(node, monkeypatch)
    clients = [await back(node, name, 1) for name in names]  # each is given one message, and then waits
    taken = [[(await client.message()) for client in clients]]
    for client, message in zip(clients, taken[0], strict=True):
        client.send(ack(PUBACK, message.packet_id))
    rest = await asyncio.gather(*[client.take(999) for client in clients])
    for messages in rest:
        assert [message.payload for message in messages] == [b"%06d" % i for i in range(1, 1000)]
        assert not any(message.dup for message in messages)
    assert len(fetches) < 3 * (1000 // BLOCK + 1)  # of the 20 times as many that they would read alone
    for client in clients:
        await client.disconnect()
    await until(lambda: node._sessions._catch_up._shared_reads.size == 0)


async def test_sessions_that_come_back_one_after_another_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    names = await away(node, 6)
    await publish(node, 0, 1000)
    fetches = watch_fetches(node, monkeypatch)
    for name in names:
        client = await back(node, name)
        assert [message.payload for message in await client.take(1000)] == [b"%06d" % i for i in range(1000)]
        await client.disconnect()
    assert sum(count for _, count in fetches) <= 2 * 1000  # of the six times as many that they would read alone


async def test_a_subscription_that_is_made_again_does_not_get_what_was_shared(node: Node) -> None:
    (name,) = await away(node, 1)
    await publish(node, 0, 10)
    client = await back(node, name)
    assert len(await client.take(10)) == 10
    assert node._sessions._catch_up._shared_reads.size
    assert await client.unsubscribe(b"t/+") == b"\x00"
    assert await client.subscribe((b"t/+", 1)) == b"\x01"
    await client.disconnect()
    await publish(node, 10, 20)
    client = await back(node, name)
    assert [message.payload for message in await client.take(10)] == [b"%06d" % i for i in range(10, 20)]
    await client.quiet()


async def test_large_messages_are_read_once_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block takes several reads then, and sessions at different places of it do not read each of them again."""
    names = await away(node, 12)
    await publish(node, 0, 150, 8000)
    fetches = watch_fetches(node, monkeypatch)
    clients = [await back(node, name, 1) for name in names]
    for number, client in enumerate(clients):  # some are ahead of others, by some reads of a block
        assert len(await client.take(1 + 3 * number)) == 1 + 3 * number
    rest = await asyncio.gather(*[client.take(149 - 3 * number) for number, client in enumerate(clients)])
    for messages in rest:
        assert messages[-1].payload[:6] == b"000149"
    reads = sum(count for _, count in fetches)
    assert reads <= 2 * 150  # of the 12 times as many that they would read alone


async def test_a_window_of_a_long_backlog_is_all_that_is_loaded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = await away(node, 1)
    await publish(node, 0, 20_000)
    fetches = watch_fetches(node, monkeypatch)
    client = await back(node, name, 10)
    first = [await client.message() for _ in range(10)]
    await client.quiet()
    assert fetches == [(0, BLOCK)]
    assert node._sessions._catch_up._shared_reads.size < 1024 * BLOCK
    assert len(held(node, name).exchanges.inflight) == 10
    client.send(*[ack(PUBACK, message.packet_id) for message in first])
    messages = first + await client.take(500)
    assert [message.payload for message in messages] == [b"%06d" % i for i in range(510)]


async def test_a_session_that_acknowledges_nothing_delays_no_other(node: Node) -> None:
    node._sessions._catch_up.most_in_flight, node._sessions._catch_up.least_window = 64, 4
    names = await away(node, 12)
    await publish(node, 0, 200)
    silent = [await back(node, name) for name in names[1:]]
    for client in silent:
        for _ in range(4):
            await client.message()
    client = await back(node, names[0])
    assert [message.payload for message in await client.take(200)] == [b"%06d" % i for i in range(200)]
    # They came one by one, and the n-th was given no more than the n-th part.
    assert [len(held(node, name).exchanges.inflight) for name in names[1:]] == [64 // n for n in range(1, 12)]


async def test_windows_shrink_while_many_sessions_are_behind(node: Node) -> None:
    node._sessions._catch_up.most_in_flight, node._sessions._catch_up.least_window = 40, 2
    names = await away(node, 10)
    await publish(node, 0, 100)
    clients = [await back(node, name, 50) for name in names]
    for client in clients:
        await client.message()
    last = held(node, names[-1])
    assert last.exchanges.window < last.exchanges.max_window == 50
    for client, message_id in zip(clients, [1] * 10, strict=True):
        client.send(ack(PUBACK, message_id))
    for messages in await asyncio.gather(*[client.take(99) for client in clients]):
        assert messages[-1].payload == b"%06d" % 99
    for client in clients:
        await client.quiet()
    assert [held(node, name).exchanges.window for name in names] == [50] * 10


async def test_large_messages_are_read_a_few_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = await away(node, 1)
    await publish(node, 0, 12, 100_000)
    fetches = watch_fetches(node, monkeypatch)
    client = await back(node, name)
    assert [message.payload[:6] for message in await client.take(12)] == [b"%06d" % i for i in range(12)]
    assert fetches == [(offset, 1) for offset in range(12)]


async def test_leaving_in_the_middle_and_coming_back(node: Node) -> None:
    names = await away(node, 8)
    await publish(node, 0, 600)
    got: dict[bytes, list[bytes]] = {name: [] for name in names}
    for round_ in range(4):
        clients = [await back(node, name, 30) for name in names]
        for name, client in zip(names, clients, strict=True):
            got[name] += [message.payload for message in await client.take(100 + round_)]
        for client in clients:
            await client.drop()  # with a window of messages on the way, in line for more
    for name in names:
        client = await back(node, name)
        while len(set(got[name])) < 600:
            got[name] += [message.payload for message in await client.take(1)]
        assert sorted(set(got[name])) == [b"%06d" % i for i in range(600)]


async def test_a_backlog_that_cannot_be_read_delays_no_other_session(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed, for it would get nothing any more; the session goes on with the next one."""
    names = await away(node, 1) + [b"other"]
    client = await back(node, b"other")
    await client.subscribe((b"t/#", 1))
    await client.disconnect()
    await publish(node, 0, 50)
    engine = node._engine
    assert isinstance(engine, Engine)
    fetch = engine.fetch
    failing = True

    async def fails(queue: bytes, *limits: int) -> object:
        if queue == b"ft/+" and failing:
            raise StoreFailed("not now")
        return await fetch(queue, *limits)

    monkeypatch.setattr(engine, "fetch", fails)
    unlucky = await back(node, names[0])
    client = await back(node, b"other")
    assert len(await client.take(50)) == 50
    assert (await unlucky.expect(DISCONNECT)).body[0] == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    failing = False
    unlucky = await back(node, names[0])
    assert len(await unlucky.take(50)) == 50


async def test_messages_that_expire_while_a_session_is_offline_are_counted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await away(node, 3)
    await publish(node, 0, 20, version=5, properties=b"\x02" + (60).to_bytes(4, "big"))
    await publish(node, 20, 30)
    now = catch_up.time()
    monkeypatch.setattr(catch_up, "time", lambda: now + 61)
    for name in names:
        client = await back(node, name)
        assert [message.payload for message in await client.take(10)] == [b"%06d" % i for i in range(20, 30)]
    assert node.counters.dropped_expired == 60


async def test_offline_sessions_cost_one_reference_and_no_object(make_node: MakeNode) -> None:
    node = await make_node()
    await away(node, 30)
    engine = node._engine
    assert isinstance(engine, Engine)
    assert node._sessions.open_sessions == {}
    assert len(node._sessions._router.trie) == 0
    before = engine.stats()
    await publish(node, 0, 500, 256)
    after = engine.stats()
    assert after.messages - before.messages == 500
    assert after.log_end - before.log_end < 500 * (256 + 128)  # one copy
    assert (await engine.bounds(b"ft/+")).end == 500  # one reference, whoever waits for it


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_session_that_finished_its_replay_is_not_behind(node: Node, expiry: int) -> None:
    """Nor does it make the windows of others smaller."""
    await publish(node, 0, 300)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry)
    block = wire.sized(wire.pair(b"replay", b"earliest"))
    client.send(wire.packet(0x82, wire.u16(1) + block + wire.text(b"t/+") + b"\1"))
    await client.packet()
    await client.take(300)
    reader = node._sessions._catch_up
    await until(lambda: not reader._behind)
    session = held(node, b"c")
    assert not session.lagging
    assert session.exchanges.window == session.exchanges.max_window


@pytest.mark.mqtt5("3.10.4-2")
@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_read_under_way_does_not_reach_a_new_subscription_of_the_same_filter(
    node: Node, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    """UNSUBSCRIBE and SUBSCRIBE while the past of a topic is read: it does not come any more."""
    await publish(node, 0, 50)
    engine = node._engine
    assert isinstance(engine, Engine)
    fetch = engine.fetch
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(queue: bytes, offset: int, max_records: int, max_bytes: int) -> Fetched:
        fetched = await fetch(queue, offset, max_records, max_bytes)
        asked.set()
        await go_on.wait()
        return fetched

    monkeypatch.setattr(engine, "fetch", slow)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry)
    block = wire.sized(wire.pair(b"replay", b"earliest"))
    client.send(wire.packet(0x82, wire.u16(1) + block + wire.text(b"t/x") + b"\1"))
    await client.packet()
    async with patience():
        await asked.wait()
    await client.unsubscribe(b"t/x", packet_id=2)
    await client.subscribe((b"t/x", 0x21), packet_id=3)  # without retained values
    go_on.set()
    await publish(node, 50, 51)
    assert [m.payload for m in await client.take(1)] == [b"000050"]
    await client.quiet()
