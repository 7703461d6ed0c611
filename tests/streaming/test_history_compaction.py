"""Small files of a history become large ones, and nobody who reads or exports meanwhile notices."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cloud_sdk.blocking import Client
from streaming.history.compaction import Compacted, Compactor, clean_up, runs
from streaming.history.export import Exporter, ExportOptions
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest, Loss, Span
from streaming.history.verify import faults, orphans
from tests.streaming.conftest import STORED_MS, FakeNode

DAY_MS = 86_400_000
MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.endpoint) as opened:
        yield opened


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryFolder:
    return HistoryFolder(str(tmp_path / "history") if request.param == "local" else f"memory://{tmp_path.name}/h")


def export(client: Client, folder: HistoryFolder, **options: object) -> None:
    Exporter(client, folder, "sensors", ExportOptions(**options)).run()  # type: ignore[arg-type]


def compact(folder: HistoryFolder, before: str | None = None) -> Compacted:
    return Compactor(folder, "sensors", 256 * MIB, before).run()


def records(folder: HistoryFolder, manifest: HistoryManifest | None = None) -> dict[int, list[int]]:
    """Offsets in the files that count, by partition, in order; each payload is its offset."""
    found: dict[int, list[int]] = {}
    manifest = folder.manifest("sensors") if manifest is None else manifest
    for each in sorted(manifest.files, key=lambda file: file.begin):
        with folder.files.open_input_file(folder.path(each.path)) as source:
            table = pq.read_table(source)
        assert [int(payload) for payload in table["payload"].to_pylist()] == table["offset"].to_pylist()
        found.setdefault(each.partition, []).extend(table["offset"].to_pylist())
    return found


def hourly(node: FakeNode, client: Client, folder: HistoryFolder, times: int = 5) -> None:
    """So many exports, each of four records of one partition and of one of another."""
    for _ in range(times):
        node.publish(0, 4)
        node.publish(2, 1)
        export(client, folder)


def test_small_files_become_one(node: FakeNode, client: Client, folder: HistoryFolder):
    hourly(node, client, folder)
    before = folder.manifest("sensors")
    done = compact(folder)
    assert (done.old_files, done.new_files, done.rows) == (10, 2, 25)
    assert done.old_size == sum(each.size for each in before.files)
    manifest = folder.manifest("sensors")
    assert done.new_size == sum(each.size for each in manifest.files) < done.old_size
    assert manifest.number == before.number + 1
    assert manifest.spans() == before.spans() == {0: Span(0, 20), 2: Span(0, 5)}
    assert records(folder) == {0: list(range(20)), 2: list(range(5))}
    assert list(faults(folder, manifest)) == []
    first = manifest.files[0]
    old = [each for each in before.files if each.partition == first.partition]
    assert (first.first_ms, first.last_ms) == (old[0].first_ms, old[-1].last_ms)
    assert (first.first_position, first.last_position) == (old[0].first_position, old[-1].last_position)
    assert first.date == old[0].date == "2026-01-01"
    assert compact(folder).new_files == 0
    assert folder.manifest("sensors") == manifest
    node.publish(0, 3)
    export(client, folder)
    assert records(folder) == {0: list(range(23)), 2: list(range(5))}


def test_old_files_stay_until_they_are_cleaned_up(node: FakeNode, client: Client, folder: HistoryFolder):
    hourly(node, client, folder)
    before = folder.manifest("sensors")
    compact(folder)
    whole = {0: list(range(20)), 2: list(range(5))}
    assert records(folder, before) == whole  # who planned before reads on
    assert orphans(folder, folder.manifest("sensors"), 0) == []
    assert clean_up(folder, "sensors", 3600) == []
    assert records(folder, before) == whole
    node.publish(1, 1)
    export(client, folder)  # an export in between forgets none of them
    removed = clean_up(folder, "sensors", 0)
    assert sorted(removed) == sorted(each.path for each in before.files)
    assert folder.manifest("sensors").replaced == ()
    assert records(folder) == {**whole, 1: [0]}
    assert clean_up(folder, "sensors", 0) == []
    assert sorted(name for name, _ in folder.loose_files("sensors")) == sorted(
        each.path for each in folder.manifest("sensors").files
    )


def test_dates_stay_apart_and_todays_may_be_left(node: FakeNode, client: Client, folder: HistoryFolder):
    for _ in range(6):
        node.publish(0, 2, apart_ms=DAY_MS // 4)
        export(client, folder)
    assert [each.date[-2:] for each in folder.manifest("sensors").files] == ["01", "01", "02", "02", "03", "03"]
    assert compact(folder, before="2026-01-03").new_files == 2
    assert sorted(each.date[-2:] for each in folder.manifest("sensors").files) == ["01", "02", "03", "03"]
    assert compact(folder).new_files == 1
    assert records(folder) == {0: list(range(12))}


def test_compaction_keeps_the_list_of_lost_ranges(node: FakeNode, client: Client, folder: HistoryFolder):
    hourly(node, client, folder, 2)
    node.publish(0, 6)
    node.begins[0] = 10
    node.gone |= {(0, 12), (0, 13)}
    export(client, folder, allow_losses=True)
    node.publish(0, 2)
    export(client, folder)
    before = folder.manifest("sensors")
    assert before.losses == (Loss(0, 8, 10),)
    compact(folder)
    manifest = folder.manifest("sensors")
    assert manifest.spans() == before.spans()
    assert manifest.losses == before.losses
    assert [(each.begin, each.end, each.rows) for each in manifest.files if each.partition == 0] == [
        (0, 8, 8),
        (10, 16, 4),
    ]
    assert records(folder) == {0: [*range(8), 10, 11, 14, 15], 2: [0, 1]}


def test_a_damaged_file_is_not_replaced(node: FakeNode, client: Client, tmp_path: Path):
    folder = HistoryFolder(str(tmp_path))
    hourly(node, client, folder)
    before = folder.manifest("sensors")
    broken = next(each for each in before.files if each.partition == 2)
    data = bytearray((tmp_path / broken.path).read_bytes())
    data[40] ^= 1
    (tmp_path / broken.path).write_bytes(data)
    with pytest.raises(HistoryError, match=broken.path):
        compact(folder)
    manifest = folder.manifest("sensors")
    assert [each for each in manifest.files if each.partition == 2] == [
        each for each in before.files if each.partition == 2
    ]
    assert records(
        folder, HistoryManifest("sensors", 1, tuple(each for each in manifest.files if each.partition == 0))
    ) == {0: list(range(20))}
    assert len([each for each in manifest.files if each.partition == 0]) == 1  # what was done before is kept
    assert orphans(folder, manifest, 0) == []


def test_an_export_meanwhile_is_kept(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    hourly(node, client, folder)
    compactor, exporter = Compactor(folder, "sensors", 256 * MIB), Exporter(client, folder, "sensors")
    copy = Compactor._copy

    def export_first(self: Compactor, *given: object) -> None:
        monkeypatch.setattr(Compactor, "_copy", copy)
        node.publish(0, 4)
        exporter.run()
        copy(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Compactor, "_copy", export_first)
    assert compactor.run().new_files == 2
    assert records(folder) == {0: list(range(24)), 2: list(range(5))}
    waiting = Exporter(client, folder, "sensors")
    compact(folder)
    node.publish(2, 1)
    waiting.run()
    assert records(folder) == {0: list(range(24)), 2: list(range(6))}


def test_of_two_compactions_one_counts(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    hourly(node, client, folder)
    copy = Compactor._copy

    def compact_first(self: Compactor, *given: object) -> None:
        monkeypatch.setattr(Compactor, "_copy", copy)
        compact(folder)
        copy(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Compactor, "_copy", compact_first)
    with pytest.raises(HistoryError, match="not in its history any more"):
        compact(folder)
    assert records(folder) == {0: list(range(20)), 2: list(range(5))}
    assert len(orphans(folder, folder.manifest("sensors"), 0)) == 2


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_compaction_may_be_killed_anywhere(node: FakeNode, client: Client, tmp_path: Path):
    """And the removal of what it replaced: each step is the last one once."""
    folder = HistoryFolder(str(tmp_path / "history"))
    hourly(node, client, folder, 2)
    whole = {0: list(range(8)), 2: [0, 1]}
    (tmp_path / "copies").mkdir()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.streaming.killed_compaction",
            str(tmp_path / "history"),
            str(tmp_path / "copies"),
        ],
        check=True,
        cwd=ROOT,
    )
    copies = sorted(tmp_path.glob("copies/*"))
    assert len(copies) > 20
    states: set[tuple[int, int]] = set()
    for each in copies:
        left = HistoryFolder(str(each))
        manifest = left.manifest("sensors")
        states.add((len(manifest.files), len(manifest.replaced)))
        assert records(left) == whole
        assert list(faults(left, manifest)) == []
        compact(left)
        clean_up(left, "sensors", -1.0)
        manifest = left.manifest("sensors")
        assert (len(manifest.files), manifest.replaced) == (2, ())
        assert records(left) == whole
        assert sorted(name for name, _ in left.loose_files("sensors")) == sorted(file.path for file in manifest.files)
        shutil.rmtree(each)
    assert states == {(4, 0), (2, 4), (2, 0)}


def file(partition: int, begin: int, end: int, size: int = 10, date: str = "2026-01-01") -> HistoryFile:
    path = f"parent=sensors/date={date}/{partition}-{begin}.parquet"
    return HistoryFile(path, partition, begin, end, end - begin, size, 5 * size, STORED_MS, STORED_MS, begin, end - 1)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], []),
        ([file(0, 0, 5)], []),
        ([file(0, 0, 5), file(0, 5, 9)], [(0, 9)]),
        ([file(0, 5, 9), file(1, 0, 3), file(0, 0, 5)], [(0, 9)]),
        ([file(0, 0, 5), file(0, 6, 9), file(0, 9, 12)], [(6, 12)]),  # [5, 6) is lost
        ([file(0, 0, 5), file(0, 5, 9, date="2026-01-02")], []),
        ([file(0, 0, 5, 60), file(0, 5, 9, 40), file(0, 9, 10, 1)], [(0, 9)]),
        ([file(0, 0, 5, 60), file(0, 5, 9, 41), file(0, 9, 10, 1)], [(5, 10)]),
        ([file(0, 0, 5, 200), file(0, 5, 9, 1), file(0, 9, 10, 99)], [(5, 10)]),
        ([file(0, 0, 5, 200), file(0, 5, 9, 200)], []),
    ],
)
def test_which_files_are_merged(files: list[HistoryFile], expected: list[tuple[int, int]]):
    found = list(runs(HistoryManifest("sensors", 1, tuple(files)), 100))
    assert [(run[0].begin, run[-1].end) for run in found] == expected
    assert all(len(run) > 1 for run in found)


def test_a_merge_of_different_records_is_refused():
    manifest = HistoryManifest("sensors").grown([file(0, 0, 5), file(0, 5, 9)], [])
    old = manifest.files
    assert manifest.compacted(old, [file(0, 0, 9)], 7).files == (file(0, 0, 9),)
    for new in ([], [file(0, 0, 8)], [file(0, 0, 10)], [file(0, 1, 10)], [file(1, 0, 9)]):
        with pytest.raises(HistoryError):
            manifest.compacted(old, new, 7)
    with pytest.raises(HistoryError, match="not in its history"):
        manifest.compacted([file(0, 0, 5, 11)], [file(0, 0, 5)], 7)
