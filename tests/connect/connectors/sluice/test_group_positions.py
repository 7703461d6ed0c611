"""Positions of groups at another cluster: never ahead of what they have finished, and not far behind."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cloud_sdk import Client, Delivery, SimpleConsumer
from connect.api import ConnectError, InvalidSettings
from connect.connectors.sluice.group_positions import GroupPositions, Places, places_of
from connect.connectors.sluice.offset_syncs import MOST, OffsetSync, OffsetSyncs
from connect.connectors.sluice.sink import SluiceSink
from gateway.broker.append import append
from store import control
from tests.cloud_sdk.conftest import Node
from tests.connect.connectors.harness import Context, settings_of
from tests.connect.connectors.sluice.test_sluice_sink import as_record, sink, sites
from tests.connect.runtime.conftest import EVERYBODY
from tests.waiting import patience

__all__ = ["sites"]  # the fixture

STEPS = 250


class Sites:
    """Two sites with connectors `there`, from north to south, and `back`, whose messages a test carries one by one."""

    def __init__(
        self, nodes: tuple[Node, Node], north: Client, south: Client, tasks: dict[str, Any], stack: AsyncExitStack
    ) -> None:
        self.nodes = nodes
        self.north = north
        self.south = south
        self._tasks = tasks
        self._stack = stack
        self.published = 0
        self.finished: set[bytes] = set()  # by the group, at north
        self.held: list[Delivery] = []  # by the group, at north
        self.members: dict[str, SimpleConsumer] = {}

    async def member(self, site: Client, group: str) -> SimpleConsumer:
        if group not in self.members:
            made = site.consumer(group, "plant", start="earliest", max_records=7)
            self.members[group] = await self._stack.enter_async_context(made)
        return self.members[group]

    async def publish(self, site: Client) -> None:
        self.published += 1
        await site.send(f"plant/{self.published % 5}", b"%d" % self.published)

    async def copy(self, name: str, chooser: random.Random | None = None) -> bool:
        """Carry a batch in one direction. chooser: leave some of it, which comes again later. Returns whether there
        was any."""
        consumer = await self.member(self.north if name == "there" else self.south, f"connect-{name}")
        batch = await consumer.batch(0.0)
        chosen = [each for each in batch if chooser is None or chooser.random() < 0.8]
        await self._tasks[name].put([as_record(each) for each in chosen])
        consumer.settle([each.lease for each in chosen])
        await consumer.release([each for each in batch if each not in chosen])
        await consumer.flush()
        return bool(batch)

    async def consume(self, chooser: random.Random | None = None) -> bool:
        """The group receives at north, and finishes some of what it holds, in any order."""
        consumer = await self.member(self.north, "billing")
        self.held += await consumer.batch(0.0)
        done = [each for each in self.held if chooser is None or chooser.random() < 0.7]
        self.held = [each for each in self.held if each not in done]
        await consumer.ack(done)
        self.finished |= {each.payload for each in done}
        return bool(done)

    async def places(self) -> Places:
        """Those of the group at south."""
        groups = {each.name: each for each in await self.south.groups()}
        return places_of(groups.get("billing"), "plant")

    async def before_group(self) -> set[bytes]:
        """What the group does not see at south, if it goes there now."""
        passed: set[bytes] = set()
        for partition, place in (await self.places()).items():
            if place[0]:
                batch = await self.south.pull("plant", partition, 0, max_records=place[0])
                passed |= {each.payload for each in batch.messages()}
        return passed


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Sites]:
    """North has one partition of the topic, south three."""
    nodes = Node(tmp_path / "north"), Node(tmp_path / "south")
    for node, partitions in zip(nodes, (1, 3), strict=True):
        await node.start()
        await node.restart(plant=partitions)
        await append(node.engine, [control.RulesSet([EVERYBODY]).frame(b"")])
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(patience())
        north, south = [await stack.enter_async_context(Client(each.endpoint)) for each in nodes]
        there = await stack.enter_async_context(sink(Context("there"), "north", "south", nodes[1]))
        back = await stack.enter_async_context(sink(Context("back"), "south", "north", nodes[0]))
        yield Sites(nodes, north, south, {"there": there, "back": back}, stack)
    for node in nodes:
        await node.stop()


def positions(sites: Sites, *, reverse: str | None = "back", groups: str = ".*") -> GroupPositions:
    return GroupPositions(sites.north, sites.south, "sync/north/there", ["plant/#"],
                          groups=[groups], excluded=["connect-.*"], reverse=reverse)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
async def test_a_position_is_never_ahead_and_comes_to_the_end(both: Sites, seed: int) -> None:
    chooser = random.Random(seed)
    keeper = positions(both)
    most = 0
    for _ in range(STEPS):
        match chooser.choice(["north", "south", "there", "back", "consume", "consume", "round", "new worker"]):
            case "north":
                await both.publish(both.north)
            case "south":
                await both.publish(both.south)
            case "consume":
                await both.consume(chooser)
            case "round":
                await keeper.round()
                passed = await both.before_group()
                assert passed <= both.finished
                most = max(most, len(passed))
            case "new worker":
                if chooser.random() < 0.1:
                    keeper = positions(both)
            case direction:
                await both.copy(direction, chooser)
    assert most > 10  # the position moves while messages come
    while len(both.finished) < both.published:
        await both.copy("there")
        await both.copy("back")
        await both.consume()
    while await both.copy("there") | await both.copy("back"):
        pass
    for _ in range(3):
        await keeper.round()
    assert await both.before_group() == both.finished


async def test_a_new_group_begins_at_the_first_message_that_it_has_not_finished(both: Sites) -> None:
    for _ in range(3):
        await both.publish(both.north)
    held = await (await both.member(both.north, "billing")).batch(5.0)
    await both.copy("there")
    await positions(both).round()
    assert {place[0] for place in (await both.places()).values()} == {0}
    async with both.south.consumer("billing", "plant", start="latest") as member:
        assert len([await member.next(5.0) for _ in held]) == 3


async def test_a_group_in_use_there_is_left_alone_and_none_moves_back(both: Sites) -> None:
    async def lag() -> int:
        return sum(queue.lag for each in await both.south.groups() if each.name == "billing" for queue in each.queues)

    keeper = positions(both, reverse=None)
    for _ in range(9):
        await both.publish(both.north)
    await both.copy("there")
    await both.copy("there")
    async with both.south.consumer("billing", "plant", start="earliest", max_records=1) as member:
        first, second = await member.next(5.0), await member.next(5.0)
        assert first is not None
        assert second is not None
        while len(both.finished) < 9:
            await both.consume()
        await keeper.round()
        assert await lag() == 9  # it may be in use
        await first.ack()
        await keeper.round()
        assert await lag() == 8  # it is in use
        await keeper.round()
        assert await lag() == 0  # nothing has happened since the last round
    await both.north.reset_group("billing", "plant", start="earliest")
    for _ in range(3):
        await keeper.round()
    assert await lag() == 0


async def test_groups_are_chosen_by_name(both: Sites) -> None:
    await both.publish(both.north)
    for name in ("billing", "bill", "connect-x", "audit"):
        async with both.north.consumer(name, "plant", start="earliest") as member:
            assert await member.next(5.0) is not None
    await positions(both, reverse=None, groups="bill|audit|connect-.*").round()
    assert [each.name for each in await both.south.groups()] == ["audit", "bill"]
    keys = [each.key async for each in both.south.bucket("connect").entries()]
    assert keys == ["sync/north/there", "sync/north/there/plant"]


async def test_what_nobody_may_do_fails_the_task(sites: tuple[Node, Node]) -> None:
    async with Client(sites[0].endpoint) as client:
        context = Context("a", client=client, topics=["plant/#"])
        with pytest.raises(ConnectError, match=r"positions of groups cannot be copied to .*: no rule allows"):
            async with sink(context, "north", "south", sites[1], sync_group_offsets_enabled="true"):
                pass


async def test_messages_that_come_back_need_the_name_of_their_connector(both: Sites) -> None:
    await both.publish(both.south)
    await both.copy("back")
    (copy,) = await (await both.member(both.north, "connect-there")).batch(5.0)
    for more, comes_back in (({}, False), ({"reverse_connector": "back"}, True)):
        context = Context("there", client=both.north, topics=["plant/#"])
        async with sink(context, "north", "south", both.nodes[1], sync_group_offsets_enabled="true", **more) as task:
            if comes_back:
                await task.put([as_record(copy)])
            else:
                with pytest.raises(ConnectError, match="messages come back from south: name their reverse"):
                    await task.put([as_record(copy)])


def test_settings_that_cannot_be() -> None:
    given = {
        "sluice.host": "south:1",
        "source.cluster.alias": "north",
        "target.cluster.alias": "south",
        "sync.group.offsets.enabled": "true",
    }
    with pytest.raises(InvalidSettings, match="only if topics keep their names"):
        settings_of(SluiceSink(), given | {"topic.mapping": "# -> a/{1}"})
    with pytest.raises(InvalidSettings, match=r"groups: '\(' is not a regular expression"):
        settings_of(SluiceSink(), given | {"groups": "("})


def test_old_syncs_are_further_apart() -> None:
    syncs = OffsetSyncs()
    for number in range(1000):
        syncs.add(OffsetSync([number, 2 * number], 10 * number))
    syncs = OffsetSyncs.unpacked(syncs.packed())
    times = [syncs.time_of({0: number, 1: 2 * number}) for number in range(1000)]
    assert len(set(times)) <= MOST
    behind = [number - time // 10 for number, time in enumerate(times)]
    assert min(behind) == 0
    assert behind[-10:] == [0] * 10
    assert all(each <= (1000 - number) / 4 for number, each in enumerate(behind))
    assert syncs.time_of({0: 999}) == 0  # the other partition is at its begin


def test_syncs_of_another_log_are_dropped() -> None:
    syncs = OffsetSyncs([OffsetSync([5], 10), OffsetSync([9], 20)])
    syncs.add(OffsetSync([9], 30))
    assert syncs.time_of({0: 9}) == 30
    syncs.add(OffsetSync([9, 1], 40))
    assert syncs.time_of({0: 9}) == 30
    syncs.add(OffsetSync([8, 1], 50))
    assert (syncs.time_of({0: 7}), syncs.time_of({0: 8, 1: 1})) == (0, 50)
    numbers = [b"[[%b, [1]]]" % each for each in (b"1e30", b"-1", b"9223372036854775808")]
    for data in (b"", b"{", b"7", b"[[1]]", b'[["x", [1]]]', b'[[1, "x"]]', b"[[1, [-1]]]", *numbers):
        with pytest.raises(ValueError, match="these are no offset syncs"):
            OffsetSyncs.unpacked(data)
