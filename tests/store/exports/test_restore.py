"""Restoring backups: whole or cut at a moment, never over something, and never half."""

import errno
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

import record
from store.data_folder import Folder
from store.engine import Engine
from store.errors import LogCorrupt, StoreError
from store.exports.backup import back_up_staged
from store.exports.copying import CopyOptions
from store.exports.restore import Restored, restore
from store.exports.stage import stage
from store.exports.until import Until
from store.log.disk import Disk
from store.log.segments import segment_name
from tests.store.filled import SIZE, SMALL, Filled, check_state, opened
from tests.store.simulation.rows import check_rows
from tests.store.simulation.truth import Truth

ALL = Until()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Filled]:
    """An open store with a backup of it, `backup`."""
    filled = await Filled(tmp_path / "data").open()
    await filled.fill(60)
    await back_up(filled, tmp_path / "backup")
    yield filled
    await filled.engine.close()


async def back_up(store: Filled, target: Path) -> None:
    with stage(store.path) as folder:
        back_up_staged(store.path, folder, await store.engine.stage(folder), target, CopyOptions())


def restored(root: Path, until: Until = ALL) -> Restored:
    return restore(root / "backup", root / "restored", until, (), CopyOptions())


async def test_a_backup_is_restored_whole_and_continues(store: Filled, tmp_path: Path):
    frames = await store.frames()
    before = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    found = restored(tmp_path)
    end = record.position_of(frames[-1], 0) + len(frames[-1])
    assert (found.begin, found.position, found.dropped_bytes) == (0, end, 0)
    assert found.time_ms == record.store_time_of(frames[-1], 0)
    assert 0 < found.views <= end
    twin = await Filled(tmp_path / "restored", seed=2).open()
    assert await twin.frames() == frames
    await check_state(twin.engine, frames, Random(1))
    await twin.fill(40)
    await check_state(twin.engine, await twin.frames(), Random(1))
    await twin.engine.close()
    assert {path: path.read_bytes() for path in before} == before
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "restored").rglob("*") if path.is_file())


@pytest.mark.parametrize("by_time", [True, False])
async def test_a_log_is_restored_up_to_any_record(store: Filled, tmp_path: Path, by_time: bool):
    """Cut at any record: what is there then is what was there then, and the views are those of a fresh replay."""
    frames = await store.frames()
    rng = Random(4)
    for number in [1, len(frames) - 1, *(rng.randrange(1, len(frames)) for _ in range(8))]:
        if by_time:
            until = Until(time_ms=record.store_time_of(frames[number - 1], 0))
        else:
            until = Until(position=record.position_of(frames[number], 0))
        kept = [frame for frame in frames if until.has(frame, 0)]
        found = restored(tmp_path, until)
        assert found.position == record.position_of(kept[-1], 0) + len(kept[-1])
        assert found.dropped_bytes == record.position_of(frames[-1], 0) + len(frames[-1]) - found.position
        own, engine = await opened(tmp_path / "restored")
        assert own == kept
        await check_state(engine, kept, rng)
        truth = Truth(engine.partitions.default)
        truth.grow(kept)
        await check_rows(engine, truth, tmp_path / "fresh", rng)
        await engine.close()
        shutil.rmtree(tmp_path / "restored")
        shutil.rmtree(tmp_path / "fresh")


async def test_the_last_segment_has_its_room_on_the_disk(store: Filled, tmp_path: Path):
    found = restored(tmp_path, Until(position=2 * SIZE + 500))
    last = tmp_path / "restored" / "log" / segment_name(found.position // SIZE * SIZE)
    assert last.stat().st_blocks * 512 >= SIZE
    assert not any(last.read_bytes()[found.position % SIZE :])


async def test_a_moment_before_the_log_is_refused(store: Filled, tmp_path: Path):
    for until in (Until(position=0), Until(time_ms=store.now - 3_600_000)):
        with pytest.raises(StoreError, match="nothing of the log is as old as that"):
            restored(tmp_path, until)
    assert not (tmp_path / "restored").exists()


async def test_without_the_logs_beginning_the_earliest_moment_is_named(store: Filled, tmp_path: Path):
    """Views cannot go back: those of an older backup can go forward."""
    store.engine._retention._expiry._bytes = 20 * SIZE
    await store.fill_to(24 * SIZE)
    await back_up(store, tmp_path / "older")
    older = store.engine.stats().log_end
    await store.fill(20)
    frames = await store.frames()
    await store.engine._retention.enforce()
    newer = store.engine.stats().log_end
    begin = store.engine.stats().log_begin
    assert 0 < begin < older
    await back_up(store, tmp_path / "newer")
    frames = [frame for frame in frames if record.position_of(frame, 0) < newer - 700]
    until = Until(position=newer - 700)
    target = tmp_path / "restored"
    with pytest.raises(StoreError, match=f"the earliest possible position is {newer}"):
        restore(tmp_path / "newer", target, until, (), CopyOptions())
    assert not target.exists()
    found = restore(tmp_path / "newer", target, until, [tmp_path / "backup", tmp_path / "older"], CopyOptions())
    assert (found.begin, found.views) == (begin, older)
    own, engine = await opened(target)
    assert own == [frame for frame in frames if record.position_of(frame, 0) >= begin]
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_nothing_is_overwritten(store: Filled, tmp_path: Path):
    target = tmp_path / "restored"
    target.mkdir()
    (target / "precious").write_text("data")
    with pytest.raises(StoreError, match="restored is not empty, it contains precious: a restore never overwrites"):
        restored(tmp_path)
    assert [path.name for path in target.iterdir()] == ["precious"]
    with pytest.raises(StoreError, match="is not empty"):
        restore(tmp_path / "backup", tmp_path / "data", ALL, (), CopyOptions())
    (target / "precious").unlink()
    (target / "lost+found").mkdir()  # the root of a file system of its own
    restored(tmp_path)
    assert (target / "store.json").exists()


async def test_a_source_that_is_in_use_or_no_backup(store: Filled, tmp_path: Path):
    with pytest.raises(StoreError, match="data is in use by another process"):
        restore(tmp_path / "data", tmp_path / "restored", ALL, (), CopyOptions())
    with pytest.raises(StoreError, match="there is no backup at"):
        restore(tmp_path / "none", tmp_path / "restored", ALL, (), CopyOptions())
    assert not (tmp_path / "restored").exists()
    assert not (tmp_path / "none").exists()


async def test_a_backup_that_was_opened_meanwhile_has_what_was_added(store: Filled, tmp_path: Path):
    """It is a data folder as any other by then."""
    twin = await Filled(tmp_path / "backup", seed=2).open()
    await twin.fill(10)
    frames = await twin.frames()
    await twin.engine.close()
    restored(tmp_path)
    own, engine = await opened(tmp_path / "restored")
    assert own == frames
    await check_state(engine, own, Random(1))
    await engine.close()


async def test_a_damaged_backup_is_not_restored(store: Filled, tmp_path: Path):
    path = tmp_path / "backup" / "log" / segment_name(SIZE)
    whole, start = path.read_bytes(), await store.inside(SIZE) + 10
    path.unlink()
    path.write_bytes(whole[:start] + b"!" * 20 + whole[start + 20 :])
    with pytest.raises(LogCorrupt, match=segment_name(SIZE)):
        restored(tmp_path)
    assert not (tmp_path / "restored").exists()
    assert restored(tmp_path, Until(position=SIZE)).position <= SIZE  # what is before it can be had


@pytest.mark.parametrize("name", [segment_name(SIZE), "store.new"])
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
        restore(tmp_path / "backup", tmp_path / "restored", ALL, (), CopyOptions(disk=Full()))
    assert not (tmp_path / "restored").exists()


async def test_a_half_restored_folder_does_not_open_and_is_restored_again(store: Filled, tmp_path: Path):
    """Killed at each step of putting it together."""
    target = tmp_path / "restored"
    frames = await store.frames()

    class Killed(BaseException):
        pass

    def kill_at(step: int) -> None:
        """Copy the folder at the step's system call, as a kill would leave it."""
        steps = iter(range(100))

        def rename(source: Path, name: Path) -> Path:
            if next(steps) == step:
                shutil.copytree(target, tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
                raise Killed
            return rename_now(source, name)

        rename_now = Path.rename
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            restored(tmp_path)

    for step in range(3):  # the names of log and views, and of `store.json`
        with pytest.MonkeyPatch.context() as patch:
            kill_at(step)
        (tmp_path / "killed").rename(target)
        assert not (target / "store.json").exists()
        with pytest.raises(StoreError, match=r"did not finish|restore it from a backup"):
            await Engine.open(target, SMALL)
        if step:
            with pytest.raises(StoreError, match="is not empty, it contains log"):
                restored(tmp_path)
            shutil.rmtree(target)
        restored(tmp_path)
        own, engine = await opened(target)
        assert own == frames
        await engine.close()
        shutil.rmtree(target)


async def test_no_store_opens_where_one_is_being_restored(store: Filled, tmp_path: Path):
    class Trying(Disk):
        __slots__ = ()

        def write(self, fd: int, data: bytes, offset: int) -> None:
            if not tried:
                with pytest.raises(StoreError, match="in use by another process"):
                    Folder(tmp_path / "restored", Disk())
                tried.append(fd)
            super().write(fd, data, offset)

    tried: list[int] = []
    restore(tmp_path / "backup", tmp_path / "restored", ALL, (), CopyOptions(disk=Trying()))
    assert tried
