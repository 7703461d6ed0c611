"""Rows in the order of levels: what is found by seeking is what is found by looking at every row."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matcher.names import levels, matches
from store.api import Child
from store.config import StoreConfig
from store.engine import Engine
from store.views.database.database import Checkpoint, Database
from store.views.database.state import State
from store.views.topics.levels import row_name, topic_of, where_matches_go_on
from store.views.topics.names import Names
from store.views.topics.retained import RetainedValues
from tests.store.simulation.checks import naive_children
from tests.store.test_engine import append, message

pytestmark = pytest.mark.any_store

FRESH = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Names that sort around the slash, that begin each other, that are empty, that begin with $.
level = st.sampled_from([b"", b"a", b"b", b"ab", b"a!", b"a\x01", b"a0", b"$s", b"$", b"%", b"temp", b"\xc3\xa9"])
topics = st.lists(level, min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = st.builds(
    lambda parts, rest: b"/".join(parts + rest),
    st.lists(st.one_of(level, st.just(b"+"), st.just(b"+")), max_size=4),
    st.sampled_from([[], [b"#"], [b"+"]]),
).filter(bool)


@contextmanager
def opened(path: Path, stored: set[bytes], table: bytes) -> Iterator[State]:
    """State over a database that has rows of these topics."""
    database = Database(path, 0)
    try:
        rows = sorted((table + row_name(topic), b"stored") for topic in stored)
        batch = database.batch()
        for key, value in [(b"\x00before", b""), *rows, (bytes((table[0] + 1,)), b"")]:
            batch.put(key, value)
        database.write(batch, Checkpoint(0, 0, 0))
        yield State(database)
    finally:
        database.close()


@given(st.lists(topics))
def test_rows_of_topics_sort_by_levels(names):
    assert [topic_of(row) for row in sorted(map(row_name, names))] == sorted(names, key=levels)


@given(filters, st.sets(topics, min_size=1, max_size=30))
def test_no_match_is_passed_over(topic_filter, names):
    rows = sorted(map(row_name, names))
    for i, row in enumerate(rows):
        following = where_matches_go_on(levels(topic_filter), levels(topic_of(row)))
        assert (following == row) == matches(topic_filter, topic_of(row))
        if following is None:
            passed = rows[i + 1 :]
        else:
            assert following >= row
            passed = [other for other in rows[i + 1 :] if other < following]
        assert not [other for other in passed if matches(topic_filter, topic_of(other))]


@FRESH
@given(st.sets(topics, max_size=20), st.dictionaries(topics, st.booleans(), max_size=12), st.data())
def test_rows_in_memory_and_in_the_database_are_one(tmp_path_factory, stored, changed, data):
    with opened(tmp_path_factory.mktemp("rows") / "db", stored, b"t") as state:
        for topic, is_there in changed.items():
            if is_there:
                state.put(b"t", row_name(topic), b"own")
            else:
                state.delete(b"t", row_name(topic))
        expected = {row_name(topic): b"stored" for topic in stored}
        expected |= {row_name(topic): b"own" for topic, is_there in changed.items() if is_there}
        for topic, is_there in changed.items():
            if not is_there:
                expected.pop(row_name(topic), None)
        assert list(state.scan(b"t")) == sorted(expected.items())
        prefix = row_name(data.draw(st.one_of(st.just(b""), topics)))
        rows = state.rows(b"t", prefix)
        names = sorted(name for name in expected if name.startswith(prefix))
        at = len(names)
        for _ in range(10):
            if at == len(names) or data.draw(st.booleans()):
                target = row_name(data.draw(topics))
                is_at_row = rows.seek(target)
                at = next((i for i, name in enumerate(names) if name >= target), len(names))
            else:
                is_at_row = rows.next()
                at += 1
            assert is_at_row == (at < len(names))
            if is_at_row:
                assert (rows.name, rows.value) == (names[at], expected[names[at]])


@FRESH
@given(st.sets(topics, max_size=25), st.sets(topics, max_size=10), st.lists(filters, min_size=1, max_size=6), st.data())
def test_retained_values_are_those_that_a_look_at_every_one_finds(tmp_path_factory, stored, fresh, wanted, data):
    with opened(tmp_path_factory.mktemp("retained") / "db", stored, b"r") as state:
        retained = RetainedValues(state)
        for topic in fresh:
            retained.fold(topic, b"own", False)
        for topic_filter in [*wanted, *sorted(stored)[:2]]:
            found: list[bytes] = []
            after: bytes | None = None
            more = True
            while more:
                limit, looks = data.draw(st.sampled_from([(1, 1), (2, 5), (100, 100), (100, 3)]))
                rows, after = retained.matching(topic_filter, after, limit, looks)
                assert len(rows) <= min(limit, looks)
                found += [topic for topic, _ in rows]
                more = after is not None
            assert found == sorted((t for t in stored | fresh if matches(topic_filter, t)), key=levels)


@FRESH
@given(st.sets(topics, max_size=25), st.sets(topics, max_size=10), st.data())
def test_children_are_those_that_a_look_at_every_topic_finds(tmp_path_factory, stored, fresh, data):
    with opened(tmp_path_factory.mktemp("names") / "db", stored, b"t") as state:
        names = Names(state)
        for topic in fresh:
            names.enter(topic)
        above = {b"", b"/", b"nobody/"} | {topic[: topic.rfind(b"/") + 1] for topic in stored | fresh}
        for prefix in sorted(above):
            found: list[Child] = []
            after: bytes | None = None
            more = True
            while more:
                page = names.children(prefix, after, data.draw(st.sampled_from([1, 2, 100])))
                found += page.children
                after = page.after
                more = after is not None
            assert found == naive_children(stored | fresh, prefix)


async def test_a_page_of_long_names_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 24))
    long = [b"long/%03d" % i + b"x" * 60_000 for i in range(100)]
    await append(engine, *[message(topic) for topic in long])
    monkeypatch.setattr("store.queries._MAX_ROWS", 10)
    names: list[bytes] = []
    pages = 0
    after: bytes | None = None
    while pages == 0 or after is not None:
        page = await engine.topics(b"long/", after, 1000)
        children = await engine.children(b"long/", None if after is None else after[5:], 1000)
        assert [b"long/" + child.name for child in children.children] == page.names
        assert len(page.names) == 20
        names += page.names
        after = page.after
        pages += 1
    assert names == long
    await engine.close()


async def test_a_search_passes_over_what_cannot_match(tmp_path: Path):
    """Three looks at most for each room, however many values it has."""
    rooms = [b"home/room%d" % i for i in range(5)]
    values = {b"%b/%s" % (room, kind) for room in rooms for kind in (b"temp", *[b"x%03d" % i for i in range(200)])}
    values |= {b"%b/x/%d" % (room, i) for room in rooms for i in range(200)} | {
        b"home",
        b"homes/room1/temp",
        b"zoo/a/temp",
    }
    with opened(tmp_path / "db", values, b"r") as state:
        retained = RetainedValues(state)
        rows, after = retained.matching(b"home/+/temp", None, 100, max_rows=3 * len(rooms) + 2)
        assert ([topic for topic, _ in rows], after) == ([room + b"/temp" for room in rooms], None)
        rows, after = retained.matching(b"+/+/temp", None, 100, max_rows=3 * (len(rooms) + 2) + 3)
        assert (len(rows), after) == (len(rooms) + 2, None)
        rows, after = retained.matching(b"home/+/nothing/#", None, 100, max_rows=2 * len(rooms) + 2)
        assert (rows, after) == ([], None)


@pytest.mark.parametrize("below", [3, 3000])
async def test_children_pass_over_what_is_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: int):
    values = {b"home/%d/%d" % (i, j) for i in range(4) for j in range(below)} | {b"home/1"}
    with opened(tmp_path / "db", values, b"t") as state:
        looks = 0
        is_at_row = Database.is_at_row

        def count(database: Database, rows: object) -> bool:
            nonlocal looks
            looks += 1
            return is_at_row(database, rows)

        monkeypatch.setattr(Database, "is_at_row", count)
        page = Names(state).children(b"home/", None, 100)
        assert page.children == [Child(b"%d" % i, i == 1, True) for i in range(4)]
        assert looks == 6
