"""What clients and services do at each front: with exactly the rules of the table, and without each of them."""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from cloud_sdk import Client, Credentials, InvalidArgument
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.auth.rules.rule_text import ACTIONS_OF
from gateway.node.node import Node
from gateway.rocketmq.proto import rocketmq_pb2 as rocket
from record.layout import FLAG_DELAYED, FLAG_HALF
from store.api import Resource
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import give_up, store_messages
from tests.gateway.mqtt import wire
from tests.gateway.people import login, set_rules, set_user
from tests.gateway.raw import PUBACK, RawClient
from tests.openapi.calls import CALLS, PAGE, Call, table, within_marks
from tests.waiting import PATIENCE_S

ALICE = Credentials("alice", "wonderland")
HOME = rocket.Resource(name="home")


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Messages of all kinds, and a group that is another user's. Alice has no rule."""
    made = await make_node(mqtt__auth=["password"], grpc__auth=["password"], http__auth=["password"])
    for user in ("alice", "owner"):
        await set_user(made, user, b"wonderland")
    await set_rules(made, "owner", "allow both home/#")
    await store_messages(made, (b"home/x", b"x"))
    async with client(made, Credentials("owner", "wonderland")) as owner:
        await owner.reset_group("billing", "home")
    return made


def client(node: Node, credentials: Credentials = ALICE) -> Client:
    return Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials)


# --- MQTT


async def publishes(node: Node, topic: bytes) -> bool:
    device, connack = await login(node.ports.mqtt, b"alice", b"wonderland")
    assert connack.reason == 0
    device.send(wire.publish(5, topic, b"x", 1, 1))
    allowed = (await device.expect(PUBACK)).reason != 0x87
    await device.drop()
    return allowed


async def subscribes(node: Node, topic_filter: bytes) -> bool:
    device, _ = await login(node.ports.mqtt, b"alice", b"wonderland")
    answer = await device.subscribe((topic_filter, 0))
    await device.drop()
    return answer != b"\x87"


async def leaves_a_will(node: Node) -> bool:
    device, connack = await login(node.ports.mqtt, b"alice", b"wonderland", will=(b"home/will", b"x"))
    await leave(device)
    return connack.reason != 0x87


async def leave(device: RawClient) -> None:
    await device.drop()


MQTT: dict[str, Callable[[Node], Awaitable[bool]]] = {
    "CONNECT with a will": leaves_a_will,
    "PUBLISH": lambda node: publishes(node, b"home/x"),
    "PUBLISH delayed": lambda node: publishes(node, b"$delayed/600/home/x"),
    "SUBSCRIBE": lambda node: subscribes(node, b"home/#"),
    "SUBSCRIBE replay": lambda node: subscribes(node, b"$replay/earliest/home/#"),
    "SUBSCRIBE shared": lambda node: subscribes(node, b"$share/workers/home/#"),
    "SUBSCRIBE $topics": lambda node: subscribes(node, b"$topics/home/+"),
}

# --- gRPC


async def native(node: Node, name: str) -> bool:
    if name == "Produce":
        async with client(node) as service:
            try:
                await service.send("home/x", b"x")
            except InvalidArgument:
                return False
            return True
    receive = pb.ReceiveRequest(group="billing", parent="home", max_records=1, max_bytes=1, invisible_ms=1000)
    requests: dict[str, Message] = {
        "Partitions": pb.PartitionsRequest(parent="home"),
        "Pull": pb.PullRequest(parent="home"),
        "OffsetAt": pb.OffsetAtRequest(parent="home"),
        "Find by key": pb.FindRequest(parent="home", key="k"),
        "Trace": pb.TraceRequest(),
        "Timers": pb.TimersRequest(),
        "Topics": pb.TopicsRequest(prefix="home/"),
        "Children": pb.ChildrenRequest(above="home/"),
        "Receive": receive,
        "Acknowledge": pb.AcknowledgeRequest(group="billing", parent="home"),
        "CommitOffsets": pb.CommitOffsetsRequest(group="billing", parent="home"),
        "CommittedOffsets": pb.CommittedOffsetsRequest(group="billing", parent="home"),
        "ResetGroup": pb.ResetGroupRequest(group="billing", parent="home"),
        "RemoveGroup": pb.RemoveGroupRequest(group="billing"),
        "Groups": pb.GroupsRequest(),
    }
    if name == "Recall":
        requests[name] = pb.RecallRequest(handles=await store_messages(node, (b"home/later", b""), flags=FLAG_DELAYED))
    elif name == "EndTransaction":
        handles = await store_messages(node, (b"home/half", b""), flags=FLAG_HALF)
        requests[name] = pb.EndTransactionRequest(handles=handles)
    elif name == "Trace":
        requests[name] = pb.TraceRequest(position=(await store_messages(node, (b"home/x", b"")))[0])
    request = requests[name]
    path, encode = f"/sluice.v1.Sluice/{name.partition(' ')[0]}", type(request).SerializeToString
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        call: Any = channel.unary_unary(path, encode)(
            request, metadata=(("authorization", ALICE.header()),), timeout=PATIENCE_S
        )
        code = await call.code()
    assert code in {grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED}, code
    return code is grpc.StatusCode.OK


async def rocketmq(node: Node, name: str) -> bool:
    message = rocket.Message(topic=HOME, body=b"x")
    message.system_properties.message_id, message.system_properties.message_type = "01", rocket.NORMAL
    group, queue = rocket.Resource(name="billing"), rocket.MessageQueue(topic=HOME, id=-1)
    first = rocket.MessageQueue(topic=HOME, id=0)
    letters = rocket.MessageQueue(topic=rocket.Resource(name="%DLQ%billing"), id=-1)
    requests: dict[str, Message] = {
        "SendMessage": rocket.SendMessageRequest(messages=[message]),
        "ReceiveMessage": rocket.ReceiveMessageRequest(group=group, message_queue=queue),
        "ReceiveMessage of dead letters": rocket.ReceiveMessageRequest(group=group, message_queue=letters),
        "QueryOffset": rocket.QueryOffsetRequest(message_queue=first),
        "GetOffset": rocket.GetOffsetRequest(group=group, message_queue=first),
    }
    path, request = f"/apache.rocketmq.v2.MessagingService/{name.partition(' ')[0]}", requests[name]
    response = getattr(rocket, type(request).__name__.removesuffix("Request") + "Response")
    codecs = type(request).SerializeToString, response.FromString
    metadata = (("authorization", ALICE.header()), ("x-mq-client-id", "service"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        answer: Any
        if name.startswith("ReceiveMessage"):
            stream: Any = channel.unary_stream(path, *codecs)(request, metadata=metadata, timeout=PATIENCE_S)
            answer = await anext(aiter(stream))
        else:
            answer = await channel.unary_unary(path, *codecs)(request, metadata=metadata, timeout=PATIENCE_S)
    allowed = (rocket.OK, rocket.MESSAGE_NOT_FOUND, rocket.OFFSET_NOT_FOUND)
    assert answer.status.code in (*allowed, rocket.FORBIDDEN), answer
    return answer.status.code in allowed


async def metrics(node: Node) -> bool:
    url, header = f"http://127.0.0.1:{node.ports.http}/metrics", {"Authorization": ALICE.header()}
    async with aiohttp.ClientSession() as session, session.get(url, headers=header) as answer:
        assert answer.status in (200, 403)
        return answer.status == 200


async def does(node: Node, call: Call) -> bool:
    """Whether the call is allowed."""
    if call.front == "MQTT":
        return await MQTT[call.name](node)
    if call.front == "gRPC":
        return await native(node, call.name)
    return await rocketmq(node, call.name) if call.front == "RocketMQ" else await metrics(node)


def all_but(rule: str) -> list[str]:
    """What else somebody may have who lacks a rule: all other actions there, and everything elsewhere."""
    _, action, resource = rule.split()
    kind = resource.partition(":")[0]
    implying = {"SUB"} if kind == "topic" and action in {"LIST", "GET"} else set()
    others = [each.name or "" for each in ACTIONS_OF[Resource[kind.upper()]] if each.name not in {action, *implying}]
    elsewhere = ["allow * topic:away/#", "allow * group:other*", "allow * cluster:*", "allow * session:*"]
    elsewhere.append("allow PUB topic:#" if action == "SUB" else "allow PUB topic:away")
    return [f"allow {','.join(others)} {resource}", *elsewhere]


@pytest.mark.parametrize("front", ["MQTT", "gRPC", "RocketMQ", "HTTP"])
async def test_each_call_needs_each_of_its_rules_and_no_other(node: Node, front: str) -> None:
    for call in CALLS:
        if call.front != front:
            continue
        for missing in call.rules:
            await set_rules(node, "alice", *[rule for rule in call.rules if rule != missing], *all_but(missing))
            assert not await does(node, call), f"{call.name} without {missing}"
        for rule in call.rules:
            await set_rules(node, "alice", rule.replace("allow", "deny"), "allow * topic:*", "allow * group:*")
            assert not await does(node, call), f"{call.name} with {rule} denied"
        await set_rules(node, "alice", *call.rules)
        assert await does(node, call), call.name


async def test_what_is_open_unless_a_rule_denies_it(node: Node) -> None:
    await set_rules(node, "alice", "allow SUB topic:home/#", "deny SUB group:$share/workers/*")
    assert not await subscribes(node, b"$share/workers/home/#")
    assert await subscribes(node, b"$share/others/home/#")
    await set_rules(node, "alice", "allow SUB topic:home/#", "deny GET group:billing")
    assert not await native(node, "CommittedOffsets")
    assert not await rocketmq(node, "GetOffset")
    await set_rules(node, "alice", "allow SUB topic:home/#")
    assert await rocketmq(node, "GetOffset")
    await set_rules(node, "alice", "deny CREATE session:c")
    assert (await login(node.ports.mqtt, b"alice", b"wonderland", client_id=b"c"))[1].reason == 0x87
    assert (await login(node.ports.mqtt, b"alice", b"wonderland", client_id=b"d"))[1].reason == 0


async def test_dead_letters_need_the_right_to_what_the_group_reads(node: Node) -> None:
    await store_messages(node, (b"$plant/x", b"secret"))
    await give_up(node, b"billing", b"$plant", 1)
    rules = "allow SUB topic:#", "allow SUB group:billing"
    await set_rules(node, "alice", *rules)
    assert not await rocketmq(node, "ReceiveMessage of dead letters")
    await set_rules(node, "alice", *rules, "allow SUB topic:$plant/#")
    assert await rocketmq(node, "ReceiveMessage of dead letters")


async def test_the_owner_of_a_group_needs_no_rule_but_a_rule_may_deny(node: Node) -> None:
    async with client(node, Credentials("owner", "wonderland")) as owner:
        await owner.reset_group("billing", "home")
        await set_rules(node, "owner", "deny UPDATE group:billing", "allow both home/#")
        with pytest.raises(Exception, match="is another user's, and no rule allows it"):
            await owner.reset_group("billing", "home")


def test_the_table_of_calls_is_up_to_date() -> None:
    assert within_marks(PAGE.read_text(encoding="utf-8")) == table(), "run `make proto`"
