"""Manifests of a tier: one process after the other writes them, and nobody removes what another one needs."""

import os
from pathlib import Path

import pytest

from store.config import TierConfig
from store.errors import LogCorrupt, TierUnavailable
from store.log.disk import Disk
from store.log.segments import Segments
from store.log.tiered import Tiered, TieredSegment, read_tiered
from store.tier.codec import Zstd
from store.tier.objects import Objects
from store.tier.stored_objects import connect_objects
from store.tier.tier import Tier
from tests.store.tier.memory_objects import MemoryObjects

SIZE = 4096


def open_tier(folder: Path, objects: Objects, *openings: str) -> Tier:
    folder.mkdir(exist_ok=True)
    segments = Segments(folder, SIZE, Disk())
    segments.set_tiered(read_tiered(folder))
    return Tier(segments, objects, Zstd(), TierConfig("memory"), openings)


def upload(tier: Tier, base: int) -> TieredSegment:
    return tier.upload(tier.start_for(base), base, base + SIZE, 1, lambda length, offset: bytes(length), lambda: None)


def add(tier: Tier, base: int) -> bool:
    return tier.publish([*tier.tiered.segments, upload(tier, base)])


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def first(tmp_path: Path, objects: MemoryObjects) -> Tier:
    """One with a segment."""
    tier = open_tier(tmp_path / "first", objects, "a")
    assert add(tier, 0)
    return tier


def copy(tier: Tier, tmp_path: Path, objects: MemoryObjects, *openings: str) -> Tier:
    """What a copy of the data folder opens."""
    folder = tmp_path / "-".join(openings)
    folder.mkdir()
    (folder / "tiered.json").write_bytes(tier.tiered.packed())
    return open_tier(folder, objects, *openings)


def names(tier: Tier) -> set[str]:
    return {segment.name for segment in tier.tiered.segments}


@pytest.mark.parametrize("sweeps", [False, True])
def test_a_copy_that_comes_later_writes_elsewhere(
    first: Tier, tmp_path: Path, objects: MemoryObjects, sweeps: bool
) -> None:
    other = copy(first, tmp_path, objects, "a", "b")
    for base in (SIZE, 2 * SIZE):
        assert add(first, base)
        if sweeps:  # the manifest that the copy wants to write is free again
            first.sweep()
    assert not add(other, SIZE)
    assert other.tiered.folder != first.tiered.folder
    assert add(other, SIZE)
    assert add(other, 2 * SIZE)
    other.sweep()
    assert other.publish(other.tiered.segments[2:])
    other.sweep()
    first.sweep()
    assert names(first) <= set(objects.objects)
    assert names(other) <= set(objects.objects)
    assert add(first, 3 * SIZE)


def test_a_copy_that_comes_first_has_the_folder(first: Tier, tmp_path: Path, objects: MemoryObjects) -> None:
    other = copy(first, tmp_path, objects, "a", "b")
    assert add(other, SIZE)
    assert not add(first, SIZE)
    assert add(first, SIZE)
    assert other.tiered.folder != first.tiered.folder
    for tier in (other, first):
        tier.sweep()
    assert names(first) | names(other) <= set(objects.objects)


def test_a_later_process_of_the_same_folder_goes_on(first: Tier, tmp_path: Path, objects: MemoryObjects) -> None:
    objects.fault = lambda kind: "unanswered" if kind == "create" else ""
    with pytest.raises(TierUnavailable):
        add(first, SIZE)
    objects.fault = lambda _: ""
    again = open_tier(tmp_path / "first", objects, "a", "b")
    assert not add(again, SIZE)  # it finds the manifest of before
    assert [segment.base for segment in again.tiered.segments] == [0, SIZE]
    assert again.tiered.folder == first.tiered.folder
    assert add(again, 2 * SIZE)
    assert again.sweep() == 3  # two manifests, and an object that is in none
    assert names(again) | {f"logs/{again.tiered.folder}/manifests/{3:020}"} == set(objects.objects)


def test_a_sweep_leaves_what_the_next_manifest_may_name(first: Tier, objects: MemoryObjects) -> None:
    segment = upload(first, SIZE)
    first.sweep()
    assert first.publish([*first.tiered.segments, segment])
    first.sweep()
    assert segment.name in objects.objects


def test_an_empty_store_in_its_place_is_no_store(first: Tier, objects: MemoryObjects) -> None:
    """As a folder of the network that is not mounted."""
    there, objects.objects = objects.objects, {}
    with pytest.raises(TierUnavailable, match="not the store"):
        first.read(0, 1, 0)
    with pytest.raises(TierUnavailable, match="not the store"):
        add(first, SIZE)
    assert first.error
    assert not objects.objects, "nothing fills a disk that is not the tier's"
    objects.objects = there
    assert add(first, SIZE)


def test_another_store_does_not_answer_for_the_tier(
    first: Tier, objects: MemoryObjects, caplog: pytest.LogCaptureFixture
) -> None:
    objects.objects = {}
    first._reading.check = lambda: None  # type: ignore[method-assign]  # who reads later asks again
    for _ in range(3):
        for ask in (lambda: first.read(0, 1, 0), lambda: upload(first, SIZE), lambda: first.audit(segment_of(first))):
            with pytest.raises(TierUnavailable, match="not the store"):
                ask()
    assert caplog.text.count("the tier does not answer") == 2, "once for reads, once for writes"
    assert "the tier answers" not in caplog.text


def segment_of(tier: Tier) -> TieredSegment:
    return tier.tiered.segments[0]


def test_what_is_uploaded_and_not_published_is_not_uploaded_again(first: Tier, objects: MemoryObjects) -> None:
    """As in a store that refuses manifests: it would fill up."""
    objects.fault = lambda kind: "refused" if kind == "create" else ""
    for _ in range(3):
        with pytest.raises(TierUnavailable):
            add(first, SIZE)
    puts = [name for kind, name in objects.requests if kind == "put"]
    assert len(puts) == 2
    objects.fault = lambda _: ""
    objects.objects[puts[1]] = b"other bytes"
    assert add(first, SIZE)
    assert first.read(SIZE, SIZE, 0) == bytes(SIZE)
    assert first.sweep() == 2  # the object that was damaged, and the older manifest


def test_an_object_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "log", connect_objects(f"file://{tmp_path}/tier", {}), "a")
    assert add(tier, 0)
    path = tmp_path / "tier" / segment_of(tier).name
    for size in (len(path.read_bytes()) - 1, 1, 0):
        os.truncate(path, size)
        with pytest.raises(LogCorrupt, match="it ends at"):
            tier.read(0, 1, 0)
    assert not tier.error
    tier.close()


def test_the_list_in_the_folder_is_the_newest_manifest(first: Tier, tmp_path: Path, objects: MemoryObjects) -> None:
    assert read_tiered(tmp_path / "first") == first.tiered
    tiered = first.tiered
    assert objects.objects[f"logs/{tiered.folder}/manifests/{tiered.number:020}"] == tiered.packed()
    assert Tiered(tiered.folder, tiered.number, "a", tiered.segments) == tiered


def test_a_store_that_only_lists_has_one_error(
    first: Tier, objects: MemoryObjects, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose credentials do not allow removals."""
    above = "logs/x"
    objects.objects[f"{above}/segments/{1:020}-{0:020}-a"] = b"left"
    objects.fault = lambda kind: "refused" if kind == "delete" else ""
    for _ in range(3):
        with pytest.raises(TierUnavailable):
            first.remove_unnamed(above, 1, ())
        assert first.error
    assert len(caplog.records) == 1
    objects.fault = lambda _: ""
    assert first.remove_unnamed(above, 1, ()) == (1, set())
    assert not first.error
