"""Bans of client ids, users and networks, on whole nodes."""

import asyncio
import time
from collections.abc import AsyncIterator
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk import Client, Credentials, NotAllowed
from cloud_sdk.errors import Unauthenticated
from gateway.auth import bans as bans_module
from gateway.auth.bans import BanIndex, Bans, ClientBanned
from gateway.broker import maintenance
from gateway.broker.append import append
from gateway.management.areas.bans import BansService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rocketmq.proto import rocketmq_pb2 as rocketmq
from gateway.rpc.status import RequestError
from store import control
from store.api import Ban
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import BY_NAME, OPERATOR, PASSWORD, Refused, World, engine_of
from tests.gateway.people import access, login, set_rules, set_user
from tests.gateway.raw import CONNACK, DISCONNECT, RawClient, connect
from tests.gateway.rocketmq.test_rocket_service import TOPIC, Wire
from tests.gateway.several import Several
from tests.waiting import PATIENCE_S, until

FUTURE_MS = 4_000_000_000_000


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    made = await make_node(
        mqtt__auth=["password", "anonymous"], mqtt__acl_default="allow", grpc__auth=["password", "anonymous"]
    )
    await set_user(made, "alice", b"wonderland")
    return made


async def ban(engine: Engine, target: str, until_ms: int = 0) -> pb.Ban:
    return await BansService(engine).set_ban(pb.SetBanRequest(target=target, until_ms=until_ms), NODE_USER)


async def end(engine: Engine, target: str) -> None:
    await BansService(engine).end_ban(pb.EndBanRequest(target=target), NODE_USER)


@pytest.mark.parametrize("target", ["client:a", "user:alice", "address:127.0.0.0/8"])
@pytest.mark.parametrize(("version", "reason"), [(5, 0x8A), (4, 5)])
async def test_a_banned_device_is_disconnected_and_not_let_in(
    node: Node, target: str, version: int, reason: int
) -> None:
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", version, b"a", will=(b"will", b"x"))
    await ban(engine_of(node), target)
    if version == 5:
        assert (await client.expect(DISCONNECT)).reason == 0x98
    await client.closed()
    await until(lambda: not node._sessions.open_sessions)
    assert node.counters.wills_sent == 0
    _, connack = await login(node.ports.mqtt, b"alice", b"wonderland", version, b"a")
    assert connack.body[1] == reason
    await end(engine_of(node), target)
    _, connack = await login(node.ports.mqtt, b"alice", b"wonderland", version, b"a")
    assert connack.body[1] == 0


async def test_others_are_not_felt(node: Node) -> None:
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"a")
    for target in ("client:b", "user:bob", "address:10.0.0.0/8", "address:127.0.0.0/32", "address:::/1"):
        await ban(engine_of(node), target)
    await client.quiet()
    assert (await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"c"))[1].reason == 0
    assert (await login(node.ports.mqtt, b"alice", b"guess", 5, b"b"))[1].reason == 0x8A  # before the password
    await ban(engine_of(node), "user:alice")
    assert (await login(node.ports.mqtt, b"alice", b"guess"))[1].reason == 0x86  # who it is not learns nothing


async def test_a_will_that_waits_is_not_sent_for_a_banned_client(node: Node) -> None:
    engine = engine_of(node)
    await RawClient.connect(node.ports.mqtt, b"a", 5, expiry=3600, will=(b"will", b"x"))
    will = await engine.will(b"a")
    assert will is not None
    await ban(engine, "client:a")
    assert not await node._authority.may_send_will(will)
    await end(engine, "client:a")
    assert await node._authority.may_send_will(will)


async def test_a_ban_ends_by_its_time_and_goes_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(node)
    now = time.time()
    await ban(engine, "client:a", int((now + 3600) * 1000))
    await ban(engine, "client:b", int((now + 7200) * 1000))
    assert (await login(node.ports.mqtt, None, None, 5, b"a"))[1].reason == 0x8A
    monkeypatch.setattr(bans_module, "time", lambda: now + 3601)
    assert (await login(node.ports.mqtt, None, None, 5, b"a"))[1].reason == 0
    assert (await login(node.ports.mqtt, None, None, 5, b"b"))[1].reason == 0x8A
    listed = await BansService(engine).list_bans(pb.ListBansRequest(), NODE_USER)
    assert [each.target for each in listed.bans] == ["client:b"]
    monkeypatch.setattr(maintenance, "time", lambda: now + 3601)
    await node._maintenance._end_bans()
    assert [each.target for each in await engine.bans(None, 9)] == [b"client:b"]


async def test_an_end_for_a_ban_that_was_prolonged_meanwhile_does_nothing(node: Node) -> None:
    engine = engine_of(node)
    await ban(engine, "client:a", FUTURE_MS)
    await append(engine, [control.BanEnded(FUTURE_MS - 1).frame(b"client:a")])
    assert (await login(node.ports.mqtt, None, None, 5, b"a"))[1].reason == 0x8A
    await append(engine, [control.BanEnded(FUTURE_MS).frame(b"client:a")])
    assert (await login(node.ports.mqtt, None, None, 5, b"a"))[1].reason == 0


async def test_a_client_that_is_banned_while_it_connects(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ban is committed after the client was identified, and before its CONNACK."""
    engine = engine_of(node)
    row = engine.session_row

    async def session_row(client_id: bytes) -> object:
        await ban(engine, "client:a")
        return await row(client_id)

    monkeypatch.setattr(engine, "session_row", session_row)
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"a"))
    assert (await client.expect(CONNACK)).reason == 0x8A


# --- services


@pytest.mark.parametrize("target", ["user:alice", "address:127.0.0.1/32"])
async def test_services_that_are_banned_are_ended(node: Node, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream as well, when its wait for a batch ends."""
    monkeypatch.setattr("cloud_sdk.groups.simple_consumer._WAIT_S", 0.2)
    engine, credentials = engine_of(node), Credentials("alice", "wonderland")
    await set_rules(node, "alice", "allow both #")
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials) as service:
        await service.send("home/x", b"x")
        async with service.consumer("workers", "home") as members:
            await anext(members)
            pending = asyncio.create_task(members.next(PATIENCE_S))
            await until(lambda: members._member._batch is not None)
            await ban(engine, target)
            with pytest.raises((NotAllowed, Unauthenticated)):
                await pending
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials) as service:
        with pytest.raises(Unauthenticated, match="is banned"):
            await service.partitions("home")
        await end(engine, target)
        await service.partitions("home")


async def test_a_banned_client_id_of_rocketmq(node: Node) -> None:
    engine = engine_of(node)

    async def code(client_id: str) -> int:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
            asked = rocketmq.QueryRouteRequest(topic=TOPIC)
            return int((await Wire(channel).call("QueryRoute", asked, (("x-mq-client-id", client_id),))).status.code)

    assert await code("service") == rocketmq.OK
    await ban(engine, "client:service")
    assert await code("service") == rocketmq.UNAUTHORIZED
    assert await code("another") == rocketmq.OK
    await end(engine, "client:service")
    assert await code("service") == rocketmq.OK


# --- who may ban whom


async def test_nobody_bans_himself_and_only_a_super_user_a_super_user(make_node: MakeNode) -> None:
    world = World(await make_node(grpc__auth=["password"], http__auth=["password"]))
    await set_user(world.node, OPERATOR, PASSWORD.encode())
    await set_rules(world.node, OPERATOR, "allow * cluster:bans")
    await access(world.node).update_user(pb.UpdateUserRequest(name="root", super_user=True), NODE_USER)

    async def code(target: str, until_ms: int = 0, reason: str = "") -> str:
        request = pb.SetBanRequest(target=target, until_ms=until_ms, reason=reason)
        try:
            await world.over_http(BY_NAME["SetBan"], request)
        except Refused as refused:
            return refused.code
        return "OK"

    assert await code(f"user:{OPERATOR}") == "FAILED_PRECONDITION"
    assert await code("address:127.0.0.0/8") == "FAILED_PRECONDITION"
    assert await code("user:root") == "PERMISSION_DENIED"
    networks = [f"address:{text}" for text in ("10.0.0.1/8", "0.0.0.0/0", "local", "x")]
    for target in ("client:", "user", "x:y", *networks):
        assert await code(target) == "INVALID_ARGUMENT", target
    assert await code("client:c", int(time.time() * 1000) - 1) == "INVALID_ARGUMENT"
    assert await code("client:c", reason="x" * 1025) == "INVALID_ARGUMENT"
    assert await code("client:a/b:c", FUTURE_MS, "why") == "OK"
    (found,) = (await world.over_http(BY_NAME["ListBans"], pb.ListBansRequest())).bans  # type: ignore[attr-defined]
    assert (found.target, found.until_ms, found.by, found.reason) == ("client:a/b:c", FUTURE_MS, OPERATOR, "why")
    assert found.since_ms > 0


async def test_the_number_of_bans_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.management.areas.bans.MAX_BANS", 2)
    engine = engine_of(node)
    await ban(engine, "client:a")
    await ban(engine, "client:b")
    with pytest.raises(RequestError, match="there are 2 bans, which is the limit"):
        await ban(engine, "client:c")
    await ban(engine, "client:a", FUTURE_MS)
    await end(engine, "client:b")
    await ban(engine, "client:c")
    with pytest.raises(RequestError, match="there is no ban of client:b"):
        await end(engine, "client:b")


# --- gateways in processes of their own


@pytest.fixture(params=["far", "routed"])
async def several(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Several]:
    found = await Several(tmp_path / "data", far=True, routed=request.param == "routed").open()
    await found.join("a", "b")
    yield found
    await found.close()


async def test_a_ban_counts_at_all_gateways(several: Several) -> None:
    client = await RawClient.connect(several.ports["a"], b"c", 5)
    await ban(several.engine, "client:c")
    assert (await client.expect(DISCONNECT)).reason == 0x98
    for gateway in ("a", "b"):
        again = await RawClient.open(several.ports[gateway], 5)
        again.send(connect(5, b"c"))
        assert (await again.expect(CONNACK)).reason == 0x8A


# --- the index


class Stored:
    """The bans of a store, page by page."""

    def __init__(self, bans: list[Ban]) -> None:
        self.bans_by_target = {ban.target: ban for ban in bans}

    async def bans(self, after: bytes | None, limit: int) -> list[Ban]:
        return [ban for target, ban in sorted(self.bans_by_target.items()) if after is None or target > after][:limit]

    async def ban(self, target: bytes) -> Ban | None:
        return self.bans_by_target.get(target)


async def test_more_bans_than_a_page_has() -> None:
    found = Bans(Stored([Ban(b"client:%d" % number, 0, 0, b"", b"") for number in range(2500)]))  # type: ignore[arg-type]
    with pytest.raises(ClientBanned):
        await found.check(b"2499", b"", "")
    await found.check(b"2500", b"", "")


NETWORKS = st.sampled_from([IPv4Network(text) for text in ("0.0.0.0/1", "0.0.0.0/2", "64.0.0.0/2", "64.0.0.0/8")])


@given(st.lists(st.tuples(NETWORKS, st.booleans(), st.integers(0, 2))), st.sampled_from((1, 64, 65, 128)))
def test_the_index_finds_what_a_search_of_all_bans_finds(
    changes: list[tuple[IPv4Network, bool, int]], first_byte: int
) -> None:
    index, bans = BanIndex(), {}
    for network, is_set, until_ms in changes:
        target = f"address:{network}".encode()
        if is_set:
            bans[network] = until_ms
            index.put(Ban(target, until_ms, 0, b"", b""))
        else:
            bans.pop(network, None)
            index.remove(target)
    address = ip_address(first_byte << 24)
    wanted = {f"address:{network}".encode() for network, end_ms in bans.items() if address in network and end_ms != 1}
    found = index.find(b"", b"", str(address), 1)
    assert (found.target in wanted) if wanted and found is not None else (found is None and not wanted)
    assert len(index) == len(bans)
