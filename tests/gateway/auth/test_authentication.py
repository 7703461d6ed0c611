"""Authentication: passwords, SCRAM in AUTH packets (section 4.12), reauthentication, changes of users meanwhile."""

import asyncio
import os

import aiohttp
import pytest

from gateway.auth import attempts
from gateway.auth.credentials import passwords
from gateway.node.node import Node
from store.api import User
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.people import (
    SCRAM,
    auth,
    challenged,
    change_password,
    connect_with,
    login,
    remove_user,
    said,
    scram,
    set_rules,
    set_user,
)
from tests.gateway.raw import AUTH, CONNACK, DISCONNECT, RawClient
from tests.gateway.scram_client import ScramClient
from tests.waiting import until


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """A node that authenticates its clients and has a user alice with the password wonderland."""
    return await with_alice(make_node)


async def with_alice(make_node: MakeNode, **settings: object) -> Node:
    made = await make_node(mqtt__auth=["password", "scram"], mqtt__acl_default="allow", **settings)
    await set_user(made, "alice", b"wonderland")
    return made


# --- user names and passwords


@pytest.mark.parametrize("version", [4, 5])
async def test_a_user_with_the_password_gets_in(node: Node, version: int) -> None:
    for _ in range(2):  # the second time it is known to be right
        client, connack = await login(node.ports.mqtt, b"alice", b"wonderland", version)
        assert connack.body[1] == 0
        await client.publish(b"t", b"x")


@pytest.mark.mqtt5("3.1.4-2")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("name", "password"),
    [
        *((b"alice", b"Wonderland"), (b"alice", b""), (b"alice", None), (b"Alice", b"wonderland")),
        *((b"nobody", b"wonderland"), (b"", b""), (b"", b"wonderland"), (b"ali\xc3\xa7e", b"\xff\xfe")),
    ],
)
async def test_a_wrong_user_or_password_is_refused(
    node: Node, version: int, name: bytes, password: bytes | None
) -> None:
    client, connack = await login(node.ports.mqtt, name, password, version)
    assert connack.body[:2] == (b"\0\x86" if version == 5 else b"\0\4")
    await client.closed()
    assert node.counters.logins_failed == 1


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_without_credentials_is_refused(node: Node, version: int) -> None:
    client, connack = await login(node.ports.mqtt, None, None, version)
    assert connack.body[:2] == (b"\0\x87" if version == 5 else b"\0\5")
    await client.closed()


async def test_a_password_without_a_user_name_is_refused(node: Node) -> None:
    _, connack = await login(node.ports.mqtt, None, b"wonderland")
    assert connack.reason == 0x86


async def test_an_anonymous_listener_ignores_names(make_node: MakeNode) -> None:
    node = await make_node()
    await set_user(node, "alice", b"wonderland")
    await set_rules(node, "alice", "deny both #")
    client, connack = await login(node.ports.mqtt, b"alice", b"guess")
    assert connack.reason == 0
    await client.publish(b"t", b"x")


async def test_a_name_needs_its_password_even_if_anonymous_is_allowed(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["anonymous", "password"])
    await set_user(node, "alice", b"wonderland")
    for name, password, reason in ((None, None, 0), (b"alice", b"guess", 0x86), (b"alice", b"wonderland", 0)):
        _, connack = await login(node.ports.mqtt, name, password)
        assert connack.reason == reason


async def test_too_many_wrong_passwords_have_their_address_wait(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["password"], mqtt__max_wrong_passwords=3)
    await set_user(node, "alice", b"wonderland")
    await set_user(node, "bob", b"builder")
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0
    answers = [await login(node.ports.mqtt, b"alice", b"%d" % guess) for guess in range(5)]
    assert [connack.reason for _, connack in answers] == [0x86, 0x86, 0x86, 0x9F, 0x9F]
    old = (await login(node.ports.mqtt, b"alice", b"guess", 4))[1]
    assert old.body[1] == 3
    # What is known to be right from there costs nothing and is let in; what would have to be looked at is not.
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0
    assert (await login(node.ports.mqtt, b"bob", b"builder"))[1].reason == 0x9F


async def test_guesses_at_once_are_no_way_around_the_limit(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["password"], mqtt__max_wrong_passwords=3)
    await set_user(node, "alice", b"wonderland")
    answers = await asyncio.gather(*(login(node.ports.mqtt, b"alice", b"%d" % n, 5, b"c%d" % n) for n in range(20)))
    reasons = sorted(connack.reason for _, connack in answers)
    assert set(reasons) == {0x86, 0x9F}
    assert reasons.count(0x86) <= 3 + passwords._THREADS


async def test_many_clients_that_reconnect_at_once_are_served(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["password"], mqtt__max_wrong_passwords=1)
    for number in range(20):
        await set_user(node, f"u{number}", b"p%d" % number)
    storm = [login(node.ports.mqtt, b"u%d" % n, b"p%d" % n, 5, b"c%d" % n) for n in range(20)]
    assert [connack.reason for _, connack in await asyncio.gather(*storm)] == [0] * 20


async def test_connected_clients_come_before_password_checks(node: Node) -> None:
    """The threads are nicer than the loop, and only they."""
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0
    pool = node._authority.passwords._pool
    before = os.nice(0)
    assert await asyncio.get_running_loop().run_in_executor(pool, os.nice, 0) == min(before + 10, 19)
    assert os.nice(0) == before


async def test_no_more_wait_for_their_password_to_be_checked_than_may(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "_MAX_WAITING", 0)
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0x89
    assert (await login(node.ports.mqtt, b"alice", b"wonderland", 4))[1].body[1] == 3


# --- AUTH packets


@pytest.mark.mqtt5("4.12.0-2", "4.12.0-5")
async def test_a_client_logs_in_with_scram(node: Node) -> None:
    """Section 4.12: CONNECT, AUTH, AUTH, CONNACK, which has the server's own proof, another one for each connection."""
    for _ in range(2):
        client, proof = await RawClient.open(node.ports.mqtt, 5), ScramClient(b"alice", b"wonderland")
        client.send(connect_with(SCRAM, proof.first()))
        reason, method, challenge = said(await client.expect(AUTH))
        assert (reason, method) == (0x18, SCRAM)
        assert challenge is not None
        client.send(auth(0x18, SCRAM, proof.final(challenge)))
        reason, method, data = said(await client.expect(CONNACK))
        assert (reason, method) == (0, SCRAM)
        assert data is not None
        assert proof.believes(data)
        await client.publish(b"t", b"x")


async def test_a_client_that_waits_to_be_asked(node: Node) -> None:
    client, proof = await RawClient.open(node.ports.mqtt, 5), ScramClient(b"alice", b"wonderland")
    client.send(connect_with(SCRAM, None))
    assert said(await client.expect(AUTH)) == (0x18, SCRAM, None)
    client.send(auth(0x18, SCRAM, proof.first()))
    client.send(auth(0x18, SCRAM, proof.final(await challenged(client))))
    assert (await client.expect(CONNACK)).reason == 0


@pytest.mark.mqtt5("4.12.0-4")
@pytest.mark.parametrize(("name", "password"), [(b"alice", b"Wonderland"), (b"nobody", b"wonderland"), (b"bob", b"")])
async def test_a_wrong_proof(node: Node, name: bytes, password: bytes) -> None:
    client, _, connack = await scram(node.ports.mqtt, name, password)
    assert said(connack) == (0x86, None, None)
    await client.closed()
    assert node.counters.logins_failed == 1


async def test_wrong_proofs_are_counted_as_wrong_passwords_are(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["scram"], mqtt__max_wrong_passwords=2)
    await set_user(node, "alice", b"wonderland")
    guesses = (b"1", b"2", b"3", b"wonderland")
    answers = [(await scram(node.ports.mqtt, b"alice", guess))[2].reason for guess in guesses]
    assert answers == [0x86, 0x86, 0x9F, 0x9F]


async def test_guesses_from_its_address_do_not_lock_a_device_out(make_node: MakeNode) -> None:
    """It proved its password from there before. Who says its name with other client ids learns nothing; who knows its
    client id as well may try as often as from an address."""
    node = await make_node(mqtt__auth=["scram"], mqtt__max_wrong_passwords=2)
    await set_user(node, "alice", b"wonderland")
    device = b"meter"
    assert (await scram(node.ports.mqtt, b"alice", b"wonderland", device))[2].reason == 0
    guesses = (b"1", b"2", b"3", b"wonderland")
    answers = [(await scram(node.ports.mqtt, b"alice", guess, b"guesser"))[2].reason for guess in guesses]
    assert answers == [0x86, 0x86, 0x9F, 0x9F]
    assert (await scram(node.ports.mqtt, b"alice", b"wonderland", device))[2].reason == 0
    answers = [(await scram(node.ports.mqtt, b"alice", guess, device))[2].reason for guess in guesses]
    assert answers == [0x86, 0x86, 0x9F, 0x9F]


async def test_a_connected_client_reauthenticates_despite_guesses_of_others(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["scram"], mqtt__max_wrong_passwords=1)
    await set_user(node, "alice", b"wonderland")
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland", b"meter")
    answers = [(await scram(node.ports.mqtt, b"alice", b"guess", b"guesser"))[2].reason for _ in range(2)]
    assert answers == [0x86, 0x9F]
    await again(client, ScramClient(b"alice", b"wonderland"))
    assert (await client.expect(AUTH)).reason == 0


@pytest.mark.mqtt5("4.12.1-2")
@pytest.mark.parametrize("name", [b"bob", b"nobody"])
async def test_reauthentication_cannot_guess_passwords_of_other_users(node: Node, name: bytes) -> None:
    """It does not become another user's, and is not even challenged."""
    await set_user(node, "bob", b"builder")
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    client.send(auth(0x19, SCRAM, ScramClient(name, b"builder").first()))
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await client.closed()


@pytest.mark.parametrize("way", ["password", "scram"])
async def test_a_name_that_is_guessed_at_from_many_places_is_slow_and_not_shut(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    node = await make_node(mqtt__auth=[way], mqtt__max_wrong_passwords=2)
    await set_user(node, "alice", b"wonderland")
    checks = node._authority.passwords
    slept: list[float] = []
    real = attempts.LoginDelays.delay

    def delay(self: attempts.LoginDelays, name: bytes, now: float) -> float:
        slept.append(real(self, name, now))
        return 0.01

    monkeypatch.setattr(attempts.LoginDelays, "delay", delay)
    user = User(b"alice", b"", 0, b"", b"")
    for number in range(30):
        checks.count_failure(user.name, f"192.0.2.{number}")
    come = scram if way == "scram" else login
    assert (await come(node.ports.mqtt, b"alice", b"wonderland", client_id=b"meter"))[-1].reason == 0
    assert len(slept) == 1
    assert slept[0] > 1
    assert (await come(node.ports.mqtt, b"alice", b"wonderland", client_id=b"meter"))[-1].reason == 0
    assert len(slept) == 1  # who was let in before does not wait
    assert checks._delayed == 0


async def test_an_unknown_user_is_challenged_like_a_known_one(node: Node, make_node: MakeNode) -> None:
    """The salt is the same each time, also after a restart, and so is the number of iterations."""

    async def challenge(port: int, name: bytes) -> list[bytes]:
        client = await RawClient.open(port, 5)
        client.send(connect_with(SCRAM, ScramClient(name, b"").first()))
        fields = (await challenged(client)).split(b",")
        await client.drop()
        return fields[1:]

    port = node.ports.mqtt
    nobody = await challenge(port, b"nobody")
    assert nobody == await challenge(port, b"nobody")
    assert nobody != await challenge(port, b"another")
    known = await challenge(port, b"alice")
    assert nobody[1] == known[1] == b"i=4096"
    await node.stop()
    again = await make_node(mqtt__auth=["scram"])
    assert await challenge(again.ports.mqtt, b"nobody") == nobody


@pytest.mark.mqtt5("4.12.0-1", "4.12.0-4")
@pytest.mark.parametrize("method", [b"SCRAM-SHA-1", b"SCRAM-SHA-256-PLUS", b"GS2-KRB5", b"", b"scram-sha-256"])
async def test_a_method_that_is_not_offered(node: Node, method: bytes) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(method, b"n,,n=alice,r=abc"))
    assert (await client.expect(CONNACK)).reason == 0x8C
    await client.closed()


async def test_scram_where_only_passwords_are_taken(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["password"])
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, b"n,,n=alice,r=abc"))
    assert (await client.expect(CONNACK)).reason == 0x8C


@pytest.mark.mqtt5("4.12.0-4")
@pytest.mark.parametrize("first", [b"", b"n,,n=alice", b"p=tls-unique,,n=alice,r=abc"])
async def test_a_malformed_first_scram_message(node: Node, first: bytes) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, first))
    assert (await client.expect(CONNACK)).reason == 0x87
    await client.closed()


@pytest.mark.mqtt5("3.1.2-30", "4.12.0-3", "4.12.0-5")
@pytest.mark.parametrize(
    "packet",
    [
        wire.publish(5, b"t", b"x", 1, 1),
        b"\xc0\x00",
        auth(0x19, SCRAM, b"x"),
        auth(0x18, b"SCRAM-SHA-1", b"x"),
        auth(0x18, None),
        wire.subscribe(5, 1, (b"#", 1)),
    ],
)
async def test_nothing_but_the_next_auth_comes_before_connack(node: Node, packet: bytes) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, ScramClient(b"alice", b"wonderland").first()))
    await challenged(client)
    client.send(packet)
    assert (await client.expect(CONNACK)).reason == 0x82
    await client.closed()


@pytest.mark.parametrize("packet", [b"\xe0\x00", None])
async def test_a_client_that_gives_up(node: Node, packet: bytes | None) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, ScramClient(b"alice", b"wonderland").first()))
    await challenged(client)
    if packet is None:
        await client.drop()
    else:
        client.send(packet)
        await client.closed()
    await until(lambda: not node._front.connections)
    assert not node._sessions.open_sessions


async def test_auth_that_came_with_connect_was_not_asked_for(node: Node) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, ScramClient(b"alice", b"x").first()), auth(0x18, SCRAM, b"x"))
    await client.closed()


async def test_slow_authentication_is_refused(make_node: MakeNode) -> None:
    """`connect_timeout` limits it."""
    node = await with_alice(make_node, mqtt__connect_timeout=1)
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect_with(SCRAM, ScramClient(b"alice", b"wonderland").first()))
    await challenged(client)
    assert (await client.expect(CONNACK)).reason == 0x87
    await client.closed()


@pytest.mark.mqtt5("3.1.2-24")
async def test_no_auth_is_larger_than_the_client_takes(node: Node) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    block = b"\x27" + wire.u32(60) + b"\x15" + wire.text(SCRAM) + b"\x16" + wire.text(b"n,,n=alice,r=abc")
    client.send(wire.packet(0x10, wire.text(b"MQTT") + b"\5\2\0\0" + wire.sized(block) + wire.text(b"c")))
    connack = await client.expect(CONNACK)
    assert connack.reason == 0x83
    assert connack.size <= 60


async def test_the_name_in_scram_counts_and_not_the_user_name_of_connect(node: Node) -> None:
    await set_user(node, "bob", b"builder")
    await set_rules(node, "bob", "deny both #")
    client, _, connack = await scram(node.ports.mqtt, b"alice", b"wonderland", username=b"bob", password=b"x")
    assert connack.reason == 0
    await client.publish(b"t", b"x")


# --- authenticating again


async def again(client: RawClient, proof: ScramClient) -> None:
    client.send(auth(0x19, SCRAM, proof.first()))
    client.send(auth(0x18, SCRAM, proof.final(await challenged(client))))


@pytest.mark.mqtt5("4.12.0-5", "4.12.1-1")
async def test_a_live_connection_authenticates_again(node: Node) -> None:
    """Section 4.12.1: AUTH 0x19, AUTH 0x18 both ways, AUTH 0x00; the connection goes on meanwhile."""
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    for _ in range(2):
        proof = ScramClient(b"alice", b"wonderland")
        client.send(auth(0x19, SCRAM, proof.first()))
        challenge = await challenged(client)
        await client.publish(b"t", b"meanwhile")
        client.send(auth(0x18, SCRAM, proof.final(challenge)))
        reason, method, data = said(await client.expect(AUTH))
        assert (reason, method) == (0, SCRAM)
        assert data is not None
        assert proof.believes(data)
    await client.publish(b"t", b"x")


@pytest.mark.mqtt5("4.12.1-2")
async def test_failed_reauthentication_disconnects(node: Node) -> None:
    """MQTT-4.12.1-2."""
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    await again(client, ScramClient(b"alice", b"guess"))
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await client.closed()


@pytest.mark.mqtt5("4.12.1-2")
async def test_slow_reauthentication_disconnects(make_node: MakeNode) -> None:
    node = await with_alice(make_node, mqtt__connect_timeout=2)
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    client.send(auth(0x19, SCRAM, ScramClient(b"alice", b"wonderland").first()))
    await challenged(client)
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await client.closed()


@pytest.mark.parametrize("packet", [auth(0x18, SCRAM, b"x"), auth(0x19, b"OTHER", b"x"), auth(0x19, None)])
async def test_an_unexpected_auth_packet_is_refused(node: Node, packet: bytes) -> None:
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    client.send(packet)
    assert (await client.expect(DISCONNECT)).reason == 0x82
    await client.closed()


async def test_beginning_again_twice_is_once_too_often(node: Node) -> None:
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    first = auth(0x19, SCRAM, ScramClient(b"alice", b"wonderland").first())
    client.send(first)
    await challenged(client)
    client.send(first)
    assert (await client.expect(DISCONNECT)).reason == 0x82


@pytest.mark.mqtt5("4.12.0-7")
async def test_a_password_client_cannot_reauthenticate(node: Node) -> None:
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland")
    client.send(auth(0x19, SCRAM, ScramClient(b"alice", b"wonderland").first()))
    assert (await client.expect(DISCONNECT)).reason == 0x82


# --- users that change


@pytest.mark.parametrize("way", ["password", "scram"])
@pytest.mark.parametrize("change", ["user-passwd", "user-remove"])
async def test_a_user_that_changes_is_disconnected_and_no_other(node: Node, way: str, change: str) -> None:
    await set_user(node, "bob", b"builder")
    other, _ = await login(node.ports.mqtt, b"bob", b"builder", client_id=b"other")
    if way == "scram":
        client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    else:
        client, _ = await login(node.ports.mqtt, b"alice", b"wonderland")
    if change == "user-passwd":
        await change_password(node, "alice", b"looking glass")
    else:
        await remove_user(node, "alice")
    assert (await client.expect(DISCONNECT)).reason == 0x98
    await client.closed()
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0x86
    assert (await scram(node.ports.mqtt, b"alice", b"wonderland"))[2].reason == 0x86
    if change == "user-passwd":
        assert (await login(node.ports.mqtt, b"alice", b"looking glass"))[1].reason == 0
    await other.publish(b"t", b"x")


async def test_reauthentication_with_the_new_password_keeps_the_connection(node: Node) -> None:
    """The new proof is what the connection rests on."""
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland")
    client.send(auth(0x19, SCRAM, ScramClient(b"alice", b"wonderland").first()))
    await challenged(client)
    await remove_user(node, "alice")
    assert (await client.expect(DISCONNECT)).reason == 0x98


async def test_a_user_removed_while_it_connects(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of the password and CONNACK."""
    store_session = type(node._engine).session_row
    removed = asyncio.Event()

    async def session_row(engine: object, client_id: bytes) -> object:
        if not removed.is_set():
            removed.set()
            await remove_user(node, "alice")
        return await store_session(engine, client_id)  # type: ignore[arg-type]

    monkeypatch.setattr(type(node._engine), "session_row", session_row)
    client, connack = await login(node.ports.mqtt, b"alice", b"wonderland", expiry=100)
    assert connack.reason == 0x86
    await client.closed()
    assert node._engine is not None
    while await node._engine.sessions_open(None, 9):  # noqa: ASYNC110  the record of its end is on its way
        await asyncio.sleep(0.01)


async def test_a_users_connection_is_not_taken_over_by_another(node: Node) -> None:
    await set_user(node, "bob", b"builder")
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland")
    assert (await login(node.ports.mqtt, b"bob", b"builder"))[1].reason == 0x85
    await client.publish(b"t", b"x")
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0
    assert (await client.expect(DISCONNECT)).reason == 0x8E


async def test_users_and_rules_outlive_a_restart(node: Node, make_node: MakeNode) -> None:
    await set_rules(node, "alice", "deny publish secret")
    await node.stop()
    node = await make_node(mqtt__auth=["password", "scram"], mqtt__acl_default="allow")
    assert (await scram(node.ports.mqtt, b"alice", b"wonderland"))[2].reason == 0
    client, connack = await login(node.ports.mqtt, b"alice", b"wonderland")
    assert connack.reason == 0
    client.send(wire.publish(5, b"secret", b"x", 1, 1))
    assert (await client.packet()).reason == 0x87


# --- listeners


async def test_the_node_says_when_anybody_may_come_from_outside(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = [
        {"name": "outside", "address": "0.0.0.0:0"},
        {"name": "asks", "address": "0.0.0.0:0", "auth": ["password"]},
        {"name": "inside", "address": "[::1]:0"},
    ]
    await make_node(mqtt__listeners=listeners)
    told = [record.getMessage() for record in caplog.records if "anonymous" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("listener outside at 0.0.0.0:")


@pytest.mark.parametrize(
    ("host", "asks", "open_to_all"),
    [
        ("0.0.0.0", [], ["gRPC", "HTTP"]),
        ("0.0.0.0", ["grpc"], ["HTTP"]),
        ("0.0.0.0", ["grpc", "http"], []),
        ("127.0.0.1", [], []),
        ("::1", [], []),
    ],
)
async def test_the_node_says_when_its_own_ports_are_open_to_others(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture, host: str, asks: list[str], open_to_all: list[str]
) -> None:
    """Each front asks by a setting of its own."""
    node = await make_node(host=host, mqtt__auth=["password"], **{f"{name}__auth": ["password"] for name in asks})
    told = [record.getMessage() for record in caplog.records if "anonymous" in record.getMessage()]
    ports = {"gRPC": node.ports.grpc, "HTTP": node.ports.http}
    assert told == [
        f"{name} at {host}:{ports[name]} accepts anonymous callers, whatever mqtt.auth says: see {name.lower()}.auth"
        for name in open_to_all
    ]


async def test_http_may_have_an_address_of_its_own(make_node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    node = await make_node(http__host="::1")
    async with aiohttp.request("GET", f"http://[::1]:{node.ports.http}/health") as answer:
        assert answer.status == 200
    assert node.ports.ready_line("127.0.0.1", node.config.http_host).endswith(f"http=[::1]:{node.ports.http}")
    assert "anonymous callers" not in caplog.text
    outside = await make_node("other", mqtt__auth=["password"], http__host="0.0.0.0")
    told = [record.getMessage() for record in caplog.records if "anonymous callers" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"HTTP at 0.0.0.0:{outside.ports.http} accepts anonymous callers")


async def test_each_listener_has_its_own_ways_to_authenticate(make_node: MakeNode) -> None:
    listeners = [{"name": "asks", "address": "127.0.0.1:0", "auth": ["password"]}]
    node = await make_node(mqtt__listeners=listeners)
    await set_user(node, "alice", b"wonderland")
    asks = int(node.ports.addresses["asks"].rpartition(":")[2])
    assert (await login(node.ports.mqtt, None, None))[1].reason == 0
    assert (await login(asks, None, None, client_id=b"d"))[1].reason == 0x87
    client, connack = await login(asks, b"alice", b"wonderland", client_id=b"d")
    assert connack.reason == 0
    client.send(wire.publish(5, b"t", b"x", 1, 1))  # no rule: it is denied where clients have to say who they are
    assert (await client.packet()).reason == 0x87
