"""Errors that an operator meets: folders of another version, foreign files, damaged views, a full disk."""

import asyncio
import shutil
from pathlib import Path

import pytest

import record
from store.api import Appended, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError, ViewsDamaged
from store.log.disk import Disk
from store.log.pages import PAGE
from store.views.database import database

SMALL = StoreConfig(segment_size=1 << 16, partitions=1)
META = (
    b'{"format": 1, "log_id": "a1", "epoch": 1, "partitions": 1, "segment_size": %b, "generation_segments": 16,'
    b' "openings": [["b2", 0]]}'
)


async def append(engine: Engine, topic: bytes, payload: bytes = b"") -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(1, 0, 0, topic, b"", b"", payload)], answer.set_result)
    return await answer


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (b'{"format": 2, "replicas": 3}', "has format 2, but this version reads only 1"),
        (b'{"format": 1, "epoch": 1}', "store.json is damaged"),
        (b'{"form', "store.json is damaged"),
        (b"", "store.json is damaged"),
        (b"[]", "store.json is damaged"),
        (META % b'"4096"', "store.json is damaged"),
        (META % b"0", "store.json is damaged"),
        (META % b"-4096", "store.json is damaged"),
        (META % b"5000", "store.json is damaged"),
        (META % b"4096.0", "store.json is damaged"),
        (META % b"true", "store.json is damaged"),
    ],
)
async def test_an_unreadable_meta_file_is_an_error(tmp_path: Path, meta: bytes, message: str):
    await (await Engine.open(tmp_path, SMALL)).close()
    (tmp_path / "store.json").write_bytes(meta)
    with pytest.raises(StoreError, match=message):
        await Engine.open(tmp_path, SMALL)
    assert (tmp_path / "store.json").read_bytes() == meta


async def test_a_file_in_place_of_the_data_folder_is_an_error(tmp_path: Path):
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(StoreError, match="data is not a folder"):
        await Engine.open(tmp_path / "data", SMALL)


@pytest.mark.parametrize("name", ["notes.log", "1.log", "².log"])
async def test_a_foreign_file_among_the_segments_is_named(tmp_path: Path, name: str):
    await (await Engine.open(tmp_path, SMALL)).close()
    (tmp_path / "log" / name).write_bytes(b"")
    with pytest.raises(StoreError, match=f"{name} is not a segment"):
        await Engine.open(tmp_path, SMALL)


async def test_views_that_cannot_be_opened_are_named_and_folded_again_without_them(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    await append(engine, b"a/b")
    await engine.close()
    (tmp_path / "views" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(ViewsDamaged, match=r"views in .*/views are damaged"):
        await Engine.open(tmp_path, SMALL)
    shutil.rmtree(tmp_path / "views")
    engine = await Engine.open(tmp_path, SMALL)
    assert (await engine.bounds(topic_queue(b"a/b"))).end == 1
    await engine.close()


async def test_a_damaged_block_of_the_views_is_not_taken_for_their_end(tmp_path: Path):
    config = StoreConfig(segment_size=1 << 20, partitions=1, checkpoint_references=64, view_cache_bytes=0)
    engine = await Engine.open(tmp_path, config)
    for first in range(0, 2000, 50):
        frames = [record.frame(1, 0, 0, b"a/%d" % number, b"", b"", b"") for number in range(first, first + 50)]
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append(frames, answer.set_result)
        await answer
    await engine.close()
    (table,) = (tmp_path / "views").glob("*.sst")
    whole = table.read_bytes()
    seen = 0
    for at in range(0, len(whole), len(whole) // 20):
        table.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            engine = await Engine.open(tmp_path, config)
        except StoreError:
            seen += 1
            continue
        try:
            assert (await engine.bounds(partition_queue(b"a", 0))).end == 2000
            assert (await engine.bounds(topic_queue(b"a/1999"))).end == 1
            assert len((await engine.topics(b"a/", None, 3000)).names) == 2000
        except ViewsDamaged:
            seen += 1
        await engine.close()
    assert seen


async def test_a_segment_that_finds_no_room_leaves_none_behind_and_is_not_tried_at_every_flush(tmp_path: Path):
    class FullDisk(Disk):
        __slots__ = ()
        full = False
        tries = 0

        def create_zeroed(self, path, size, is_stopped):
            FullDisk.tries += 1
            return super().create_zeroed(path, size, is_stopped)

        def write(self, fd, data, offset):
            if FullDisk.full:
                super().write(fd, data[:PAGE], offset)
                raise OSError(28, "No space left on device")
            super().write(fd, data, offset)

    engine = await Engine.open(tmp_path, SMALL, FullDisk())
    FullDisk.full = True
    before = FullDisk.tries
    while (answer := await append(engine, b"t", bytes(1000))).error is None:
        pass
    assert FullDisk.tries == before + 2  # in the background, and when it was needed
    assert "No space left on device: '" in str(answer.error)
    assert not list((tmp_path / "log").glob("*.new"))
    await engine.close()
    FullDisk.full = False


async def test_views_are_not_called_damaged_because_the_disk_is_full(tmp_path: Path, monkeypatch):
    await (await Engine.open(tmp_path, SMALL)).close()

    def fail(*_: object) -> None:
        raise Exception("IO error: No space left on device: While appending to file: MANIFEST-000009")

    with monkeypatch.context() as patched:
        patched.setattr(database, "Rdict", fail)
        with pytest.raises(OSError, match=r"No space left on device: '.*views'"):
            await Engine.open(tmp_path, SMALL)
    await (await Engine.open(tmp_path, SMALL)).close()


async def test_views_that_cannot_be_flushed_at_the_end_are_folded_again(tmp_path: Path, monkeypatch, caplog):
    engine = await Engine.open(tmp_path, SMALL)
    await append(engine, b"a/b")

    class Full:
        """RocksDB on a full disk."""

        def __init__(self, whole: object) -> None:
            self.whole = whole

        def __getattr__(self, name: str) -> object:
            return getattr(self.whole, name)

        def close(self) -> None:
            self.whole.close()
            raise Exception("IO error: No space left on device")

    engine._database._db = Full(engine._database._db)
    await engine.close()
    assert "No space left on device" in caplog.text
    shutil.rmtree(tmp_path / "views")
    engine = await Engine.open(tmp_path, SMALL)
    assert (await engine.bounds(topic_queue(b"a/b"))).end == 1
    await engine.close()
