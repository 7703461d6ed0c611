"""Reads of selected messages find exactly what a read of the whole partition finds, whatever the references say."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from matcher.names import matches
from record.layout import FLAG_DELAYED, PART_PAYLOAD, Kind
from store import control, selected
from store.api import Appended, partition_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import OffsetOutOfRange
from store.log.ranges import Ranges

TOPICS = (b"a", b"a/", b"a/x", b"a/x/t", b"a/y", b"a/xy", b"b/x")
KEYS = (b"k1", b"k2", b"k3")
FILTERS = (b"a", b"a/x", b"a/x/#", b"a/+", b"a/+/t", b"+/x", b"#", b"a/none", b"a/none/#", b"")


def properties(keys: Sequence[bytes], order: bytes) -> bytes:
    pairs = [(b"key", key) for key in keys] + ([(b"ordering_key", order)] if order else [])
    return b"".join(
        b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value for name, value in pairs
    )


async def append(engine: Engine, frames: list[bytes]) -> None:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(frames, answer.set_result)
    assert (await answer).error is None


class Reader:
    """Reads the partitions of `a`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def whole(self, number: int) -> list[tuple[int, bytes]]:
        """All messages of a partition of `a`, as (offset, frame)."""
        queue, found = partition_queue(b"a", number), []
        at = (await self.engine.bounds(queue)).begin
        while got := await self.engine.fetch(queue, at, 1000, 1 << 20):
            if not got.count:
                return found
            starts = [*record.split(got.data), len(got.data)]
            frames = [got.data[start:end] for start, end in pairwise(starts)]
            found += zip(range(got.offset, got.next_offset), frames, strict=True)
            at = got.next_offset
        raise AssertionError

    async def selected(
        self, number: int, topic_filter: bytes, keys: list[bytes], max_records: int, max_bytes: int, without: int
    ) -> list[tuple[int, bytes]] | None:
        queue, found = partition_queue(b"a", number), []
        bounds = await self.engine.bounds(queue)
        at = bounds.begin
        while at < bounds.end:
            got = await self.engine.fetch_selected(
                queue, at, bounds.end, topic_filter, keys, max_records, max_bytes, without
            )
            if got is None:
                return None
            assert len(got.offsets) <= max_records
            assert got.next_offset > at
            starts = [*record.split(got.data), len(got.data)]
            frames = [got.data[start:end] for start, end in pairwise(starts)]
            found += zip(got.offsets, frames, strict=True)
            assert all(at <= offset < got.next_offset for offset in got.offsets)
            at = got.next_offset
        return found


def wanted(rows: list[tuple[int, bytes]], topic_filter: bytes, keys: list[bytes], without: int) -> Iterator[Any]:
    for offset, frame in rows:
        _, _, _, topic, _, block, _ = record.decode(frame, 0)
        if (not topic_filter or matches(topic_filter, topic)) and (not keys or {*keys} & {*record.keys_of(block)}):
            yield offset, record.without(frame, without)


messages = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.lists(st.sampled_from(KEYS), max_size=2),
        st.sampled_from([b"", b"", b"", b"o1", b"o2"]),
        st.sampled_from([0, 0, 0, 0, 1500]),  # ms that it is held
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.engine_only
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(messages, min_size=1, max_size=6),
    limits=st.tuples(st.integers(1, 20), st.sampled_from([1, 300, 1 << 20]), st.sampled_from([0, PART_PAYLOAD])),
    block=st.integers(2, 30),
    age_s=st.sampled_from([0, 0, 2, 4]),
)
async def test_what_a_filter_and_keys_select(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[bytes, list[bytes], bytes, int]]],
    limits: tuple[int, int, int],
    block: int,
    age_s: int,
) -> None:
    now = 1_000_000
    config = StoreConfig(
        segment_size=1 << 12,
        generation_segments=2,
        checkpoint_keys=40,
        partitions=2,
        retention_age_s=age_s,
        retention_check_s=3600,
    )
    engine = await Engine.open(tmp_path_factory.mktemp("log"), config, clock=lambda: now)
    reader = Reader(engine)
    for batch in batches:
        await append(
            engine,
            [
                record.frame(
                    Kind.MESSAGE,
                    FLAG_DELAYED if held else 0,
                    0,
                    topic,
                    b"c",
                    properties(names, order),
                    b"payload",
                    now + held if held else None,
                )
                for topic, names, order, held in batch
            ],
        )
        now += 1000
        held = (await engine.timers(None, 100)).messages
        due = [timer.handle for timer in held if timer.due_ms is not None and timer.due_ms <= now]
        if due:
            await append(engine, [control.TimersFired(due).frame(b"")])
    await engine._retention.enforce()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selected, "_BLOCK", block)
        patch.setattr(selected, "_JUMP_AFTER", 2)
        for number in range(2):
            rows = await reader.whole(number)
            for topic_filter, keys in product(FILTERS, ([], [b"k1"], [b"k2", b"k3", b"none"])):
                if topic_filter or keys:
                    found = await reader.selected(number, topic_filter, keys, *limits)
                    assert found == list(wanted(rows, topic_filter, keys, limits[2]))
    await engine.close()


@pytest.mark.engine_only
async def test_wanted_records_that_are_gone_are_counted(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, StoreConfig(partitions=1))
    frames = [record.frame(Kind.MESSAGE, 0, 0, topic, b"", b"", b"x") for topic in (b"a/x", b"a/y", b"a/x", b"a/x")]
    await append(engine, frames)
    engine._checkpoint()
    size = len(frames[0])
    positions = [size * index for index in range(4)]
    engine._views.remove(Ranges([(positions[1], positions[3])]))
    for topic, offsets, gone in ((b"a/x", [0, 3], 1), (b"a/y", [], 1), (b"a/z", [], 0)):
        found = await engine.fetch_selected(partition_queue(b"a", 0), 0, 4, topic, [], 10, 1 << 20)
        assert found is not None
        assert (found.offsets, found.gone, found.next_offset) == (offsets, gone, 4)
    with pytest.raises(OffsetOutOfRange):
        await engine.fetch_selected(partition_queue(b"a", 0), 5, 9, b"a/x", [], 10, 1 << 20)
    await engine.close()
