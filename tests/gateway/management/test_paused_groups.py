"""Groups that are paused: their members get nothing until they are resumed."""

import asyncio

import pytest

from cloud_sdk import Client
from gateway.broker.service_directory import LocalServices
from gateway.management.areas.groups import GroupsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.node.services import rpc_limits
from gateway.observe.service_clients import ServiceClients
from gateway.rpc.status import RequestError
from store.api import PopRequest, PopResult, Receipts, Start, partition_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import engine_of, store_messages
from tests.gateway.raw import RawClient
from tests.gateway.sharing import GROUP as SHARED
from tests.gateway.sharing import members
from tests.waiting import PATIENCE_S, until


def service(node: Node) -> GroupsService:
    return GroupsService(engine_of(node), rpc_limits(node.config), LocalServices(ServiceClients(), node._sessions))


async def pause(node: Node, group: str = "g") -> pb.Group:
    return await service(node).pause_group(pb.PauseGroupRequest(group=group), NODE_USER)


async def resume(node: Node, group: str = "g") -> pb.Group:
    return await service(node).resume_group(pb.ResumeGroupRequest(group=group), NODE_USER)


async def pop(node: Node, group: bytes = b"g") -> PopResult:
    engine = engine_of(node)
    queues = tuple(partition_queue(b"home", number) for number in range(engine.partition_count(b"home")))
    return await engine.pop(PopRequest(group, queues, 1, 1 << 20, 600_000, Start.EARLIEST))


async def test_members_that_wait_get_nothing_until_the_group_is_resumed(node: Node) -> None:
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client, client.consumer("g", "home") as consumer:
        await pop(node)  # the group is there
        pending = asyncio.create_task(consumer.next(PATIENCE_S))
        await until(lambda: consumer._member._batch is not None)
        assert (await pause(node)).pause.since_ms > 0
        await store_messages(node, (b"home/t", b"x"))
        assert not (await pop(node)).runs
        group = await service(node).get_group(pb.GetGroupRequest(group="g"), NODE_USER)
        assert sum(queue.lag for queue in group.queues) == 1
        assert not pending.done()
        (row,) = (await service(node).list_groups(pb.ListGroupsRequest(), NODE_USER)).groups
        assert row.paused
        assert not (await resume(node)).HasField("pause")
        message = await pending
        assert message is not None
        assert message.payload == b"x"


async def test_what_is_leased_may_be_settled_while_the_group_is_paused(node: Node) -> None:
    engine = engine_of(node)
    await store_messages(node, (b"home/t", b"1"), (b"home/t", b"2"))
    (run,) = (await pop(node)).runs
    await pause(node)
    assert await engine.settle(b"g", [Receipts(run.queue, run.offset, 1, run.deliveries)]) == []
    (state,) = await engine.groups(None, 9)
    assert sum(queue.lag for queue in state.queues) == 1
    assert not (await pop(node)).runs
    assert (await pop(node, b"other")).runs
    await resume(node)
    assert (await pop(node)).runs


async def test_a_pause_survives_a_restart_and_ends_with_its_group(make_node: MakeNode) -> None:
    node = await make_node()
    await store_messages(node, (b"home/t", b"1"), (b"home/t", b"2"))
    await pop(node)
    first = await pause(node)
    assert (await pause(node)).pause == first.pause  # since the first time
    await node.stop()
    node = await make_node()
    group = await service(node).get_group(pb.GetGroupRequest(group="g"), NODE_USER)
    assert group.pause == first.pause
    assert not (await pop(node)).runs
    await service(node).delete_group(pb.DeleteGroupRequest(group="g"), NODE_USER)
    assert (await pop(node)).runs
    assert await engine_of(node).group_pause(b"g") is None


async def test_a_group_that_is_not_there_cannot_be_paused(node: Node) -> None:
    for work in (pause, resume):
        with pytest.raises(RequestError, match="there is no group 'g'"):
            await work(node)


async def test_a_shared_subscription_is_paused(node: Node) -> None:
    (member,) = await members(node, 1)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"t/x", b"1", 1, 1)
    assert [message.payload for message in await member.take(1)] == [b"1"]
    await member.settle()
    await pause(node, SHARED.decode())
    await publisher.publish(b"t/x", b"2", 1, 2)
    await member.quiet()
    await resume(node, SHARED.decode())
    assert [message.payload for message in await member.take(1)] == [b"2"]
