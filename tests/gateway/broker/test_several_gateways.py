"""Gateways that are processes of their own, over one store: whose a client is, and what becomes of what they leave."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import pytest

from gateway.broker import maintenance as keeping
from gateway.broker import wait_limit
from gateway.broker.wait_limit import WaitLimit
from gateway.mqtt.reasons import ReasonCode
from store.api import Done
from store.engine import Engine
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, RawClient, ack, connect
from tests.gateway.several import Several
from tests.gateway.shared.test_shared import gather, together
from tests.waiting import patience, until

EVER = 0xFFFF_FFFF
GROUP = b"$share/g/t/#"


@pytest.fixture(params=["near", "far", "routed"])
async def several(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Several]:
    """Two gateways, a and b, over one store, in this process or behind a socket."""
    found = await Several(tmp_path / "data", far=request.param != "near", routed=request.param == "routed").open()
    await found.join("a", "b")
    yield found
    await found.close()


async def client(several: Several, gateway: str, name: bytes, **options: object) -> RawClient:
    """A client with a session that stays."""
    given = {"expiry": EVER, **options}
    return await RawClient.connect(several.ports[gateway], name, 5, False, **given)


async def publish(several: Several, gateway: str, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
    publisher = await RawClient.connect(several.ports[gateway], b"publisher at " + gateway.encode(), 4)
    for number, payload in enumerate(payloads):
        await publisher.publish(topic, payload, qos, number + 1)
    await publisher.disconnect()


@pytest.mark.mqtt5("3.1.4-3")
@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_client_is_taken_over_from_another_gateway(several: Several, expiry: int) -> None:
    old = await client(several, "a", b"c", expiry=expiry)
    new = await client(several, "b", b"c", expiry=expiry)
    assert (await old.expect(DISCONNECT)).reason == ReasonCode.SESSION_TAKEN_OVER
    await old.closed()
    assert new.session_present == bool(expiry)
    assert several.counters["a"].takeovers == 1
    await new.quiet()
    again = await client(several, "a", b"c", expiry=expiry)
    assert (await new.expect(DISCONNECT)).reason == ReasonCode.SESSION_TAKEN_OVER
    await again.quiet()
    assert several.engine.gateway_registry.owner(b"c").partition(b"/")[0] == b"a"  # type: ignore[union-attr]
    await again.disconnect()


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("topic_filter", [b"t", b"t/#"])
@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_subscription_gets_what_its_client_publishes_before_suback(
    several: Several, granted: int, topic_filter: bytes, expiry: int
) -> None:
    subscriber = await client(several, "a", b"c", expiry=expiry)
    subscriber.send(wire.subscribe(5, 1, (topic_filter, granted)), wire.publish(5, b"t", b"new"))
    packets = [await subscriber.packet()]
    while packets[-1].kind != SUBACK:
        packets.append(await subscriber.packet())
    await publish(several, "b", b"t", b"later")
    while packets[-1].kind != PUBLISH or subscriber.parse(packets[-1]).payload != b"later":
        packets.append(await subscriber.packet())
    messages = [subscriber.parse(packet) for packet in packets if packet.kind == PUBLISH]
    assert [message.payload for message in messages] == [b"new", b"later"]


async def test_acknowledged_messages_do_not_come_again_at_the_new_gateway(several: Several) -> None:
    old = await client(several, "a", b"c")
    await old.subscribe((b"t/#", 1))
    await publish(several, "b", b"t/1", b"1", b"2", b"3")
    assert [m.payload for m in await old.take(2)] == [b"1", b"2"]
    assert (await old.message()).payload == b"3"
    await old.quiet()
    new = await client(several, "b", b"c")
    message = await new.message()
    assert (message.payload, message.dup) == (b"3", True)
    await publish(several, "a", b"t/1", b"4")
    assert (await new.message()).payload == b"4"
    await new.drop()


async def test_an_exchange_of_qos_2_continues_at_another_gateway(several: Several) -> None:
    old = await client(several, "a", b"c")
    old.send(wire.publish(5, b"t", b"in", 2, 7))
    await old.expect(PUBREC)
    new = await client(several, "b", b"c")
    reader = await client(several, "a", b"r")
    await reader.subscribe((b"t", 1))
    new.send(wire.publish(5, b"t", b"in", 2, 7))
    await new.expect(PUBREC)
    new.send(ack(PUBREL, 7))
    await new.expect(PUBCOMP)
    await new.publish(b"t", b"next", 2, 7)
    assert (await reader.message()).payload == b"next"
    await new.disconnect()
    await reader.drop()


async def test_many_connects_of_one_client_id_are_served_one_by_one(several: Several) -> None:
    clients = [await RawClient.open(several.ports[name], 5) for name in ("a", "b") * 5]
    for each in clients:
        each.send(connect(5, b"c", False, expiry=EVER))
    for each in clients:
        assert (await each.expect(CONNACK)).reason == 0
    ends = [asyncio.ensure_future(each.packet()) for each in clients]
    while len([end for end in ends if end.done()]) < len(ends) - 1:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        if end.done():
            assert end.result().reason == ReasonCode.SESSION_TAKEN_OVER
        end.cancel()
    held = [name for name, gateway in several.gateways.items() if b"c" in gateway.sessions.open_sessions]
    assert len(held) == 1
    for each in clients:
        await each.drop()


async def test_a_gateway_that_dies_has_its_wills_sent_once_and_its_sessions_closed(several: Several) -> None:
    watcher = await client(several, "b", b"w")
    await watcher.subscribe((b"wills/#", 1))
    stays = await client(several, "a", b"stays", will=(b"wills/stays", b"1"))
    passes = await client(several, "a", b"passes", expiry=0, will=(b"wills/passes", b"2"))
    other = await client(several, "b", b"other", will=(b"wills/other", b"3"))
    several.die("a")
    assert sorted([m.payload for m in await watcher.take(2)]) == [b"1", b"2"]
    back = await client(several, "b", b"stays")
    assert back.session_present
    await watcher.quiet()
    await other.quiet()
    assert [each[3] for each in await several.engine.sessions_open(None, 9)] == [
        gateway.sessions._ownership.name for gateway in [several.gateways["b"]] * 3
    ]
    for each in (stays, passes, other, back, watcher):
        await each.drop()


async def test_a_client_of_a_dead_gateway_waits_for_its_end_and_resumes(several: Several) -> None:
    old = await client(several, "a", b"c")
    await old.subscribe((b"t", 2))
    await publish(several, "b", b"t", b"1", qos=2)
    message = await old.message()
    several.die("a")
    new = await client(several, "b", b"c")
    assert new.session_present
    again = await new.message()
    assert (again.payload, again.dup, again.packet_id) == (b"1", True, message.packet_id)
    new.send(ack(PUBREC, again.packet_id))
    await new.expect(PUBREL)
    new.send(ack(PUBCOMP, again.packet_id))
    await new.quiet()
    await new.disconnect()
    await old.drop()


async def test_a_gateway_declared_dead_refuses_clients(several: Several) -> None:
    name = several.gateways["a"].sessions._ownership.name
    several.engine.gateway_registry._end(several.engine.gateway_registry._gateways[name])
    async with patience():
        await several.ended["a"].wait()
    assert several.engine.gateway_registry.has_ended(name)
    refused = await RawClient.open(several.ports["a"], 5)
    refused.send(connect(5, b"c"))
    assert (await refused.expect(CONNACK)).reason == ReasonCode.SERVER_UNAVAILABLE
    await refused.closed()


async def test_a_successor_ends_its_predecessor_at_once(tmp_path: Path) -> None:
    several = await Several(tmp_path / "data", store__lease_ms=3_600_000).open()
    await several.join("a", "b")
    old = await client(several, "a", b"c")
    several.die("a")
    await several.join("a-2")
    new = await client(several, "b", b"c")
    assert new.session_present
    await new.disconnect()
    await old.drop()
    await several.close()


async def test_a_gateway_that_stops_leaves_its_clients_to_others_at_once(tmp_path: Path) -> None:
    several = await Several(tmp_path / "data", store__lease_ms=3_600_000).open()
    await several.join("a", "b")
    old = await client(several, "a", b"c")
    await several.leave("a")
    assert (await old.expect(DISCONNECT)).reason == ReasonCode.SERVER_SHUTTING_DOWN
    assert len(several.engine.gateway_registry.figures) == 1
    assert len(several.engine._views.gateways.page(None, 9)) == 1
    new = await client(several, "b", b"c")
    assert new.session_present
    await new.disconnect()
    await several.close()


@pytest.mark.mqtt5("4.8.2-4")
async def test_a_shared_subscription_spreads_over_gateways(several: Several) -> None:
    members = [await client(several, name, b"m-" + name.encode(), expiry=0) for name in ("a", "b")]
    for member in members:
        await member.subscribe((GROUP, 1))
    sender = asyncio.create_task(publish(several, "a", b"t/1", *[b"%03d" % n for n in range(100)]))
    got = await gather(members, 100)
    await sender
    assert sorted(together(got)) == [b"%03d" % n for n in range(100)]
    assert min(map(len, got)) >= 10  # how even it is depends on who is slow
    for member in members:
        await member.drop()


async def test_messages_leased_by_a_dead_gateway_go_to_other_members(several: Several) -> None:
    lost = await client(several, "a", b"lost", expiry=0)
    await lost.subscribe((GROUP, 1))
    await publish(several, "b", b"t/1", b"1", b"2")
    assert [(await lost.message()).payload for _ in range(2)] == [b"1", b"2"]
    member = await client(several, "b", b"member", expiry=0)
    await member.subscribe((GROUP, 1))
    several.die("a")
    assert [m.payload for m in await member.take(2)] == [b"1", b"2"]
    assert [each[1] for each in await several.engine.transient_shares(None, 9)] == [
        [several.gateways["b"].sessions._ownership.name]
    ]
    await member.drop()
    await lost.drop()


async def test_a_second_member_takes_nothing_that_another_gateway_has_out(several: Several) -> None:
    first = await client(several, "a", b"first", expiry=0)
    await first.subscribe((GROUP, 1))
    await publish(several, "b", b"t/1", b"1")
    assert (await first.message()).payload == b"1"
    second = await client(several, "b", b"second", expiry=0)
    await second.subscribe((GROUP, 1))
    await publish(several, "b", b"t/1", b"2", b"3", b"4", b"5")
    seen = [m.payload for m in await second.take(1)]
    assert b"1" not in seen
    await first.drop()
    rest = [m.payload for m in await second.take(5 - len(seen))]
    assert sorted(seen + rest) == [b"1", b"2", b"3", b"4", b"5"]
    await second.drop()


async def test_figures_are_those_of_all_gateways(several: Several) -> None:
    clients = [await client(several, name, b"c-" + name.encode()) for name in ("a", "a", "b")]
    several.gateways["a"].sessions.sys_topics._interval = 0
    tree = several.gateways["b"].sessions.sys_topics
    await until(lambda: several.gateways["b"].sessions._ownership.others.get("connected") == 1)
    tree.publish_changes(1.0)
    assert tree._values[b"$SYS/broker/clients/connected"].payload == b"2"
    for each in clients:
        await each.drop()


async def test_an_opened_store_waits_for_its_earlier_gateways(tmp_path: Path) -> None:
    """Their sessions stay open, and nobody else gets a client of theirs, until they are back or their time is over."""
    several = await Several(tmp_path / "data").open()
    await several.join("a", "b")
    old = await client(several, "a", b"c", will=(b"wills/c", b"gone"))
    several.die("a")
    several.die("b")
    await several.restart()
    assert len(several.engine._views.gateways.page(None, 9)) == 2
    assert len(await several.engine.sessions_open(None, 9)) == 1
    await several.join("c")
    watcher = await client(several, "c", b"w")
    await watcher.subscribe((b"wills/#", 1))
    new = await client(several, "c", b"c")
    assert new.session_present
    await watcher.quiet()
    assert len(several.engine._views.gateways.page(None, 9)) == 1
    for each in (old, new, watcher):
        await each.drop()
    await several.close()


async def test_no_session_expires_before_the_gateways_of_before_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have opened it again in time, and the record of that be on its way."""
    several = await Several(tmp_path / "data", store__lease_ms=3_600_000).open()
    await several.join("a")
    passing = await client(several, "a", b"c", expiry=1)
    await passing.disconnect()
    name = several.gateways["a"].sessions._ownership.name
    await until(lambda: not several.engine.gateway_registry.owner(b"c"))
    await several.keeping.stop()
    several.die("a")
    while not await several.engine.sessions_expired(int(time() * 1000), 9):  # noqa: ASYNC110  as above
        await asyncio.sleep(0.01)
    looks, find = list[object](), Engine.sessions_expired

    async def look(engine: Engine, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        found = await find(engine, now_ms, limit)
        looks.append(found)
        return found

    monkeypatch.setattr(Engine, "sessions_expired", look)
    monkeypatch.setattr(keeping, "SWEEP_SECONDS", 0.001)
    await several.restart()
    await until(lambda: len(looks) >= 9)
    assert await several.engine.session_row(b"c") is not None
    several.engine.gateway_registry.expire(name)
    while await several.engine.session_row(b"c") is not None:  # noqa: ASYNC110  as above
        await asyncio.sleep(0.001)
    await several.close()


async def test_a_client_that_left_while_waiting_takes_nothing_over(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went to another gateway meanwhile, and had tried twice before."""
    monkeypatch.setattr(wait_limit, "_CHECK_SECONDS", 0.01)
    watcher = await client(several, "a", b"w")
    await watcher.subscribe((b"wills/#", 1))
    way, word, asked = several._ways["b"], asyncio.Event(), asyncio.Event()
    claim = way.claim_client

    async def late(*arguments: object) -> object:
        asked.set()
        await word.wait()
        return await claim(*arguments)

    monkeypatch.setattr(way, "claim_client", late, raising=False)
    tries = [await RawClient.open(several.ports["b"], 5) for _ in range(2)]
    for each in tries:
        each.send(connect(5, b"c", False, expiry=EVER, will=(b"wills/c", b"of b")))
    await asked.wait()
    await until(lambda: len(several.gateways["b"].front.connections) >= 2)
    for each in tries:
        await each.drop()
    live = await client(several, "a", b"c", will=(b"wills/c", b"of a"))
    await until(lambda: b"c" not in several.gateways["b"].sessions.client_locks)
    word.set()
    await live.quiet()
    await watcher.quiet()
    for each in (live, watcher):
        await each.drop()


async def test_packets_behind_connect_count_though_the_client_left(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_limit, "_CHECK_SECONDS", 0.001)
    watcher = await client(several, "a", b"w")
    await watcher.subscribe((b"t", 1))
    way, word, looked = several._ways["b"], asyncio.Event(), asyncio.Event()
    claim = way.claim_client

    async def late(*arguments: object) -> object:
        await word.wait()
        return await claim(*arguments)

    monkeypatch.setattr(way, "claim_client", late, raising=False)
    look = WaitLimit._check

    def look_now(waiting: WaitLimit) -> None:
        look(waiting)
        looked.set()

    monkeypatch.setattr(WaitLimit, "_check", look_now)
    brief = await RawClient.open(several.ports["b"], 5)
    brief.send(connect(5, b"c", True) + wire.publish(5, b"t", b"brief", 0, None) + b"\xe0\0")
    await brief.drop()
    for _ in range(3):
        looked.clear()
        await looked.wait()
    word.set()
    assert [m.payload for m in await watcher.take(1)] == [b"brief"]
    await watcher.drop()


@pytest.mark.mqtt5("3.1.2-8")
@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_will_on_its_way_while_the_store_restarts_is_sent_once(tmp_path: Path, first: str) -> None:
    """Its client waits at another gateway, which may be back at the store before the one that has the will."""
    several = await Several(tmp_path / "data", far=True, store__lease_ms=3_600_000).open()
    await several.join("a", "b")
    watcher = await client(several, "b", b"w")
    await watcher.subscribe((b"wills/#", 1))
    old = await client(several, "a", b"c", will=(b"wills/c", b"1"))
    way, other = (several._ways[name] for name in ("a", "b"))
    append, waiting = way.append, list[tuple[list[bytes], Done]]()
    way.append = lambda frames, done: waiting.append((frames, done))  # type: ignore[method-assign]
    back, late = asyncio.Event(), way if first == "b" else other
    join = late.join_gateway

    async def join_late(*arguments: object, **more: object) -> object:
        await back.wait()
        return await join(*arguments, **more)

    late.join_gateway = join_late  # type: ignore[attr-defined]
    new = await RawClient.open(several.ports["b"], 5)
    new.send(connect(5, b"c", False, expiry=EVER, will=(b"wills/c", b"2")))
    await until(lambda: waiting)
    await several.restart()
    registry = several.engine.gateway_registry
    await until(lambda: registry.figures)
    back.set()
    await until(lambda: len(registry.figures) >= 2)
    assert (registry.owner(b"c") or b"").startswith(b"a/")
    way.append = append  # type: ignore[method-assign]
    for frames, done in waiting:
        append(frames, done)
    await new.expect(CONNACK)
    assert [m.payload for m in await watcher.take(1)] == [b"1"]
    await watcher.quiet()
    await new.drop()
    assert [m.payload for m in await watcher.take(1)] == [b"2"]
    for each in (old, watcher):
        await each.drop()
    await several.close()


async def test_a_gateway_that_stops_waits_for_the_last_records_of_a_client_that_somebody_waited_for(
    several: Several, caplog: pytest.LogCaptureFixture
) -> None:
    old = await client(several, "a", b"c", will=(b"wills/c", b"gone"))
    waiting: list[tuple[list[bytes], Done]] = []
    way = several._ways["a"]
    append, sessions = way.append, several.gateways["a"].sessions
    way.append = lambda frames, done: waiting.append((frames, done))  # type: ignore[method-assign]
    await old.drop()
    await until(sessions._ending.all)
    new = await RawClient.open(several.ports["a"], 5)
    new.send(connect(5, b"c", False, expiry=EVER))
    await until(lambda: b"c" in sessions.client_locks)
    stopping = asyncio.ensure_future(sessions.stop())
    await until(lambda: not sessions._tasks)
    way.append = append  # type: ignore[method-assign]
    for frames, done in waiting:
        append(frames, done)
    await stopping
    assert not sessions.open_sessions
    assert "failed" not in caplog.text
    await new.drop()
