"""Roles, super users and disabled users, on whole nodes; and the order in which rules count."""

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk import Client, Credentials, NotAllowed
from cloud_sdk.errors import Unauthenticated
from gateway.auth.rules.roles import MAX_DEPTH, MAX_INHERITED, RoleError, all_inherited, check_roles, rules_in_order
from gateway.auth.rules.rule_text import parse_rule, rule_text
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from store.api import AccountStore, Role, Rule, UserState
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import BY_NAME, OPERATOR, PASSWORD, Refused, World
from tests.gateway.mqtt import wire
from tests.gateway.people import access, login, set_rules, set_user
from tests.gateway.raw import DISCONNECT, PUBACK, RawClient
from tests.waiting import PATIENCE_S, until


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    made = await make_node(mqtt__auth=["password", "anonymous"], mqtt__acl_default="deny", grpc__auth=["password"])
    await set_user(made, "alice", b"wonderland")
    return made


async def set_role(node: Node, name: str, *rules: str, inherits: tuple[str, ...] = ()) -> None:
    await access(node).set_role(pb.Role(name=name, rules=rules, inherits=inherits), NODE_USER)


async def update(node: Node, user: str, roles: list[str] | None = None, **fields: bool) -> pb.User:
    names = None if roles is None else pb.RoleNames(names=roles)
    return await access(node).update_user(pb.UpdateUserRequest(name=user, roles=names, **fields), NODE_USER)


async def alice(node: Node, version: int = 5) -> RawClient:
    return (await login(node.ports.mqtt, b"alice", b"wonderland", version, b"a"))[0]


async def may_publish(client: RawClient, *topics: bytes) -> list[bytes]:
    allowed = []
    for number, topic in enumerate(topics, 1):
        client.send(wire.publish(5, topic, b"x", 1, number))
        if (await client.expect(PUBACK)).reason != 0x87:
            allowed.append(topic)
    return allowed


async def test_roles_give_rules_at_once_and_are_taken_back_at_once(node: Node) -> None:
    await set_role(node, "reader", "allow subscribe home/#", "deny publish home/lock")
    await set_role(node, "writer", "allow publish home/#", inherits=("reader",))
    client = await alice(node)
    assert await may_publish(client, b"home/x") == []
    await update(node, "alice", ["reader", "writer"])
    assert await may_publish(client, b"home/x", b"home/lock", b"away") == [b"home/x"]
    assert await client.subscribe((b"home/quiet", 0)) == b"\0"
    await set_rules(node, "alice", "allow publish home/lock")  # its own rules go before
    assert await may_publish(client, b"home/lock") == [b"home/lock"]
    await set_rules(node, "alice")
    await update(node, "alice", ["writer"])  # its own rules go before those that it inherits
    assert await may_publish(client, b"home/lock") == [b"home/lock"]
    await set_role(node, "reader", "allow subscribe news/#")
    assert (await client.expect(DISCONNECT)).reason == 0x87


async def test_a_super_user_may_do_everything_and_a_disabled_one_nothing(node: Node) -> None:
    await set_rules(node, "alice", "deny both #")
    await update(node, "alice", super_user=True)
    client = await alice(node)
    assert await may_publish(client, b"home/x", b"away") == [b"home/x", b"away"]
    assert await client.subscribe((b"$SYS/quiet", 0)) == b"\0"
    await update(node, "alice", super_user=False)
    assert (await client.expect(DISCONNECT)).reason == 0x87
    await update(node, "alice", super_user=True, disabled=True)
    assert (await login(node.ports.mqtt, b"alice", b"wonderland"))[1].reason == 0x8A


@pytest.mark.parametrize(("version", "reason"), [(5, 0x8A), (4, 5)])
async def test_a_disabled_user_is_disconnected_and_not_let_in(node: Node, version: int, reason: int) -> None:
    client = await alice(node, version)
    other = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"b", will=(b"will", b"x"))
    assert other[1].reason == 0x87  # its will may not be sent
    await set_rules(node, "alice", "allow both #")
    with_will, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"w", will=(b"will", b"x"))
    await update(node, "alice", disabled=True)
    if version == 5:
        assert (await client.expect(DISCONNECT)).reason == 0x98
    await client.closed()
    await with_will.expect(DISCONNECT)
    await until(lambda: not node._sessions.open_sessions)
    assert node.counters.wills_sent == 0
    _, connack = await login(node.ports.mqtt, b"alice", b"wonderland", version)
    assert connack.body[1] == reason
    _, connack = await login(node.ports.mqtt, b"alice", b"guess", version)  # who it is not hears nothing
    assert connack.body[1] == (0x86 if version == 5 else 4)
    await update(node, "alice", disabled=False)
    assert (await login(node.ports.mqtt, b"alice", b"wonderland", version))[1].body[1] == 0


async def test_services_of_a_disabled_user_are_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream as well, when its wait for a batch ends."""
    monkeypatch.setattr("cloud_sdk.groups.simple_consumer._WAIT_S", 0.2)
    await set_rules(node, "alice", "allow both home/#")
    credentials = Credentials("alice", "wonderland")
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials) as service:
        await service.send("home/x", b"x")
        end = (await service.partitions("home"))[0].end
        waiting = asyncio.create_task(service.pull("home", 0, end + 1, wait_seconds=PATIENCE_S))
        async with service.consumer("workers", "home") as members:
            await anext(members)
            pending = asyncio.create_task(members.next(PATIENCE_S))
            await until(lambda: members._member._batch is not None)
            await update(node, "alice", disabled=True)
            with pytest.raises((NotAllowed, Unauthenticated)):
                await service.send("home/x", b"x")
            with pytest.raises((NotAllowed, Unauthenticated)):
                await pending
            waiting.cancel()
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials) as service:
        with pytest.raises(Unauthenticated, match="the user is disabled"):
            await service.send("home/x", b"x")
        await update(node, "alice", disabled=False)
        await service.send("home/x", b"x")


# --- who may manage access


@pytest.fixture
async def world(make_node: MakeNode) -> World:
    made = World(await make_node(grpc__auth=["password"], http__auth=["password"]))
    await set_user(made.node, OPERATOR, PASSWORD.encode())
    await set_user(made.node, "root", b"secret")
    await update(made.node, "root", super_user=True)
    return made


async def ask(world: World, name: str, request: object) -> str:
    """The code of the answer."""
    try:
        await world.over_http(BY_NAME[name], request)  # type: ignore[arg-type]
    except Refused as refused:
        return refused.code
    return "OK"


async def test_who_manages_access_cannot_become_or_change_a_super_user(world: World) -> None:
    await set_rules(world.node, OPERATOR, "allow * cluster:access")
    keys = pb.ScramKeys(iterations=4096, salt=bytes(16), stored_key=bytes(32), server_key=bytes(32))
    denied = "PERMISSION_DENIED"
    assert await ask(world, "UpdateUser", pb.UpdateUserRequest(name=OPERATOR, super_user=True)) == denied
    assert await ask(world, "UpdateUser", pb.UpdateUserRequest(name="root", disabled=True)) == denied
    assert await ask(world, "UpdateUser", pb.UpdateUserRequest(name="root", super_user=False)) == denied
    assert await ask(world, "ChangePassword", pb.ChangePasswordRequest(name="root", keys=keys)) == denied
    assert await ask(world, "DeleteUser", pb.DeleteUserRequest(name="root")) == denied
    await update(world.node, "machine", super_user=True)  # of a certificate
    assert await ask(world, "CreateUser", pb.CreateUserRequest(name="machine", keys=keys)) == denied
    assert await ask(world, "UpdateUser", pb.UpdateUserRequest(name="other", disabled=True)) == "OK"
    await update(world.node, OPERATOR, super_user=True)
    assert await ask(world, "UpdateUser", pb.UpdateUserRequest(name="root", super_user=False)) == "OK"
    assert await ask(world, "DeleteUser", pb.DeleteUserRequest(name="root")) == "OK"


async def test_who_may_only_add_users_gets_no_rights_by_adding_one_that_has_some(world: World) -> None:
    await set_rules(world.node, OPERATOR, "allow CREATE cluster:access")
    await set_rules(world.node, "machine", "allow both #")
    await set_role(world.node, "reader", "allow subscribe #")
    await update(world.node, "sensor", ["reader"])
    keys = pb.ScramKeys(iterations=4096, salt=bytes(16), stored_key=bytes(32), server_key=bytes(32))
    for name, code in (("machine", "PERMISSION_DENIED"), ("sensor", "PERMISSION_DENIED"), ("new", "OK")):
        assert await ask(world, "CreateUser", pb.CreateUserRequest(name=name, keys=keys)) == code


async def test_roles_that_cannot_be(world: World) -> None:
    node = world.node
    await set_role(node, "a", "allow publish a")
    await set_role(node, "b", inherits=("a",))
    with pytest.raises(RequestError, match="a role cannot inherit itself: a → b → a"):
        await set_role(node, "a", inherits=("b",))
    with pytest.raises(RequestError, match="a role cannot inherit itself: a → a"):
        await set_role(node, "a", inherits=("a",))
    for call in (set_role(node, "c", inherits=("x",)), update(node, "alice", ["x"])):
        with pytest.raises(RequestError, match="there is no role 'x'") as error:
            await call
        assert error.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(RequestError, match="only from may follow"):
        await set_role(node, "c", "allow publish a b")
    await update(node, "alice", ["b"])
    for name, user in (("a", "'b'"), ("b", "'alice'")):
        with pytest.raises(RequestError, match=f"still used by {user}"):
            await access(node).delete_role(pb.DeleteRoleRequest(name=name), NODE_USER)
    await update(node, "alice", [])
    for name in ("b", "a"):
        await access(node).delete_role(pb.DeleteRoleRequest(name=name), NODE_USER)
    assert not (await access(node).list_roles(pb.ListRolesRequest(), NODE_USER)).roles


# --- the order


class Roles:
    """A store with roles and rules alone."""

    def __init__(self, roles: dict[bytes, Role], own: list[Rule], everybody: list[Rule]) -> None:
        self._roles = roles
        self._rules = {b"alice": own, b"": everybody}

    async def rules(self, name: bytes) -> list[Rule]:
        return self._rules[name]

    async def role(self, name: bytes) -> Role | None:
        return self._roles.get(name)


NAMES = [b"a", b"b", b"c", b"d"]
inherits = st.lists(st.sampled_from([*NAMES, b"gone"]), max_size=3, unique=True).map(tuple)
graphs = st.fixed_dictionaries(dict.fromkeys(NAMES, inherits))


def rule_of(name: bytes) -> Rule:
    return parse_rule(f"allow publish {name.decode()}")


@given(graphs, inherits)
def test_rules_count_in_the_order_of_roles(graph: dict[bytes, tuple[bytes, ...]], roles: tuple[bytes, ...]) -> None:
    """Also in a log with a circle, which no command writes."""
    made: object = Roles(
        {name: Role(name, (rule_of(name),), above) for name, above in graph.items()},
        [rule_of(b"own")],
        [rule_of(b"all")],
    )

    def walk(name: bytes, seen: list[bytes]) -> None:
        if name in graph and name not in seen:
            seen.append(name)
            for each in graph[name]:
                walk(each, seen)

    wanted: list[bytes] = []
    for role in roles:
        walk(role, wanted)

    async def check() -> None:
        store: AccountStore = made  # type: ignore[assignment]
        found = await rules_in_order(store, b"alice", UserState(roles))
        assert [whose for whose, _ in found] == ["alice", *[f"role {each.decode()}" for each in wanted], "everybody"]
        texts = [rule_text(rule).rpartition(" ")[2] for _, rules in found for rule in rules]
        assert texts == ["own", *[each.decode() for each in wanted], "all"]
        assert [whose for whose, _ in await rules_in_order(store, b"", UserState())] == ["everybody"]

    asyncio.run(check())


@given(graphs)
def test_roles_are_refused_exactly_if_one_inherits_itself(graph: dict[bytes, tuple[bytes, ...]]) -> None:
    """With so few roles, no other limit is met."""
    has_circle = any(name in all_inherited(name, graph) for name in graph)
    try:
        check_roles(graph)
    except RoleError:
        assert has_circle
    else:
        assert not has_circle


def test_inheritance_is_bounded() -> None:
    chain = {b"%d" % number: (b"%d" % (number + 1),) for number in range(MAX_DEPTH - 1)}
    check_roles(chain)
    with pytest.raises(RoleError, match="through more than 8 roles"):
        check_roles({**chain, b"first": (b"0",)})
    wide = {b"top": tuple(b"%d" % number for number in range(MAX_INHERITED))}
    check_roles(wide)
    with pytest.raises(RoleError, match="more than 16 roles"):
        check_roles({b"top": (*wide[b"top"], b"more")})
