"""Sessions and wills belong to users: they are removed with the user and checked by the current rules."""

import asyncio
from pathlib import Path

import pytest

from gateway.auth.rules.rule_text import parse_rule
from gateway.broker.append import append
from gateway.config.config import ConfigError, load
from gateway.node.node import Node
from store import control
from store.config import StoreConfig
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import copy_log, crashed
from tests.gateway.mqtt import wire
from tests.gateway.people import change_password, login, remove_user, set_rules, set_user
from tests.gateway.raw import CONNACK, DISCONNECT, RawClient, connect
from tests.waiting import patience, until


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    made = await make_node(mqtt__auth=["anonymous", "password"])
    for name in ("alice", "bob"):
        await set_user(made, name, name.encode())
        await set_rules(made, name, "allow both #", "allow both $inbox/#")
    return made


async def comes(node: Node, name: bytes | None, client_id: bytes, **options: object) -> RawClient:
    client, connack = await login(node.ports.mqtt, name, name, 5, client_id, **options)
    assert connack.reason == 0
    return client


async def is_refused(node: Node, name: bytes | None, client_id: bytes, **options: object) -> bool:
    client, connack = await login(node.ports.mqtt, name, name, 5, client_id, **options)
    if connack.reason == 0:
        await client.disconnect()
    return connack.reason == 0x85


def with_will(client_id: bytes, topic: bytes, delay_s: int, expiry: int, name: bytes = b"alice") -> bytes:
    """CONNECT with a will, of a user whose password is the name."""
    flags = 2 | 4 | 0x80 | 0x40
    body = wire.text(b"MQTT") + bytes((5, flags)) + wire.u16(0) + wire.sized(b"\x11" + wire.u32(expiry))
    body += wire.text(client_id) + wire.sized(b"\x18" + wire.u32(delay_s) if delay_s else b"")
    return wire.packet(0x10, body + wire.text(topic) + wire.text(b"gone") + wire.text(name) + wire.text(name))


async def leaves_a_will(
    node: Node, client_id: bytes, delay_s: int, expiry: int = 600, name: bytes = b"alice"
) -> RawClient:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(with_will(client_id, b"wills/" + client_id, delay_s, expiry, name))
    client.connack = await client.expect(CONNACK)
    assert client.connack.reason == 0
    return client


async def is_lost(node: Node, client_id: bytes, delay_s: int, name: bytes = b"alice") -> None:
    """A client came, and its connection broke: its will waits."""
    await (await leaves_a_will(node, client_id, delay_s, name=name)).drop()
    assert node._engine is not None
    async with patience():
        while (will := await node._engine.will(client_id)) is None or not will.due_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def watches(node: Node) -> RawClient:
    client = await comes(node, b"bob", b"watches")
    await client.subscribe((b"wills/#", 1))
    return client


# --- sessions


@pytest.mark.parametrize("clean", [False, True])
async def test_a_session_that_waits_is_for_no_other_user(node: Node, clean: bool) -> None:
    first = await comes(node, b"alice", b"meter", clean=False, expiry=600)
    await first.subscribe((b"q/#", 1))
    await first.disconnect()
    for other in (b"bob", None):
        assert await is_refused(node, other, b"meter", clean=clean, expiry=600)
    assert node.counters.sessions_denied == 2
    again = await comes(node, b"alice", b"meter", clean=False, expiry=600)
    assert again.session_present


async def test_an_anonymous_session_becomes_that_of_the_next_user(node: Node) -> None:
    await (await comes(node, None, b"meter", clean=False, expiry=600)).disconnect()
    first = await comes(node, b"alice", b"meter", clean=False, expiry=600)
    assert first.session_present
    await first.disconnect()
    assert await is_refused(node, None, b"meter")


async def test_an_ended_session_belongs_to_no_user(node: Node) -> None:
    await (await comes(node, b"alice", b"meter", clean=False, expiry=1)).disconnect()
    assert node._engine is not None
    async with patience():
        while await is_refused(node, b"bob", b"meter"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_user_of_a_session_survives_a_restart(make_node: MakeNode, node: Node) -> None:
    await comes(node, b"alice", b"meter", clean=False, expiry=600)
    again = await crashed(make_node, node, "copy", mqtt__auth=["anonymous", "password"])
    assert await is_refused(again, b"bob", b"meter")
    assert (await comes(again, b"alice", b"meter", clean=False, expiry=600)).session_present


async def test_messages_to_an_inbox_wait_for_the_user_they_are_for(node: Node) -> None:
    await (await comes(node, b"alice", b"meter", clean=False, expiry=600)).disconnect()
    sender = await comes(node, b"bob", b"sender")
    await sender.publish(b"$inbox/meter", b"for alice")
    assert await is_refused(node, b"bob", b"meter")
    again = await comes(node, b"alice", b"meter", clean=False, expiry=600)
    assert (await again.message()).payload == b"for alice"


async def test_the_sessions_of_a_user_go_with_the_user(node: Node) -> None:
    """Those that wait and those that are connected, and no others."""
    for client_id in (b"away", b"away too"):
        await (await comes(node, b"alice", client_id, clean=False, expiry=600)).disconnect()
    await (await comes(node, b"bob", b"stays", clean=False, expiry=600)).disconnect()
    here = await comes(node, b"alice", b"here", clean=False, expiry=600)
    assert await remove_user(node, "alice") == 3
    assert (await here.expect(DISCONNECT)).reason == 0x98
    assert node._engine is not None
    assert await node._engine.sessions(None, 9) == [b"stays"]
    assert not (await comes(node, b"bob", b"away", clean=False, expiry=600)).session_present


async def test_sessions_that_an_interrupted_command_left_are_removed_by_the_next(node: Node) -> None:
    await (await comes(node, b"alice", b"away", clean=False, expiry=600)).disconnect()
    assert node._engine is not None
    await append(node._engine, [control.UserRemoved().frame(b"alice")])
    assert await remove_user(node, "alice") == 1
    assert await node._engine.sessions(None, 9) == []


# --- client ids


async def test_client_ids_of_users(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["password"], mqtt__client_ids="user")
    await set_user(node, "alice", b"alice")
    await set_user(node, "ali", b"ali")
    for client_id in (b"alice", b"alice:", b"alice:kitchen", b"alice:kitchen:2", b""):
        await (await comes(node, b"alice", client_id)).disconnect()
    for client_id in (b"bob", b"bob:alice", b"alic", b"alice-2", b":alice"):
        assert await is_refused(node, b"alice", client_id)
    assert await is_refused(node, b"ali", b"alice:kitchen")
    assert node.counters.sessions_denied == 6


def test_client_ids_of_users_without_users() -> None:
    for settings in (
        {"mqtt.client_ids": "user"},
        {"mqtt.client_ids": "user", "mqtt.auth": ["password", "anonymous"]},
        {"mqtt.listeners": [{"name": "a", "address": "[::1]:0", "client_ids": "user"}]},
        {"mqtt.client_ids": "users", "mqtt.auth": ["password"]},
        {"mqtt.client_ids": ""},
    ):
        with pytest.raises(ConfigError, match="client_ids"):
            load(None, settings, {})
    listener = {"name": "a", "address": "[::1]:0", "client_ids": "user", "auth": ["password"]}
    assert load(None, {"mqtt.listeners": [listener]}, {}).mqtt.listeners[0].client_ids == "user"


# --- wills


async def test_a_delayed_will_is_checked_when_it_is_sent(node: Node) -> None:
    watching = await watches(node)
    await is_lost(node, b"one", 1)
    await set_rules(node, "alice", "deny both #")
    await is_lost(node, b"two", 1, b"bob")
    message = await watching.message()  # bob's came at its time; alice's was due before
    assert message.topic == b"wills/two"
    assert (node.counters.wills_sent, node.counters.wills_denied) == (1, 1)
    assert node._engine is not None
    assert await node._engine.will(b"one") is None
    await watching.quiet()


async def test_wills_of_a_node_that_died_are_judged_by_the_next(
    make_node: MakeNode, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By users and rules that were changed meanwhile."""
    there = [await leaves_a_will(node, client_id, 0) for client_id in (b"denied", b"denied too")]
    there.append(await leaves_a_will(node, b"granted", 0, name=b"bob"))
    await set_user(node, "carol", b"carol")
    await set_rules(node, "", "allow both #")
    there.append(await leaves_a_will(node, b"removed", 0, 0, b"carol"))
    copy_log(node.config.data_dir, tmp_path / "copy")
    engine = await Engine.open(tmp_path / "copy", StoreConfig())
    everything = parse_rule("deny both #")
    await append(engine, [control.RulesSet([everything]).frame(b"alice"), control.UserRemoved().frame(b"carol")])
    await engine.close()
    again = await make_node("copy", mqtt__auth=["password"])
    await until(lambda: again.counters.wills_sent + again.counters.wills_denied == 4)
    assert (again.counters.wills_sent, again.counters.wills_denied) == (1, 3)
    assert again._engine is not None
    assert await again._engine.wills(None, 9) == []
    assert caplog.text.count("may not be sent any more") == 1
    for client in there:
        await client.drop()


@pytest.mark.parametrize("default", ["allow", "deny"])
async def test_of_what_no_rule_speaks_the_listener_decides_that_the_will_came_by(
    make_node: MakeNode, tmp_path: Path, default: str
) -> None:
    node = await make_node("first", mqtt__auth=["password"], mqtt__acl_default=default)
    await set_user(node, "alice", b"alice")
    await set_rules(node, "alice", "allow both wills/#")
    client = await leaves_a_will(node, b"c", 0)
    copy_log(node.config.data_dir, tmp_path / "copy")
    engine = await Engine.open(tmp_path / "copy", StoreConfig())
    await append(engine, [control.RulesSet([]).frame(b"alice")])
    await engine.close()
    again = await make_node("copy")
    await until(lambda: again.counters.wills_sent + again.counters.wills_denied == 1)
    assert (again.counters.wills_sent, again.counters.wills_denied) == ((1, 0) if default == "allow" else (0, 1))
    await client.drop()


async def test_the_will_of_a_removed_user_is_not_sent(node: Node) -> None:
    """Neither that of who is connected nor one that waits, whatever the rules for everybody say."""
    await set_rules(node, "", "allow both #")
    watching = await watches(node)
    here = await leaves_a_will(node, b"here", 0)
    await is_lost(node, b"away", 600)
    await remove_user(node, "alice")
    assert (await here.expect(DISCONNECT)).reason == 0x98
    await watching.quiet()
    assert node._engine is not None
    assert await node._engine.wills(None, 9) == []
    assert node.counters.wills_sent == 0


async def test_the_will_of_a_user_whose_password_changed_is_sent(node: Node) -> None:
    watching = await watches(node)
    here = await leaves_a_will(node, b"here", 0)
    await change_password(node, "alice", b"another")
    assert (await here.expect(DISCONNECT)).reason == 0x98
    assert (await watching.message()).topic == b"wills/here"


async def test_a_due_will_is_checked_when_its_client_returns_too_late(node: Node) -> None:
    """It is due, and would be sent before the new connection is opened."""
    watching = await watches(node)
    await is_lost(node, b"late", 600)
    await set_rules(node, "alice", "allow publish other")
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"late", True, username=b"alice", password=b"alice"))  # ends the session that had the will
    assert (await client.expect(CONNACK)).reason == 0
    await watching.quiet()
    assert node.counters.wills_denied == 1
