"""Backups: whole or not there, of a store that goes on and of a stopped one, sharing files that do not change."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import orjson
import pytest

import record
from store.api import topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt, StoreError
from store.exports import backup as backups
from store.exports.backup import Made, back_up_staged, back_up_stopped, read_manifest
from store.exports.copying import CopyOptions
from store.exports.stage import lock_folder, stage
from store.log.disk import Disk
from store.log.segments import segment_name
from store.repair.verify import audit, repair
from tests.store.filled import SIZE, SMALL, Filled, check_state, opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Filled]:
    filled = await Filled(tmp_path / "data").open()
    await filled.fill(60)
    yield filled
    await filled.engine.close()


async def back_up(store: Filled, target: Path, **options: object) -> Made:
    with stage(store.path) as folder:
        staged = await store.engine.stage(folder)
        return await asyncio.to_thread(back_up_staged, store.path, folder, staged, target, CopyOptions(**options))


def roots(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("may_link", [True, False])
async def test_a_backup_of_a_running_store_opens_as_it_was(store: Filled, tmp_path: Path, may_link: bool):
    before = await store.frames()
    made = await back_up(store, tmp_path / "backup", may_link=may_link)
    await store.fill(60)
    frames, engine = await opened(tmp_path / "backup")
    assert frames == before
    await check_state(engine, frames, Random(1))
    await engine.close()
    manifest = made.manifest
    assert manifest.position == record.position_of(before[-1], 0) + len(before[-1])
    assert manifest.time_ms == record.store_time_of(before[-1], 0)
    assert manifest.begin == 0
    assert manifest == read_manifest(tmp_path / "backup")
    assert (made.linked_bytes > 0) == may_link
    assert not any((tmp_path / "data" / "staging").iterdir())


async def test_a_store_continues_while_a_backup_takes_its_time(store: Filled, tmp_path: Path):
    """Appends, checkpoints and retention run between the stage and the copy, which does not see them."""
    before = await store.frames()
    store.engine._retention._expiry._bytes = 1
    with stage(store.path) as folder:
        staged = await store.engine.stage(folder)
        await store.fill(200)
        await store.engine._retention.enforce()
        assert store.engine.stats().log_begin > staged.position
        back_up_staged(store.path, folder, staged, tmp_path / "backup", CopyOptions(may_link=False))
    frames, engine = await opened(tmp_path / "backup")
    assert frames == before
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_a_backup_of_a_store_that_retention_shortened(store: Filled, tmp_path: Path):
    frames = await store.frames()
    store.engine._retention._expiry._bytes = 3 * SIZE
    await store.engine._retention.enforce()
    frames += (await store.frames())[-1:]  # the record of the removal
    manifest = (await back_up(store, tmp_path / "backup")).manifest
    assert manifest.begin == store.engine.stats().log_begin > 0
    found, engine = await opened(tmp_path / "backup")
    assert found == [frame for frame in frames if record.position_of(frame, 0) >= manifest.begin]
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_retention_waits_for_a_stage_and_a_stage_for_retention(store: Filled, tmp_path: Path):
    before = await store.frames()
    store.engine._retention._expiry._bytes = 1
    with stage(store.path) as folder:
        staging = asyncio.ensure_future(store.engine.stage(folder))
        taking = asyncio.ensure_future(store.engine._retention.enforce())
        staged = await staging
        await taking
        made = back_up_staged(store.path, folder, staged, tmp_path / "backup", CopyOptions())
    frames, engine = await opened(tmp_path / "backup")
    await check_state(engine, [*before, *(frame for frame in frames if frame not in before)], Random(1))
    assert made.manifest.begin == 0 < store.engine.stats().log_begin
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stopped_folder_is_backed_up_without_a_change(tmp_path: Path, clean: bool):
    store = await Filled(tmp_path / "first").open()
    await store.fill(60)
    frames = await store.frames()
    if not clean:  # as a kill leaves it
        store.engine._database.flush()
        shutil.copytree(store.path, tmp_path / "data", ignore=shutil.ignore_patterns("LOCK"))
    await store.engine.close()
    if clean:
        store.path.rename(tmp_path / "data")
    else:
        with (tmp_path / "data" / "log" / segment_name(max(store.engine._segments.bases))).open("r+b") as file:
            file.seek((store.engine._views.position + 10) % SIZE)
            file.write(b"torn")
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    made = back_up_stopped(tmp_path / "data", tmp_path / "backup", CopyOptions())
    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before
    assert made.manifest.position == audit(tmp_path / "data").end
    assert audit(tmp_path / "backup").torn == 0
    found, engine = await opened(tmp_path / "backup")
    assert found == frames
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_a_folder_that_is_open_is_not_taken_for_a_stopped_one(store: Filled, tmp_path: Path):
    with pytest.raises(StoreError, match="in use by another process"):
        back_up_stopped(store.path, tmp_path / "backup", CopyOptions())
    with pytest.raises(StoreError, match="no data folder"):
        back_up_stopped(tmp_path / "none", tmp_path / "backup", CopyOptions())
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "backup").exists()


async def test_the_next_backup_takes_what_the_one_before_has(store: Filled, tmp_path: Path):
    shared = tmp_path / "backups"
    shared.mkdir()
    first = await back_up(store, shared / "1", may_link=False)
    files = {name: (shared / "1" / name).stat().st_ino for name in first.manifest.files}
    await store.fill(30)
    second = await back_up(store, shared / "2")
    assert second.reused_bytes > 0
    for name, inode in files.items():
        path = shared / "2" / name
        assert not path.exists() or path.stat().st_ino == inode  # a compaction may have taken a table
    sealed = [name for name in first.manifest.files if name.startswith("log/")]
    assert len(sealed) > 3
    for name in sealed:
        assert second.manifest.files[name] == first.manifest.files[name]
    shutil.rmtree(shared / "1")
    frames, engine = await opened(shared / "2")
    assert frames == await store.frames()
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_only_unchanged_copies_of_the_same_file_are_reused(store: Filled, tmp_path: Path):
    """A restored folder has the same names and, until it is written to, the same content: but what follows differs."""
    shared = tmp_path / "backups"
    shared.mkdir()
    made = await back_up(store, shared / "1", may_link=False)
    name = next(name for name in made.manifest.files if name.startswith("log/"))
    path = shared / "1" / "backup.json"
    tree = orjson.loads(path.read_bytes())
    tree["files"][name]["changed_ns"] += 1
    path.write_bytes(orjson.dumps(tree))
    await back_up(store, shared / "2")
    assert (shared / "2" / name).stat().st_ino == (store.path / name).stat().st_ino
    (shared / "2" / "backup.json").write_text("{")
    await back_up(store, shared / "3", may_link=False)
    assert (shared / "3" / name).stat().st_nlink == 1


async def test_repaired_or_replaced_files_are_not_reused(store: Filled, tmp_path: Path):
    shared = tmp_path / "backups"
    shared.mkdir()
    await back_up(store, shared / "1", may_link=False)
    positions = [record.position_of(frame, 0) for frame in await store.frames()]
    middle = next(position for position in positions if position > 2 * SIZE and position % SIZE)
    base = middle - middle % SIZE
    damaged = shared / "1" / "log" / segment_name(base)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: middle - base + 50] + b"!!" + whole[middle - base + 52 :])
    cut, _ = repair(shared / "1", Disk())
    assert cut is not None
    assert cut.position == middle
    assert not (shared / "1" / "log" / segment_name(base + SIZE)).exists()
    made = await back_up(store, shared / "2")
    assert made.reused_bytes == base  # the views are gone too
    frames, engine = await opened(shared / "2")
    assert frames == await store.frames()
    await engine.close()


async def test_a_backup_does_not_change_with_its_store(store: Filled, tmp_path: Path):
    """Not even when that is cut in the middle: files are shared, never written to."""
    await back_up(store, tmp_path / "backup")
    files = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    await store.fill(30)
    await store.engine.close()
    damaged = store.path / "log" / segment_name(2 * SIZE)
    whole = damaged.read_bytes()
    damaged.unlink()  # a damaged block of a shared file would be in both
    damaged.write_bytes(whole[:3000] + bytes(1096))
    assert repair(store.path, Disk())[0] is not None
    engine = await Engine.open(store.path, SMALL)
    await engine.close()
    assert {path: path.read_bytes() for path in files} == files
    await store.open()


@pytest.mark.parametrize("what", ["segment", "last segment", "table"])
async def test_damage_is_found_before_a_backup_is_complete(store: Filled, tmp_path: Path, what: str):
    class Rotten(Disk):
        """Changes a byte of what is written to one file."""

        __slots__ = ()

        def write(self, fd: int, data: bytes, offset: int) -> None:
            name = Path(f"/proc/self/fd/{fd}").readlink().name
            if data and name == chosen:
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
            super().write(fd, data, offset)

    with stage(store.path) as folder:
        staged = await store.engine.stage(folder)
        segments = sorted(path.name for path in (folder / "log").iterdir())
        tables = [path.name for path in (folder / "views").glob("*.sst")]
        chosen = {"segment": segments[1], "last segment": segments[-1], "table": tables[0]}[what]
        with pytest.raises(LogCorrupt if "segment" in what else StoreError):
            back_up_staged(store.path, folder, staged, tmp_path / "b", CopyOptions(may_link=False, disk=Rotten()))
    assert roots(tmp_path) == ["data"]


async def test_a_damaged_log_is_no_backup(store: Filled, tmp_path: Path):
    start = await store.inside(SIZE)
    with (store.path / "log" / segment_name(SIZE)).open("r+b") as file:
        file.seek(start + 10)
        file.write(b"!" * 20)
    with pytest.raises(LogCorrupt, match=segment_name(SIZE)):
        await back_up(store, tmp_path / "backup")
    assert roots(tmp_path) == ["data"]


@pytest.mark.parametrize("name", [segment_name(SIZE), "CURRENT", "store.new", "backup.new"])
async def test_a_full_disk_leaves_nothing(store: Filled, tmp_path: Path, name: str):
    class Full(Disk):
        __slots__ = ()

        def write(self, fd: int, data: bytes, offset: int) -> None:
            refuse(fd)
            super().write(fd, data, offset)

        def write_durable(self, fd: int, data: bytes, offset: int) -> None:
            refuse(fd)
            super().write_durable(fd, data, offset)

    def refuse(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == name:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await back_up(store, tmp_path / "backup", may_link=False, disk=Full())
    assert roots(tmp_path) == ["data"]


async def test_too_little_room_is_reported_before_anything_is_copied(store: Filled, tmp_path: Path, monkeypatch):
    room = os.statvfs(tmp_path)
    monkeypatch.setattr(backups.os, "statvfs", lambda path: os.statvfs_result([4096, 4096, 9, 9, 9, *room[5:]]))
    with pytest.raises(StoreError, match=r"\d+ bytes are to be copied to .*, which has room for 36864"):
        await back_up(store, tmp_path / "backup", may_link=False)
    assert roots(tmp_path) == ["data"]


async def test_a_backup_to_an_unusable_folder_is_refused(store: Filled, tmp_path: Path):
    (tmp_path / "there").mkdir()
    for target, message in (
        (tmp_path / "there", "exists already"),
        (tmp_path / "no" / "such", "does not exist"),
        (tmp_path / "data" / "backup", "inside the data folder"),
    ):
        with pytest.raises(StoreError, match=message):
            await back_up(store, target)
    assert roots(tmp_path / "there") == []


async def test_leftovers_of_killed_backups_are_removed_and_running_ones_are_not(store: Filled, tmp_path: Path):
    left = tmp_path / "backup.unfinished"
    (left / "log").mkdir(parents=True)
    lock = lock_folder(left)
    assert lock is not None
    with pytest.raises(StoreError, match="another process is making"):
        await back_up(store, tmp_path / "backup")
    assert (left / "log").exists()
    os.close(lock)
    await back_up(store, tmp_path / "backup")
    assert not left.exists()


async def test_staging_folders_of_dead_processes_are_removed(store: Filled):
    staging = store.path / "staging"
    with stage(store.path) as mine:
        (staging / "left").mkdir()
        with stage(store.path) as other:
            assert sorted(staging.iterdir()) == sorted([mine, other])
    assert list(staging.iterdir()) == []
    (staging / "left").mkdir()
    await store.engine.close()
    await store.open()
    assert list(staging.iterdir()) == []


async def test_closing_waits_for_a_stage(store: Filled, monkeypatch: pytest.MonkeyPatch):
    going = threading.Event()

    def link_slowly(path: Path) -> None:
        going.wait()
        link(path)

    link = store.engine._database.link_to
    monkeypatch.setattr(type(store.engine._database), "link_to", lambda self, path: link_slowly(path))
    with stage(store.path) as folder:
        staging = asyncio.ensure_future(store.engine.stage(folder))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.engine.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        staging.cancel()  # the connection that asked is gone
        going.set()
        await closing
        assert (folder / "log").is_dir()
    await store.open()


async def test_a_failed_store_is_not_staged(tmp_path: Path):
    class Failing(Disk):
        __slots__ = ()

        def write_durable(self, fd: int, data: bytes, offset: int) -> None:
            if b"no" in bytes(data):
                raise OSError(errno.EIO, "Input/output error")
            super().write_durable(fd, data, offset)

    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=SIZE), Failing())
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(1, 0, 0, b"t", b"", b"", b"no")], answer.set_result)
    await answer
    with stage(tmp_path / "data") as folder, pytest.raises(StoreError, match="stop the node and back up its folder"):
        await engine.stage(folder)
    await engine.close()
    back_up_stopped(tmp_path / "data", tmp_path / "backup", CopyOptions())
    frames, engine = await opened(tmp_path / "backup")
    assert frames == []
    await engine.close()


async def test_missing_views_are_folded_from_the_log_unless_retention_removed_it(store: Filled, tmp_path: Path):
    frames = await store.frames()
    await store.engine.close()
    shutil.copytree(store.path, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "views")
    made = back_up_stopped(tmp_path / "copy", tmp_path / "backup", CopyOptions())
    assert made.manifest.views is None
    found, engine = await opened(tmp_path / "backup")
    await check_state(engine, found, Random(1))
    assert found == frames
    await engine.close()
    (tmp_path / "copy" / "log" / segment_name(0)).unlink()
    with pytest.raises(StoreError, match="there are no views"):
        back_up_stopped(tmp_path / "copy", tmp_path / "second", CopyOptions())
    await store.open()


async def test_an_empty_store_has_a_backup(tmp_path: Path):
    await (await Engine.open(tmp_path / "data", SMALL)).close()
    made = back_up_stopped(tmp_path / "data", tmp_path / "backup", CopyOptions())
    assert (made.manifest.position, made.manifest.time_ms) == (0, 0)
    engine = await Engine.open(tmp_path / "backup", SMALL)
    assert (await engine.bounds(topic_queue(b"t"))).end == 0
    await engine.close()
