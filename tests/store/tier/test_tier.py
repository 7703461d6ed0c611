"""Manifests of a tier: one process after the other writes them, and nobody removes what another one needs."""

from pathlib import Path

import pytest

from store.config import TierConfig
from store.errors import TierUnavailable
from store.log.disk import Disk
from store.log.segments import Segments
from store.log.tiered import Tiered, TieredSegment, read_tiered
from store.tier.codec import Zstd
from store.tier.tier import Tier
from tests.store.tier.memory_objects import MemoryObjects

SIZE = 4096


def open_tier(folder: Path, objects: MemoryObjects, *openings: str) -> Tier:
    folder.mkdir(exist_ok=True)
    segments = Segments(folder, SIZE, Disk())
    segments.set_tiered(read_tiered(folder))
    return Tier(segments, objects, Zstd(), TierConfig("memory"), openings)


def upload(tier: Tier, base: int) -> TieredSegment:
    return tier.upload(base, base + SIZE, 1, lambda length, offset: bytes(length), lambda: None)


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
    objects.objects = there
    assert add(first, SIZE)


def test_the_list_in_the_folder_is_the_newest_manifest(first: Tier, tmp_path: Path, objects: MemoryObjects) -> None:
    assert read_tiered(tmp_path / "first") == first.tiered
    tiered = first.tiered
    assert objects.objects[f"logs/{tiered.folder}/manifests/{tiered.number:020}"] == tiered.packed()
    assert Tiered(tiered.folder, tiered.number, "a", tiered.segments) == tiered
