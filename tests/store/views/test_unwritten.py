"""Views that could not be written, or that a record was folded into by half: nothing is built upon them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest

import record
from store.api import partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError, StoreFailed, ViewsDamaged
from store.exports.stage import stage
from store.views.database.database import Database
from store.views.queues.keys import Keys
from tests.store.test_engine import append

pytestmark = pytest.mark.usefixtures("retention_on_request")

CONFIG = StoreConfig(
    segment_size=4096,
    partitions=1,
    retention_bytes=3 * 4096,
    retention_check_s=3600,
    checkpoint_age_s=3600,
    tail_cache_bytes=0,
)
QUEUES = [topic_queue(b"t"), partition_queue(b"t", 0)]

KEYED = b"\x26\x00\x03key\x00\x01k"


def frame(number: int, size: int = 0, properties: bytes = b"") -> bytes:
    return record.frame(1, 0, 0, b"t", b"", properties, b"%06d" % number + bytes(size))


async def numbers(engine: Engine, queue: bytes) -> list[int]:
    found: list[int] = []
    offset = (await engine.bounds(queue)).begin
    while (got := await engine.fetch(queue, offset, 100, 1 << 20)).count:
        found += [int(record.decode(got.data, start)[6][:6]) for start in record.split(got.data)]
        offset = got.next_offset
    return found


async def retain(engine: Engine) -> None:
    await engine._retention.enforce()


async def put_on_stage(engine: Engine) -> None:
    with stage(engine._folder.path) as folder:
        await engine.stage(folder)


@pytest.mark.parametrize("work", [retain, put_on_stage])
async def test_views_that_cannot_be_written_stop_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Engine], Coroutine[None, None, None]],
):
    """Who wanted the checkpoint hears of it, and the store takes nothing more: what was to be written is only in the
    log by now, from which the next start folds it."""
    engine = await Engine.open(tmp_path, CONFIG)
    for number in range(20):
        assert (await append(engine, frame(number, 1000))).error is None
    write = Database.write

    def fail(self: Database, *_: object) -> None:
        monkeypatch.setattr(Database, "write", write)
        raise ViewsDamaged(tmp_path, OSError(28, "No space left on device"))

    monkeypatch.setattr(Database, "write", fail)
    with pytest.raises(ViewsDamaged):
        await work(engine)
    assert isinstance((await append(engine, frame(20))).error, StoreFailed)
    for queue in QUEUES:
        assert await numbers(engine, queue) == list(range(20)), "what was not written is not read"
    with pytest.raises(StoreError):
        await work(engine)
    await engine.close()
    engine = await Engine.open(tmp_path, CONFIG)
    for queue in QUEUES:
        assert await numbers(engine, queue) == list(range(20))
    await engine.close()


@pytest.mark.parametrize("policy", ["fsync", "interval"])
async def test_half_a_batch_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str):
    """A batch that could not be folded to its end is folded once, by the next start."""
    config = replace(CONFIG, policy=policy)
    engine = await Engine.open(tmp_path, config)
    for number in range(20):
        assert (await append(engine, frame(number, 1000))).error is None

    def fail(*_: object) -> None:
        raise ViewsDamaged(tmp_path, OSError(5, "Input/output error"))

    with monkeypatch.context() as patch:
        patch.setattr(Keys, "enter", fail)
        assert isinstance((await append(engine, frame(20), frame(21, 0, KEYED))).error, StoreFailed)
    for work in (retain, put_on_stage):
        with pytest.raises(StoreError):
            await work(engine)
    engine._on_checkpoint_age()
    await engine.close()
    engine = await Engine.open(tmp_path, config)
    for queue in QUEUES:
        assert await numbers(engine, queue) == list(range(22))
    await engine.close()


async def test_staged_files_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Under the interval policy too: backups share full segments with the log, which after a power failure would go on
    in one of them where the disk has its end."""
    config = replace(CONFIG, policy="interval", interval_ms=3_600_000, retention_bytes=0)
    engine = await Engine.open(tmp_path, config)
    loop = asyncio.get_running_loop()
    link_to = Database.link_to

    def append_and_link(self: Database, path: Path) -> None:
        asyncio.run_coroutine_threadsafe(append(engine, *(frame(n, 1000) for n in range(20))), loop).result()
        link_to(self, path)

    monkeypatch.setattr(Database, "link_to", append_and_link)
    with stage(tmp_path) as folder:
        staged = await engine.stage(folder)
        assert staged.position == engine.stats().log_end > 4096
        assert engine._writer.durable >= staged.position
    await engine.close()
