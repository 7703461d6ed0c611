"""Cloud services that are connected, members of groups, and the machines in the trace of a message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from cloud_sdk import Client
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.node.store_node import StoreNode
from gateway.rocketmq.proto import rocketmq_pb2 as rocketmq
from gateway.rpc.status import RequestError
from tests.gateway.management.world import OPERATOR, engine_of, store_messages
from tests.gateway.node.test_management import Split, split  # noqa: F401 - a fixture
from tests.gateway.raw import RawClient
from tests.waiting import patience

BY_NAME = {method.name: method for method in METHODS}


class Asking:
    """Calls of the surface of a process, by the node's own user."""

    def __init__(self, node: Node | StoreNode) -> None:
        self._management = node._services.passed_calls._management

    async def __call__(self, name: str, /, **fields: object) -> Any:
        method = BY_NAME[name]
        return await self._management.call(method, method.request(**fields), NODE_USER)


@asynccontextmanager
async def member(endpoint: str, name: str, group: str = "g") -> AsyncIterator[Any]:
    """A member of a group, with its client."""
    async with (
        Client(endpoint, name=name) as client,
        client.consumer(group, "home", start="earliest") as consumer,
    ):
        yield consumer


async def test_a_service_of_the_sdk(node: Node) -> None:
    asking, endpoint = Asking(node), f"127.0.0.1:{node.ports.grpc}"
    async with Client(endpoint, name="billing-1") as client:
        await client.send("home/t", b"1")
        await client.send("home/t", b"2")
        reply = await asking("ListServices", name="billing-1")
        (row,) = reply.services
        assert (row.name, row.machine.kind, row.sent) == ("billing-1", "sdk", 2)
        assert row.machine.address.startswith("127.0.0.1:")
        assert row.machine.language.startswith("Python 3.")
        assert row.machine.version
        assert {each.method: each.count for each in row.calls}["Produce"] == 1
        assert row.under_way >= 1
        assert not row.HasField("last_ms")
        assert await asking("GetService", id=row.id) == row
        assert not (await asking("ListServices", user="nobody")).services
    with pytest.raises(RequestError, match="no service"):
        await asking("GetService", id="none")


async def test_the_members_of_a_group_and_what_they_hold(node: Node) -> None:
    asking = Asking(node)
    await store_messages(node, *[(b"home/t", b"%d" % number) for number in range(5)])
    async with member(f"127.0.0.1:{node.ports.grpc}", "m") as consumer:
        async with patience():
            batch = await consumer.batch()
            await consumer.ack(batch[:2])
            await consumer.nack(batch[2:3], delay_seconds=600.0, error="no such meter")
            await consumer.flush()
        group = await asking("GetGroup", group="g")
        (found,) = group.members
        assert (found.member, found.machine.kind, found.received) == ("m", "sdk", 5)
        assert (found.held, found.acknowledged, found.failed) == (2, 2, 1)
        assert found.handling_ms >= 0
        assert (await asking("GetService", id=found.service)).groups[0].held == 2
        assert (group.figures.deliveries, group.figures.acknowledged) == (5, 2)
        assert [(each.deliveries, each.messages) for each in group.attempts] == [(1, 3)]
        (summary,) = (await asking("ListGroups", order=pb.BY_HANDLING_TIME)).groups
        assert (summary.group, summary.lag) == ("g", 3)


async def test_groups_that_are_slow_or_behind_come_first(node: Node) -> None:
    asking = Asking(node)
    await store_messages(node, *[(b"home/t", b"%d" % number) for number in range(5)])
    for name, done in (("a", 5), ("b", 1), ("c", 3)):
        async with member(f"127.0.0.1:{node.ports.grpc}", name, name) as consumer, patience():
            batch = await consumer.batch()
            await consumer.ack(batch[:done])
            await consumer.flush()
    counts = engine_of(node).group_counts
    for name, slow in ((b"a", 10.0), (b"b", 20.0), (b"c", 5.0)):
        count = counts.find(name)
        assert count is not None
        count.recent_ms = slow
    reply = await asking("ListGroups", order=pb.BY_HANDLING_TIME, limit=2)
    assert [(each.group, each.handling_ms) for each in reply.groups] == [("b", 20.0), ("a", 10.0)]
    reply = await asking("ListGroups", order=pb.BY_LAG)
    assert [(each.group, each.lag) for each in reply.groups] == [("b", 4), ("c", 2), ("a", 0)]
    assert not reply.is_cut
    with pytest.raises(RequestError, match="one page"):
        await asking("ListGroups", order=pb.BY_LAG, after="a")


async def test_a_group_can_begin_where_an_operator_says(node: Node) -> None:
    asking = Asking(node)
    await store_messages(node, (b"home/t", b"old"))
    with pytest.raises(RequestError, match="no group"):
        await asking("ResetGroup", group="new", latest=True)
    group = await asking("ResetGroup", group="new", parent="home", latest=True)
    assert sum(each.lag for each in group.queues) == 0
    await store_messages(node, (b"home/t", b"next"))
    async with member(f"127.0.0.1:{node.ports.grpc}", "m", "new") as consumer, patience():
        assert [each.payload for each in await consumer.batch()] == [b"next"]


async def test_a_trace_has_the_machines_of_those_who_are_connected(node: Node) -> None:
    asking, endpoint = Asking(node), f"127.0.0.1:{node.ports.grpc}"
    async with Client(endpoint, name="producer") as client, member(endpoint, "m") as consumer:
        sent = await client.send("home/t", b"1")
        device = await RawClient.connect(node.ports.mqtt, b"sensor", 5)
        await device.publish(b"home/t", b"2", 1, 7)
        async with patience():
            first = await consumer.batch()
            second = first[1:] or await consumer.batch()
            await consumer.ack(first)
            await consumer.flush()
        events = (await asking("TraceMessage", position=sent.position)).events
        assert [each.kind for each in events] == ["STORED", "LEASED", "FINISHED"]
        assert [each.machine.kind for each in events] == ["sdk"] * 3
        assert events[0].machine.address != events[1].machine.address
        stored = (await asking("TraceMessage", position=second[0].position)).events[0]
        assert (stored.who, stored.machine.kind, stored.machine.version) == ("sensor", "mqtt", "5.0")
    reply = await asking("TraceMessage", position=sent.position)
    assert reply.read_to == reply.end == engine_of(node).stats().log_end


async def test_a_client_of_rocketmq(node: Node) -> None:
    metadata = (("x-mq-client-id", "host@1"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.7"))
    asking = Asking(node)
    await store_messages(node, (b"home/t", b"1"), (b"home/t", b"2"))
    topic, group = rocketmq.Resource(name="home"), rocketmq.Resource(name="early")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        path = "/apache.rocketmq.v2.MessagingService/"
        receive: Any = channel.unary_stream(
            path + "ReceiveMessage",
            rocketmq.ReceiveMessageRequest.SerializeToString,
            rocketmq.ReceiveMessageResponse.FromString,
        )
        request = rocketmq.ReceiveMessageRequest(
            group=group, message_queue=rocketmq.MessageQueue(topic=topic, id=-1), batch_size=1
        )
        request.invisible_duration.FromSeconds(60)
        handles = [
            each.message.system_properties.receipt_handle
            async for each in receive(request, metadata=metadata)
            if each.HasField("message")
        ]
        (found,) = (await asking("GetGroup", group="early")).members
        assert (found.member, found.machine.kind, found.machine.language, found.held) == (
            "host@1",
            "rocketmq",
            "JAVA",
            1,
        )
        acknowledge: Any = channel.unary_unary(
            path + "AckMessage",
            rocketmq.AckMessageRequest.SerializeToString,
            rocketmq.AckMessageResponse.FromString,
        )
        entry = rocketmq.AckMessageEntry(message_id="01", receipt_handle=handles[0])
        await acknowledge(rocketmq.AckMessageRequest(group=group, topic=topic, entries=[entry]), metadata=metadata)
        (found,) = (await asking("GetGroup", group="early")).members
        assert (found.held, found.acknowledged) == (0, 1)


async def test_members_of_a_shared_subscription(node: Node) -> None:
    asking = Asking(node)
    worker = await RawClient.connect(node.ports.mqtt, b"worker", 5)
    await worker.subscribe((b"$share/s/home/#", 1))
    await store_messages(node, (b"home/t", b"1"))
    await worker.message()  # it is not acknowledged
    (found,) = (await asking("GetGroup", group="$share/s/home/#")).members
    assert (found.member, found.machine.kind, found.held) == ("worker", "mqtt", 1)
    assert found.machine.address.startswith("127.0.0.1:")


async def test_an_application_over_http(node: Node) -> None:
    asking = Asking(node)
    await asking("PublishMessages", messages=[pb.PublishMessageRequest(topic="home/t", text="1")])
    (row,) = (await asking("ListServices")).services
    assert (row.machine.kind, row.sent, row.calls[0].method) == ("http", 1, "PublishMessages")


async def test_services_of_gateways(split: Split) -> None:  # noqa: F811 - it is the fixture
    asking = Asking(split.store)
    split.gateway.config.grpc.auth = ["anonymous"]
    await split.call(pb.PublishMessageRequest(topic="home/t", text="1"), "PublishMessage")
    reply = await asking("ListServices", user="alice")
    (row,) = [each for each in reply.services if each.machine.kind == "grpc"]
    assert row.machine.gateway.startswith("g/")
    assert (await asking("GetService", id=row.id)).machine.gateway == row.machine.gateway
    assert not reply.unknown
    found = await asking("ListServices", limit=1)
    assert found.after == found.services[0].id
    assert OPERATOR not in {each.machine.user for each in reply.services}
