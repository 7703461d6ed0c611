"""The measurements. Each takes an empty folder and a scale, and returns its figures; units are in their names."""

import asyncio
import gc
import random
import resource
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

import record
from benchmarks.store.load import PARENTS, Load, Stalls, each_once, message, percentile, settle, topic, uniform
from store import control
from store.api import Appended, StoredSubscription, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.log.commitlog import CommitLog
from store.log.disk import Disk
from store.log.recovery import sound_batches
from store.log.segments import Segments
from store.log.writer import Writer
from store.views.database.database import Checkpoint, Database
from store.views.database.state import State
from store.views.fold import Views
from store.views.queues.tails import queue_digest
from store.views.topics.names import Names
from store.views.topics.retained import RetainedValues

Figures = dict[str, float]
CONFIG = StoreConfig()
GIB = 1 << 30


def run(body: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(body)


def rss_mb() -> float:
    """Resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def log_only(folder: Path, scale: float) -> Figures:
    async def body() -> Figures:
        segments = Segments(folder, CONFIG.segment_size, Disk())
        segments.load()
        count = int(3_000_000 * scale)
        for number in range(count * 400 // CONFIG.segment_size + 2):  # as they are found when the log keeps pace
            segments.open_for_writing(number * CONFIG.segment_size)
        writer = Writer(segments, 0, 0, 1, "fsync")
        writer.open()
        log = CommitLog(
            writer, CONFIG, asyncio.get_running_loop(), lambda _: False, lambda: False, lambda: None, lambda: None
        )
        figures = await Load(log.append, uniform(10_000), count).run()
        await log.close()
        segments.close()
        return figures

    return run(body())


def dispatch(topics: int, filters: int, count: int, with_keys: bool = False) -> Callable[[Path, float], Figures]:
    """Everything: append, commit, fold into partition, topic queue, filter queues and key view. All topics exist
    before, and RocksDB has nothing left to do; what these records leave it to do is counted."""

    def work(folder: Path, scale: float) -> Figures:
        return run(_dispatch(folder, int(topics * min(1.0, scale)), filters, int(count * scale), with_keys))

    return work


async def _dispatch(folder: Path, topics: int, filters: int, count: int, with_keys: bool) -> Figures:
    engine = await Engine.open(folder, CONFIG)
    if filters:
        wishes = [StoredSubscription(b"#", 1, False, False, 0, 0, 0, 0)]
        frames = [control.SessionOpened(1, 0xFFFFFFFF, True).frame(b"reader"), control.subscribed(b"reader", wishes)]
        await append(engine, frames)
    filled = await Load(engine.append, each_once(topics), topics).run()
    later = await settle()
    async with Stalls() as stalls:
        figures = await Load(engine.append, uniform(topics), count, with_keys).run()
    figures["cpu_us"] += await settle() / count * 1e6
    gc.collect()
    figures |= stalls.figures()
    figures |= {"fill_cpu_us": filled["cpu_us"] + later / topics * 1e6, "rss_mb": rss_mb()}
    began = time.perf_counter()
    await engine.close()
    figures["close_s"] = time.perf_counter() - began
    return figures


async def append(engine: Engine, frames: list[bytes]) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(frames, answer.set_result)
    return await answer


def restart(folder: Path, _scale: float) -> Figures:
    """Measure the opening of a store that another work left with a clean checkpoint."""

    async def body() -> Figures:
        began = time.perf_counter()
        engine = await Engine.open(folder, CONFIG)
        took = time.perf_counter() - began
        memory = rss_mb()
        began = time.perf_counter()
        await append(engine, [message(0)])
        first = time.perf_counter() - began
        await engine.close()
        return {"open_s": took, "first_append_s": first, "rss_mb": memory}

    return run(body())


def fetch(folder: Path, scale: float) -> Figures:
    """Random topic queues of many that hold one message each, and 256 more in the thousand that are read."""

    async def body() -> Figures:
        topics, warm = int(1_000_000 * scale), 1000
        engine = await Engine.open(folder, CONFIG)
        await Load(engine.append, each_once(topics), topics).run()
        chosen = random.Random(3).sample(range(topics), warm)
        for number in range(256):
            rows = chosen if number % 2 else chosen[::-1]
            for start in range(0, warm, 500):
                await append(engine, [message(i) for i in rows[start : start + 500]])
        await engine.close()
        engine = await Engine.open(folder, CONFIG)
        figures: Figures = {}
        queues = [topic_queue(topic(number)) for number in chosen]
        for again in range(2):
            for count in (1, 32, 256):
                began = time.perf_counter()
                for queue in queues:
                    assert len(engine._views.references(queue, 0, count)) == 24 * count
                figures[f"references_{count}_us"] = (time.perf_counter() - began) / warm * 1e6
                if again:
                    began = time.perf_counter()
                    for queue in queues:
                        assert (await engine.fetch(queue, 0, count, 1 << 20)).count == count
                    figures[f"records_{count}_us"] = (time.perf_counter() - began) / warm * 1e6
        await engine.close()
        return figures

    return run(body())


def recovery(folder: Path, _scale: float) -> Figures:
    """Measure the replay of a log that another work left, in seconds per GiB."""
    segments = Segments(folder / "log", CONFIG.segment_size, Disk())
    segments.load()
    for _ in sound_batches(segments, 0):
        pass  # into the page cache
    began = time.perf_counter()
    size = sum(len(batch.data) for batch in sound_batches(segments, 0))
    figures = {"gib": size / GIB, "scan_s_per_gib": (time.perf_counter() - began) / size * GIB}
    took = 0.0
    for batch in sound_batches(segments, 0):
        began = time.perf_counter()
        for start in record.split(batch.data):
            record.decode(batch.data, start)
        took += time.perf_counter() - began
    figures["decode_s_per_gib"] = took / size * GIB
    database = Database(folder / "again", CONFIG.view_cache_bytes)
    views = Views(database, CONFIG, 0, 0)
    began = time.perf_counter()
    for batch in sound_batches(segments, 0):
        views.fold(batch)
        if views.is_full:
            views.checkpoint(batch.position)
    views.checkpoint(views.position)
    figures["dispatch_s_per_gib"] = (time.perf_counter() - began) / size * GIB
    database.close()
    segments.close()
    return figures


def index_size(folder: Path, _scale: float) -> Figures:
    """Bytes on disk a reference, of what another work left: its entries in two databases of their own."""
    names = [partition_queue(b"site%d" % parent, i) for parent in range(PARENTS) for i in range(CONFIG.partitions)]
    partitions = {queue_digest(name) for name in names}
    source = Database(folder / "views", 1 << 20)
    figures: Figures = {}
    for kind in ("partition", "topic"):
        copy = Database(folder / kind, 1 << 20)
        references, batch = 0, copy.batch()
        for key, value in source.scan(b"q", b"q"):
            if (key[5:21] in partitions) == (kind == "partition"):
                references += len(value) // 24
                batch.put(key, value)
                if batch.len() == 4096:
                    copy.write(batch, Checkpoint(0, 0, 0))
                    batch = copy.batch()
        copy.write(batch, Checkpoint(0, 0, 0))
        copy.flush()
        copy._db.compact_range(None, None)  # as all but the newest is
        figures[f"{kind}_bytes_per_reference"] = copy.size() / references
        copy.close()
    source.close()
    return figures


def retention(folder: Path, _scale: float) -> Figures:
    """What another work left, with its first segments taken: folding the ends of a generation, and its deletion."""
    database = Database(folder / "views", CONFIG.view_cache_bytes)
    position = database.checkpoint().position
    views = Views(database, CONFIG, 0, 0)
    generation = CONFIG.segment_size * CONFIG.generation_segments
    views._index.newest = position // generation
    slices, queues = [], 0
    following: bytes | None = b""
    while following is not None:
        began = time.perf_counter()
        following = views.fold_ends(0, following, 64)
        slices.append(time.perf_counter() - began)
        queues += 64
    began = time.perf_counter()
    views.drop_generation(0)
    figures = {
        "delete_range_ms": (time.perf_counter() - began) * 1e3,
        "fold_us_per_queue": sum(slices) / queues * 1e6,
        "fold_slice_p99_ms": percentile(slices, 99) * 1e3,
        "queues": queues,
    }
    database.close()
    return figures


def retention_beside(folder: Path, scale: float) -> Figures:
    """Appends to many topics without retention and while it takes segments and drops a generation with all of them."""
    small = replace(CONFIG, segment_size=64 << 20, generation_segments=4, retention_check_s=1e6)

    async def body() -> Figures:
        topics, count = int(1_000_000 * scale), int(400_000 * scale)
        engine = await Engine.open(folder, small)
        await Load(engine.append, each_once(topics), topics).run()
        await Load(engine.append, uniform(topics), count).run()
        await settle()
        alone = await Load(engine.append, uniform(topics), 2 * count).run()
        await engine.close()
        engine = await Engine.open(folder, replace(small, retention_bytes=1))  # one look, which begins now
        stats = engine.stats()
        going = stats.log_end // (small.segment_size * small.generation_segments)  # generations
        waits: list[float] = []
        while engine._views._index.oldest < going:
            load = Load(engine.append, uniform(topics), count // 10)
            await load.run()
            waits += load.waits
        figures = {
            "segments": (engine.stats().log_begin - stats.log_begin) / small.segment_size,
            "generations": going,
            "p99_alone_ms": alone["p99_ms"],
            "p99_beside_ms": percentile(waits, 99) * 1e3,
            "times": percentile(waits, 99) * 1e3 / alone["p99_ms"],
        }
        await engine.close()
        return figures

    return run(body())


def tree(folder: Path, scale: float) -> Figures:
    """Pages of 1,000 names of a level, and what wildcards find, in two views of 2 M topics each."""
    count = int(1_000_000 * scale)
    database = Database(folder, CONFIG.view_cache_bytes)
    state = State(database)
    names, retained = Names(state), RetainedValues(state)
    for number in range(count):
        for name in (b"flat/device%d" % number, b"deep/room%d/device%d" % (number % 3, number // 3)):
            names.enter(name)
            retained.fold(name, bytes(24), False)
        if state.count >= CONFIG.checkpoint_keys or number == count - 1:
            batch = database.batch()
            state.drain(batch)
            database.write(batch, Checkpoint(0, 0, 0))
            state.forget()
    database.flush()
    figures: Figures = {}
    pages: list[float] = []
    after: bytes | None = None
    while not pages or after is not None:
        began = time.perf_counter()
        after = names.children(b"flat/", after, 1000).after
        pages.append(time.perf_counter() - began)
    pages.sort()
    figures |= {"page_ms": pages[len(pages) // 2] * 1e3, "page_p99_ms": pages[len(pages) * 99 // 100] * 1e3}
    for _ in range(2):  # the second time it is in the cache
        began = time.perf_counter()
        assert len(names.children(b"deep/", None, 1000).children) == 3
        figures["level_of_3_us"] = (time.perf_counter() - began) * 1e6
        began = time.perf_counter()
        assert len(retained.matching(b"deep/+/device7", None, 1000, 1000)[0]) == 3
        figures["retained_3_us"] = (time.perf_counter() - began) * 1e6
    database.close()
    return figures


def rocksdb(batch: int) -> Callable[[Path, float], Figures]:
    """Write the same messages to plain RocksDB with WAL and sync, `batch` at a time, without indexes and without a
    second copy."""

    def work(folder: Path, scale: float) -> Figures:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        database = Rdict(str(folder), options)
        durable = WriteOptions()
        durable.sync = True
        numbers = uniform(10_000)
        count = int((10_000 if batch == 1 else 1_000_000) * scale)
        began, used = time.perf_counter(), time.process_time()
        for start in range(0, count, batch):
            rows = WriteBatch(raw_mode=True)
            for position in range(start, start + batch):
                rows.put(position.to_bytes(8, "big"), message(numbers()))
            database.write(rows, durable)
        took, used = time.perf_counter() - began, time.process_time() - used
        database.close()
        return {"records_per_second": count / took, "cpu_us": used / count * 1e6}

    return work
