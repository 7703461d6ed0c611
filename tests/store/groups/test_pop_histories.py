"""Any use of a group gives what a dictionary gives."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from store.api import (
    Receipts,
)
from store.control import GroupOffsetsCommitted
from store.views.groups.leases import UNSENT
from tests.store.group_model import Place
from tests.store.popping import DEAD, Bench, Q, message, numbers, payloads

pytestmark = pytest.mark.any_store

commands = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("pop"), st.integers(1, 5), st.integers(0, 5), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("pop"), st.integers(1, 5), st.integers(0, 5), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("done"), st.lists(st.integers(0, 30), min_size=1, max_size=6)),
    st.tuples(st.just("unsent"), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 4)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 4)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.tuples(st.just("reset"), st.integers(0, 10)),
    st.tuples(st.just("remove")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("checkpoint")),
)


class Model:
    """A plain model of the pops of one queue: a dictionary."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.published = 0
        self.dead: list[int] = []
        self.handed: list[tuple[int, int]] = []  # every receipt that there ever was, (offset, deliveries)

    def pop(self, now: int, records: int, until: int, most: int) -> list[tuple[int, int]]:
        place = self.place = self.place or Place()
        got: list[tuple[int, int]] = []
        due = sorted((at, offset) for offset, (_, at) in place.entries.items() if at <= now)
        for _, offset in due:
            if len(got) == records:
                break
            deliveries = place.entries[offset][0]
            deliveries = 0 if deliveries == UNSENT else deliveries
            if deliveries >= most:
                del place.entries[offset]
                self.dead.append(offset)
            else:
                place.popped(offset, until)
                got.append((offset, deliveries + 1))
        while len(got) < records and place.next < self.published:
            got.append((place.next, 1))
            place.popped(place.next, until)
        self.handed += got
        return got

    def is_good(self, offset: int, deliveries: int) -> bool:
        return self.place is not None and self.place.entries.get(offset, (0, 0))[0] == deliveries


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commands, max_size=40))
def test_any_use_gives_what_the_model_gives(tmp_path_factory, history):
    asyncio.run(_use(Bench(tmp_path_factory.mktemp("pop") / "data"), history))


async def _use(bench: Bench, history: list[tuple]) -> None:  # type: ignore[type-arg]
    model = Model()
    await bench.open()
    for name, *args in history:
        if name == "publish":
            await bench.append(*(message(model.published + i) for i in range(args[0])))
            model.published += args[0]
        elif name == "pop":
            records, invisible, most, early = args
            if not bench.is_idle:  # what is under way cannot be leased out again
                await bench.append(GroupOffsetsCommitted(b"a", {0: 1}).frame(b"other"))
            popped = await bench.pop(records=records, invisible=invisible, most=most, early=early)
            expected = model.pop(bench.now, records, bench.now + invisible, most)
            got = [(run.offset + i, run.deliveries) for run in popped.runs for i in range(run.count)]
            assert got == expected
            assert payloads(popped.runs) == numbers(*(offset for offset, _ in got))
            assert model.place is not None
            assert popped.available_at == min((at for _, at in model.place.entries.values()), default=None)
        elif name in {"done", "again", "unsent"} and model.handed:
            await _settle(bench, model, name, *args)
        elif name == "wait":
            bench.now += args[0]
        elif name == "reset":
            offset = min(args[0], model.published)
            await bench.engine.reset_group(b"g", {Q: offset})
            model.place = Place(offset)
        elif name == "remove":
            await bench.engine.remove_group(b"g")
            model.place = None
        elif name == "reopen":
            await bench.reopen()
        elif name == "checkpoint":
            bench.engine._checkpoint()
        if bench.is_idle:
            await _compare(bench, model)
        else:
            assert name not in {"publish", "reset", "remove", "reopen"}  # which wait for all before them
    await bench.reopen()
    await _compare(bench, model)
    await bench.engine.close()


async def _settle(bench: Bench, model: Model, name: str, picks: list[int], delay: int = 0) -> None:
    chosen = [model.handed[pick % len(model.handed)] for pick in picks]
    given = [Receipts(Q, offset, 1, deliveries) for offset, deliveries in chosen]
    expected: list[Receipts] = []
    for receipts, (offset, deliveries) in zip(given, chosen, strict=True):
        if not model.is_good(offset, deliveries):
            expected.append(receipts)
            continue
        assert model.place is not None
        if name == "done":
            del model.place.entries[offset]
        else:
            model.place.again(offset, -(bench.now + delay) if name == "unsent" else bench.now + delay)
    done = given if name == "done" else []
    again = [(each, delay) for each in given] if name == "again" else []
    unsent = [(each, delay) for each in given] if name == "unsent" else []
    assert await bench.engine.settle(b"g", done, again, unsent) == expected


async def _compare(bench: Bench, model: Model) -> None:
    place = model.place
    if place is None:
        assert await bench.lag() == {}
        return
    ahead = model.published - place.next
    unfinished = len(place.entries)
    assert await bench.lag() == {Q: (place.floor, place.next, unfinished, ahead + unfinished)}
    fetched = await bench.engine.fetch(DEAD, 0, 1_000, 1 << 20)
    dead = [record.decode(fetched.data, start)[6] for start in record.split(fetched.data)]
    assert dead == numbers(*model.dead)
