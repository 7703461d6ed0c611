"""What each engine promises of a shared log."""

import asyncio
import os

import pytest
import uvloop

from store.cluster import jetstream_log
from store.cluster.shared_log import (
    SharedLog,
    SharedLogDamaged,
    SharedLogUnavailable,
    SlotRemoved,
    SlotTooLarge,
)
from store.errors import StoreClosed
from tests.store.cluster.engines.engine import Engine, settle
from tests.waiting import patience

_WRITERS = 8


async def test_a_slot_is_decided_once(log: SharedLog) -> None:
    assert await log.read(1) is None
    assert await log.create(1, b"first")
    assert not await log.create(1, b"second")
    assert await log.read(1) == b"first"
    assert await log.read(2) is None


async def test_end_is_the_first_slot_that_is_not_decided(engine: Engine, log: SharedLog) -> None:
    assert await log.end() == 1
    other = await engine.open()
    for slot in range(1, 12):
        assert await log.create(slot, b"%d" % slot)
        assert await log.end() == slot + 1
    assert await other.end() == 12
    assert [await other.read(slot) for slot in range(1, 12)] == [b"%d" % slot for slot in range(1, 12)]
    await other.close()


@pytest.mark.parametrize("slots", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_one_of_eight_writers_wins_each_slot(engine: Engine, slots: int) -> None:
    logs = [await engine.open() for _ in range(_WRITERS)]
    for slot in range(1, slots + 1):  # SeaweedFS takes seconds to tell those who lost
        bodies = [b"%d from %d " % (slot, writer) + os.urandom(2000) for writer in range(_WRITERS)]
        writes = [log.create(slot, body) for log, body in zip(logs, bodies, strict=True)]
        won = await asyncio.gather(*writes, return_exceptions=True)
        assert all(each is True or each is False or isinstance(each, SharedLogUnavailable) for each in won), won
        assert sum(each is True for each in won) <= 1
        found = await settle(logs[0], slot, bodies[0])
        assert found in bodies
        assert True not in won or found == bodies[won.index(True)]
        assert [await log.read(slot) for log in logs] == _WRITERS * [found]
    for log in logs:
        await log.close()


async def test_a_slot_has_eight_megabytes(log: SharedLog) -> None:
    data = os.urandom(8 << 20)
    assert await settle(log, 1, data) == data
    assert await log.read(1) == data


async def test_a_slot_that_is_too_large_is_refused(log: SharedLog) -> None:
    with pytest.raises(SlotTooLarge, match=str(log.max_slot_bytes)):
        await log.create(1, bytes(log.max_slot_bytes + 1))
    assert await log.read(1) is None


async def test_a_slot_without_the_one_before_it_is_refused(log: SharedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_log, "_DOUBT_S", 0.1)
    assert await log.create(1, b"1")
    with pytest.raises(SharedLogDamaged):
        await log.create(4, b"4")
    assert await log.end() == 2


async def test_removed_slots_are_known_to_other_nodes(engine: Engine, log: SharedLog) -> None:
    for slot in range(1, 10):
        assert await log.create(slot, b"%d" % slot)
    await log.trim(7)
    await log.trim(5)  # of a node that is behind
    other = await engine.open()
    for each in (log, other):
        for slot in (1, 6):
            with pytest.raises(SlotRemoved, match="begins with slot 7"):
                await each.read(slot)
            with pytest.raises(SlotRemoved):
                await each.create(slot, b"late")
        assert await each.read(7) == b"7"
        assert await each.end() == 10
    assert await other.create(10, b"10")
    await other.close()


async def test_the_newest_slot_stays(log: SharedLog) -> None:
    for slot in range(1, 4):
        assert await log.create(slot, b"%d" % slot)
    await log.trim(4)
    await log.trim(400)
    assert await log.end() == 4
    assert await log.read(1) == b"1"
    assert await log.create(4, b"4")


async def test_a_new_log_may_be_opened_by_several_nodes_at_a_time(engine: Engine) -> None:
    logs = await asyncio.gather(*(engine.open() for _ in range(3)))
    assert sum([await log.create(1, b"%d" % i) for i, log in enumerate(logs)]) == 1
    for log in logs:
        await log.close()


async def test_objects_are_kept_beside_the_slots(engine: Engine, log: SharedLog) -> None:
    assert await log.create(1, b"1")
    assert await log.list_objects("parts") == []
    assert await log.get_object("parts/1/a") is None
    large = os.urandom(log.max_object_bytes)
    await log.put_object("parts/1/a", large)
    await log.put_object("parts/2/b", b"before")
    await log.put_object("parts/2/b", b"b")
    assert await log.create_object("manifests/1", b"first")
    other = await engine.open()
    assert not await other.create_object("manifests/1", b"second")
    assert await other.get_object("parts/1/a") == large
    assert await other.get_object("parts/2/b") == b"b"
    assert await other.get_object("manifests/1") == b"first"
    assert await other.list_objects("parts") == ["parts/1/a", "parts/2/b"]
    assert await other.list_objects("manifests") == ["manifests/1"]
    await other.delete_objects(["parts/1/a", "manifests/1"])
    assert await log.list_objects("parts") == ["parts/2/b"]
    assert await log.get_object("parts/1/a") is None
    assert await log.create_object("manifests/1", b"third")
    assert (await log.begin(), await log.end()) == (1, 2)
    await other.close()


async def test_of_eight_writers_of_an_object_one_creates_it(engine: Engine) -> None:
    logs = [await engine.open() for _ in range(_WRITERS)]
    won = await asyncio.gather(
        *(log.create_object("manifests/1", b"%d" % writer) for writer, log in enumerate(logs)), return_exceptions=True
    )
    assert all(each is True or each is False or isinstance(each, SharedLogUnavailable) for each in won), won
    assert sum(each is True for each in won) <= 1
    async with patience():
        while (found := await logs[0].get_object("manifests/1")) is None:  # noqa: ASYNC110  a service decides
            await asyncio.sleep(0.1)
    assert True not in won or found == b"%d" % won.index(True)
    for log in logs:
        await log.close()


@pytest.mark.slow
async def test_all_objects_are_listed(folder: Engine, seaweedfs: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.cluster.object_log._PAGE", 3)
    for engine in (folder, seaweedfs):
        log = await engine.open()
        names = [f"parts/{number // 4}/{number}" for number in range(8)]
        for name in names:
            await log.put_object(name, b"")
        assert await log.list_objects("parts") == names
        await log.delete_objects(names)
        assert await log.list_objects("parts") == []
        await log.close()


async def test_a_closed_log_says_so(engine: Engine) -> None:
    log = await engine.open()
    await log.close()
    objects = (log.put_object("a/b", b""), log.create_object("a/b", b""), log.get_object("a/b"), log.list_objects("a"))
    for call in (log.create(1, b""), log.read(1), log.end(), log.begin(), log.trim(1), *objects):
        with pytest.raises(StoreClosed):
            await call


async def test_a_cancelled_write_leaves_the_log_in_order(log: SharedLog) -> None:
    for slot in range(1, 6):
        data = os.urandom(1 << 18)
        writing = asyncio.ensure_future(log.create(slot, data))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await settle(log, slot, data) == data


async def test_many_calls_at_a_time(log: SharedLog) -> None:
    bodies = [os.urandom(50_000) for _ in range(20)]
    for slot, body in enumerate(bodies, 1):
        assert await settle(log, slot, body) == body
    assert await asyncio.gather(*(log.read(slot) for slot in range(1, 22))) == [*bodies, None]


def test_logs_run_on_uvloop(engine: Engine) -> None:
    async def write() -> None:
        log = await engine.open()
        assert await settle(log, 1, b"1") == b"1"
        writing = asyncio.ensure_future(log.create(2, bytes(1 << 20)))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait((writing,))
        assert await log.read(1) == b"1"
        await log.close()

    uvloop.run(write())
