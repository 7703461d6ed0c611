"""Every method of the management surface, over HTTP and over gRPC: with the rights that it names, and without each."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from google.protobuf.message import Message

from gateway.auth.rules.rule_text import ACTIONS_OF, AREAS
from gateway.management.methods import METHODS, Method
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC, Action, Kind, Right
from gateway.management.rights import resource_of
from gateway.node.node import Node
from store.api import Resource
from store.exports.stage import stage
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import OPERATOR, Refused, World
from tests.gateway.people import set_rules
from tests.openapi.rights_table import PAGE, table, within_marks

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
CONNECTOR = {"connector.class": "file-source", "directory": "d", "topic": "t"}
Call = Callable[[Method, Message], Awaitable[Message]]
# These hide what the caller has no right to, and are not refused.
HIDING = {"GetTopic", "ListDeadLetters", "ListTimers", "ListTransactions", "ListAccessRequests"}
# A single node refuses these to those who have the right, too.
CLUSTERED = {"GetCluster", "ChangeLeader", "DrainNode", "UndrainNode", "PromoteSite"}


@pytest.fixture
async def world(make_node: MakeNode, tmp_path: Path) -> World:
    folder = str(tmp_path / "audit")
    made = World(await make_node(grpc__auth=["password"], http__auth=["password"], audit__folder=folder))
    await made.fill()
    return made


def requests(world: World, stage_name: str) -> dict[str, Message]:
    """A request for each method, in an order in which each finds what it needs."""
    position = world.positions[4]
    keys = pb.ScramKeys(iterations=4096, salt=bytes(16), stored_key=bytes(32), server_key=bytes(32))
    return {
        "ListTopics": pb.ListTopicsRequest(above="home/"),
        "SearchTopics": pb.SearchTopicsRequest(prefix="home/"),
        "GetTopic": pb.GetTopicRequest(topic="home/t"),
        "BrowseTopic": pb.BrowseTopicRequest(topic="home/t"),
        "BrowsePartition": pb.BrowsePartitionRequest(parent="home"),
        "PublishMessage": pb.PublishMessageRequest(topic="home/t", text="hello"),
        "PublishMessages": pb.PublishMessagesRequest(messages=[pb.PublishMessageRequest(topic="home/t", text="hello")]),
        "FindMessages": pb.FindMessagesRequest(parent="home", key="k"),
        "GetMessage": pb.GetMessageRequest(position=position),
        "TraceMessage": pb.TraceMessageRequest(position=position),
        "ListGroups": pb.ListGroupsRequest(),
        "GetGroup": pb.GetGroupRequest(group="g"),
        "ResetGroup": pb.ResetGroupRequest(group="g", latest=True),
        "PauseGroup": pb.PauseGroupRequest(group="g"),
        "ResumeGroup": pb.ResumeGroupRequest(group="g"),
        "ReceiveMessages": pb.ReceiveMessagesRequest(group="g", parent="home"),
        "AcknowledgeMessages": pb.AcknowledgeMessagesRequest(group="g", parent="home", done=["0-0-1"]),
        "ListDeadLetters": pb.ListDeadLettersRequest(group="g"),
        "RequeueDeadLetters": pb.RequeueDeadLettersRequest(group="g", offsets=[1]),
        "DeleteDeadLetters": pb.DeleteDeadLettersRequest(group="g", all=True),
        "DeleteGroup": pb.DeleteGroupRequest(group="g"),
        "ListClients": pb.ListClientsRequest(),
        "GetClient": pb.GetClientRequest(client_id="c"),
        "BeginTrace": pb.BeginTraceRequest(client_id="c"),
        "ReadTrace": pb.ReadTraceRequest(client_id="c"),
        "KickClient": pb.KickClientRequest(client_id="c"),
        "EndSession": pb.EndSessionRequest(client_id="c"),
        "ListServices": pb.ListServicesRequest(),
        "GetService": pb.GetServiceRequest(id=world.service()),
        "ListTimers": pb.ListTimersRequest(),
        "RecallTimers": pb.RecallTimersRequest(positions=[world.timer]),
        "ListTransactions": pb.ListTransactionsRequest(),
        "EndTransactions": pb.EndTransactionsRequest(positions=[world.half], commit=False),
        "GetStore": pb.GetStoreRequest(),
        "GetFigures": pb.GetFiguresRequest(),
        "StageStore": pb.StageStoreRequest(name=stage_name),
        "GetConfiguration": pb.GetConfigurationRequest(),
        "ReloadConfiguration": pb.ReloadConfigurationRequest(),
        "ListUsers": pb.ListUsersRequest(),
        "CreateUser": pb.CreateUserRequest(name="new", keys=keys),
        "ChangePassword": pb.ChangePasswordRequest(name="new", keys=keys),
        "UpdateUser": pb.UpdateUserRequest(name="new", disabled=True, roles=pb.RoleNames()),
        "DeleteUser": pb.DeleteUserRequest(name="new"),
        "ListRoles": pb.ListRolesRequest(),
        "SetRole": pb.Role(name="reader", rules=["allow subscribe x"]),
        "DeleteRole": pb.DeleteRoleRequest(name="reader"),
        "ListRules": pb.ListRulesRequest(),
        "SetRules": pb.SetRulesRequest(user="other", rules=["allow both x"]),
        "CheckRules": pb.CheckRulesRequest(user="other", action="publish", resource="x"),
        "TestLogin": pb.TestLoginRequest(user="new", password="x"),
        "SetBan": pb.SetBanRequest(target="client:x"),
        "ListBans": pb.ListBansRequest(),
        "EndBan": pb.EndBanRequest(target="client:x"),
        "RequestAccess": pb.RequestAccessRequest(actions="PUB", resource="topic:away", reason="device"),
        "ListAccessRequests": pb.ListAccessRequestsRequest(user="other"),
        "ApproveAccessRequest": pb.ApproveAccessRequestRequest(number=world.requests[0]),
        "DeclineAccessRequest": pb.DeclineAccessRequestRequest(number=world.requests[1]),
        "SetEventRule": pb.SetEventRuleRequest(
            name="r",
            definition=pb.EventRuleDefinition(topics=["home/x"], topic=pb.EventTopicTarget(topic="home/y")),
        ),
        "ListEventRules": pb.ListEventRulesRequest(),
        "GetEventRule": pb.GetEventRuleRequest(name="r"),
        "TestEventRule": pb.TestEventRuleRequest(name="r", position=position),
        "FindEvents": pb.FindEventsRequest(topic="home/#"),
        "PauseEventRule": pb.PauseEventRuleRequest(name="r"),
        "ResumeEventRule": pb.ResumeEventRuleRequest(name="r"),
        "DeleteEventRule": pb.DeleteEventRuleRequest(name="r"),
        "PublishEvents": pb.PublishEventsRequest(
            events=[pb.PublishedEvent(topic="home/t", attributes=EVENT)],
        ),
        "ListConnectorPlugins": pb.ListConnectorPluginsRequest(),
        "ValidateConnector": pb.ValidateConnectorRequest(config=CONNECTOR),
        "SetConnector": pb.SetConnectorRequest(name="c", config=CONNECTOR),
        "ListConnectors": pb.ListConnectorsRequest(),
        "GetConnector": pb.GetConnectorRequest(name="c"),
        "PauseConnector": pb.PauseConnectorRequest(name="c"),
        "ResumeConnector": pb.ResumeConnectorRequest(name="c"),
        "RestartConnector": pb.RestartConnectorRequest(name="c"),
        "StopConnector": pb.StopConnectorRequest(name="c"),
        "GetConnectorOffsets": pb.GetConnectorOffsetsRequest(name="c"),
        "SetConnectorOffsets": pb.SetConnectorOffsetsRequest(name="c"),
        "ResetConnectorOffsets": pb.ResetConnectorOffsetsRequest(name="c"),
        "DeleteConnector": pb.DeleteConnectorRequest(name="c"),
        "ListConnectWorkers": pb.ListConnectWorkersRequest(),
        "RegisterSchema": pb.RegisterSchemaRequest(name="s", kind="JSON", text="{}"),
        "ListSubjects": pb.ListSubjectsRequest(),
        "GetSubject": pb.GetSubjectRequest(name="s"),
        "GetSchema": pb.GetSchemaRequest(id=1),
        "CheckSchema": pb.CheckSchemaRequest(name="s", kind="JSON", text="{}"),
        "SetCompatibility": pb.SetCompatibilityRequest(name="s", compatibility="FULL"),
        "SetBinding": pb.SetBindingRequest(topic_filter="home/#", name="s", mode="mark"),
        "ListBindings": pb.ListBindingsRequest(),
        "CheckPayload": pb.CheckPayloadRequest(name="s", payload=b"1"),
        "InferSchema": pb.InferSchemaRequest(topic_filter="home/t"),
        "PreviewSchema": pb.PreviewSchemaRequest(topic_filter="home/t", name="s"),
        "DeleteBinding": pb.DeleteBindingRequest(topic_filter="home/#"),
        "DeleteSubject": pb.DeleteSubjectRequest(name="s"),
        "UpdateShadow": pb.UpdateShadowRequest(thing="t", state={"desired": {"on": True}}),
        "GetShadow": pb.GetShadowRequest(thing="t"),
        "ListShadows": pb.ListShadowsRequest(thing="t"),
        "DeleteShadow": pb.DeleteShadowRequest(thing="t"),
        "ListAudit": pb.ListAuditRequest(),
        "GetCluster": pb.GetClusterRequest(),
        "ChangeLeader": pb.ChangeLeaderRequest(node="n1"),
        "DrainNode": pb.DrainNodeRequest(node="n1"),
        "UndrainNode": pb.UndrainNodeRequest(node="n1"),
        "PromoteSite": pb.PromoteSiteRequest(),
    }


def rule_of(right: Right, request: Message) -> str:
    """The rule that gives a right, and nothing more."""
    words = {PUB: "publish", SUB: "subscribe"} if right.kind == TOPIC else {}
    does = words.get(right.action, Action.Name(right.action))
    if "thing" in request.DESCRIPTOR.fields_by_name:
        return f"allow {does} topic:$shadow/t/#"
    if right.each:
        return f"allow {does} topic:home/#"
    name = resource_of(right, request) or "*"
    return f"allow {does} {Kind.Name(right.kind).lower()}:{name}"


@pytest.mark.parametrize("face", ["over_http", "over_grpc"])
async def test_every_method_needs_each_of_its_rights_and_no_other(world: World, face: str) -> None:
    call = getattr(world, face)
    with stage(world.node.config.data_dir) as folder:
        asked = requests(world, folder.name)
        assert set(asked) == {method.name for method in METHODS}
        for method in sorted(METHODS, key=lambda each: list(asked).index(each.name)):
            request = asked[method.name]
            rules = [rule_of(right, request) for right in method.rights]
            for missing in rules:
                others = [rule for rule in rules if rule != missing]
                if "GET topic:" in missing:  # who may read a topic may also look at it
                    others = []
                await set_rules(world.node, OPERATOR, *others, *less_than(missing, method))
                await expect_less(method, request, call)
            await set_rules(world.node, OPERATOR, *rules)
            await expect_reply(method, request, call)
    await world.client.drop()


def less_than(rule: str, method: Method) -> list[str]:
    """What else somebody may have who lacks the right of a rule: every other action, and every other resource."""
    _, does, resource = rule.split()
    kind, _, name = resource.partition(":")
    action = {"publish": "PUB", "subscribe": "SUB"}.get(does, does)
    known = ACTIONS_OF[Resource[kind.upper()]]
    implying = {"SUB"} if kind == "topic" and action in {"LIST", "GET"} else set()
    if method.name == "ListAccessRequests":
        implying = {"UPDATE"}  # who may decide sees what there is to decide
    others = [each.name for each in known if each.name not in {action, *implying}]
    found = [f"allow {','.join(others)} {resource}", "allow * session:x", "allow * group:x*", "allow * topic:away/#"]
    if kind == "cluster":
        found += [f"allow * cluster:{area}" for area in AREAS if area != name]
    return found


async def expect_less(method: Method, request: Message, call: Call) -> None:
    """The call is refused, or its reply does not have what the right is about."""
    reply, refused = await outcome(method, request, call)
    if reply is None:
        assert refused is not None
        assert refused.code == "PERMISSION_DENIED", f"{method.name}: {refused}"
        assert "no rule allows it" in str(refused)
    else:
        assert method.name in HIDING, f"{method.name} was carried out"
        assert b"device" not in reply.SerializeToString(), f"{method.name} shows a message"


async def expect_reply(method: Method, request: Message, call: Call) -> None:
    reply, refused = await outcome(method, request, call)
    if method.name in CLUSTERED:
        assert refused is not None
        assert refused.code == "FAILED_PRECONDITION", f"{method.name}: {refused}"
    else:
        assert isinstance(reply, method.reply), f"{method.name}: {refused}"
        assert method.name not in HIDING or b"device" in reply.SerializeToString(), method.name


async def outcome(method: Method, request: Message, call: Call) -> tuple[Message | None, Refused | None]:
    try:
        return await call(method, request), None
    except Refused as refused:
        return None, refused


@pytest.mark.parametrize("face", ["over_http", "over_grpc"])
async def test_who_is_not_known_is_refused(make_node: MakeNode, face: str) -> None:
    world = World(await make_node(grpc__auth=["password"], http__auth=["password"]))
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await getattr(world, face)(method_named("GetStore"), pb.GetStoreRequest())


@pytest.mark.parametrize("face", ["over_http", "over_grpc"])
async def test_the_default_of_a_front_allows_nothing_here(node: Node, face: str) -> None:
    """Anonymous callers may do everything on the gRPC port of such a node, and read `/metrics`."""
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        await getattr(World(node), face)(method_named("BrowseTopic"), pb.BrowseTopicRequest(topic="home/t"))


@pytest.mark.parametrize("face", ["over_http", "over_grpc"])
async def test_a_rule_that_denies_counts(world: World, face: str) -> None:
    rules = "deny GET,LIST group:g", "allow * group:*", "allow * cluster:*"
    await set_rules(world.node, OPERATOR, *rules)
    call = getattr(world, face)
    await call(method_named("GetStore"), pb.GetStoreRequest())
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        await call(method_named("GetGroup"), pb.GetGroupRequest(group="g"))
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        await call(method_named("ListGroups"), pb.ListGroupsRequest())  # it would show the group
    await world.client.drop()


@pytest.mark.parametrize("face", ["over_http", "over_grpc"])
async def test_nobody_reads_dead_letters_by_publishing_them_elsewhere(world: World, face: str) -> None:
    rules = ["allow UPDATE group:g", "allow publish home/#", "allow both mine/#"]
    await set_rules(world.node, OPERATOR, *rules)
    request = pb.RequeueDeadLettersRequest(group="g", all=True, topic="mine/copy")
    call = getattr(world, face)
    with pytest.raises(Refused, match="the right to SUB topic:home/t"):
        await call(method_named("RequeueDeadLetters"), request)
    await set_rules(world.node, OPERATOR, *rules, "allow subscribe home/#")
    assert (await call(method_named("RequeueDeadLetters"), request)).requeued == 3
    await world.client.drop()


def method_named(name: str) -> Method:
    return next(method for method in METHODS if method.name == name)


def test_the_table_of_rights_is_up_to_date() -> None:
    assert within_marks(PAGE.read_text(encoding="utf-8")) == table(), "run `make proto`"
