"""Buckets in the store: what each change does, through the engine's face, and random histories against a model."""

import random
import shutil
from dataclasses import dataclass, field

import pytest

from store import control
from store.api import BucketChanges, BucketEntry, ChangeOutcome, EntryChange, EntryPage
from store.views import buckets
from store.views.database.database import Database
from store.views.digest import digest_of_views
from tests.store.views.sessions.test_sessions import CONFIG, Bench, bench

pytestmark = pytest.mark.any_store

__all__ = ["bench"]  # the fixture

DONE, CONFLICT, FULL = ChangeOutcome


async def put(
    bench: Bench, subject: bytes, value: bytes = b"v", expected: int | None = None, token: bytes = b""
) -> int:
    """Returns the revision of the change."""
    return await change(bench, control.EntryPut(value, expected, token).frame(subject))


async def change(bench: Bench, *frames: bytes) -> int:
    """Returns the revision of the first change: where its record ends."""
    return (await bench.append(*frames)).positions[0] + len(frames[0])


async def values(bench: Bench, bucket: bytes, prefix: bytes = b"") -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in (await bench.engine.entries(bucket, prefix, None, 100)).entries}


async def outcome(bench: Bench, token: bytes) -> tuple[ChangeOutcome, int]:
    change = await bench.engine.entry_change(token)
    assert change is not None
    return change.outcome, change.revision


@pytest.mark.parametrize("restart", [False, True])
async def test_entries_are_kept(bench: Bench, restart: bool) -> None:
    await put(bench, b"a/k", b"1")
    second = await put(bench, b"a/k", b"2")
    await put(bench, b"a/x/y", b"3")
    await put(bench, b"b/k", b"4")
    if restart:
        await bench.reopen()
    engine = bench.engine
    entry = await engine.entry(b"a", b"k")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == (b"k", b"2", second)
    assert entry.put_ms > 0
    assert await engine.entry(b"a", b"x") is None
    assert await values(bench, b"a") == {b"k": b"2", b"x/y": b"3"}
    assert await values(bench, b"a", b"x") == {b"x/y": b"3"}
    assert await values(bench, b"b") == {b"k": b"4"}
    assert await engine.entries(b"none", b"", None, 9) == EntryPage([], False)


async def test_pages_go_on_behind_a_key(bench: Bench) -> None:
    for name in (b"k1", b"k2", b"k3", b"l"):
        await put(bench, b"a/" + name, name)
    page = await bench.engine.entries(b"a", b"k", None, 2)
    assert ([each.key for each in page.entries], page.more) == ([b"k1", b"k2"], True)
    page = await bench.engine.entries(b"a", b"k", b"k2", 2)
    assert ([each.key for each in page.entries], page.more) == ([b"k3"], False)
    page = await bench.engine.entries(b"a", b"l", b"a", 2)
    assert [each.key for each in page.entries] == [b"l"]


@pytest.mark.engine_only
async def test_a_page_ends_after_a_megabyte(bench: Bench) -> None:
    for number in range(60):
        await put(bench, b"a/%02d" % number, bytes(40_000))
    page = await bench.engine.entries(b"a", b"", None, 100)
    assert (len(page.entries), page.more) == (27, True)
    first = (await bench.engine.entries(b"a", b"", None, 1)).entries[0].revision
    await bench.append(control.EntryRemoved().frame(b"a/59"))
    assert (await bench.engine.bucket_changes(b"a", first, 100)).is_reset
    whole = await bench.engine.bucket_changes(b"a", 0, 1)
    for number in range(60):
        await put(bench, b"a/%02d" % number, bytes(40_000))
    changes = await bench.engine.bucket_changes(b"a", whole.revision, 100)
    assert (len(changes.entries), changes.more) == (27, True)
    assert changes.revision == changes.entries[-1].revision


async def test_the_expected_revision_decides(bench: Bench) -> None:
    first = await put(bench, b"a/k", b"1", 0, b"t1")
    assert await outcome(bench, b"t1") == (DONE, first)
    await put(bench, b"a/k", b"2", 0, b"t2")
    assert await outcome(bench, b"t2") == (CONFLICT, first)
    await put(bench, b"a/k", b"3", first + 1, b"t3")
    assert await outcome(bench, b"t3") == (CONFLICT, first)
    assert await values(bench, b"a") == {b"k": b"1"}
    second = await put(bench, b"a/k", b"4", first, b"t4")
    assert await outcome(bench, b"t4") == (DONE, second)
    await put(bench, b"a/none", b"5", first, b"t5")
    assert await outcome(bench, b"t5") == (CONFLICT, 0)
    assert await values(bench, b"a") == {b"k": b"4"}


async def test_the_first_of_two_in_one_batch_wins(bench: Bench) -> None:
    one, other = control.EntryPut(b"1", 0, b"t1"), control.EntryPut(b"2", 0, b"t2")
    first = await change(bench, one.frame(b"a/k"), other.frame(b"a/k"))
    assert await values(bench, b"a") == {b"k": b"1"}
    assert (await outcome(bench, b"t1"), await outcome(bench, b"t2")) == ((DONE, first), (CONFLICT, first))


async def test_a_removal(bench: Bench) -> None:
    first = await put(bench, b"a/k")
    await bench.append(control.EntryRemoved(first + 1, b"t1").frame(b"a/k"))
    assert await outcome(bench, b"t1") == (CONFLICT, first)
    gone = await change(bench, control.EntryRemoved(first, b"t2").frame(b"a/k"))
    assert await outcome(bench, b"t2") == (DONE, gone)
    assert await bench.engine.entry(b"a", b"k") is None
    await bench.append(control.EntryRemoved(None, b"t3").frame(b"a/k"), control.EntryRemoved(0, b"t4").frame(b"a/k"))
    assert (await outcome(bench, b"t3"), await outcome(bench, b"t4")) == ((DONE, 0), (DONE, 0))
    await bench.append(control.EntryRemoved(first, b"t5").frame(b"a/k"))
    assert await outcome(bench, b"t5") == (CONFLICT, 0)


async def test_a_change_is_made_once(bench: Bench) -> None:
    first = await put(bench, b"a/k", b"1", None, b"t")
    await put(bench, b"a/k", b"2")
    await put(bench, b"a/k", b"1", None, b"t")
    await bench.append(control.EntryRemoved(None, b"t").frame(b"a/k"))
    assert await values(bench, b"a") == {b"k": b"2"}
    assert await outcome(bench, b"t") == (DONE, first)
    assert await bench.engine.entry_change(b"unknown") is None


@pytest.mark.engine_only
async def test_the_latest_outcomes_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_OUTCOMES", 3)
    for number in range(5):
        await put(bench, b"a/k", b"", None, b"%d" % number)
    kept = [await bench.engine.entry_change(b"%d" % number) is not None for number in range(5)]
    assert kept == [False, False, True, True, True]


@pytest.mark.parametrize("restart", [False, True])
async def test_the_record_says_how_much_there_may_be(bench: Bench, restart: bool) -> None:
    def frame(key: bytes, value: bytes, token: bytes) -> bytes:
        return control.EntryPut(value, None, token, 2, 20).frame(b"a/" + key)

    await bench.append(frame(b"1", bytes(8), b"t1"), frame(b"2", b"", b"t2"), frame(b"3", b"", b"t3"))
    if restart:
        await bench.reopen()
    assert [(await outcome(bench, token))[0] for token in (b"t1", b"t2", b"t3")] == [DONE, DONE, FULL]
    await bench.append(frame(b"2", bytes(9), b"t4"), frame(b"2", bytes(8), b"t5"), frame(b"1", bytes(7), b"t6"))
    assert [(await outcome(bench, token))[0] for token in (b"t4", b"t5", b"t6")] == [FULL, DONE, DONE]
    await bench.append(control.EntryRemoved().frame(b"a/2"), frame(b"3", b"", b"t7"))
    assert (await outcome(bench, b"t7"))[0] is DONE


async def test_changes_behind_a_revision(bench: Bench) -> None:
    engine = bench.engine
    assert await engine.bucket_changes(b"a", 0, 9) == BucketChanges([], 0, False, False)
    first = await put(bench, b"a/1")
    await put(bench, b"b/1")
    second = await put(bench, b"a/2")
    assert await engine.bucket_changes(b"a", 0, 9) == BucketChanges([], second, False, True)
    assert await engine.bucket_changes(b"a", second, 9) == BucketChanges([], second, False, False)
    third = await put(bench, b"a/1")
    found = await engine.bucket_changes(b"a", first, 9)
    assert [(each.key, each.revision) for each in found.entries] == [(b"2", second), (b"1", third)]
    assert (found.revision, found.more, found.is_reset) == (third, False, False)
    found = await engine.bucket_changes(b"a", first, 1)
    assert ([each.key for each in found.entries], found.revision, found.more) == ([b"2"], second, True)


async def test_a_removal_resets_whoever_has_not_seen_it(bench: Bench) -> None:
    engine = bench.engine
    first = await put(bench, b"a/1")
    await put(bench, b"a/2")
    gone = await change(bench, control.EntryRemoved().frame(b"a/1"))
    assert await engine.bucket_changes(b"a", first, 9) == BucketChanges([], gone, False, True)
    last = await put(bench, b"a/3")
    assert [each.key for each in (await engine.bucket_changes(b"a", gone, 9)).entries] == [b"3"]
    await bench.append(control.EntryRemoved().frame(b"a/2"), control.EntryRemoved().frame(b"a/3"))
    assert await engine.bucket_changes(b"a", last, 9) == BucketChanges([], 0, False, True)
    again = await put(bench, b"a/4")
    assert await engine.bucket_changes(b"a", last, 9) == BucketChanges([], again, False, True)
    assert await engine.bucket_changes(b"a", 0, 9) == BucketChanges([], again, False, True)


@dataclass
class Model:
    """Buckets as a dict."""

    entries: dict[tuple[bytes, bytes], tuple[bytes, int]] = field(default_factory=dict)
    outcomes: dict[bytes, EntryChange] = field(default_factory=dict)

    def fold(self, bucket: bytes, key: bytes, event: control.EntryPut | control.EntryRemoved, changed: int) -> None:
        if event.token in self.outcomes:
            return
        _, revision = self.entries.get((bucket, key), (b"", 0))
        if event.expected not in (None, revision):
            self.outcomes[event.token] = EntryChange(CONFLICT, revision)
        elif isinstance(event, control.EntryPut):
            self.entries[bucket, key] = event.value, changed
            self.outcomes[event.token] = EntryChange(DONE, changed)
        else:
            self.outcomes[event.token] = EntryChange(DONE, changed if revision else 0)
            self.entries.pop((bucket, key), None)

    def of(self, bucket: bytes) -> list[tuple[bytes, bytes, int]]:
        return sorted((key, *self.entries[each, key]) for each, key in self.entries if each == bucket)


def shown(entries: "list[BucketEntry] | tuple[BucketEntry, ...]") -> list[tuple[bytes, bytes, int]]:
    return [(each.key, each.value, each.revision) for each in entries]


@pytest.mark.engine_only
@pytest.mark.parametrize("seed", range(12))
async def test_histories(bench: Bench, seed: int) -> None:
    """Random changes, with restarts of which some lose the views, so that the log is folded again. Somebody who polls
    has the same entries as somebody who reads."""
    rng, model, copy = random.Random(seed), Model(), dict[bytes, tuple[bytes, int]]()
    seen = 0
    for number in range(400):
        bucket, key = rng.choice((b"a", b"aa")), rng.choice((b"k", b"k/1", b"l", b"kk"))
        revision = model.entries.get((bucket, key), (b"", 0))[1]
        expected = rng.choice((None, None, revision, revision, 0, revision + 1))
        token = b"%d" % (number if rng.random() < 0.9 else rng.randrange(number + 1))
        event: control.EntryPut | control.EntryRemoved
        event = control.EntryRemoved(expected, token)
        if rng.random() < 0.8:
            event = control.EntryPut(bytes(rng.randrange(50)), expected, token)
        changed = await change(bench, event.frame(bucket + b"/" + key))
        model.fold(bucket, key, event, changed)
        assert await bench.engine.entry_change(token) == model.outcomes[token]
        if rng.random() < 0.03:
            await bench.engine.close()
            if rng.random() < 0.5:
                shutil.rmtree(bench.path / "views")
            bench.engine = await type(bench.engine).open(bench.path, CONFIG)
        if rng.random() < 0.2:
            more = True
            while more:
                changes = await bench.engine.bucket_changes(b"a", seen, 2)
                if changes.is_reset:
                    page = await bench.engine.entries(b"a", b"", None, 100)
                    copy = {each.key: (each.value, each.revision) for each in page.entries}
                copy |= {each.key: (each.value, each.revision) for each in changes.entries}
                seen, more = changes.revision, changes.more
            assert sorted((key, *row) for key, row in copy.items()) == model.of(b"a")
        for name in (b"a", b"aa"):
            assert shown((await bench.engine.entries(name, b"", None, 100)).entries) == model.of(name)  # type: ignore[arg-type]
    views = bench.engine._views.buckets
    assert views.count.value == len(model.entries)
    sizes = [len(each) + len(key) + len(value) for (each, key), (value, _) in model.entries.items()]
    assert views.size.value == sum(sizes)
    digests: list[bytes] = []
    for _ in range(2):
        await bench.engine.close()
        database = Database(bench.path / "views", 1 << 20)
        digests.append(digest_of_views(database, CONFIG.segment_size * CONFIG.generation_segments))
        database.close()
        shutil.rmtree(bench.path / "views")
        bench.engine = await type(bench.engine).open(bench.path, CONFIG)
    assert digests[0] == digests[1]
