"""Exporting from a node of a few calls to folders on several file systems."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cloud_sdk.arrow import SCHEMA
from cloud_sdk.blocking import Client
from streaming.history import file_writer
from streaming.history.commit import HistoryChanged
from streaming.history.export import Exported, Exporter, ExportOptions
from streaming.history.folder import HistoryFolder, folder_of
from streaming.history.manifest import HistoryError, HistoryManifest, Span
from streaming.history.partition_export import PartitionExport
from streaming.history.verify import faults, orphans
from tests.streaming.conftest import STORED_MS, FakeNode

DAY_MS = 86_400_000


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.endpoint) as opened:
        yield opened


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryFolder:
    return HistoryFolder(str(tmp_path / "history") if request.param == "local" else f"memory://{tmp_path.name}/h")


def export(client: Client, folder: HistoryFolder, **options: object) -> Exported:
    return Exporter(client, folder, "sensors", ExportOptions(**options)).run()  # type: ignore[arg-type]


def offsets(folder: HistoryFolder) -> dict[int, list[int]]:
    """Of the records in all files that count, by partition, in the order of the manifest."""
    found: dict[int, list[int]] = {}
    for each in folder.manifest("sensors").files:
        with folder.files.open_input_file(folder.path(each.path)) as source:
            table = pq.read_table(source)
        assert table.schema.names == SCHEMA.names
        assert [int(payload) for payload in table["payload"].to_pylist()] == table["offset"].to_pylist()
        found.setdefault(each.partition, []).extend(table["offset"].to_pylist())
    return found


def test_an_export_takes_all_then_what_is_new(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    node.publish(2, 4)
    done = export(client, folder)
    assert (done.files, done.rows, done.lost) == (2, 14, 0)
    assert done.spans == {0: Span(0, 10), 2: Span(0, 4)}
    assert export(client, folder).files == 0
    assert folder.manifest("sensors").number == 1  # nothing new, no new state
    node.publish(0, 5)
    node.publish(1, 1)
    assert export(client, folder).spans == {0: Span(0, 15), 1: Span(0, 1), 2: Span(0, 4)}
    assert offsets(folder) == {0: list(range(15)), 1: [0], 2: list(range(4))}
    assert folder.parents() == ["sensors"]
    assert list(faults(folder, folder.manifest("sensors"))) == []
    assert orphans(folder, folder.manifest("sensors"), 0) == []


def test_a_file_is_of_one_date(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10, apart_ms=DAY_MS // 4)
    export(client, folder)
    files = folder.manifest("sensors").files
    assert [(each.begin, each.end) for each in files] == [(0, 4), (4, 8), (8, 10)]
    assert [each.path.split("/")[1] for each in files] == ["date=2026-01-01", "date=2026-01-02", "date=2026-01-03"]
    assert [each.first_ms for each in files] == [STORED_MS, STORED_MS + DAY_MS, STORED_MS + 2 * DAY_MS]
    assert files[0].last_ms == STORED_MS + 3 * DAY_MS // 4
    assert offsets(folder) == {0: list(range(10))}


def test_held_messages_have_the_date_of_their_storage(node: FakeNode, client: Client, folder: HistoryFolder):
    """A delayed message lies behind younger ones, with the time at which it was stored first."""
    node.publish(0, 4, apart_ms=DAY_MS // 2)
    node.publish(0, 2, apart_ms=0)
    node.publish(0, 3, apart_ms=DAY_MS // 2)
    export(client, folder)
    files = folder.manifest("sensors").files
    assert [(each.begin, each.end) for each in files] == [(0, 2), (2, 6), (6, 8), (8, 9)]
    assert [each.path.split("/")[1][-2:] for each in files] == ["01", "02", "04", "05"]
    assert (files[1].first_ms, files[1].last_ms) == (STORED_MS, STORED_MS + 3 * DAY_MS // 2)
    assert offsets(folder) == {0: list(range(9))}


def test_files_end_at_their_size(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_writer, "_GROUP_ROWS", 4)
    node.publish(0, 20)
    export(client, folder, file_bytes=1)
    files = folder.manifest("sensors").files
    assert [(each.begin, each.end) for each in files] == [(n, min(n + 3, 20)) for n in range(0, 20, 3)]  # a page each
    assert offsets(folder) == {0: list(range(20))}


def test_an_export_stops_at_the_given_time(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    assert export(client, folder, until_ms=STORED_MS + 7).spans == {0: Span(0, 7)}
    assert export(client, folder, until_ms=STORED_MS + 5).files == 0  # that is exported already
    assert export(client, folder).spans == {0: Span(0, 10)}
    assert offsets(folder) == {0: list(range(10))}


def test_messages_lost_to_retention_are_an_error_or_noted(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    export(client, folder)
    node.publish(0, 10)
    node.begins[0] = 14
    with pytest.raises(HistoryError, match=r"\[10, 14\) 4 are gone .* --allow-losses"):
        export(client, folder)
    assert folder.manifest("sensors").spans() == {0: Span(0, 10)}
    done = export(client, folder, allow_losses=True)
    assert (done.lost, done.rows) == (4, 6)
    assert done.spans == {0: Span(0, 20)}
    assert offsets(folder) == {0: [*range(10), *range(14, 20)]}


def test_single_records_that_are_gone_are_an_error_or_noted(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    node.publish(1, 3)
    node.gone |= {(0, 4), (0, 5), (0, 9), (1, 0), (1, 1), (1, 2)}
    with pytest.raises(HistoryError, match="are gone"):
        export(client, folder)
    assert orphans(folder, folder.manifest("sensors"), 0) == []
    assert folder.manifest("sensors").spans() == {0: Span(0, 4)}  # what lies before is kept
    done = export(client, folder, allow_losses=True)
    assert (done.lost, done.rows) == (6, 3)
    assert done.spans == {0: Span(0, 10), 1: Span(0, 3)}
    assert offsets(folder) == {0: [0, 1, 2, 3, 6, 7, 8]}
    node.publish(1, 2)
    assert export(client, folder).spans == {0: Span(0, 10), 1: Span(0, 5)}


def test_a_partition_with_losses_keeps_no_other_back(node: FakeNode, client: Client, folder: HistoryFolder):
    for number in range(3):
        node.publish(number, 10)
    node.gone |= {(1, 5)}
    for _ in range(2):
        with pytest.raises(HistoryError, match=r"partition 1 .* are gone"):
            export(client, folder)
        assert folder.manifest("sensors").spans() == {0: Span(0, 10), 1: Span(0, 5), 2: Span(0, 10)}
        assert orphans(folder, folder.manifest("sensors"), 0) == []
    assert offsets(folder) == {0: list(range(10)), 1: list(range(5)), 2: list(range(10))}


def after_each_page(monkeypatch: pytest.MonkeyPatch, act: Callable[[PartitionExport], None]) -> None:
    """Call `act` whenever a page has been exported."""
    page = PartitionExport.page

    def page_and_act(part: PartitionExport) -> int:
        size = page(part)
        act(part)
        return size

    monkeypatch.setattr(PartitionExport, "page", page_and_act)


def test_files_of_a_partition_that_is_done_count_while_others_are_exported(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    """An export may take days: `history clean` takes old files that do not count for abandoned."""
    monkeypatch.setattr("streaming.history.export._COMMIT_S", 0.0)
    node.publish(0, 4)
    node.publish(1, 9)
    left: list[int] = []

    def count_orphans(part: PartitionExport) -> None:
        if part.partition == 1 and part.offset > 6:
            left.append(len(orphans(folder, folder.manifest("sensors"), 0)))

    after_each_page(monkeypatch, count_orphans)
    Exporter(client, folder, "sensors").run()
    assert left
    assert max(left) == 1  # the one that is being written
    assert offsets(folder) == {0: list(range(4)), 1: list(range(9))}


def test_retention_that_overtakes_an_export_is_seen(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 20)

    def overtake(part: PartitionExport) -> None:
        if part.offset >= 6:
            node.begins[0] = 13

    after_each_page(monkeypatch, overtake)
    with pytest.raises(HistoryError, match=r"\[6, 13\) 7 are gone"):
        Exporter(client, folder, "sensors").run()
    assert offsets(folder) == {0: list(range(6))}
    assert orphans(folder, folder.manifest("sensors"), 0) == []
    done = export(client, folder, allow_losses=True)
    assert (done.rows, done.lost) == (7, 7)
    assert offsets(folder) == {0: [*range(6), *range(13, 20)]}


def test_a_shorter_log_is_another_one(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    export(client, folder)
    node.frames[0] = node.frames[0][:6]
    with pytest.raises(HistoryError, match="another log: partition 0 ends at 6"):
        export(client, folder)


def test_a_log_with_other_records_is_another_one(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    node.publish(1, 12)
    export(client, folder)
    node.frames[0] = node.frames[1]
    with pytest.raises(HistoryError, match="another log: offset 9 of partition 0 is the position"):
        export(client, folder)


def test_an_interrupted_export_keeps_its_files(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 20)
    stopping = threading.Event()

    def stop(part: PartitionExport) -> None:
        if part.offset >= 6:
            stopping.set()

    after_each_page(monkeypatch, stop)
    done = Exporter(client, folder, "sensors").run(stopping)
    assert done.spans == {0: Span(0, 6)}
    export(client, folder)
    assert offsets(folder) == {0: list(range(20))}


def test_two_exporters_do_no_harm(node: FakeNode, client: Client, folder: HistoryFolder):
    node.publish(0, 10)
    slow = Exporter(client, folder, "sensors")
    export(client, folder)
    node.publish(0, 10)
    with pytest.raises(HistoryChanged, match="another exporter"):
        slow.run()
    assert offsets(folder) == {0: list(range(10))}
    left = orphans(folder, folder.manifest("sensors"), 0)
    assert len(left) == 1
    export(client, folder)
    assert offsets(folder) == {0: list(range(20))}


def test_an_exporter_that_fails_leaves_the_state_before(
    node: FakeNode, client: Client, folder: HistoryFolder, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 10)
    export(client, folder)
    node.publish(0, 10)

    def fail(self: HistoryFolder, manifest: HistoryManifest) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(HistoryFolder, "commit", fail)
    with pytest.raises(OSError, match="full"):
        export(client, folder)
    monkeypatch.undo()
    assert offsets(folder) == {0: list(range(10))}
    assert len(orphans(folder, folder.manifest("sensors"), 0)) == 1
    assert orphans(folder, folder.manifest("sensors")) == []  # it may be somebody's who exports
    export(client, folder)
    assert offsets(folder) == {0: list(range(20))}


def test_few_states_of_a_manifest_are_kept(node: FakeNode, client: Client, folder: HistoryFolder):
    for _ in range(12):
        node.publish(0, 1)
        export(client, folder)
    assert folder.manifest("sensors").number == 12
    assert folder._numbers("sensors") == list(range(5, 13))


def test_faults_are_found(node: FakeNode, client: Client, tmp_path: Path):
    folder = HistoryFolder(str(tmp_path))
    node.publish(0, 4)
    node.publish(1, 4)
    node.publish(2, 4)
    export(client, folder)
    first, second, third = folder.manifest("sensors").files
    (tmp_path / first.path).unlink()
    whole = (tmp_path / second.path).read_bytes()
    (tmp_path / second.path).write_bytes(whole[:50] + bytes(100) + whole[150:])
    (tmp_path / third.path).write_bytes((tmp_path / third.path).read_bytes() + b"x")
    found = {each.path: each.problem for each in faults(folder, folder.manifest("sensors"))}
    assert set(found) == {first.path, second.path, third.path}
    assert found[third.path] == f"{third.size + 1} bytes, not {third.size}"


@pytest.mark.parametrize("parent", ["sensors", "", "a b", "$SYS", "..", "%", "ä", "a=b"])
def test_any_parent_has_a_folder(parent: str, tmp_path: Path):
    folder = HistoryFolder(str(tmp_path))
    assert "/" not in folder_of(parent)
    assert folder.manifest(parent) == HistoryManifest(parent)
    folder.commit(HistoryManifest(parent, 1))
    assert folder.parents() == [parent]
    assert folder.manifest(parent) == HistoryManifest(parent, 1)


def test_a_manifest_that_cannot_be_read_is_said(tmp_path: Path):
    folder = HistoryFolder(str(tmp_path))
    folder.commit(HistoryManifest("sensors", 1))
    (tmp_path / "parent=sensors/_manifests/000000000002.json").write_text("{")
    with pytest.raises(HistoryError, match=r"000000000002\.json: not a manifest"):
        folder.manifest("sensors")


@pytest.mark.parametrize("uri", ["nonsense://x/y", "s3://a b/c"])
def test_a_place_that_is_none_is_said(uri: str):
    with pytest.raises(HistoryError, match="cannot open"):
        HistoryFolder(uri)


def test_dates_are_in_utc():
    assert datetime.fromtimestamp(STORED_MS / 1000, UTC).date().isoformat() == "2026-01-01"
