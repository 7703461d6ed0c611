"""Requests for access: who may ask, who sees and decides them, and what follows."""

from dataclasses import dataclass
from time import time
from typing import Any

import pytest

from gateway.broker import maintenance
from gateway.broker.append import append
from gateway.management.areas import access_requests
from gateway.management.areas.access_requests import LIFE_MS
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from store import control
from store.api import Action, Outcome, Resource, Rule
from store.views.access_requests import MAX_DECIDED
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import BY_NAME, Refused, World, engine_of
from tests.gateway.people import access, login, remove_user, set_rules, set_user
from tests.gateway.raw import PUBACK, publish


@dataclass
class People:
    """A node with users whose passwords are their names."""

    node: Node

    async def call(self, caller: str | None, name: str, **fields: object) -> Any:
        """Call a method over HTTP. Raises `Refused`."""
        method = BY_NAME[name]
        return await World(self.node).over_http(method, method.request(**fields), caller, caller or "")

    async def refusal(self, caller: str | None, name: str, **fields: object) -> str:
        """The code with which a call is refused."""
        with pytest.raises(Refused) as refused:
            await self.call(caller, name, **fields)
        return refused.value.code

    async def ask(self, user: str, actions: str, resource: str, reason: str = "") -> pb.AccessRequest:
        found = await self.call(user, "RequestAccess", actions=actions, resource=resource, reason=reason)
        assert isinstance(found, pb.AccessRequest)
        return found

    async def listed(self, caller: str, **fields: object) -> list[pb.AccessRequest]:
        return list((await self.call(caller, "ListAccessRequests", **fields)).requests)

    async def rules(self, user: str) -> list[str]:
        reply = await access(self.node).list_rules(pb.ListRulesRequest(), NODE_USER)
        return next((list(each.rules) for each in reply.rules if each.user == user), [])


@pytest.fixture
async def people(make_node: MakeNode) -> People:
    node = await make_node(mqtt__auth=["password"], http__auth=["password", "anonymous"])
    for name in ("alice", "bob", "owner", "chief"):
        await set_user(node, name, name.encode())
    await set_rules(node, "chief", "allow LIST,UPDATE cluster:access")
    return People(node)


async def test_a_user_without_a_rule_asks_and_gets_the_rule(people: People) -> None:
    """Its device, which is connected, may publish at once."""
    await set_rules(people.node, "alice", "deny publish home/#")
    client, _ = await login(people.node.ports.mqtt, b"alice", b"alice")
    client.send(publish(5, b"home/x", b"1", qos=1, packet_id=1))
    assert (await client.expect(PUBACK)).reason == 0x87
    asked = await people.ask("alice", "publish", "home/x", "a report")
    assert (asked.state, asked.rule, asked.user, asked.may_decide) == ("open", "allow publish home/x", "alice", False)
    assert asked.until_ms - asked.since_ms == pytest.approx(LIFE_MS, abs=60_000)
    (waiting,) = await people.listed("chief")
    assert (waiting.number, waiting.reason, waiting.may_decide) == (asked.number, "a report", True)
    decided = await people.call("chief", "ApproveAccessRequest", number=asked.number, why="granted")
    assert (decided.state, decided.by, decided.why) == ("approved", "chief", "granted")
    assert await people.rules("alice") == ["allow publish home/x", "deny publish home/#"]
    client.send(publish(5, b"home/x", b"1", qos=1, packet_id=2))
    assert (await client.expect(PUBACK)).reason in (0, 0x10)


async def test_the_history_of_requests_is_kept(people: People) -> None:
    first = await people.ask("alice", "SUB", "topic:a")
    second = await people.ask("bob", "SUB,GET", "group:billing-*")
    await people.call("chief", "DeclineAccessRequest", number=first.number, why="no")
    await people.call("chief", "ApproveAccessRequest", number=second.number)
    assert await people.listed("chief") == []
    latest, earlier = await people.listed("chief", decided=True)
    assert (latest.number, latest.state, latest.user) == (second.number, "approved", "bob")
    assert (earlier.number, earlier.state, earlier.by, earlier.why) == (first.number, "declined", "chief", "no")
    assert earlier.since_ms <= earlier.decided_ms <= latest.decided_ms
    assert await people.rules("alice") == []
    assert await people.rules("bob") == ["allow SUB,GET group:billing-*"]
    assert [each.user for each in await people.listed("alice", decided=True)] == ["alice"]
    assert await people.listed("owner", decided=True) == []
    page = await people.call("chief", "ListAccessRequests", decided=True, limit=1)
    assert [each.number for each in page.requests] == [second.number]
    page = await people.call("chief", "ListAccessRequests", decided=True, limit=1, after=page.after)
    assert [each.number for each in page.requests] == [first.number]
    assert [each.user for each in await people.listed("chief", decided=True, user="bob")] == ["bob"]


async def test_who_has_no_name_cannot_ask(people: People) -> None:
    for method in ("RequestAccess",):
        assert await people.refusal(None, method, actions="SUB", resource="topic:a") == "PERMISSION_DENIED"
    assert (await people.call(None, "ListAccessRequests")).requests == []
    assert await people.refusal(None, "ApproveAccessRequest", number=1) == "NOT_FOUND"


async def test_others_do_not_see_a_request_and_nobody_decides_his_own(people: People) -> None:
    asked = await people.ask("alice", "SUB", "topic:a")
    own = await people.ask("chief", "SUB", "topic:a")
    assert await people.listed("bob") == []
    assert [each.number for each in await people.listed("alice")] == [asked.number]
    for method in ("ApproveAccessRequest", "DeclineAccessRequest"):
        assert await people.refusal("alice", method, number=asked.number) == "PERMISSION_DENIED"
        assert await people.refusal("bob", method, number=asked.number) == "PERMISSION_DENIED"
        assert await people.refusal("chief", method, number=own.number) == "PERMISSION_DENIED"
    assert await people.rules("alice") == []


@pytest.mark.parametrize(
    ("rules", "may_decide"),
    [
        (("allow UPDATE,SUB topic:home/#",), True),
        (("allow * topic:#",), True),
        (("allow UPDATE topic:home/#",), False),  # he may not read it himself
        (("allow SUB topic:home/#",), False),
        (("allow UPDATE,SUB topic:home/kitchen/#",), False),  # not all of it
        (("deny UPDATE topic:home/x", "allow UPDATE,SUB topic:home/#"), False),
        (("allow UPDATE,SUB topic:home/# from 192.0.2.0/24",), False),
    ],
)
async def test_owners_of_topics_decide(people: People, rules: tuple[str, ...], may_decide: bool) -> None:
    asked = await people.ask("alice", "SUB", "topic:home/#")
    await set_rules(people.node, "owner", *rules)
    assert [each.may_decide for each in await people.listed("owner")] == [True] * may_decide
    if may_decide:
        assert (await people.call("owner", "ApproveAccessRequest", number=asked.number)).state == "approved"
        assert await people.rules("alice") == ["allow subscribe home/#"]
    else:
        assert await people.refusal("owner", "ApproveAccessRequest", number=asked.number) == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("actions", "resource", "rules", "may_decide"),
    [
        ("publish", "home/#", ("allow UPDATE,PUB topic:home/#",), True),
        ("publish", "home/#", ("allow UPDATE,SUB topic:home/#",), False),
        ("both", "home/x", ("allow UPDATE topic:home/#", "allow both home/#"), True),
        ("LIST,GET", "topic:home/x", ("allow UPDATE,SUB topic:home/#",), True),
        ("SUB", "topic:home/se*", ("allow * topic:home/#",), False),  # no filter stands for that
        ("SUB", "group:g", ("allow UPDATE,SUB group:*",), True),
        ("SUB,DELETE", "group:g", ("allow UPDATE,SUB group:*",), False),
        ("SUB", "group:g*", ("allow UPDATE,SUB group:g*",), True),
        ("SUB", "group:g*", ("allow UPDATE,SUB group:g",), False),
        ("SUB", "group:g", (), False),
        ("SUB", "topic:%c/x", ("deny SUB topic:secret/#", "allow * topic:#"), False),  # as the client `secret`
        ("SUB", "topic:home/%u", ("allow * topic:#",), False),
        ("SUB", "group:%c", ("deny SUB group:g", "allow * group:*"), False),
    ],
)
async def test_owners_give_what_they_have(
    people: People, actions: str, resource: str, rules: tuple[str, ...], may_decide: bool
) -> None:
    await people.ask("alice", actions, resource)
    await set_rules(people.node, "owner", *rules)
    assert [each.may_decide for each in await people.listed("owner")] == [True] * may_decide


async def test_who_created_a_group_owns_it(people: People) -> None:
    asked = await people.ask("alice", "SUB", "group:mine")
    assert await people.listed("owner") == []
    offsets = control.GroupOffsetsCommitted(b"home", {0: 0}, b"owner").frame(b"mine")
    await append(engine_of(people.node), [offsets])
    assert await engine_of(people.node).group_creator(b"mine") == b"owner"
    assert [each.may_decide for each in await people.listed("owner")] == [True]
    await set_rules(people.node, "owner", "deny SUB group:mine")
    assert await people.listed("owner") == []
    await set_rules(people.node, "owner")
    await people.call("owner", "ApproveAccessRequest", number=asked.number)
    assert await people.rules("alice") == ["allow SUB group:mine"]


@pytest.mark.parametrize(
    ("actions", "resource"),
    [
        ("SUB", "cluster:access"),
        ("CREATE", "session:x"),
        ("publish", "group:g"),
        ("CREATE", "topic:x"),
        ("PUB,", "topic:x"),
        ("", "topic:x"),
        ("SUB", "topic:a/#/b"),
        ("SUB", "topic:$share/g/a"),
        ("SUB", "group:"),
        ("SUB", ""),
        ("SUB", "topic:" + "x" * 5000),
    ],
)
async def test_what_cannot_be_asked_for(people: People, actions: str, resource: str) -> None:
    assert await people.refusal("alice", "RequestAccess", actions=actions, resource=resource) == "INVALID_ARGUMENT"


async def test_requests_are_bounded(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_requests, "MAX_OPEN_OF_USER", 2)
    monkeypatch.setattr(access_requests, "MAX_OPEN", 3)
    long = {"actions": "SUB", "resource": "a", "reason": "x" * 1025}
    assert await people.refusal("alice", "RequestAccess", **long) == "INVALID_ARGUMENT"
    first = await people.ask("alice", "SUB", "a")
    end = engine_of(people.node).stats().log_end
    assert (await people.ask("alice", "subscribe", "topic:a", "again")).number == first.number
    assert engine_of(people.node).stats().log_end == end, "asking again wrote something"
    await people.ask("alice", "SUB", "b")
    assert await people.refusal("alice", "RequestAccess", actions="SUB", resource="c") == "RESOURCE_EXHAUSTED"
    await people.ask("bob", "SUB", "a")
    assert await people.refusal("bob", "RequestAccess", actions="SUB", resource="b") == "RESOURCE_EXHAUSTED"
    await people.call("chief", "DeclineAccessRequest", number=first.number)
    await people.ask("bob", "SUB", "b")


async def test_a_rule_too_many_is_refused_and_the_request_stays(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await people.ask("alice", "SUB", "a")
    await set_rules(people.node, "alice", *(f"allow subscribe x/{number}" for number in range(256)))
    assert await people.refusal("chief", "ApproveAccessRequest", number=asked.number) == "RESOURCE_EXHAUSTED"
    assert [each.state for each in await people.listed("alice")] == ["open"]


async def test_a_request_expires(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await people.ask("alice", "SUB", "a")
    after = time() + LIFE_MS / 1000 + 1
    monkeypatch.setattr(access_requests, "time", lambda: after)
    assert await people.refusal("chief", "ApproveAccessRequest", number=asked.number) == "NOT_FOUND"
    assert await people.listed("alice") == []
    monkeypatch.setattr(maintenance, "time", lambda: after)
    await people.node._maintenance._expire_requests()
    (found,) = await people.listed("alice", decided=True)
    assert (found.state, found.by) == ("expired", "")


async def test_requests_go_with_their_user(people: People) -> None:
    asked = await people.ask("alice", "SUB", "a")
    await remove_user(people.node, "alice")
    assert await people.listed("chief") == []
    assert await people.refusal("chief", "ApproveAccessRequest", number=asked.number) == "NOT_FOUND"
    await set_user(people.node, "alice", b"alice")
    assert await people.rules("alice") == []


async def test_of_decisions_the_latest_are_kept(people: People) -> None:
    engine = engine_of(people.node)
    rule = Rule(True, int(Action.SUB), int(Resource.TOPIC), b"a")
    count = MAX_DECIDED + 2
    numbers = await append(engine, [control.AccessRequested(rule, 1 << 50).frame(b"alice") for _ in range(count)])
    declined = int(Outcome.DECLINED)
    await append(engine, [control.AccessDecided(each, declined).frame(b"alice") for each in numbers])
    kept, before = 0, 1 << 62
    while page := await engine.decided_access_requests(before, 1000):
        kept, before = kept + len(page), page[-1].decision
    assert (kept, before, page) == (MAX_DECIDED, 2, [])
