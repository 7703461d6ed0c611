"""Rules on topics, on whole nodes: what is denied, how each version hears of it, and rules that change."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.node.node import Node
from store.api import SessionState
from tests.gateway.authority import Authority
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
    set_rules,
    set_user,
)
from tests.gateway.raw import CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack, connect
from tests.gateway.scram_client import ScramClient
from tests.waiting import patience


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Alice may publish below home/alice and public, and read public; everybody may read news."""
    made = await make_node(mqtt__auth=["anonymous", "password"], mqtt__acl_default="deny")
    await set_user(made, "alice", b"wonderland")
    await set_rules(made, "alice", "deny publish public/rules", "allow publish home/%u/#", "allow both public/#")
    await set_rules(made, "", "allow subscribe news/#", "allow both inbox/%c")
    return made


async def alice(node: Node, version: int = 5, client_id: bytes = b"a", **options: object) -> RawClient:
    client, connack = await login(node.ports.mqtt, b"alice", b"wonderland", version, client_id, **options)
    assert connack.body[1] == 0
    return client


async def reader(make_node: MakeNode, node: Node) -> RawClient:
    """Somebody who may read everything, through the log of the node."""
    await set_user(node, "reader", b"reader")
    await set_rules(node, "reader", "allow subscribe #")
    client, _ = await login(node.ports.mqtt, b"reader", b"reader", 5, b"reader")
    assert await client.subscribe((b"#", 2)) == b"\2"
    return client


@pytest.mark.parametrize("version", [4, 5])
async def test_a_forbidden_publish_is_refused(make_node: MakeNode, node: Node, version: int) -> None:
    """5.0 hears 0x87; 3.1.1 has no word for it: its messages are acknowledged and dropped (3.1.1: MQTT-3.3.5-2)."""
    watching = await reader(make_node, node)
    client = await alice(node, version)
    for topic in (b"home/bob/x", b"public/rules", b"other", b"home"):
        client.send(wire.publish(version, topic, b"0", 0))
        client.send(wire.publish(version, topic, b"1", 1, 1))
        assert (await client.expect(PUBACK)).body[2:3] == (b"\x87" if version == 5 else b"")
        client.send(wire.publish(version, topic, b"2", 2, 2))
        assert (await client.expect(PUBREC)).body[2:3] == (b"\x87" if version == 5 else b"")
        if version == 4:
            client.send(ack(PUBREL, 2))
            await client.expect(PUBCOMP)
    await client.publish(b"home/alice/x", b"allowed")
    assert [message.payload for message in await watching.take(1)] == [b"allowed"]
    assert node.counters.messages_denied == 12


async def test_a_forbidden_publish_is_not_retained(node: Node) -> None:
    client = await alice(node)
    client.send(wire.publish(5, b"public/rules", b"x", 1, 1, b"", True))
    assert (await client.expect(PUBACK)).reason == 0x87
    await client.subscribe((b"public/#", 1))
    await client.quiet()


async def test_refusals_do_not_use_up_the_receive_maximum(make_node: MakeNode) -> None:
    node = await make_node(mqtt__receive_maximum=4, mqtt__acl_default="deny")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    for number in range(20):
        client.send(wire.publish(5, b"t", b"x", 1 + number % 2, 1))
        assert (await client.packet()).reason == 0x87


@pytest.mark.parametrize("version", [4, 5])
async def test_a_forbidden_subscription_is_refused(node: Node, version: int) -> None:
    client = await alice(node, version)
    denied = 0x87 if version == 5 else 0x80
    filters = [b"public/#", b"#", b"home/alice/#", b"news/today", b"+/today", b"inbox/a", b"inbox/b", b"inbox/+"]
    answers = await client.subscribe(*[(name, 1) for name in filters])
    assert list(answers) == [1, denied, denied, 1, denied, 1, denied, denied]
    assert node.counters.subscriptions_denied == 5


async def test_names_that_mean_something_else_are_judged_by_what_they_mean(node: Node) -> None:
    """A message for later, a subscription that begins in the past, one of several clients."""
    client = await alice(node)
    client.send(wire.publish(5, b"$delayed/1/home/bob/x", b"x", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87
    await client.publish(b"$delayed/1/home/alice/x", b"x")
    filters = [b"$replay/earliest/secret", b"$replay/earliest/public/#", b"$share/g/secret/#", b"$share/g/public/#"]
    answers = await client.subscribe(*[(name, 1) for name in filters])
    assert list(answers) == [0x87, 1, 0x87, 1]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", [b"home/bob/x", b"$delayed/1/home/bob/x", b"home/alice/x"])
async def test_a_will_is_checked_at_connect(node: Node, version: int, topic: bytes) -> None:
    client, connack = await login(
        node.ports.mqtt, b"alice", b"wonderland", version, will=(topic, b"gone"), client_id=b"w"
    )
    if topic == b"home/alice/x":
        assert connack.body[1] == 0
    else:
        assert connack.body[1] == (0x87 if version == 5 else 5)
        await client.closed()


async def test_rules_for_everybody_apply_to_anonymous_clients(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"me", 5)
    assert list(await client.subscribe((b"news/#", 1), (b"public/#", 1), (b"inbox/me", 1))) == [1, 0x87, 1]
    await client.publish(b"inbox/me", b"x", 0)
    assert (await client.message()).payload == b"x"


@pytest.mark.parametrize("client_id", [b"+", b"#", b"a/b"])
async def test_a_client_id_is_no_way_into_what_is_others(node: Node, client_id: bytes) -> None:
    client = await RawClient.connect(node.ports.mqtt, client_id, 5)
    assert list(await client.subscribe((b"inbox/+", 0), (b"inbox/#", 0), (b"inbox/a/b", 0))) == [0x87] * 3


# --- rules that change


async def test_a_rule_applies_as_soon_as_it_is_set(node: Node) -> None:
    client = await alice(node)
    client.send(wire.publish(5, b"public/rules", b"x", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87
    await set_rules(node, "alice", "allow publish public/#")
    await client.publish(b"public/rules", b"x")
    client.send(wire.publish(5, b"home/alice/x", b"x", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87
    await set_rules(node, "", "allow publish home/#")
    await client.publish(b"home/alice/x", b"x")


@pytest.mark.parametrize("whose", ["alice", ""])
async def test_a_client_with_a_forbidden_subscription_is_disconnected(node: Node, whose: str) -> None:
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.subscribe((b"inbox/other", 1))
    client = await alice(node)
    await client.subscribe((b"public/#" if whose else b"news/#", 1))
    await set_rules(node, whose, "allow both inbox/%c", "allow subscribe elsewhere")
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await client.closed()
    await other.publish(b"inbox/other", b"x", 0)
    assert (await other.message()).payload == b"x"


async def test_a_will_that_may_no_longer_be_sent_is_not(make_node: MakeNode, node: Node) -> None:
    watching = await reader(make_node, node)
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"a", will=(b"public/x", b"gone"))
    await set_rules(node, "alice", "allow subscribe public/#")
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await alice(node)  # the same client: what its last connection left behind is in the log by now
    await watching.quiet()
    assert node.counters.wills_sent == 0


@pytest.mark.parametrize("removed", [False, True])
async def test_the_will_of_a_disconnected_client_is_sent_if_still_allowed(
    make_node: MakeNode, node: Node, removed: bool
) -> None:
    watching = await reader(make_node, node)
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"a", will=(b"public/x", b"gone"))
    await client.subscribe((b"public/#", 1))
    if removed:
        await change_password(node, "alice", b"other")
    else:
        await set_rules(node, "alice", "allow publish public/#")
    await client.expect(DISCONNECT)
    assert (await watching.take(1))[0].payload == b"gone"


async def test_a_session_resumes_without_forbidden_messages(node: Node) -> None:
    """Also of what was sent and not acknowledged by then."""
    client = await alice(node, clean=False, expiry=100)
    await client.subscribe((b"public/#", 2), (b"news/#", 2))
    publisher = await alice(node, client_id=b"p")
    await publisher.publish(b"public/x", b"open", 2)
    assert (await client.message()).payload == b"open"
    await client.drop()
    await set_rules(node, "alice", "allow publish #")
    await publisher.publish(b"public/x", b"secret")
    await publisher.publish(b"news/x", b"known")
    client = await alice(node, clean=False, expiry=100)
    assert client.session_present
    assert [message.payload for message in await client.take(1)] == [b"known"]
    await client.settle()
    state = await until_nothing_is_out(node)
    assert [subscription.topic_filter for subscription in state.subscriptions] == [b"news/#"]


async def until_nothing_is_out(node: Node) -> SessionState:
    """Every exchange of the session is done with, and recorded."""
    assert node._engine is not None
    async with patience():
        while (state := await node._engine.session(b"a")) is None or state.outbound:  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(0.01)
    return state


@pytest.mark.parametrize(
    ("topic_filter", "qos", "is_retained", "is_unsubscribed"),
    [
        *((b"public/#", 1, False, True), (b"public/#", 2, False, True)),
        *((b"$replay/earliest/public/#", 1, True, False), (b"$replay/earliest/public/#", 1, True, True)),
        *((b"$share/g/public/#", 2, False, False), (b"$share/g/public/#", 2, False, True)),
        *((b"public/#", 1, True, False), (b"public/#", 2, True, True)),
    ],
)
async def test_messages_on_their_way_are_dropped_when_reading_is_forbidden(
    node: Node, topic_filter: bytes, qos: int, is_retained: bool, is_unsubscribed: bool
) -> None:
    """Whatever way it is on, and however long its subscription is gone."""
    publisher = await alice(node, client_id=b"p")
    client = await alice(node, clean=False, expiry=100)
    if is_retained:
        await publisher.publish(b"public/x", b"secret", 2, retain=True)
    await client.subscribe((topic_filter, qos))
    if not is_retained:
        await publisher.publish(b"public/x", b"secret", 2)
    message = await client.message()
    assert message.payload == b"secret"
    if is_unsubscribed:
        await client.unsubscribe(topic_filter.removeprefix(b"$replay/earliest/"))
    await client.drop()
    again = await alice(node, clean=False, expiry=100)
    assert (await again.message()).payload == b"secret"  # who may have it gets it again
    await again.drop()
    await set_rules(node, "alice", "allow publish public/#")
    again = await alice(node, clean=False, expiry=100)
    assert again.session_present
    if qos == 2:  # the client has it, and may not take another one with the packet id for the same
        released = await again.expect(PUBREL)
        assert released.packet_id == message.packet_id
        again.send(ack(PUBCOMP, released.packet_id))
    await until_nothing_is_out(node)
    await again.quiet()


async def test_a_released_exchange_goes_to_its_end_though_the_rules_change(node: Node) -> None:
    client = await alice(node, clean=False, expiry=100)
    await client.subscribe((b"public/#", 2))
    await (await alice(node, client_id=b"p")).publish(b"public/x", b"secret", 2)
    message = await client.message()
    client.send(ack(PUBREC, message.packet_id))
    await client.expect(PUBREL)
    await client.drop()
    await set_rules(node, "alice", "allow publish public/#")
    client = await alice(node, clean=False, expiry=100)
    assert (await client.expect(PUBREL)).packet_id == message.packet_id


async def test_a_shared_subscription_that_is_no_longer_allowed(node: Node) -> None:
    client = await alice(node, clean=False, expiry=100)
    assert await client.subscribe((b"$share/g/public/#", 1)) == b"\1"
    await set_rules(node, "alice", "allow publish public/#")
    assert (await client.expect(DISCONNECT)).reason == 0x87
    client = await alice(node, clean=False, expiry=100)
    await client.publish(b"public/x", b"x")
    await client.quiet()


async def test_a_shared_subscription_of_others(node: Node) -> None:
    """Rules about a group keep a client out that may subscribe to the same filter, and end its membership."""
    client = await alice(node)
    assert list(await client.subscribe((b"$share/g/public/#", 1), (b"$share/h/public/#", 1))) == [1, 1]
    await set_rules(node, "alice", "deny SUB group:$share/g/*", "allow both public/#")
    assert (await client.expect(DISCONNECT)).reason == 0x87
    client = await alice(node)
    filters = [b"$share/g/public/#", b"$share/h/public/#", b"public/#"]
    assert list(await client.subscribe(*[(name, 1) for name in filters])) == [0x87, 1, 1]


async def test_rules_stay_when_the_password_changes_and_go_with_the_user(node: Node) -> None:
    await change_password(node, "alice", b"wonderland")
    client = await alice(node)
    await client.publish(b"home/alice/x", b"x")
    await remove_user(node, "alice")
    await set_user(node, "alice", b"wonderland")
    client = await alice(node)
    client.send(wire.publish(5, b"home/alice/x", b"x", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87


async def test_an_exchange_that_began_before_the_rule_is_completed(node: Node) -> None:
    """ClientRefused, its packet id would stay taken, and the next message under it be taken for a repetition."""
    client = await alice(node, clean=False, expiry=100)
    client.send(wire.publish(5, b"public/x", b"first", 2, 1))
    assert (await client.expect(PUBREC)).reason == 0
    await client.drop()
    await set_rules(node, "alice", "allow publish elsewhere")
    client = await alice(node, clean=False, expiry=100)
    client.send(wire.publish(5, b"public/x", b"first", 2, 1, b"", False, True))
    assert (await client.expect(PUBREC)).reason == 0
    client.send(ack(PUBREL, 1))
    assert (await client.expect(PUBCOMP)).reason == 0
    client.send(wire.publish(5, b"public/x", b"second", 2, 1))
    assert (await client.expect(PUBREC)).reason == 0x87


# --- certificates


@pytest.fixture
def secure(tmp_path: Path) -> tuple[Authority, dict[str, object]]:
    """A listener that knows its clients by their certificates."""
    authority = Authority(tmp_path / "authority")
    server, key = authority.issue("server", "server", "DNS:localhost")
    about = {
        "name": "tls",
        "address": "127.0.0.1:0",
        "protocol": "mqtts",
        "certificates": [{"file": str(server), "key": str(key)}],
        "client_certificate": "optional",
        "client_ca": str(authority.file),
        "user_name_from": "cn",
    }
    return authority, about


async def come(
    node: Node, context: ssl.SSLContext, name: bytes | None = None, password: bytes | None = None
) -> tuple[RawClient, int]:
    port = int(node.ports.addresses["tls"].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    client = RawClient(5, reader, writer)
    client.send(connect(5, b"c", username=name, password=password))
    return client, (await client.expect(CONNACK)).reason


async def test_the_user_of_a_certificate_has_rules_and_needs_no_password(
    make_node: MakeNode, secure: tuple[Authority, dict[str, object]]
) -> None:
    """There need be no user of that name. Who has no certificate has to have a password."""
    authority, listener = secure
    node = await make_node(mqtt__listeners=[{**listener, "auth": ["certificate", "password"]}])
    await set_user(node, "alice", b"wonderland")
    await set_rules(node, "device-7", "allow publish home/%u")
    certified = authority.client(authority.issue("device", "device-7"))
    client, reason = await come(node, certified, b"alice", b"guess")  # what it says beside is not looked at
    assert reason == 0
    await client.publish(b"home/device-7", b"x")
    client.send(wire.publish(5, b"home/alice", b"x", 1, 1))
    assert (await client.expect(PUBACK)).reason == 0x87
    await set_rules(node, "device-7", "allow publish home/alice")
    await client.publish(b"home/alice", b"x")
    plain = authority.client()
    assert (await come(node, plain))[1] == 0x87
    assert (await come(node, plain, b"alice", b"wonderland"))[1] == 0x85  # while the device is there
    await client.disconnect()
    assert (await come(node, plain, b"alice", b"wonderland"))[1] == 0


async def test_a_certificate_may_be_one_of_two_things_that_are_wanted(
    make_node: MakeNode, secure: tuple[Authority, dict[str, object]]
) -> None:
    """Its name is the user whose password it is to be."""
    authority, listener = secure
    node = await make_node(
        mqtt__listeners=[{**listener, "client_certificate": "required", "auth": ["password", "scram"]}]
    )
    await set_user(node, "alice", b"wonderland")
    await set_user(node, "bob", b"builder")
    context = authority.client(authority.issue("device", "alice"))
    assert (await come(node, context))[1] == 0x86
    assert (await come(node, context, b"bob", b"builder"))[1] == 0x86
    assert (await come(node, context, b"bob", b"wonderland"))[1] == 0
    port = int(node.ports.addresses["tls"].rpartition(":")[2])
    for name, password, expected in ((b"bob", b"builder", 0x87), (b"alice", b"wonderland", 0)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        client, proof = RawClient(5, reader, writer), ScramClient(name, password)
        client.send(connect_with(SCRAM, proof.first()))
        client.send(auth(0x18, SCRAM, proof.final(await challenged(client))))
        assert (await client.expect(CONNACK)).reason == expected


async def test_an_inbox_needs_no_rule_to_read_and_one_to_write(node: Node) -> None:
    """Also what came while the client was away; a message for later is one to its topic."""
    await set_rules(node, "alice", "allow publish $inbox/d")
    device = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=1000)
    await device.disconnect()
    client = await alice(node)
    await client.publish(b"$inbox/d", b"1")
    await client.publish(b"$delayed/0/$inbox/d", b"2")
    for topic in (b"$inbox/e", b"$delayed/1/$inbox/e", b"$delayed/1/news/x"):
        client.send(wire.publish(5, topic, b"", 1, 1))
        assert (await client.expect(PUBACK)).reason == 0x87
    device = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=1000)
    assert device.session_present
    assert [message.payload for message in await device.take(2)] == [b"1", b"2"]
    assert await device.subscribe((b"$inbox/d", 1), (b"$inbox/e", 1)) == b"\1\x87"
