"""Figures of groups: lag, deliveries, acknowledgements, retries, dead letters, members."""

import pytest

from gateway.http import group_metrics
from gateway.node.node import Node
from store.api import DeadLetterReason, PopRequest, PopResult, Receipts, Start, partition_queue
from store.engine import Engine
from store.views.groups import counts
from store.views.groups.counts import GroupCounts
from tests.gateway.conftest import MakeNode
from tests.gateway.http.figures import samples, scrape, until_samples
from tests.gateway.raw import RawClient


def engine_of(node: Node) -> Engine:
    assert node._engine is not None
    return node._engine


async def pop(node: Node, group: bytes, limit: int, member: bytes = b"m") -> PopResult:
    engine = engine_of(node)
    queues = [partition_queue(b"work", number) for number in range(engine.partition_count(b"work"))]
    return await engine.pop(PopRequest(group, queues, limit, 1 << 20, 60_000, Start.EARLIEST, member=member))


def receipts(popped: PopResult) -> list[Receipts]:
    return [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]


async def publish(node: Node, count: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    for number in range(count):
        await client.publish(b"work/%d" % number, b"x", 1)


async def test_what_a_group_does_is_counted(node: Node) -> None:
    engine = engine_of(node)
    await publish(node, 10)
    first = await pop(node, b"g", 4, b"one")
    await engine.settle(b"g", receipts(first))
    second = await pop(node, b"g", 3, b"two")
    await engine.settle(b"g", (), [(each, 0) for each in receipts(second)])
    third = await pop(node, b"g", 3, b"two")
    assert sum(run.count for run in third.runs) == 3
    dead = receipts(third)[0]
    await engine.dead_letter(b"g", [Receipts(dead.queue, dead.offset, 1, dead.deliveries)], DeadLetterReason.FORWARDED)
    assert (await samples(node, "sluice_group_deliveries_total"))["g"] == 10
    assert (await samples(node, "sluice_group_redeliveries_total"))["g"] == 3
    assert (await samples(node, "sluice_group_acknowledged_total"))["g"] == 4
    assert (await samples(node, "sluice_group_dead_lettered_total"))["g"] == 1
    assert (await samples(node, "sluice_group_lag"))["g"] == 5
    assert (await samples(node, "sluice_group_unfinished"))["g"] == 2
    assert (await samples(node, "sluice_group_dead_letters"))["g"] == 1
    assert (await samples(node, "sluice_group_members"))["g"] == 2
    assert (await samples(node, "sluice_group_handling_seconds_count"))["g"] == 1
    assert (await samples(node, "sluice_handling_seconds_count"))[""] == 1
    await until_samples(node, "sluice_group_lag_seconds", lambda found: found["g"] > 0)


async def test_messages_that_reached_nobody_are_not_delivered_again(node: Node) -> None:
    await publish(node, 2)
    unsent = receipts(await pop(node, b"g", 2))
    await engine_of(node).settle(b"g", (), (), [(each, 0) for each in unsent])
    await pop(node, b"g", 2)
    assert (await samples(node, "sluice_group_deliveries_total"))["g"] == 4
    assert (await samples(node, "sluice_group_redeliveries_total"))["g"] == 0


async def test_a_group_that_is_done_has_no_lag(node: Node) -> None:
    await publish(node, 2)
    await engine_of(node).settle(b"g", receipts(await pop(node, b"g", 10)))
    assert await samples(node, "sluice_group_lag") == {"g": 0, "+other": 0}
    assert await samples(node, "sluice_group_lag_seconds") == {"g": 0}
    await engine_of(node).remove_group(b"g")
    assert await samples(node, "sluice_group_lag") == {"+other": 0}
    assert (await samples(node, "sluice_group_deliveries_total"))["+other"] == 0


async def test_groups_beyond_the_limit_are_one_sum(make_node: MakeNode) -> None:
    node = await make_node(http__metrics_groups=1)
    await publish(node, 3)
    await engine_of(node).settle(b"a", receipts(await pop(node, b"a", 3)))
    assert await samples(node, "sluice_group_deliveries_total") == {"a": 3, "+other": 0}
    for group in (b"b", b"c"):
        await pop(node, group, 1)
    assert await samples(node, "sluice_group_deliveries_total") == {"a": 3, "+other": 2}
    await until_samples(node, "sluice_group_lag", lambda found: found == {"a": 0, "+other": 6})


async def test_a_group_that_falls_behind_without_members_is_found(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_metrics, "_PER_SECOND", 0)  # one group is looked at in a scrape
    monkeypatch.setattr("gateway.http.shown._HOLD_S", 0)
    node = await make_node(http__metrics_groups=1)
    await publish(node, 1)
    await pop(node, b"a", 10)
    assert list(await samples(node, "sluice_group_lag_seconds")) == ["a"]
    for group in (b"b", b"c"):
        await engine_of(node).settle(group, receipts(await pop(node, group, 10)))
    await engine_of(node).reset_group(b"c", {partition_queue(b"work", number): 0 for number in range(4)})
    await publish(node, 30)
    await engine_of(node).settle(b"a", receipts(await pop(node, b"a", 50)))
    await engine_of(node).settle(b"b", receipts(await pop(node, b"b", 50)))
    await until_samples(node, "sluice_group_lag_seconds", lambda found: list(found) == ["c"])


async def test_a_look_at_groups_that_takes_long_goes_on_in_the_next_scrape(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_metrics, "_LOOK_S", -1)  # it is over before the first group
    node = await make_node(http__metrics_groups=0)
    await publish(node, 3)
    await pop(node, b"a", 1)
    await scrape(node)
    assert await samples(node, "sluice_group_lag") == {"+other": 0}
    monkeypatch.undo()
    await until_samples(node, "sluice_group_lag", lambda found: found == {"+other": 3})


def test_counts_are_bounded_and_those_that_are_shown_stay() -> None:
    found = GroupCounts()
    found.kept = {b"0"}
    for number in range(2 * counts._LIMIT):
        found.delivered(b"%d" % number, 1, 0, 0)
    assert len(found.all()) == counts._LIMIT
    kept = found.find(b"0")
    assert kept is not None
    assert kept.deliveries == 1
    assert found.find(b"1") is None
    assert found.total.deliveries == 2 * counts._LIMIT
