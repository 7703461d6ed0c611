"""Where clients come from, at each front: what rules with sources say to them."""

import asyncio
from pathlib import Path

import pytest

from cloud_sdk import Client, Credentials, InvalidArgument
from gateway.auth.rules.sources import LOCAL_PEER, Networks, host_of, network_text
from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import BY_NAME, OPERATOR, PASSWORD, Refused, World
from tests.gateway.mqtt import wire
from tests.gateway.people import set_rules, set_user
from tests.gateway.raw import CONNACK, DISCONNECT, PUBACK, RawClient, connect
from tests.waiting import until

PLACES = ("away", "local", "here")
V1 = b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 1883\r\n"
V1_MAPPED = b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 1883\r\n"


@pytest.fixture
async def node(make_node: MakeNode, tmp_path: Path) -> Node:
    made = await make_node(
        grpc__auth=["password"],
        http__auth=["password"],
        mqtt__acl_default="deny",
        mqtt__listeners=[
            {"name": "unix", "address": f"unix:{tmp_path / 's'}"},
            {"name": "proxied", "address": "127.0.0.1:0", "proxy_protocol": True, "trusted_proxies": ["127.0.0.1"]},
        ],
    )
    await set_user(made, OPERATOR, PASSWORD.encode())
    places = zip(PLACES, ("192.0.2.0/24", "local", "127.0.0.0/8"), strict=True)
    await set_rules(made, "", *[f"allow publish {place} from {source}" for place, source in places])
    return made


async def open_client(
    node: Node, where: str, client_id: bytes = b"c", will: tuple[bytes, bytes] | None = None
) -> RawClient:
    """A client that comes from a place. The node may refuse it."""
    if where == "local":
        streams = await asyncio.open_unix_connection(node.ports.addresses["unix"].removeprefix("unix:"))
    elif where == "here":
        streams = await asyncio.open_connection("127.0.0.1", node.ports.mqtt)
    else:
        streams = await asyncio.open_connection(*node.ports.addresses["proxied"].split(":"))
        streams[1].write(V1 if where == "away" else V1_MAPPED)
    client = RawClient(5, *streams)
    client.send(connect(5, client_id, will=will))
    client.connack = await client.expect(CONNACK)
    return client


async def publishable(client: RawClient) -> list[str]:
    found = []
    for number, topic in enumerate(PLACES, 1):
        client.send(wire.publish(5, topic.encode(), b"x", 1, number))
        if (await client.expect(PUBACK)).reason != 0x87:
            found.append(topic)
    return found


@pytest.mark.parametrize(("where", "place"), [*zip(PLACES, PLACES, strict=True), ("mapped", "away")])
async def test_a_device_is_where_its_socket_or_its_proxy_says(node: Node, where: str, place: str) -> None:
    assert await publishable(await open_client(node, where)) == [place]


async def test_services_are_where_their_socket_is(node: Node) -> None:
    async with Client(
        f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=Credentials(OPERATOR, PASSWORD)
    ) as service:
        await service.send("here", b"x")
        for place in ("away", "local"):
            with pytest.raises(InvalidArgument, match="may not be published to"):
                await service.send(place, b"x")
    world = World(node)
    for call in (world.over_http, world.over_grpc):
        await call(BY_NAME["PublishMessage"], pb.PublishMessageRequest(topic="here", text="x"))
        for place in ("away", "local"):
            with pytest.raises(Refused, match="PERMISSION_DENIED"):
                await call(BY_NAME["PublishMessage"], pb.PublishMessageRequest(topic=place, text="x"))


async def test_a_session_may_be_denied_to_some_places(node: Node) -> None:
    device = await open_client(node, "away", b"d")
    await set_rules(node, "", "deny CREATE session:d* from 192.0.2.0/24")
    assert (await device.expect(DISCONNECT)).reason == 0x87  # also the one that is connected
    assert (await open_client(node, "away", b"d")).connack.reason == 0x87
    assert (await open_client(node, "here", b"d")).connack.reason == 0
    assert (await open_client(node, "away", b"e")).connack.reason == 0


async def test_a_will_comes_from_where_its_client_was(node: Node) -> None:
    """Also one that waits: the node reads its source in the log."""
    await set_rules(node, "", "allow publish $delayed/# from 192.0.2.7", "allow both will from 192.0.2.0/24")
    assert (await open_client(node, "here", b"h", will=(b"will", b"x"))).connack.reason == 0x87
    device = await open_client(node, "away", b"a", will=(b"will", b"x"))
    assert device.connack.reason == 0
    engine = node._engine
    assert engine is not None
    stored = await engine.will(b"a")
    assert stored is not None
    assert stored.source == b"192.0.2.7"
    assert await node._authority.may_send_will(stored)
    await set_rules(node, "", "allow both will from 192.0.2.8")
    await device.expect(DISCONNECT)
    await until(lambda: node.counters.wills_denied + len(node._sessions.open_sessions) == 0)
    assert not await node._authority.may_send_will(stored)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("192.0.2.7:1883", "192.0.2.7"),
        ("[2001:db8::7]:1883", "2001:db8::7"),
        ("[2001:DB8:0::7]:1883", "2001:db8::7"),
        ("[::ffff:192.0.2.7]:1883", "192.0.2.7"),
        ("[fe80::1%eth0]:1883", "fe80::1"),
        (LOCAL_PEER, "local"),
        ("a connection that is gone", ""),
        ("", ""),
        ("there", ""),
    ],
)
def test_hosts_of_peers(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_networks() -> None:
    networks = Networks([network_text(text) for text in ("10.0.0.0/8", "192.0.2.7", "2001:db8::/32")])
    for source, is_there in {
        "10.255.0.1": True,
        "11.0.0.1": False,
        "192.0.2.7": True,
        "192.0.2.8": False,
        "2001:db8::1": True,
        "2001:db9::1": False,
        "local": False,
        "": False,
    }.items():
        assert networks.contain(source) is is_there, source
    assert Networks(["local"]).contain("local")
    assert not Networks(["0.0.0.0/0", "::/0"]).contain("local")
    assert not Networks(["local"]).contain("")
