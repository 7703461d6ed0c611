"""A store as it was: at any record and any time, of a folder that is open, of backups, and not a byte changed."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import record
from store.engine import Engine
from store.errors import LogCorrupt, OffsetOutOfRange, StoreError
from store.exports.backup import back_up_staged, back_up_stopped
from store.exports.copying import CopyOptions
from store.exports.snapshot import Snapshot
from store.exports.stage import stage
from store.exports.until import Until
from store.log.segments import segment_name
from store.views.database.database import Database
from tests.store.filled import SIZE, SMALL, Filled, check_state


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Filled]:
    filled = await Filled(tmp_path / "data").open()
    await filled.fill(60)
    yield filled
    await filled.engine.close()


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


async def test_a_snapshot_answers_as_the_store_did_at_any_record(store: Filled, tmp_path: Path):
    frames = await store.frames()
    store.engine._database.flush()
    rng = Random(2)
    for count in (1, len(frames), *(rng.randrange(2, len(frames)) for _ in range(12))):
        position = record.position_of(frames[count - 1], 0) + rng.choice((1, len(frames[count - 1])))
        snapshot = await Snapshot.open(store.path, Until(position=position), temporary=tmp_path)
        assert snapshot.position == record.position_of(frames[count - 1], 0) + len(frames[count - 1])
        assert snapshot.time_ms == record.store_time_of(frames[count - 1], 0)
        await check_state(snapshot, frames[:count], rng)
        await snapshot.close()
    assert {path.parts[len(tmp_path.parts)] for path in contents(tmp_path)} == {"data"}


async def test_a_snapshot_answers_as_the_store_did_at_any_time(store: Filled):
    frames = await store.frames()
    times = [record.store_time_of(frame, 0) for frame in frames]
    rng = Random(3)
    for number in (0, len(times) - 1, *(rng.randrange(len(times)) for _ in range(8))):
        for time_ms in (times[number], times[number] + 999):
            snapshot = await Snapshot.open(store.path, Until(time_ms=time_ms))
            await check_state(snapshot, [f for f, at in zip(frames, times, strict=True) if at <= time_ms], rng)
            await snapshot.close()
    snapshot = await Snapshot.open(store.path, Until(time_ms=times[0] - 1))
    assert snapshot.position == snapshot.begin == 0
    await check_state(snapshot, [], rng)
    await snapshot.close()


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_snapshot_changes_nothing_and_needs_no_lock(tmp_path: Path, is_open: bool):
    store = await Filled(tmp_path / "data", replace(SMALL, checkpoint_age_s=3600)).open()
    await store.fill(40)
    frames = await store.frames()
    preparing = store.engine._segments._preparing  # the next segment, in a thread
    if preparing is not None:
        preparing.join()
    if not is_open:
        await store.engine.close()
    before = contents(store.path)
    snapshot = await Snapshot.open(store.path)
    await check_state(snapshot, frames, Random(1))
    with pytest.raises(OffsetOutOfRange):
        await snapshot.read(snapshot.position + 1, 100)
    await snapshot.close()
    assert contents(store.path) == before
    if is_open:
        await store.engine.close()


async def test_a_snapshot_does_not_change_with_the_store(store: Filled):
    frames = await store.frames()
    snapshot = await Snapshot.open(store.path)
    store.engine._retention._expiry._bytes = 1
    await store.fill(200)
    await store.engine._retention.enforce()
    assert store.engine.stats().log_begin > snapshot.position
    await check_state(snapshot, frames, Random(1))
    await snapshot.close()


async def test_of_a_store_under_load(tmp_path: Path):
    """Appends, checkpoints, compactions and retention are under way while it is opened, again and again."""
    config = replace(SMALL, retention_bytes=20 * SIZE, retention_check_s=0.001, checkpoint_age_s=0.001)
    store = await Filled(tmp_path / "data", config).open()
    await store.fill_to(24 * SIZE)
    done = asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            await store.fill(1)
            store.engine._database.flush()

    loading = asyncio.ensure_future(load())
    for _ in range(15):
        began = store.engine.stats().log_end
        snapshot = await Snapshot.open(store.path)
        assert began <= snapshot.position
        for value in await snapshot.retained(b"#", None, 1000):
            assert record.verify(value.frame, record.position_of(value.frame, 0))[1] == len(value.frame)
        position = snapshot.begin
        while position < snapshot.position:
            position = (await snapshot.read(position, 1 << 20)).next_position
        await snapshot.close()
    done.set()
    await loading
    assert store.engine.stats().log_begin > 0
    await store.engine.close()


async def test_older_backups_reach_back_where_the_log_is_not_whole(tmp_path: Path):
    """Retention has taken the beginning: only views of then lead to then."""
    store = await Filled(tmp_path / "data").open()
    positions = []
    for number in range(4):
        await store.fill(30)
        positions.append(store.engine.stats().log_end)
        with stage(store.path) as folder:
            back_up_staged(store.path, folder, await store.engine.stage(folder), tmp_path / f"{number}", CopyOptions())
    frames = await store.frames()
    store.engine._retention._expiry._bytes = store.engine.stats().log_end - positions[0] + SIZE
    await store.engine._retention.enforce()
    assert 0 < store.engine.stats().log_begin <= positions[0]
    end = store.engine.stats().log_end
    await store.engine.close()
    wanted = max(at for at in (record.position_of(frame, 0) for frame in frames) if at < positions[2])
    message = f"cannot be had as of position .*: the earliest possible position is {end}"
    with pytest.raises(StoreError, match=message):
        await Snapshot.open(store.path, Until(position=wanted))
    with pytest.raises(StoreError, match=f"the earliest possible position is {positions[2]}"):
        await Snapshot.open(store.path, Until(position=wanted), [tmp_path / "2"])
    other = await Filled(tmp_path / "other", seed=5).open()
    await other.fill(40)
    await other.engine.close()
    back_up_stopped(tmp_path / "other", tmp_path / "of other", CopyOptions())
    with pytest.raises(StoreError, match=message):  # that of another log does not count
        await Snapshot.open(store.path, Until(position=wanted), [tmp_path / "of other"])
    behind = [tmp_path / name for name in ("0", "of other", "1", "2")]  # of which "1" is nearest
    snapshot = await Snapshot.open(store.path, Until(position=wanted), behind)
    assert snapshot.begin > 0
    await check_state(snapshot, [frame for frame in frames if record.position_of(frame, 0) < wanted], Random(1))
    await snapshot.close()


async def test_damage_in_the_folded_part_is_reported(store: Filled):
    frames = await store.frames()
    hit = next(f for f in frames if record.position_of(f, 0) > 2 * SIZE)  # behind a record of the segment
    with (store.path / "log" / segment_name(2 * SIZE)).open("r+b") as file:
        file.seek(record.position_of(hit, 0) - 2 * SIZE)
        file.write(b"!" * len(hit))
    with pytest.raises(LogCorrupt):
        await Snapshot.open(store.path, Until(position=3 * SIZE))
    snapshot = await Snapshot.open(store.path, Until(position=2 * SIZE))
    await check_state(snapshot, [f for f in frames if record.position_of(f, 0) < 2 * SIZE], Random(1))
    await snapshot.close()


async def test_a_path_that_is_no_data_folder_is_reported(tmp_path: Path):
    with pytest.raises(StoreError, match="no data folder"):
        await Snapshot.open(tmp_path / "none")
    (tmp_path / "log").mkdir()
    with pytest.raises(StoreError, match="no data folder"):
        await Snapshot.open(tmp_path)


async def test_tables_are_copied_where_they_cannot_be_linked(store: Filled, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    frames = await store.frames()
    store.engine._database.flush()
    monkeypatch.setattr(os, "link", refuse)
    snapshot = await Snapshot.open(store.path)
    await check_state(snapshot, frames, Random(1))
    await snapshot.close()


async def test_a_table_that_a_compaction_takes_meanwhile(
    store: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The manifest that was copied names a table that is gone: the views are copied again."""
    frames = await store.frames()
    store.engine._database.flush()
    await store.engine.close()
    shutil.copytree(store.path / "views", tmp_path / "newer")
    rows = Database(tmp_path / "newer", 0)
    rows._db.compact_range(None, None)
    rows.close()
    link, compacted = os.link, []

    def link_late(source: Path, target: Path) -> None:
        if not compacted:
            compacted.append(source)
            shutil.rmtree(store.path / "views")
            shutil.copytree(tmp_path / "newer", store.path / "views")
        link(source, target)

    assert list((store.path / "views").glob("*.sst")) != list((tmp_path / "newer").glob("*.sst"))
    monkeypatch.setattr(os, "link", link_late)
    snapshot = await Snapshot.open(store.path)
    assert compacted
    await check_state(snapshot, frames, Random(1))
    await snapshot.close()
    store.engine = await Engine.open(store.path, SMALL)


async def test_time_and_position_agree_along_the_log(store: Filled):
    frames = await store.frames()
    for before, after in pairwise(frames):
        time_ms = record.store_time_of(before, 0)
        if record.store_time_of(after, 0) > time_ms:
            snapshot = await Snapshot.open(store.path, Until(time_ms=time_ms))
            assert snapshot.position == record.position_of(before, 0) + len(before)
            await snapshot.close()
            return
    raise AssertionError
