"""CONNECT and its answer (sections 3.1 and 3.2): who gets in as whom, and what is said to those who do not."""

import asyncio
import errno
import string
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.mqtt.reasons import ReasonCode, connack_return_code
from gateway.net.write_buffer import Transport
from gateway.node.node import Node, Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.mqtt.test_malformed import AFTER_CONNECT, AS_FIRST
from tests.gateway.raw import CONNACK, DISCONNECT, PINGRESP, PUBACK, SUBACK, Packet, RawClient, connect

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def cases(table: Iterable[object]) -> list[tuple[bytes, int, int]]:
    return [param.values for param in table]  # type: ignore[attr-defined]


@pytest.mark.mqtt5("3.1.4-1", "3.2.2-6", "3.2.2-7", "3.2.2-8", "3.14.0-1", "4.13.1-1", "4.13.2-1")
@pytest.mark.mqtt311("3.1.4-1", "3.2.2-4", "3.2.2-5", "3.2.2-6", "4.8.0-1")
async def test_a_broken_connect_is_answered_as_its_version_allows_and_closed(ports: Ports) -> None:
    """3.1.1 has few return codes: for most faults there is only silence."""
    for data, reason, version in cases(AS_FIRST):
        client = await RawClient.open(ports.mqtt, version)
        client.send(data)
        code = connack_return_code(ReasonCode(reason)) if version == 4 else reason
        if version and code is not None:
            answer = await client.expect(CONNACK)
            assert answer.body[:2] == bytes((0, code)), data
        await client.closed()


@pytest.mark.mqtt5("3.14.1-1", "3.14.2-1", "3.14.2-2", "3.14.4-1", "3.14.4-2", "4.13.1-1", "4.13.2-1")
@pytest.mark.mqtt311("2.2.2-2", "3.14.1-1", "4.8.0-1")
async def test_every_broken_packet_ends_the_connection(make_node: MakeNode) -> None:
    """With DISCONNECT where the protocol has one for the server."""
    ports = (await make_node(mqtt__topic_alias_maximum=5)).ports
    for data, reason, version in cases(AFTER_CONNECT):
        client = await RawClient.connect(ports.mqtt, b"c", version)
        client.send(data, b"\xc0\x00")
        if version == 5:
            answer = await client.expect(DISCONNECT)
            assert answer.reason == reason, data
            assert 0x11 not in dict(answer.properties)
        await client.closed()


@pytest.mark.mqtt5("3.1.3-5")
@pytest.mark.mqtt311("3.1.3-5")
@VERSIONS
async def test_client_ids_of_up_to_23_letters_and_digits(ports: Ports, version: int) -> None:
    letters = (string.digits + string.ascii_letters).encode()
    for client_id in (b"0", b"z", letters[:23], letters[23:46], letters[-23:]):
        client = await RawClient.connect(ports.mqtt, client_id, version)
        await client.disconnect()


@pytest.mark.mqtt5("3.1.3-6", "3.1.3-7", "3.2.2-16")
async def test_an_assigned_client_id_is_as_good_as_any(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"", 5, False, expiry=100)
    assigned = dict(client.connack.properties)[0x12]
    assert isinstance(assigned, bytes)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"t", b"x")
    client = await RawClient.connect(node.ports.mqtt, assigned, 5, False, expiry=100)
    assert client.session_present
    assert 0x12 not in dict(client.connack.properties)
    assert [m.payload for m in await client.take(1)] == [b"x"]


@pytest.mark.mqtt311("3.1.3-6")
async def test_clients_without_a_name_do_not_take_each_other_over(ports: Ports) -> None:
    clients = [await RawClient.connect(ports.mqtt, b"", 4) for _ in range(3)]
    for client in clients:
        await client.quiet()


@pytest.mark.mqtt5("3.1.4-5", "3.2.0-1", "3.2.0-2", "3.2.2-1", "4.12.0-6")
@pytest.mark.mqtt311("3.1.4-4", "3.2.0-1")
@VERSIONS
@pytest.mark.parametrize("durable", [False, True])
async def test_connack_comes_first_and_once(ports: Ports, version: int, durable: bool) -> None:
    """Though there is a backlog to send, and the client sends on without waiting."""
    expiry = {"expiry": 100} if durable else {}
    client = await RawClient.connect(ports.mqtt, b"c", version, not durable, **expiry)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    publisher = await RawClient.connect(ports.mqtt, b"p")
    for _ in range(5):
        await publisher.publish(b"t", b"missed")
    client = await RawClient.open(ports.mqtt, version)
    client.send(
        connect(version, b"c", not durable, **expiry),
        wire.subscribe(version, 1, (b"t", 1)),
        *[wire.publish(version, b"t", b"live", 1, packet_id) for packet_id in (2, 3)],
        b"\xc0\x00",
    )
    connack = await client.packet()
    assert connack.kind == CONNACK
    assert connack.body[:2] == bytes((durable, 0)), "bits 7 to 1 of the flags are 0"
    assert version == 4 or 0x15 not in dict(connack.properties)
    kinds = [(await client.packet()).kind for _ in range(6 + 5 * durable)]
    assert sorted(kinds) == sorted([SUBACK, PUBACK, PUBACK, PINGRESP] + [3] * (2 + 5 * durable))


@pytest.mark.mqtt5("3.1.4-2", "3.1.4-6")
@pytest.mark.mqtt311("3.1.4-5")
@VERSIONS
async def test_packets_behind_a_refused_connect_are_ignored(ports: Ports, version: int) -> None:
    watcher = await RawClient.connect(ports.mqtt, b"w")
    await watcher.subscribe((b"#", 0))
    client = await RawClient.open(ports.mqtt, version)
    client.send(
        connect(version, b"c", will=(b"$SYS/x", b"not allowed")),
        wire.publish(version, b"t", b"x", 1, 1, retain=True),
        wire.subscribe(version, 2, (b"#", 0)),
    )
    answer = await client.expect(CONNACK)
    assert answer.body[:2] == (b"\x00\x87" if version == 5 else b"\x00\x05")
    await client.closed()
    await watcher.quiet()
    late = await RawClient.connect(ports.mqtt, b"late")
    await late.subscribe((b"t", 0))
    await late.quiet()


@pytest.mark.mqtt311("3.1.4-2")
async def test_a_client_that_connects_again_ends_its_first_connection(ports: Ports) -> None:
    first = await RawClient.connect(ports.mqtt, b"c", 4)
    second = await RawClient.connect(ports.mqtt, b"c", 4)
    await first.closed()
    await second.quiet()


@pytest.mark.mqtt5("3.1.2-24", "3.2.2-19")
@pytest.mark.parametrize("limit", [1, 4, 5, 9, 10, 60, 1000])
async def test_a_refusal_keeps_to_the_clients_maximum_packet_size(ports: Ports, limit: int) -> None:
    """With its reason string, without, or not at all."""
    client = await RawClient.open(ports.mqtt, 5)
    client.send(connect(5, b"c", properties=b"\x15" + wire.text(b"SCRAM") + b"\x27" + wire.u32(limit)))
    if limit >= 5:
        answer = await client.expect(CONNACK)
        assert answer.reason == 0x8C
        assert answer.size <= limit
        assert (0x1F in dict(answer.properties)) == (limit >= 60)
    await client.closed()


@pytest.mark.mqtt5("3.1.2-24")
@pytest.mark.parametrize("client_id", [b"c", b""])
async def test_a_client_that_cannot_take_connack_is_not_served(node: Node, client_id: bytes) -> None:
    fits = (await RawClient.connect(node.ports.mqtt, client_id, 5)).connack.size
    await RawClient.connect(node.ports.mqtt, client_id, 5, properties=b"\x27" + wire.u32(fits))
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, client_id, properties=b"\x27" + wire.u32(fits - 1)))
    assert (await client.expect(CONNACK)).reason == 0x83
    await client.closed()


@pytest.mark.mqtt311("3.1.2-24")
@pytest.mark.mqtt5("3.2.2-22")
async def test_the_keep_alive_of_a_3_1_1_client_is_not_shortened(make_node: MakeNode) -> None:
    """3.1.1 has no way to tell the client; 5.0 tells it only where it is another."""
    node = await make_node(mqtt__max_keep_alive=10)
    await RawClient.connect(node.ports.mqtt, b"old", 4, keep_alive=300)
    assert node._sessions.open_sessions[b"old"][1].keep_alive == 300
    new = await RawClient.connect(node.ports.mqtt, b"new", 5, keep_alive=7)
    assert 0x13 not in dict(new.connack.properties)
    assert node._sessions.open_sessions[b"new"][1].keep_alive == 7


async def test_each_client_is_told_what_it_was_not_granted(make_node: MakeNode) -> None:
    """Also behind clients that were granted all they asked for, whose CONNACKs are alike."""
    node = await make_node(mqtt__max_keep_alive=10, mqtt__max_session_expiry=60, mqtt__response_information="r/")
    usual = {0x21, 0x22, 0x27}
    for client_id, clean, asked, told in (
        (b"a", True, {}, set()),
        (b"a", False, {"keep_alive": 10, "expiry": 60}, set()),
        (b"a", False, {"keep_alive": 10, "expiry": 60}, set()),  # this time its session is present
        (b"a", True, {"keep_alive": 11}, {0x13}),
        (b"a", True, {"expiry": 61}, {0x11}),
        (b"", True, {}, {0x12}),
        (b"a", True, {"properties": b"\x19\x01"}, {0x1A}),
        (b"a", True, {}, set()),
    ):
        client = await RawClient.connect(node.ports.mqtt, client_id, 5, clean, **asked)
        assert {each for each, _ in client.connack.properties} == usual | told
        await client.disconnect()


@pytest.mark.mqtt5("3.1.2-28")
async def test_response_information_is_sent_on_request(make_node: MakeNode) -> None:
    node = await make_node(mqtt__response_information="replies/")
    wanted = {b"": False, b"\x19\x00": False, b"\x19\x01": True}
    for properties, told in wanted.items():
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=properties)
        assert ((0x1A, b"replies/") in client.connack.properties) == told
    silent = await make_node("silent")
    client = await RawClient.connect(silent.ports.mqtt, b"c", 5, properties=b"\x19\x01")
    assert 0x1A not in dict(client.connack.properties)


@pytest.mark.parametrize(("redirect", "reason"), [("always", 0x9C), ("moved", 0x9D)])
async def test_a_stopping_node_names_another_server(make_node: MakeNode, redirect: str, reason: int) -> None:
    """Section 4.11."""
    node = await make_node(mqtt__redirect=redirect, mqtt__server_reference="other.example:1883")
    for version in (4, 5):
        client = await RawClient.open(node.ports.mqtt, version)
        client.send(connect(version, b"c"))
        answer = await client.expect(CONNACK)
        if version == 5:
            assert answer.reason == reason
            assert (0x1C, b"other.example:1883") in answer.properties
        else:
            assert answer.body == b"\x00\x03"
        await client.closed()


async def test_a_node_that_stops_sends_its_clients_elsewhere(make_node: MakeNode) -> None:
    node = await make_node(mqtt__server_reference="other.example:1883")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    stopping = asyncio.create_task(node.stop())
    goodbye: Packet = await client.expect(DISCONNECT)
    assert goodbye.reason == 0x9C
    assert goodbye.properties == [(0x1C, b"other.example:1883")]
    await client.closed()
    await stopping


async def test_a_will_declared_as_utf_8_that_is_not_is_refused(ports: Ports) -> None:
    """Section 3.1.3.2.3: CONNACK 0x99."""
    for payload, accepted in (("ü\0".encode(), True), (b"\xff", False)):
        rest = wire.sized(b"\x01\x01") + wire.text(b"w") + wire.text(payload)
        client = await RawClient.open(ports.mqtt, 5)
        client.send(wire.connect(5, flags=0x06, rest=rest))
        assert (await client.expect(CONNACK)).reason == (0 if accepted else 0x99)


class Exhausted:
    """A transport whose process has no descriptor left to ask for its peer with."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str) -> Any:
        raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("where", ["identity", "rules", "session"])
@VERSIONS
async def test_an_unexpected_error_ends_the_connection(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: int, where: str
) -> None:
    """It would be held for good: while a CONNECT is being served, the clock is somebody else's."""

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    options = {"expiry": 1000} if version == 5 else {}
    client = await RawClient.connect(node.ports.mqtt, b"c", version, False, **options)
    await client.disconnect()
    with monkeypatch.context() as patch:
        if where == "identity":
            patch.setattr("gateway.broker.authentication.Identity", fails)
        elif where == "rules":
            patch.setattr(node._authority, "renew", fails)
        else:  # the session is recorded as open by then
            patch.setattr(node._engine, "session", fails)
        client = await RawClient.open(node.ports.mqtt, version)
        client.send(connect(version, b"c", False, will=(b"w", b"x"), **options))
        answer = await client.expect(CONNACK)
        assert answer.body[:2] == (b"\0\x88" if version == 5 else b"\0\3")
        await client.closed()
    client = await RawClient.connect(node.ports.mqtt, b"c", version, False, **options)
    assert client.session_present
    assert len(node._front.connections) == len(node._sessions.open_sessions) == 1
    assert node._engine is not None
    assert await node._engine.wills(None, 9) == []
    assert node.counters.wills_sent == 0


async def test_a_fault_ends_the_connection_even_without_an_address(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    (connection,) = node._front.connections
    connection.transport = Exhausted(connection.transport)
    client.send(b"\x00\x00")
    assert (await client.expect(DISCONNECT)).reason == ReasonCode.MALFORMED_PACKET
    await client.closed()
