"""A group moves to the other of two sites, whose workers are killed while they copy messages and positions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cloud_sdk import Client, GroupQueue
from connect.connectors.sluice.offset_syncs import OffsetSyncs
from gateway.broker.append import append
from store import control
from tests.cloud_sdk.conftest import Node
from tests.connect.runtime.conftest import EVERYBODY, Connect
from tests.connect.runtime.test_kills import Workers, two_workers

pytestmark = pytest.mark.slow

KILLS = 3
A_KILL = 100  # messages between two kills
A_ROUND = 50  # messages between two offset syncs
ROUNDS = 6


class Site:
    """A node, and two processes of workers beside it."""

    def __init__(self, node: Node, connect: Connect, workers: Workers) -> None:
        self.node = node
        self.connect = connect
        self.workers = workers
        self.client = connect.client

    async def copy_to(self, other: "Site", name: str, source: str, target: str, reverse: str) -> None:
        config = {
            "connector.class": "sluice-sink",
            "topics": "plant/#",
            "sluice.host": other.node.endpoint,
            "source.cluster.alias": source,
            "target.cluster.alias": target,
            "reverse.connector": reverse,
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "groups": "billing",
        }
        await self.connect.set(name, config)

    async def stored(self) -> list[bytes]:
        found: list[bytes] = []
        for each in await self.client.partitions("plant"):
            offset = 0
            while offset < each.end:
                batch = await self.client.pull("plant", each.partition, offset)
                found += [message.payload for message in batch.messages()]
                offset = batch.next_offset
        return found


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Site, Site]]:
    """North has one partition of the topic, south three."""
    nodes = Node(tmp_path / "north"), Node(tmp_path / "south")
    async with AsyncExitStack() as stack:
        sites = []
        for node, partitions in zip(nodes, (1, 3), strict=True):
            await node.start()
            stack.push_async_callback(node.stop)
            await node.restart(plant=partitions)
            await append(node.engine, [control.RulesSet([EVERYBODY]).frame(b"")])
            client = await stack.enter_async_context(Client(node.endpoint, retry_seconds=20))
            connect = Connect(node, client, tmp_path)
            sites.append(Site(node, connect, await stack.enter_async_context(two_workers(connect))))
        north, south = sites
        await north.copy_to(south, "there", "north", "south", "back")
        await south.copy_to(north, "back", "south", "north", "there")
        yield north, south


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Leases of messages that a killed worker had last a minute."""
    async with asyncio.timeout(150):
        while not await condition():  # noqa: ASYNC110  another process
            await asyncio.sleep(0.1)


async def test_nothing_is_lost_and_little_comes_again(pair: tuple[Site, Site]) -> None:
    north, south = pair
    published = 0
    finished: set[bytes] = set()

    async def publish(count: int) -> set[bytes]:
        nonlocal published
        new = range(published, published + count)
        published += count
        for number in new:
            await pair[number % 2].client.send(f"plant/{number % 7}", b"%d" % number)
        return {b"%d" % number for number in new}

    async def are_copied() -> bool:
        """Whether both connectors have nothing to do."""
        queues = [queue for site in pair for each in await site.client.groups() for queue in each.queues
                  if each.name.startswith("connect-")]  # fmt: skip
        return len(queues) == 4 and not any(queue.lag for queue in queues)

    async def are_synced() -> bool:
        entry = await south.connect.bucket.get("sync/north/there/plant")
        (bounds,) = await north.client.partitions("plant")
        syncs = OffsetSyncs() if entry is None else OffsetSyncs.unpacked(entry.value)
        return syncs.time_of({0: bounds.end}) > syncs.time_of({0: bounds.end - 1})

    async def billing() -> list[GroupQueue]:
        """The places of the group at south."""
        return [queue for each in await south.client.groups() if each.name == "billing" for queue in each.queues]

    async def is_moved() -> bool:
        return sum(queue.floor for queue in await billing()) >= KILLS * A_KILL

    async with north.client.consumer("billing", "plant", start="earliest") as member:

        async def consume() -> None:
            batch = await member.batch(5.0)
            await member.ack(batch)
            finished.update(each.payload for each in batch)

        for kill in range(KILLS):
            await publish(A_KILL)
            await consume()
            await north.workers.kill_holder("there/0")
            if kill == 1:
                await south.workers.kill_holder("back/0")
        await until(are_copied)
        stored = [len(await each.stored()) for each in pair]
        for number in range(ROUNDS):
            new = await publish(A_ROUND)
            await until(are_copied)
            await until(are_synced)
            while number < ROUNDS // 2 and not finished >= new:
                await consume()
    await until(is_moved)
    more = ROUNDS * A_ROUND  # and none that went around
    assert [len(await each.stored()) for each in pair] == [count + more for count in stored]
    await north.node.stop()
    seen: set[bytes] = set()
    async with south.client.consumer("billing", "plant", start="latest") as member:
        while any(queue.lag for queue in await billing()):
            batch = await member.batch(5.0)
            seen |= {each.payload for each in batch}
            await member.ack(batch)
    assert finished | seen == {b"%d" % number for number in range(published)}
    assert len(finished & seen) <= A_ROUND
