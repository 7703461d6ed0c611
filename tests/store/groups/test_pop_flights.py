"""Calls of groups that meet while their records are under way, and records that are refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.api import (
    PopResult,
    Receipts,
    Run,
    topic_queue,
)
from store.errors import StoreBusy, StoreError, ViewsDamaged
from store.log.reader import LogReader
from store.views.queues.index import Index
from tests.store.popping import CONFIG, OTHER, Bench, Q, message, numbers, payloads, receipts

pytestmark = pytest.mark.any_store


async def test_pops_at_the_same_time_share(bench: Bench):
    await bench.fill(300)
    popped = await asyncio.gather(*(bench.pop(Q, OTHER, records=7) for _ in range(50)))
    got = [payload for each in popped for payload in payloads(each.runs)]
    assert sorted(got, key=int) == numbers(*range(300))
    settled = await asyncio.gather(*(bench.engine.settle(b"g", receipts(each)) for each in [*popped, popped[0]]))
    assert settled[:-1] == [[]] * 50
    assert settled[-1] == receipts(popped[0])
    assert await bench.lag() == {Q: (300, 300, 0, 0), OTHER: (0, 0, 0, 0)}


@pytest.mark.engine_only
async def test_messages_of_a_pending_pop_are_not_leased_again(bench: Bench):
    await bench.fill(2)
    (mine,) = receipts(await bench.pop())
    bench.now += 10_000
    settling = asyncio.create_task(bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)]))
    await asyncio.sleep(0)
    assert not bench.is_idle
    popped = await bench.pop()  # the lease of 0 is over, but its end is under way
    assert payloads(popped.runs) == numbers(1)
    assert await settling == []
    bench.now += 10_000
    popping = asyncio.create_task(bench.pop())
    await asyncio.sleep(0)
    late = Receipts(Q, 1, 1, 2)
    assert await bench.engine.settle(b"g", [late]) == [late]
    assert receipts(await popping) == [Receipts(Q, 1, 1, 3)]
    assert mine.count == 2


@pytest.mark.engine_only
async def test_pending_pops_of_others_count(tmp_path: Path, monkeypatch):
    bench = await Bench(tmp_path, replace(CONFIG, max_group_leases=4)).open()
    await bench.fill(9)
    await bench.pop(OTHER)
    held: list[tuple] = []
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: held.append(args))
    pops = [asyncio.create_task(bench.pop(Q, records=count, invisible=9_000 * count)) for count in (1, 2)]
    await asyncio.sleep(0)
    offer(*held.pop(0))
    assert payloads((await pops[0]).runs) == numbers(0)
    bench.now += 9_000
    await bench.engine.settle(b"g", [])
    pops.append(asyncio.create_task(bench.pop(Q, records=9)))
    await asyncio.sleep(0)
    assert (await bench.pop(Q)) == PopResult([], bench.now + 9_000, is_limited=True, left=5)
    for args in held:
        offer(*args)
    assert [payloads((await each).runs) for each in pops[1:]] == [numbers(1, 2), numbers(0, 3)]
    await bench.engine.close()


@pytest.mark.engine_only
async def test_a_refused_pop_takes_nothing(bench: Bench, monkeypatch):
    await bench.fill(4)
    await bench.pop(records=2, invisible=0)
    refusal: list[StoreError] = [StoreBusy("full")]
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: refusal[0] if refusal else offer(*args))
    for _ in range(2):
        with pytest.raises(StoreBusy):
            await bench.pop(records=3)
        assert bench.is_idle
    waiting = asyncio.create_task(bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)]))
    await asyncio.sleep(0)
    assert bench.is_idle
    refusal.clear()
    popped = await bench.pop(records=3)
    assert payloads(popped.runs) == numbers(0, 1, 2)
    assert await waiting == [Receipts(Q, 0, 1, 1)]


async def test_a_cancelled_pop_gives_back(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    await bench.fill(3)
    reading, cancelled = asyncio.Event(), asyncio.Event()
    frames = LogReader.frames

    async def read(*arguments: Any) -> bytes:
        reading.set()
        await cancelled.wait()  # a store that is far hears of that with its answer
        return await frames(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LogReader, "frames", read)
        popping = asyncio.create_task(bench.pop(records=2))
        await reading.wait()
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
    cancelled.set()
    runs: list[Run] = []
    while not any(run.offset == 0 for run in runs):
        await asyncio.sleep(0)
        runs += (await bench.pop()).runs
    assert ({run.deliveries for run in runs}, sorted(payloads(runs))) == ({1}, numbers(0, 1, 2))


async def test_a_failed_log_leaves_nothing_under_way(bench: Bench):
    await bench.fill(3)
    await bench.pop(records=1)
    calls = [bench.pop(records=1), bench.pop(records=1), bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)])]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    bench.engine._log.fail(OSError("gone"))
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, StoreError)
    assert bench.is_idle


@pytest.mark.engine_only
@pytest.mark.parametrize("fault", ["views", "name"])
async def test_a_pop_that_cannot_be_decided_takes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str):
    await bench.fill(4)
    await bench.pop(records=2, invisible=0)
    await bench.pop(OTHER)
    await bench.engine._checkpointed()  # references are read from the database

    def fail(*_: object) -> bytes:
        raise ViewsDamaged(bench.path, OSError(5, "Input/output error"))

    for _ in range(2):
        with monkeypatch.context() as patch:
            if fault == "views":
                patch.setattr(Index, "references", fail)
            with pytest.raises(ViewsDamaged if fault == "views" else ValueError):
                await bench.pop(Q, topic_queue(b"\xff") if fault == "name" else OTHER)
        assert bench.is_idle
    assert payloads((await bench.pop(records=3)).runs) == numbers(0, 1, 2)


@pytest.mark.engine_only
async def test_a_failed_decision_leaves_no_claim(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Nor on what others have under way in the same queue."""

    def fail(*_: object) -> bytes:
        raise ViewsDamaged(bench.path, OSError(5, "Input/output error"))

    await bench.fill(9)
    await bench.pop(records=4, invisible=0)
    await bench.engine.settle(b"g", [], [(Receipts(Q, 2, 2, 1), 5_000)])
    held: list[tuple] = []
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: held.append(args))
    first = asyncio.create_task(bench.pop(records=2))
    await asyncio.sleep(0)
    bench.now += 5_000
    await bench.engine._checkpointed()  # references are read from the database
    with monkeypatch.context() as patch:
        patch.setattr(Index, "references", fail)
        with pytest.raises(ViewsDamaged):
            await bench.pop(Q)
    with pytest.raises(TypeError):
        await bench.engine.settle(b"g", [Receipts(Q, 2, 2, 1), Receipts(Q, "none", 1, 1)])
    second = asyncio.create_task(bench.engine.settle(b"g", [], [(Receipts(Q, 2, 2, 1), 0)]))
    await asyncio.sleep(0)
    monkeypatch.undo()
    for args in held:
        offer(*args)
    assert await second == []
    assert payloads((await first).runs) == numbers(0, 1)
    assert payloads((await bench.pop(records=2)).runs) == numbers(2, 3)


async def test_a_late_return_does_not_affect_the_new_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The lease of a pop that is cancelled may have run out while it was reading: somebody else has the message."""
    await bench.fill(1)
    frames = LogReader.frames
    reading = asyncio.Event()

    async def read_for_ever(*_: object) -> bytes:
        reading.set()
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(LogReader, "frames", read_for_ever)
    popping = asyncio.create_task(bench.pop(invisible=1_000))
    await reading.wait()
    await bench.append(message(9, b"a/c"))
    monkeypatch.setattr(LogReader, "frames", frames)
    bench.now += 1_000
    mine = await bench.pop(invisible=60_000)
    assert receipts(mine) == [Receipts(Q, 0, 1, 2)]
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    await bench.append(message(9, b"a/c"))
    bench.now += 1_000
    assert (await bench.pop()).runs == []
    assert await bench.engine.settle(b"g", receipts(mine)) == []


async def test_messages_leased_to_others_during_a_slow_read_are_not_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """The disk was slower than the lease is long: who has the message by then may be through with it."""
    await bench.fill(4)
    frames = LogReader.frames
    reading, read = asyncio.Event(), asyncio.Event()

    async def read_slowly(reader: LogReader, refs: bytes, without: int = 0) -> bytes:
        if not reading.is_set():
            reading.set()
            await read.wait()
        return await frames(reader, refs, without)

    monkeypatch.setattr(LogReader, "frames", read_slowly)
    popping = asyncio.create_task(bench.pop(invisible=1_000))
    await reading.wait()
    await bench.append(message(9, b"a/c"))  # the lease is committed
    bench.now += 1_000
    others = await bench.pop(records=2)
    assert receipts(others) == [Receipts(Q, 0, 2, 2)]
    assert await bench.engine.settle(b"g", [Receipts(Q, 0, 1, 2)]) == []
    read.set()
    popped = await popping
    assert receipts(popped) == [Receipts(Q, 2, 2, 1)]  # nobody took them
    assert payloads(popped.runs) == numbers(2, 3)
    assert await bench.engine.settle(b"g", receipts(popped)) == []
