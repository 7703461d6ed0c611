"""Leases belong to gateways: each message to one, and it comes again when that gateway has ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import control
from store.api import (
    Appended,
    DeadLetterReason,
    Failed,
    Handed,
    PopRequest,
    PopResult,
    Receipts,
    Start,
    subscription_queue,
)
from store.engine import Engine
from store.errors import StoreBusy, StoreError
from store.groups.turns import Turns
from store.log.reader import LogReader
from tests.store.popping import CONFIG, Bench, message, receipts
from tests.store.remote.linked import Linked

NAME = b"$share/g/a/b"
QUEUE = subscription_queue(NAME)


@pytest.fixture
async def bench(bench: Bench) -> AsyncIterator[Bench]:
    """With the group begun, and nothing of it under way in the end."""
    await bench.append(control.ShareJoined(b"one").frame(NAME))
    yield bench
    await bench.append(message(9, b"a/c"))


async def pop(bench: Bench, owner: bytes, records: int = 100, early: bool = True) -> PopResult:
    return await bench.engine.pop(
        PopRequest(NAME, (QUEUE,), records, 1 << 20, 1_000, Start.EARLIEST, owner=owner, early=early)
    )


def of(bench: Bench) -> set[int]:
    """Messages that some gateway is known to have leased."""
    return bench.engine._groups.owners.offsets(NAME, QUEUE)


async def comes_again(bench: Bench, owner: bytes) -> list[Receipts]:
    """Messages that others get when the gateway has ended."""
    await bench.engine.release_of(owner)
    return receipts(await pop(bench, b"third"))


async def test_messages_leased_to_an_ended_gateway_come_again(bench: Bench):
    await bench.fill(6)
    await pop(bench, b"one", 3)
    await pop(bench, b"two", 3)
    await bench.engine.settle(NAME, [Receipts(QUEUE, 1, 1, 1)])
    assert await comes_again(bench, b"one") == [Receipts(QUEUE, 0, 1, 2), Receipts(QUEUE, 2, 1, 2)]
    assert await bench.engine.settle(NAME, [Receipts(QUEUE, 3, 3, 1)]) == []


async def test_a_stale_settlement_does_not_affect_the_current_lease(bench: Bench):
    await bench.fill(2)
    await pop(bench, b"one", early=False)
    bench.now += 1_000
    await pop(bench, b"two")
    assert await bench.engine.settle(NAME, [Receipts(QUEUE, 0, 2, 1)]) == [Receipts(QUEUE, 0, 2, 1)]
    assert await comes_again(bench, b"two") == [Receipts(QUEUE, 0, 2, 3)]


@pytest.mark.parametrize("how", ["back", "unsent"])
async def test_a_message_leased_again_before_its_return_is_committed_has_the_new_owner(bench: Bench, how: str):
    await bench.fill(1)
    await pop(bench, b"one")
    mine = Receipts(QUEUE, 0, 1, 1)
    back = {"again": [(mine, 0)]} if how == "back" else {"unsent": [(mine, 0)]}
    settling = asyncio.create_task(bench.engine.settle(NAME, [], **back))
    popped = await pop(bench, b"two")
    while not popped.runs:  # the record is under way that gives it back
        await asyncio.sleep(0)
        popped = await pop(bench, b"two")
    await settling
    assert of(bench) == {0}
    deliveries = 2 if how == "back" else 1
    assert receipts(popped) == [Receipts(QUEUE, 0, 1, deliveries)]
    assert await comes_again(bench, b"two") == [Receipts(QUEUE, 0, 1, deliveries + 1)]


@pytest.mark.parametrize("how", ["done", "back", "later", "unsent", "handed", "buried"])
async def test_settled_messages_do_not_belong_to_the_gateway(bench: Bench, how: str):
    await bench.fill(1)
    await pop(bench, b"one")
    assert of(bench) == {0}
    mine = Receipts(QUEUE, 0, 1, 1)
    if how == "handed":
        assert await bench.engine.hand_over(NAME, [Handed(0, 1, b"c", 0)]) == []
    elif how == "buried":
        assert await bench.engine.dead_letter(NAME, [mine], DeadLetterReason.FORWARDED) == []
    else:
        done, again, unsent = [mine] * (how == "done"), [(mine, 0)] * (how == "back"), [(mine, 0)] * (how == "unsent")
        failed = [Failed(mine, None)] * (how == "later")
        assert await bench.engine.settle(NAME, done, again, unsent, failed=failed) == []
    assert of(bench) == set()


async def test_an_extended_lease_stays_its_gateways(bench: Bench):
    await bench.fill(1)
    await pop(bench, b"one")
    assert await bench.engine.settle(NAME, [], [(Receipts(QUEUE, 0, 1, 1), 60_000)]) == []
    bench.now += 1_000
    assert await comes_again(bench, b"two") == []
    assert await comes_again(bench, b"one") == [Receipts(QUEUE, 0, 1, 2)]


async def test_messages_read_for_a_gateway_belong_to_it(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Messages that no gateway has are released; those that a gateway is about to get are not."""
    await bench.fill(1)
    frames = LogReader.frames
    reading, read = asyncio.Event(), asyncio.Event()

    async def read_slowly(reader: LogReader, refs: bytes, without: int = 0) -> bytes:
        reading.set()
        await read.wait()
        return await frames(reader, refs, without)

    monkeypatch.setattr(LogReader, "frames", read_slowly)
    popping = asyncio.create_task(pop(bench, b"one"))
    await reading.wait()
    await bench.append(message(9, b"a/c"))  # the lease is committed
    assert of(bench) == {0}
    await bench.engine.release_unowned(NAME, QUEUE)
    assert (await pop(bench, b"two")).runs == []
    read.set()
    popped = await popping
    assert receipts(popped) == [Receipts(QUEUE, 0, 1, 1)]
    assert await bench.engine.settle(NAME, receipts(popped)) == []


async def test_an_abandoned_pop_leaves_nothing_with_its_gateway(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    await bench.fill(1)
    reading = asyncio.Event()

    async def read_for_ever(*_: object) -> bytes:
        reading.set()
        await asyncio.Event().wait()
        return b""

    with monkeypatch.context() as patch:
        patch.setattr(LogReader, "frames", read_for_ever)
        popping = asyncio.create_task(pop(bench, b"one"))
        await reading.wait()
        assert of(bench) == {0}
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
    assert of(bench) == set()


@pytest.mark.parametrize("what", ["of who has ended", "unowned"])
async def test_messages_leased_while_a_release_waits_stay_leased(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
):
    await bench.fill(2)
    await pop(bench, b"one" if what == "of who has ended" else b"", 1, early=False)
    await pop(bench, b"two", 1, early=False)
    groups = bench.engine._groups
    offer, is_busy, refused = groups._offer, True, asyncio.Event()

    def busy(*args: object) -> object:
        if is_busy:
            refused.set()
            return StoreBusy("full")
        return offer(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(groups, "_offer", busy)
        if what == "of who has ended":
            releasing = asyncio.create_task(bench.engine.release_of(b"one"))
        else:
            releasing = asyncio.create_task(bench.engine.release_unowned(NAME, QUEUE))
        await refused.wait()
        bench.now += 1_000  # the leases have run out
        is_busy = False
        assert receipts(await pop(bench, b"third", 1)) == [Receipts(QUEUE, 0, 1, 2)]
        await releasing
    assert of(bench) >= {0}
    assert await bench.engine.settle(NAME, [Receipts(QUEUE, 0, 1, 2)]) == []


async def test_an_ended_gateway_is_leased_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its calls end with it, in front of all else."""
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> None:
        waiting.set()
        await go_on.wait()

    monkeypatch.setattr(Turns, "wait", wait)
    store = await Linked.open(tmp_path / "linked", CONFIG)
    await append(store.engine, [control.ShareJoined(b"g1").frame(NAME), message(1)])
    popping = asyncio.create_task(
        store.pop(PopRequest(NAME, (QUEUE,), 1, 1 << 20, 1_000, Start.EARLIEST, owner=b"g1", early=True))
    )
    await waiting.wait()
    go_on.set()  # it would go on in the next turn of the loop
    store.server.end("g1")
    await store.engine.release_of(b"g1")
    await append(store.engine, [message(2)])
    assert store.engine.owners == []
    popped = await store.engine.pop(PopRequest(NAME, (QUEUE,), 1, 1 << 20, 1_000, Start.EARLIEST))
    assert receipts(popped) == [Receipts(QUEUE, 0, 1, 1)]
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)
    await store.close()


async def append(engine: Engine, frames: list[bytes]) -> None:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(frames, answer.set_result)
    assert (await answer).error is None


async def test_a_group_that_cannot_be_released_does_not_block_others(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    other = b"$share/h/a/b"
    await bench.append(control.ShareJoined(b"one").frame(other))
    await bench.fill(1)
    for name in (NAME, other):
        await bench.engine.pop(PopRequest(name, (QUEUE,), 1, 1 << 20, 1_000, Start.EARLIEST, owner=b"one", early=True))
    groups = bench.engine._groups
    offer, asked = groups._offer, []

    def fails_at_first(*args: object) -> object:
        asked.append(args)
        return StoreError("once") if len(asked) == 1 else offer(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(groups, "_offer", fails_at_first)
        with pytest.raises(StoreError, match="once"):
            await bench.engine.release_of(b"one")
    assert len(asked) == 2
    popped = await bench.engine.pop(PopRequest(other, (QUEUE,), 1, 1 << 20, 1_000, Start.EARLIEST))
    assert receipts(popped) == [Receipts(QUEUE, 0, 1, 2)]


async def test_a_busy_log_does_not_keep_leases_of_an_ended_gateway(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    await bench.fill(1)
    await pop(bench, b"one", early=False)
    offer = bench.engine._groups._offer
    refused: list[object] = []

    def busy_once(*args: object) -> object:
        if not refused:
            refused.append(args)
            return StoreBusy("full")
        return offer(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.engine._groups, "_offer", busy_once)
    assert await comes_again(bench, b"one") == [Receipts(QUEUE, 0, 1, 2)]
    assert refused
