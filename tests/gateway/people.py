"""Users and rules of a node in the test's own loop, and clients that say who they are."""

from gateway.auth.credentials.scram import new_user
from gateway.management.areas.access import AccessService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import AUTH, CONNACK, Packet, RawClient, connect
from tests.gateway.scram_client import ScramClient

METHOD, DATA = 0x15, 0x16  # properties
SCRAM = b"SCRAM-SHA-256"
ITERATIONS = 4096


def access(node: Node) -> AccessService:
    """Users and rules, as `sluice user` and `sluice acl` change them."""
    assert node._engine is not None
    return AccessService(node._engine, node._sessions.remove)


def _keys(name: str, password: bytes) -> pb.ScramKeys:
    user = new_user(name.encode(), password, b"salt of " + name.encode(), ITERATIONS)
    return pb.ScramKeys(iterations=ITERATIONS, salt=user.salt, stored_key=user.stored_key, server_key=user.server_key)


async def set_user(node: Node, name: str, password: bytes) -> None:
    await access(node).create_user(pb.CreateUserRequest(name=name, keys=_keys(name, password)), NODE_USER)


async def change_password(node: Node, name: str, password: bytes) -> None:
    await access(node).change_password(pb.ChangePasswordRequest(name=name, keys=_keys(name, password)), NODE_USER)


async def remove_user(node: Node, name: str) -> int:
    """The number of its sessions, which are ended."""
    return (await access(node).delete_user(pb.DeleteUserRequest(name=name), NODE_USER)).sessions


async def set_rules(node: Node, user: str, *rules: str) -> None:
    await access(node).set_rules(pb.SetRulesRequest(user=user, rules=rules), NODE_USER)


async def login(
    port: int, name: bytes | None, password: bytes | None, version: int = 5, client_id: bytes = b"c", **options: object
) -> tuple[RawClient, Packet]:
    """CONNECT with a name and a password; the CONNACK."""
    client = await RawClient.open(port, version)
    client.send(connect(version, client_id, username=name, password=password, **options))  # type: ignore[arg-type]
    client.connack = await client.expect(CONNACK)
    return client, client.connack


def auth(reason: int, method: bytes | None, data: bytes | None = None) -> bytes:
    """AUTH."""
    block = b"" if method is None else bytes((METHOD,)) + wire.text(method)
    block += b"" if data is None else bytes((DATA,)) + wire.text(data)
    return wire.packet(0xF0, bytes((reason,)) + wire.sized(block))


def connect_with(
    method: bytes, data: bytes | None, client_id: bytes = b"c", clean: bool = True, **options: object
) -> bytes:
    """CONNECT that names an authentication method."""
    block = bytes((METHOD,)) + wire.text(method) + (b"" if data is None else bytes((DATA,)) + wire.text(data))
    return connect(5, client_id, clean, block, **options)  # type: ignore[arg-type]


def said(packet: Packet) -> tuple[int, bytes | None, bytes | None]:
    """Reason, authentication method and data of an AUTH or a CONNACK."""
    found = dict(packet.properties)
    return packet.reason, found.get(METHOD), found.get(DATA)  # type: ignore[return-value]


async def challenged(client: RawClient) -> bytes:
    """The data of the AUTH 0x18 that the node sends next."""
    reason, method, data = said(await client.expect(AUTH))
    assert (reason, method) == (0x18, SCRAM)
    return data or b""


async def scram(
    port: int, name: bytes, password: bytes, /, client_id: bytes = b"c", **options: object
) -> tuple[RawClient, ScramClient, Packet]:
    """One whole SCRAM exchange in CONNECT; the CONNACK."""
    client, proof = await RawClient.open(port, 5), ScramClient(name, password)
    client.send(connect_with(SCRAM, proof.first(), client_id, **options))
    client.send(auth(0x18, SCRAM, proof.final(await challenged(client))))
    client.connack = await client.expect(CONNACK)
    return client, proof, client.connack
