"""The manifest of a history: pure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest, Loss, Span, from_json


def file(partition: int, begin: int, end: int, rows: int | None = None, first_ms: int = 0) -> HistoryFile:
    rows = end - begin if rows is None else rows
    return HistoryFile(
        f"{partition}-{begin}.parquet", partition, begin, end, rows, 100, 500, first_ms, first_ms + 10, 0, 1
    )


# What one export adds to a partition: files (how many offsets, how many of them are gone) and losses.
parts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 49), st.booleans()), max_size=12)


@given(st.lists(parts, max_size=5), st.dictionaries(st.integers(0, 2), st.integers(0, 1000)))
def test_any_exports_cover_each_offset_once(exports: list[list[tuple[int, int, int, bool]]], begins: dict[int, int]):
    manifest, at = HistoryManifest("sensors"), dict(begins)
    for number, export in enumerate(exports, 1):
        files: list[HistoryFile] = []
        losses: list[Loss] = []
        for partition, count, gone, is_lost in export:
            begin = at.get(partition, 0)
            at[partition] = begin + count
            if is_lost:
                losses.append(Loss(partition, begin, begin + count))
            else:
                files.append(file(partition, begin, begin + count, max(1, count - gone)))
        manifest = manifest.grown(files, losses)
        assert manifest.number == number
        assert from_json(manifest.to_json()) == manifest
    touched = {each.partition for each in (*manifest.files, *manifest.losses)}
    assert manifest.spans() == {each: Span(begins.get(each, 0), at[each]) for each in touched}
    for partition in touched:
        covered = [
            offset
            for each in (*manifest.files, *manifest.losses)
            if each.partition == partition
            for offset in range(each.begin, each.end)
        ]
        assert sorted(covered) == list(range(begins.get(partition, 0), at[partition]))


@pytest.mark.parametrize(
    ("files", "losses"),
    [
        ([file(0, 11, 20)], []),  # a gap
        ([file(0, 9, 20)], []),  # an overlap
        ([file(0, 10, 20), file(0, 10, 30)], []),  # the same twice
        ([file(0, 10, 10, 0)], []),  # nothing
        ([file(0, 10, 20, 11)], []),  # more records than offsets
        ([file(0, 10, 20)], [Loss(0, 15, 25)]),
        ([file(0, 10, 20)], [Loss(0, 21, 25)]),
    ],
)
def test_a_manifest_that_does_not_follow_is_refused(files: list[HistoryFile], losses: list[Loss]):
    manifest = HistoryManifest("sensors").grown([file(0, 0, 10)], [])
    with pytest.raises(HistoryError):
        manifest.grown(files, losses)


def test_files_are_selected_by_time():
    files = [file(0, 0, 10, first_ms=100), file(0, 10, 20, first_ms=200), file(0, 20, 30, first_ms=300)]
    manifest = HistoryManifest("sensors").grown(files, [])
    assert [each.begin for each in manifest.within(None, None)] == [0, 10, 20]
    assert [each.begin for each in manifest.within(110, None)] == [0, 10, 20]  # the last of the first one is at 110
    assert [each.begin for each in manifest.within(111, 300)] == [10]
    assert [each.begin for each in manifest.within(111, 301)] == [10, 20]


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b'{"parent": 1}', b"[]"])
def test_a_malformed_manifest_is_reported(text: bytes):
    with pytest.raises(HistoryError):
        from_json(text)


def test_of_a_later_format_is_refused():
    with pytest.raises(HistoryError, match="format 3"):
        from_json(replace(HistoryManifest("sensors"), format=3).to_json())


def test_an_inconsistent_one_is_refused():
    data = HistoryManifest("sensors").grown([file(0, 0, 10), file(0, 10, 20)], []).to_json()
    with pytest.raises(HistoryError, match="inconsistent"):
        from_json(data.replace(b'"begin": 10', b'"begin": 12'))
