"""Random histories of held messages in a store whose log is taken away under them, against a plain model."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_RETAIN, Kind
from store.api import HeldMessage, HeldPage, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.log.writer import Clock
from tests.store.images import copy_image
from tests.store.test_engine import append

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]

SEGMENT = 4096
HOUR = 3_600_000  # ms
CONFIG = StoreConfig(
    partitions=1,
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=12,
    tail_cache_bytes=SEGMENT,
    retention_age_s=3600,
    retention_check_s=3600,
    transaction_check_s=1e9,
)
TOPICS = [b"a/b", b"a/c", b"b"]

messages = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from([0, FLAG_DELAYED, FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_RETAIN]),
    st.sampled_from([-1, 5, HOUR // 2, 3 * HOUR, 9 * HOUR]),  # until it is due
    st.sampled_from([0, FLAG_RETAIN]),
    st.sampled_from([10, 10, 300, 1500]),  # bytes
)
picks = st.lists(st.integers(0, 20), min_size=1, max_size=5)
steps = st.one_of(
    st.lists(messages, min_size=1, max_size=8),
    st.tuples(st.sampled_from(["recall", "commit", "roll back"]), picks),
    st.sampled_from(["later", "later", "retain", "retain", "reopen", "crash"]),
)


class Model:
    """Messages by number. Those that are held, and in which order the others entered."""

    def __init__(self) -> None:
        self.now = 10 * HOUR
        self.topics: list[bytes] = []
        self.flags: list[int] = []
        self.dues: list[int] = []
        self.handles: list[int] = []
        self.delayed: set[int] = set()
        self.halves: set[int] = set()
        self.entered: list[int] = []
        self.retained: dict[bytes, int] = {}

    def add(self, topic: bytes, flags: int, due: int, handle: int) -> None:
        number = len(self.topics)
        self.topics.append(topic)
        self.flags.append(flags)
        self.dues.append(due)
        self.handles.append(handle)
        if flags & FLAG_HALF:
            self.halves.add(number)
        elif flags & FLAG_DELAYED:
            self.delayed.add(number)
        else:
            self.enter(number)

    def enter(self, number: int) -> None:
        self.entered.append(number)
        if self.flags[number] & FLAG_RETAIN:
            self.retained[self.topics[number]] = number

    def end(self, numbers: list[int], commit: bool) -> list[int]:
        missing = [number for number in numbers if number not in self.halves]
        for number in numbers:
            if number in self.halves:
                self.halves.discard(number)
                if commit and self.flags[number] & FLAG_DELAYED:
                    self.delayed.add(number)
                elif commit:
                    self.enter(number)
        return missing

    def recall(self, numbers: list[int]) -> list[int]:
        missing = [number for number in numbers if number not in self.delayed]
        self.delayed.difference_update(numbers)
        return missing

    def let_go(self) -> None:
        for number in sorted(self.delayed, key=lambda number: (self.dues[number], number)):
            if self.dues[number] <= self.now:
                self.delayed.discard(number)
                self.enter(number)

    async def check(self, engine: Engine) -> None:
        for name in (b"a", b"b"):
            own = [number for number in self.entered if self.topics[number].split(b"/")[0] == name]
            await self.check_queue(engine, partition_queue(name, 0), own)
        for topic in TOPICS:
            own = [number for number in self.entered if self.topics[number] == topic]
            await self.check_queue(engine, topic_queue(topic), own)
        values = {value.topic: number_of(value.frame) for value in await engine.retained(b"#", None, 9)}
        assert values == self.retained
        assert self.told(await engine.timers(None, 999)) == self.delayed
        assert self.told(await engine.transactions(None, 999)) == self.halves
        for number in self.delayed | self.halves:
            row = engine._views.held.find(self.handles[number])
            assert row is not None
            assert row.is_kept or row.handle >= engine.stats().log_begin

    def told(self, page: HeldPage) -> set[int]:
        def number(message: HeldMessage) -> int:
            found = self.handles.index(message.handle)
            assert message.topic == self.topics[found]
            assert message.due_ms == (self.dues[found] if self.flags[found] & FLAG_DELAYED else None)
            return found

        return {number(message) for message in page.messages}

    async def check_queue(self, engine: Engine, name: bytes, own: list[int]) -> None:
        bounds = await engine.bounds(name)
        assert bounds.end == len(own)
        offset, found = bounds.begin, {}
        while offset < bounds.end:
            got = await engine.fetch(name, offset, 3, 1 << 20)
            for i, start in enumerate(record.split(got.data)):
                found[got.offset + i] = number_of(got.data[start:])
            offset = got.next_offset
        assert found == {offset: own[offset] for offset in found}
        references = engine._views.references(name, bounds.begin, 9999)
        positions, _, times, _ = record.unpack_refs(references)
        assert times == sorted(times)
        there = [offset for offset, position in enumerate(positions, bounds.begin) if position >= engine._views.begin]
        assert sorted(found) == there


def number_of(frame: bytes) -> int:
    return int(record.decode(frame, 0)[6].split(b" ")[0])


async def run(path: Path, history: list[object]) -> None:
    def clock() -> int:
        return model.now

    model = Model()
    engine = await opened(path / "0", clock)
    for number, step in enumerate([*history, "later", "retain", "crash", *["later"] * 20]):
        if isinstance(step, list):
            await take(engine, model, step)
        elif isinstance(step, tuple):
            await change(engine, model, *step)
        elif step == "later":
            model.now += HOUR // 2
        elif step == "retain":
            await engine._retention.enforce()
        else:
            engine = await again(engine, path / str(number + 1), step == "crash")
        await engine.release_due()
        model.let_go()
        await model.check(engine)
    assert model.delayed == set()
    assert await engine.end_transaction([model.handles[number] for number in model.halves], False) == []
    engine._views.checkpoint(engine._writer.durable)
    assert [key for view in (b"h", b"b", b"d", b"c") for key, _ in engine._database.scan(view, view)] == []
    await engine.close()


async def take(engine: Engine, model: Model, step: list[tuple[bytes, int, int, int, int]]) -> None:
    frames = []
    first = len(model.topics)
    for topic, held, wait, retain, size in step:
        payload = b"%d " % (first + len(frames)) + bytes(size)
        due = max(model.now + wait, 0) if held & FLAG_DELAYED else None
        frames.append(record.frame(Kind.MESSAGE, held | retain, 0, topic, b"me", b"", payload, due))
    done = await append(engine, *frames)
    assert done.error is None
    for frame, handle in zip(frames, done.positions, strict=True):
        _, flags, _, topic, _, _, _ = record.decode(frame, 0)
        model.add(topic, flags, record.trailer_of(frame, 0) if flags & FLAG_DELAYED else 0, handle)


async def change(engine: Engine, model: Model, what: str, some: list[int]) -> None:
    numbers = list(dict.fromkeys(pick % len(model.topics) for pick in some)) if model.topics else []
    handles = [model.handles[number] for number in numbers]
    if what == "recall":
        answer, missing = await engine.recall(handles), model.recall(numbers)
    else:
        answer, missing = await engine.end_transaction(handles, what == "commit"), model.end(numbers, what == "commit")
    assert answer == [model.handles[number] for number in missing]


async def again(engine: Engine, folder: Path, crash: bool) -> Engine:
    """The store opened again, after a clean close or on what a kill leaves."""
    if crash:
        copy_image(engine._folder.path, folder)
    await engine.close()
    if not crash:
        engine._folder.path.rename(folder)
    return await opened(folder, engine._writer._clock)


async def opened(folder: Path, clock: Clock) -> Engine:
    engine = await Engine.open(folder, CONFIG, clock=clock)
    for _ in range(2):  # around the look that retention begins with, so that it comes in no step of the test's
        await engine._retention.enforce()
    return engine


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=30))
def test_any_history_equals_the_model(tmp_path_factory, history):
    asyncio.run(run(tmp_path_factory.mktemp("held"), history))
