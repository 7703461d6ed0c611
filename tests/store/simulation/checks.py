"""What must be true of an open store: it says what the model says, and its views are what a fresh replay makes.

All checks raise AssertionError.
"""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import record
from matcher.names import levels, matches
from store.api import Child, filter_queue, partition_queue, topic_queue
from store.engine import Engine
from store.recovery import sound_batches
from store.views.database import Database
from store.views.fold import Views
from tests.store.simulation.model import Model
from tests.store.simulation.records import CLIENTS, FILTERS, GROUPS, TOPICS

AT_ONCE = 700  # bytes of the log read at once


async def read_log(engine: Engine) -> list[bytes]:
    """All sealed records, each checked to be where it says it is, behind the one before."""
    stats = engine.stats()
    size = engine._segments.size
    frames: list[bytes] = []
    position, behind = stats.log_begin, stats.log_begin
    time = 0
    while position < stats.log_end:
        chunk = await engine.read(position, AT_ONCE)
        starts = [*record.split(chunk.data), len(chunk.data)]
        for start, end in pairwise(starts):
            at = record.position_of(chunk.data, start)
            assert at == chunk.position + start
            assert at == behind or (at % size == 0 and at - size < behind < at), "a gap in the log"
            assert record.store_time_of(chunk.data, start) >= time, "time runs backwards"
            time = record.store_time_of(chunk.data, start)
            behind = at + end - start
            frames.append(chunk.data[start:end])
        position = chunk.next_position
    assert position == stats.log_end
    return frames


async def check_state(engine: Engine, frames: list[bytes], rng: Random) -> None:
    """The views answer as the model of `frames` does."""
    model = Model(engine.partitions)
    for frame in frames:
        model.fold(frame)
    for client in CLIENTS:
        assert await engine.session(client) == model.state(client), f"session {client!r}"
    assert await engine.sessions_open(None, 100) == model.open()
    for now in (0, 15_000, 1 << 60):
        assert await engine.sessions_expired(now, 100) == model.expired(now)
    await _check_names(engine, model, rng)
    await _check_retained(engine, model, rng)
    await _check_keys(engine, model, rng)
    for group in GROUPS:
        for parent in (b"a", b"b", b""):
            assert await engine.group_offsets(group, parent) == model.groups.get((group, parent), {})
    names = {topic_queue(topic) for topic in (*TOPICS, *model.topics)} | {filter_queue(name) for name in FILTERS}
    names |= {partition_queue(b, n) for b in (b"a", b"b", b"c", b"", b"many") for n in range(engine.partitions)}
    for name in sorted(names):
        await _check_queue(engine, name, model.queues.get(name, []), rng)


async def _check_names(engine: Engine, model: Model, rng: Random) -> None:
    for above in (b"", b"a/", b"/", b"many/", b"b/x/"):
        children: list[Child] = []
        after: bytes | None = None
        while True:
            page = await engine.children(above, after, rng.choice((1, 2, 1000)))
            children += page.children
            after = page.after
            if after is None:
                break
        assert children == naive_children(model.topics, above), "children"
    for prefix in (b"", b"a", b"many/1"):
        found: list[bytes] = []
        after = None
        while True:
            names = await engine.topics(prefix, after, rng.choice((1, 3, 1000)))
            found += names.names
            after = names.after
            if after is None:
                break
        wanted = [topic for topic in model.topics if topic.startswith(prefix)]
        assert found == sorted(wanted, key=levels), "topics"


def naive_children(topics: Iterable[bytes], above: bytes) -> list[Child]:
    """What `Store.children` has to say about these topics."""
    below = [levels(topic[len(above) :]) for topic in topics if topic.startswith(above)]
    names = sorted({given[0] for given in below})
    return [Child(name, [name] in below, any(given[0] == name and len(given) > 1 for given in below)) for name in names]


async def _check_retained(engine: Engine, model: Model, rng: Random) -> None:
    for name in (*FILTERS, b"c"):
        found: list[tuple[bytes, bytes]] = []
        limit = rng.choice((1, 2, 100))
        while True:
            page = await engine.retained(name, found[-1][0] if found else None, limit)
            found += [(value.topic, value.frame) for value in page]
            if len(page) < limit:
                break
        wanted = [item for item in model.retained.items() if matches(name, item[0])]
        assert found == sorted(wanted, key=lambda item: levels(item[0])), "retained"


async def _check_keys(engine: Engine, model: Model, rng: Random) -> None:
    for parent, key in {*model.keys, (b"a", b"k"), (b"a", b"")}:
        found: list[bytes] = []
        after: int | None = None
        while True:
            page = await engine.by_key(parent, key, after, rng.choice((1, 2, 100)), rng.choice((1, 500, 1 << 20)))
            starts = [*record.split(page.data), len(page.data)]
            assert page.count == len(starts) - 1
            found += [page.data[start:end] for start, end in pairwise(starts)]
            after = page.after
            if after is None:
                break
        assert found == model.keys.get((parent, key), []), "keys"


async def _check_queue(engine: Engine, name: bytes, frames: list[bytes], rng: Random) -> None:
    bounds = await engine.bounds(name)
    assert (bounds.begin, bounds.end) == (0, len(frames)), f"queue {name!r}"
    offset = 0
    while offset < len(frames):
        got = await engine.fetch(name, offset, rng.choice((1, 2, 100)), rng.choice((1, 500, 1 << 20)))
        assert got.count > 0
        assert got.data == b"".join(frames[offset : offset + got.count]), f"queue {name!r} at {offset}"
        offset += got.count
    if frames:
        times = [record.store_time_of(frame, 0) for frame in frames]
        time = rng.choice(times) + rng.randrange(-1, 2)
        assert await engine.offset_at(name, time) == sum(own < time for own in times), "offset by time"


def check_replay(engine: Engine, folder: Path) -> None:
    """The rows of the views are those of views that are folded from position 0 in one go, made in `folder`."""
    engine._views.checkpoint(engine._writer.durable)
    fresh = Database(folder, 0)
    try:
        views = Views(fresh, engine._log._config, engine._views.begin, engine._views.begin_time)
        for batch in sound_batches(engine._segments, engine._views.begin):
            views.fold(batch)
        views.checkpoint(views.position)
        assert views.position == engine._views.position
        assert rows_of(fresh) == rows_of(engine._database), "the views are not what a fresh replay makes"
    finally:
        fresh.close()


def rows_of(database: Database) -> dict[bytes, bytes]:
    """All rows; the index by queue, since its entries may be cut differently."""
    rows: dict[bytes, bytes] = {}
    for key, value in database.scan(b"", b""):
        if key.startswith(b"q"):
            queue = b"q" + key[5:21]
            assert int.from_bytes(key[21:], "big") == len(rows.get(queue, b"")) // 24, "offsets are not dense"
            rows[queue] = rows.get(queue, b"") + value
        elif not key.startswith(b"m"):
            rows[key] = value
    return rows


async def settled(futures: "list[asyncio.Future[object]]") -> None:
    """Wait for all; a store that answers none of them is a violation too."""
    async with asyncio.timeout(30):
        await asyncio.gather(*futures)
