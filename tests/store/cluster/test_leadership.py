"""The right to write the shared log, and how it ends."""

import asyncio
from collections.abc import Callable

import pytest

import record
from record.layout import Kind
from store.cluster.history import History
from store.cluster.leadership import Deposed, Leadership
from store.cluster.shared_log import SharedLogDamaged
from store.cluster.slot import Founded, LeaderClaim, parse_slot
from store.errors import StoreClosed
from tests.store.cluster.conftest import Scenario
from tests.store.cluster.simulation.cluster import Cluster
from tests.store.cluster.simulation.engine import TIMEOUT_S, Port

Play = Callable[[Scenario], None]


async def lead(cluster: Cluster) -> tuple[Leadership, Port]:
    """Found a log and lead it."""
    port = Port(cluster.engine, lambda: None)
    history = History()
    for content, epoch in ((Founded("log", 4096, 4, 16), 0), (LeaderClaim("a", "", "first"), 1)):
        slot = history.next(content, epoch=epoch)
        assert await port.create(slot.number, slot.data)
        history = history.after(slot)
    loop = cluster.loop
    return Leadership(port, history, lambda _: None, loop.time(), loop.time), port


def batch(history: History, number: int = 1) -> bytes:
    frame = record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", b"0 %d 1 0 1" % number)
    return record.seal([frame], history.end, history.epoch, 0, history.end)


def kinds(cluster: Cluster) -> list[str]:
    return [parse_slot(number, data).kind.name for number, data in sorted(cluster.engine.slots.items())]


async def depose(cluster: Cluster, leadership: Leadership) -> None:
    slot = leadership.history.next(LeaderClaim("b", "", "second"), epoch=leadership.history.epoch + 1)
    assert cluster.engine.land(slot.number, slot.data)


def test_calls_are_decided_in_their_order(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        data = batch(leadership.history)
        deciding = asyncio.ensure_future(leadership.decide(0, data))
        handing = asyncio.ensure_future(leadership.hand_over("b"))
        assert (await deciding).end == len(data)
        await handing
        assert kinds(cluster) == ["FOUNDED", "CLAIMED", "BATCH", "HANDED_OVER"]
        with pytest.raises(Deposed, match="handed over to b"):
            await leadership.decide(len(data), data)

    play(scenario)


def test_a_leader_says_that_it_lives_only_when_it_is_idle(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        deciding = asyncio.ensure_future(leadership.decide(0, batch(leadership.history)))
        await asyncio.sleep(0)
        await leadership.idle(leadership.decided_at)  # waits for the batch, which says it
        await deciding
        assert kinds(cluster)[2:] == ["BATCH"]
        await leadership.idle(leadership.decided_at)
        assert kinds(cluster)[2:] == ["BATCH", "IDLE"]

    play(scenario)


def test_a_leader_is_sure_of_it_while_its_slots_are_new(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, port = await lead(cluster)
        assert leadership.is_sure(0.9)
        await asyncio.sleep(1)
        assert not leadership.is_sure(0.9)
        await leadership.idle(cluster.loop.time())
        assert leadership.is_sure(0.9)
        port.cut = True
        deciding = asyncio.ensure_future(leadership.decide(0, batch(leadership.history)))
        await asyncio.sleep(0.5)
        port.cut = False
        await deciding
        await asyncio.sleep(0.6)  # the write began more than 0.9 s ago, and nobody knows when it was decided
        assert not leadership.is_sure(0.9)
        await leadership.idle(cluster.loop.time())
        assert leadership.is_sure(0.9)
        leadership.depose("another node claimed")
        assert not leadership.is_sure(0.9)
        with pytest.raises(Deposed, match="another node claimed"):
            await leadership.idle(cluster.loop.time())

    play(scenario)


def test_a_leader_that_hands_over_is_not_sure_any_more(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        handing = asyncio.ensure_future(leadership.hand_over("b"))
        await asyncio.sleep(0)  # the slot may be decided, and b lead, before the answer comes
        assert not leadership.is_sure(0.9)
        await handing
        assert not leadership.is_sure(0.9)

    play(scenario)


@pytest.mark.parametrize("finder", ["batch", "idle", "hand-over"])
def test_a_leader_that_finds_a_claim_is_deposed_for_good(play: Play, finder: str):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        history = leadership.history
        await depose(cluster, leadership)
        calls: dict[str, Callable[[], object]] = {
            "batch": lambda: leadership.decide(0, batch(history)),
            "idle": lambda: leadership.idle(cluster.loop.time()),
            "hand-over": lambda: leadership.hand_over("c"),
        }
        for call in (calls[finder], *calls.values()):
            with pytest.raises(Deposed, match=r"node b leads from slot 3 .* in epoch 2"):
                await call()  # type: ignore[misc]
        assert isinstance(await leadership.wait_until_over(), Deposed)
        assert leadership.history == history
        assert kinds(cluster)[2:] == ["CLAIMED"]

    play(scenario)


def test_a_write_whose_answer_is_lost_is_settled(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, port = await lead(cluster)
        data = batch(leadership.history)
        cluster.engine.land(3, leadership.history.next(batch=data).data)  # an attempt that nobody heard of
        assert (await leadership.decide(0, data)).slot == 3
        port.cut = True
        deciding = asyncio.ensure_future(leadership.decide(len(data), batch(leadership.history, 2)))
        await asyncio.sleep(20 * TIMEOUT_S)
        assert not deciding.done()
        port.cut = False
        assert (await deciding).slot == 4

    play(scenario)


def test_a_call_ends_at_once_when_the_leadership_is_closed(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, port = await lead(cluster)
        port.cut = True
        deciding = asyncio.ensure_future(leadership.decide(0, batch(leadership.history)))
        waiting = asyncio.ensure_future(leadership.hand_over("b"))
        await asyncio.sleep(20 * TIMEOUT_S)
        now = cluster.loop.time()
        leadership.close()
        for call in (deciding, waiting):
            with pytest.raises(StoreClosed):
                await call
        assert cluster.loop.time() == now

    play(scenario)


def test_a_cancelled_call_ends_the_leadership(play: Play):
    """Its bytes may still land, and nothing else may be written in the belief that they did not."""

    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        deciding = asyncio.ensure_future(leadership.decide(0, batch(leadership.history)))
        await asyncio.sleep(0)
        deciding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding
        with pytest.raises(StoreClosed, match="given up"):
            await leadership.decide(0, batch(leadership.history, 2))
        await asyncio.sleep(1.0)
        assert kinds(cluster)[2:] in ([], ["BATCH"])

    play(scenario)


def test_an_engine_that_contradicts_itself_is_damaged(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        cluster.engine.as_stream = True
        del cluster.engine.slots[2]  # it takes slot 2 only now, and has none
        with pytest.raises(SharedLogDamaged, match="is decided, and nothing is in it"):
            await leadership.decide(0, batch(leadership.history))
        assert isinstance(await leadership.wait_until_over(), SharedLogDamaged)

    play(scenario)


def test_a_slot_that_does_not_follow_is_damage_and_no_claim(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, _ = await lead(cluster)
        stray = History(slot=2, checksum=1, epoch=1).next(LeaderClaim("b", "", "x"), epoch=2)
        cluster.engine.land(3, stray.data)
        with pytest.raises(SharedLogDamaged, match="does not follow"):
            await leadership.decide(0, batch(leadership.history))
        cluster.engine.lied = "a stray slot"

    play(scenario)


def test_an_error_that_nobody_expects_ends_the_leadership(play: Play):
    async def scenario(cluster: Cluster) -> None:
        leadership, port = await lead(cluster)

        async def create(slot: int, data: bytes) -> bool:
            raise ZeroDivisionError

        port.create = create  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await leadership.decide(0, batch(leadership.history))
        assert isinstance(await leadership.wait_until_over(), ZeroDivisionError)

    play(scenario)
