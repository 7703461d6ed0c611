"""Who leads, and when: three nodes on a simulated loop. Times are those of the loop."""

import asyncio
from collections.abc import Callable

import pytest

from store.cluster import member
from store.cluster.member import NodeNameTaken, NodeRole, NotLeading
from store.cluster.shared_log import SharedLogDamaged, SharedLogUnavailable, SlotRemoved
from tests.store.cluster.conftest import Scenario
from tests.store.cluster.simulation.cluster import Cluster
from tests.store.cluster.simulation.engine import Port
from tests.store.cluster.simulation.node import LEADER_TIMEOUT_S, Node

Play = Callable[[Scenario], None]
SOON_S = 0.3  # a few reads and a claim
FAILOVER_S = 1.25 * LEADER_TIMEOUT_S + SOON_S


def leaders(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.nodes if node.alive and node.role is NodeRole.LEADER]


async def start(cluster: Cluster) -> tuple[Node, list[Node]]:
    """Start all nodes. Returns who leads, and the others."""
    for node in cluster.nodes:
        node.start()
    await asyncio.sleep(SOON_S)
    (leader,) = leaders(cluster)
    await append(leader, 1)
    await asyncio.sleep(SOON_S)
    return leader, [node for node in cluster.nodes if node is not leader]


async def append(node: Node, number: int) -> None:
    assert await node.append([b"0 %d 1 0 1" % number])


def epoch_of(node: Node) -> int:
    return node.replica.history.epoch


def test_one_of_new_nodes_founds_the_log_and_one_leads(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        assert epoch_of(leader) == 1
        assert {node.replica.digest for node in cluster.nodes} == {leader.replica.digest}
        assert {node.replica.history.founded for node in others} == {leader.replica.history.founded}
        with pytest.raises(NotLeading):
            await others[0].member.hand_over("n1")
        with pytest.raises(NotLeading):
            await others[0].replica.append([b""])

    play(scenario)


def test_another_node_leads_when_the_leader_is_dead(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        leader.kill()
        await asyncio.sleep(LEADER_TIMEOUT_S * 2 / 3 - SOON_S)
        assert not leaders(cluster)
        await asyncio.sleep(FAILOVER_S)
        (successor,) = leaders(cluster)
        assert successor in others
        await append(successor, 2)

    play(scenario)


def test_a_leader_that_is_back_claims_at_once(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await start(cluster)
        leader.kill()
        leader.start()
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [leader]
        assert epoch_of(leader) == 2

    play(scenario)


async def start_sites(cluster: Cluster) -> tuple[Node, Node, Node]:
    """One node of site a, which has the log, and two of site b."""
    first, *others = cluster.nodes
    first.site = "a"
    first.start()
    await asyncio.sleep(SOON_S)
    for node in others:
        node.site = "b"
        node.start()
    await asyncio.sleep(SOON_S)
    assert leaders(cluster) == [first]
    return first, others[0], others[1]


def test_another_site_claims_when_it_is_promoted_and_not_before(play: Play):
    async def scenario(cluster: Cluster) -> None:
        first, second, _ = await start_sites(cluster)
        first.kill()
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert not leaders(cluster)
        second.promote()
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [second]
        first.start()  # its own claim is not the newest one any more
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [second]
        second.kill()
        await asyncio.sleep(FAILOVER_S)
        assert [node.name for node in leaders(cluster)] == ["n2"], "the other node of that site"

    play(scenario)


def test_a_site_is_promoted_while_the_other_one_writes(play: Play):
    async def scenario(cluster: Cluster) -> None:
        first, second, _ = await start_sites(cluster)

        async def write() -> None:
            number = 1
            while first.role is NodeRole.LEADER:
                number += await first.append([b"0 %d 1 0 1" % number])

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(SOON_S)
        second.promote()
        await asyncio.sleep(FAILOVER_S)
        assert leaders(cluster) == [second]
        await writing

    play(scenario)


def test_an_order_to_promote_a_site_is_over_when_the_site_has_the_log(play: Play):
    """Although the node that got it could not follow it then."""

    async def scenario(cluster: Cluster) -> None:
        first, second, third = await start_sites(cluster)
        second.port.cut = True
        second.promote()
        third.promote()
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [third]
        first.promote()
        await asyncio.sleep(LEADER_TIMEOUT_S)  # the idle leader has heard of it
        assert leaders(cluster) == [first]
        second.port.cut = False
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [first]
        assert epoch_of(second) == 3

    play(scenario)


def test_nodes_know_which_site_has_the_log_though_nobody_leads(play: Play):
    async def scenario(cluster: Cluster) -> None:
        first, second, third = await start_sites(cluster)
        await first.member.hand_over("n9")
        first.kill()
        third.kill()
        third.leader = None
        third.start()
        await asyncio.sleep(SOON_S)
        for node in (second, third):
            assert node.leader is not None
            assert (node.leader.node, node.leader.site) == (first.name, "a")
        first.start()
        await asyncio.sleep(FAILOVER_S)
        assert leaders(cluster) == [first]

    play(scenario)


def test_a_node_whose_site_has_another_name_stands_by(play: Play):
    """Although the newest claim is its own."""

    async def scenario(cluster: Cluster) -> None:
        first, _, _ = await start_sites(cluster)
        first.kill()
        first.site, first.leader = "c", None
        first.start()
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert not leaders(cluster)
        assert first.leader is not None
        assert (first.leader.node, first.leader.site) == (first.name, "a")
        first.promote()
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [first]

    play(scenario)


def test_a_leader_hands_over_to_another_site(play: Play):
    async def scenario(cluster: Cluster) -> None:
        first, second, _ = await start_sites(cluster)
        await first.member.hand_over(second.name)
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [second]
        assert epoch_of(second) == 2

    play(scenario)


def test_an_idle_leader_stays(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await start(cluster)
        await asyncio.sleep(20 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [leader]
        assert epoch_of(leader) == 1
        assert len(cluster.engine.slots) < 3 + 20 * 4  # three in a leader timeout, or a little more

    play(scenario)


def test_nobody_claims_because_the_engine_is_away(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        leader.process.stopped = True  # it will be the last one that reaches the engine again
        await asyncio.sleep(0.6 * LEADER_TIMEOUT_S)
        cluster.engine.away = True
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        assert all(node.member.unavailable is not None for node in others)
        cluster.engine.away = False
        await asyncio.sleep(0.9 * LEADER_TIMEOUT_S)
        leader.process.resume()
        await asyncio.sleep(3 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [leader]
        assert {epoch_of(node) for node in cluster.nodes} == {1}
        assert all(node.member.unavailable is None for node in cluster.nodes)

    play(scenario)


def test_a_node_leads_although_some_of_its_reads_fail(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, successor = await start_failing(cluster, 4)
        leader.kill()
        await asyncio.sleep(3 * FAILOVER_S)
        assert leaders(cluster) == [successor]

    play(scenario)


def test_the_time_in_which_reads_fail_is_no_silence(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, successor = await start_failing(cluster, 2)
        leader.kill()
        await asyncio.sleep(2.2 * LEADER_TIMEOUT_S)
        assert not leaders(cluster)
        await asyncio.sleep(5 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [successor]

    play(scenario)


async def start_failing(cluster: Cluster, one_in: int) -> tuple[Node, Node]:
    """The leader, and the only other node that lives: one in so many of its reads behind the end has no answer."""
    leader, others = await start(cluster)
    others[0].kill()
    port = FailingPort(cluster.engine, lambda: None)
    port.one_in = one_in
    others[1].member._log = port
    return leader, others[1]


class FailingPort(Port):
    one_in = 0
    _reads = 0

    async def read(self, slot: int) -> bytes | None:
        self._reads += slot > self._engine.last
        if slot > self._engine.last and self._reads % self.one_in == 0:
            await asyncio.sleep(0.3 * LEADER_TIMEOUT_S)
            raise SharedLogUnavailable("no answer")
        return await super().read(slot)


def test_nobody_claims_because_all_were_paused(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        for node in cluster.nodes:
            node.process.stopped = True
        await asyncio.sleep(10 * LEADER_TIMEOUT_S)
        for node in others:
            node.process.resume()
        await asyncio.sleep(0.2 * LEADER_TIMEOUT_S)
        leader.process.resume()
        await asyncio.sleep(3 * LEADER_TIMEOUT_S)
        assert leaders(cluster) == [leader]
        assert epoch_of(leader) == 1

    play(scenario)


def test_a_leader_that_was_paused_acknowledges_nothing_more(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await start(cluster)
        leader.process.stopped = True
        await asyncio.sleep(FAILOVER_S)
        (successor,) = [node for node in leaders(cluster) if node is not leader]
        leader.process.resume()
        assert leader.role is NodeRole.LEADER  # it does not know yet
        assert not await leader.append([b"0 2 1 0 1"])
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [successor]
        assert leader.stopped_by is None

    play(scenario)


def test_a_leader_hands_over_in_less_than_the_leader_timeout(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        await leader.member.hand_over(others[1].name)
        await asyncio.sleep(SOON_S)
        assert leaders(cluster) == [others[1]]
        assert epoch_of(others[1]) == 2

    play(scenario)


def test_others_lead_when_the_node_that_was_to_lead_is_dead(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        others[0].kill()
        await leader.member.hand_over(others[0].name)
        await asyncio.sleep(LEADER_TIMEOUT_S - SOON_S)
        assert not leaders(cluster)
        await asyncio.sleep(FAILOVER_S - LEADER_TIMEOUT_S + SOON_S)
        assert len(leaders(cluster)) == 1

    play(scenario)


def test_two_processes_under_one_name_are_noticed(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await start(cluster)
        cluster.has_twin = True
        twin = Node(cluster, leader.name)
        cluster.nodes.append(twin)
        twin.start()
        await asyncio.sleep(LEADER_TIMEOUT_S)
        assert leaders(cluster) == [twin]
        assert isinstance(leader.stopped_by, NodeNameTaken)
        assert leader.name in str(leader.stopped_by)

    play(scenario)


def test_a_claim_of_an_earlier_process_that_lands_late_is_no_other_process(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        for node in others:
            node.kill()
        history = leader.member._leadership.history
        late = history.next(history.leader, epoch=2)
        leader.kill()
        leader.start()
        await asyncio.sleep(0.001)
        assert cluster.engine.land(late.number, late.data)
        await asyncio.sleep(LEADER_TIMEOUT_S)
        assert leaders(cluster) == [leader]
        assert epoch_of(leader) == 3

    play(scenario)


@pytest.mark.parametrize(("read_bytes", "most"), [(1 << 20, 8), (300, 3), (1, 1)])
def test_a_member_that_is_far_behind_reads_several_slots_at_a_time(
    play: Play, monkeypatch: pytest.MonkeyPatch, read_bytes: int, most: int
):
    monkeypatch.setattr(member, "_READ_BYTES", read_bytes)

    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        late = others[0]
        late.kill()
        late.disk = type(late.disk)()
        for number in range(2, 300):
            await append(leader, number)
        port = CountingPort(cluster.engine, lambda: None)
        late.port = port
        late.start()
        await asyncio.sleep(6.0)
        assert late.replica.digest == leader.replica.digest
        assert port.most == most  # a slot has about 100 bytes

    play(scenario)


class CountingPort(Port):
    most = 0
    _now = 0

    async def read(self, slot: int) -> bytes | None:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return await super().read(slot)
        finally:
            self._now -= 1


def test_a_member_stops_if_a_slot_that_it_needs_was_removed(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        others[0].kill()
        others[0].disk = type(others[0].disk)()
        cluster.engine.trim(leader.replica.history.slot)
        others[0].start()
        await asyncio.sleep(SOON_S)
        assert isinstance(others[0].stopped_by, SlotRemoved)
        assert "slot 1 was removed" in str(others[0].stopped_by)

    play(scenario)


@pytest.mark.parametrize("as_stream", [False, True])
def test_nobody_claims_behind_a_tail_that_was_lost(play: Play, as_stream: bool):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        leader.kill()
        await asyncio.sleep(SOON_S)
        cluster.engine.as_stream = as_stream
        cluster.engine.lied = "lost tail"
        del cluster.engine.slots[cluster.engine.last]
        slots = dict(cluster.engine.slots)
        await asyncio.sleep(3 * FAILOVER_S)
        assert all(isinstance(node.stopped_by, SharedLogDamaged) for node in others)
        assert cluster.engine.slots == slots

    play(scenario)


def test_nobody_claims_behind_a_slot_that_was_changed(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leader, others = await start(cluster)
        leader.kill()
        await asyncio.sleep(SOON_S)
        history = others[0].replica.history
        other = type(history)(slot=history.slot - 1, epoch=history.epoch).next()
        cluster.engine.lied = "changed bytes"
        cluster.engine.slots[history.slot] = other.data
        await asyncio.sleep(3 * FAILOVER_S)
        assert all(isinstance(node.stopped_by, SharedLogDamaged) for node in others)

    play(scenario)


def test_an_old_answer_is_not_taken_for_a_loss(play: Play, monkeypatch: pytest.MonkeyPatch):
    async def scenario(cluster: Cluster) -> None:
        leader, _ = await start(cluster)
        leader.kill()
        answers = [0, 0, 0]
        find_end = cluster.engine.find_end
        monkeypatch.setattr(cluster.engine, "find_end", lambda: find_end() - bool(answers and not answers.pop()))
        await asyncio.sleep(3 * FAILOVER_S)
        assert not answers
        assert len(leaders(cluster)) == 1

    play(scenario)
