"""Exporting from a node of a few calls to Delta and Iceberg tables."""

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import duckdb
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from cloud_sdk.blocking import Client
from streaming.history import delta_table, file_writer, iceberg_table
from streaming.history.delta_table import DeltaFolder, DeltaHistory
from streaming.history.errors import HistoryChanged, HistoryError
from streaming.history.export import Exported, Exporter, ExportOptions
from streaming.history.folder import HistoryFolder, name_of, parent_of
from streaming.history.iceberg_table import IcebergCatalog, IcebergHistory
from streaming.history.partition_export import PartitionExport
from streaming.history.table import SCHEMA, Compacted, HistoryFile, Progress, Span
from streaming.history.verify import faults
from tests.streaming.conftest import STORED_MS, FakeNode

DAY_MS = 86_400_000

Table = DeltaHistory | IcebergHistory


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.endpoint) as opened:
        yield opened


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return opened(request.param, tmp_path)


def opened(kind: str, path: Path) -> Table:
    if kind == "delta":
        return DeltaFolder(str(path / "history")).table("sensors")
    return IcebergCatalog(f"sqlite:///{path}/catalog.db", HistoryFolder(str(path / "history"))).table("sensors")


def export(client: Client, table: Table, **options: object) -> Exported:
    return Exporter(client, table, ExportOptions(**options)).run()  # type: ignore[arg-type]


def files(table: Table) -> list[HistoryFile]:
    return sorted(table.state().files, key=lambda each: (each.partition, each.begin))


def spans(table: Table) -> dict[int, Span]:
    return table.state().spans()


def offsets(table: Table) -> dict[int, list[int]]:
    """Of the records in all files of the table, by partition."""
    found: dict[int, list[int]] = {}
    for each in files(table):
        with table.folder.files.open_input_file(table.folder.path(each.path)) as source:
            rows = pq.read_table(source)
        assert set(SCHEMA.names) - set(rows.schema.names) <= {"date", "partition"}
        assert [int(payload) for payload in rows["payload"].to_pylist()] == rows["offset"].to_pylist()
        assert rows["offset"].to_pylist()[0] == each.begin
        assert rows["offset"].to_pylist()[-1] == each.end - 1
        found.setdefault(each.partition, []).extend(rows["offset"].to_pylist())
    return found


def loose(table: Table) -> list[str]:
    """The data files that are not in the newest version of the table."""
    known = {each.path for each in table.state().files}
    found = Path(table.folder.path(table.data)).rglob("*.parquet")
    names = (str(path.relative_to(table.folder.root)) for path in found if "_delta_log" not in str(path))
    return [name for name in names if name not in known]


def test_an_export_takes_all_then_what_is_new(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    node.publish(2, 4)
    done = export(client, table)
    assert (done.files, done.rows, done.lost) == (2, 14, 0)
    assert done.ends == {0: 10, 2: 4}
    assert export(client, table).files == 0
    node.publish(0, 5)
    node.publish(1, 1)
    assert export(client, table).ends == {0: 15, 1: 1, 2: 4}
    assert offsets(table) == {0: list(range(15)), 1: [0], 2: list(range(4))}
    assert list(faults(table.folder, files(table))) == []
    assert loose(table) == []


def test_a_file_is_of_one_date(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10, apart_ms=DAY_MS // 4)
    export(client, table)
    found = files(table)
    assert [(each.begin, each.end) for each in found] == [(0, 4), (4, 8), (8, 10)]
    assert [each.date for each in found] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert [each.first_ms for each in found] == [STORED_MS, STORED_MS + DAY_MS, STORED_MS + 2 * DAY_MS]
    assert found[0].last_ms == STORED_MS + 3 * DAY_MS // 4
    assert offsets(table) == {0: list(range(10))}


def test_held_messages_have_the_date_of_their_storage(node: FakeNode, client: Client, table: Table):
    """A delayed message lies behind younger ones, with the time at which it was stored first."""
    node.publish(0, 4, apart_ms=DAY_MS // 2)
    node.publish(0, 2, apart_ms=0)
    node.publish(0, 3, apart_ms=DAY_MS // 2)
    export(client, table)
    found = files(table)
    assert [(each.begin, each.end) for each in found] == [(0, 2), (2, 6), (6, 8), (8, 9)]
    assert [each.date[-2:] for each in found] == ["01", "02", "04", "05"]
    assert (found[1].first_ms, found[1].last_ms) == (STORED_MS, STORED_MS + 3 * DAY_MS // 2)
    assert offsets(table) == {0: list(range(9))}


def test_files_end_at_their_size(node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_writer, "_GROUP_ROWS", 4)
    node.publish(0, 20)
    export(client, table, file_bytes=1)
    found = files(table)
    assert [(each.begin, each.end) for each in found] == [(n, min(n + 3, 20)) for n in range(0, 20, 3)]  # a page each
    assert offsets(table) == {0: list(range(20))}


def test_an_export_stops_at_the_given_time(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    assert export(client, table, until_ms=STORED_MS + 7).ends == {0: 7}
    assert export(client, table, until_ms=STORED_MS + 5).files == 0  # that is exported already
    assert export(client, table).ends == {0: 10}
    assert offsets(table) == {0: list(range(10))}


def test_messages_lost_to_retention_are_an_error_or_noted(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    export(client, table)
    node.publish(0, 10)
    node.begins[0] = 14
    with pytest.raises(HistoryError, match=r"\[10, 14\) 4 are gone .* --allow-losses"):
        export(client, table)
    assert spans(table) == {0: Span(0, 10)}
    done = export(client, table, allow_losses=True)
    assert (done.lost, done.rows) == (4, 6)
    assert done.ends == {0: 20}
    assert offsets(table) == {0: [*range(10), *range(14, 20)]}


def test_single_records_that_are_gone_are_an_error_or_noted(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    node.publish(1, 3)
    node.gone |= {(0, 4), (0, 5), (0, 9), (1, 0), (1, 1), (1, 2)}
    with pytest.raises(HistoryError, match="are gone"):
        export(client, table)
    assert loose(table) == []
    assert spans(table) == {0: Span(0, 4)}  # what lies before is kept
    done = export(client, table, allow_losses=True)
    assert (done.lost, done.rows) == (6, 3)
    assert done.ends == {0: 10, 1: 3}
    assert offsets(table) == {0: [0, 1, 2, 3, 6, 7, 8]}
    node.publish(1, 2)
    assert export(client, table).ends == {0: 10, 1: 5}


def test_a_partition_with_losses_keeps_no_other_back(node: FakeNode, client: Client, table: Table):
    for number in range(3):
        node.publish(number, 10)
    node.gone |= {(1, 5)}
    for _ in range(2):
        with pytest.raises(HistoryError, match=r"partition 1 .* are gone"):
            export(client, table)
        assert spans(table) == {0: Span(0, 10), 1: Span(0, 5), 2: Span(0, 10)}
        assert loose(table) == []
    assert offsets(table) == {0: list(range(10)), 1: list(range(5)), 2: list(range(10))}


def after_each_page(monkeypatch: pytest.MonkeyPatch, act: Callable[[PartitionExport], None]) -> None:
    """Call `act` whenever a page has been exported."""
    page = PartitionExport.page

    def page_and_act(part: PartitionExport) -> int:
        size = page(part)
        act(part)
        return size

    monkeypatch.setattr(PartitionExport, "page", page_and_act)


def test_files_of_a_partition_that_is_done_count_while_others_are_exported(
    node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch
):
    """An export may take days: `history vacuum` takes old files that do not count for abandoned."""
    monkeypatch.setattr("streaming.history.export._COMMIT_S", 0.0)
    node.publish(0, 4)
    node.publish(1, 9)
    left: list[int] = []

    def count_orphans(part: PartitionExport) -> None:
        if part.partition == 1 and part.offset > 6:
            left.append(len(loose(table)))

    after_each_page(monkeypatch, count_orphans)
    Exporter(client, table).run()
    assert left
    assert max(left) == 1  # the one that is being written
    assert offsets(table) == {0: list(range(4)), 1: list(range(9))}


def test_retention_that_overtakes_an_export_is_seen(
    node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 20)

    def overtake(part: PartitionExport) -> None:
        if part.offset >= 6:
            node.begins[0] = 13

    after_each_page(monkeypatch, overtake)
    with pytest.raises(HistoryError, match=r"\[6, 13\) 7 are gone"):
        Exporter(client, table).run()
    assert offsets(table) == {0: list(range(6))}
    assert loose(table) == []
    done = export(client, table, allow_losses=True)
    assert (done.rows, done.lost) == (7, 7)
    assert offsets(table) == {0: [*range(6), *range(13, 20)]}


def test_a_shorter_log_is_another_one(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    export(client, table)
    node.frames[0] = node.frames[0][:6]
    with pytest.raises(HistoryError, match="another log: partition 0 ends at 6"):
        export(client, table)


def test_a_log_with_other_records_is_another_one(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    node.publish(1, 12)
    export(client, table)
    node.frames[0] = node.frames[1]
    with pytest.raises(HistoryError, match="another log: offset 9 of partition 0 is the position"):
        export(client, table)


def test_an_interrupted_export_keeps_its_files(
    node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 20)
    stopping = threading.Event()

    def stop(part: PartitionExport) -> None:
        if part.offset >= 6:
            stopping.set()

    after_each_page(monkeypatch, stop)
    done = Exporter(client, table).run(stopping)
    assert done.ends == {0: 6}
    export(client, table)
    assert offsets(table) == {0: list(range(20))}


def test_two_exporters_do_no_harm(node: FakeNode, client: Client, table: Table):
    node.publish(0, 10)
    slow = Exporter(client, table)
    export(client, table)
    node.publish(0, 10)
    with pytest.raises(HistoryChanged, match="another writer"):
        slow.run()
    assert offsets(table) == {0: list(range(10))}
    left = loose(table)
    assert len(left) == 1
    export(client, table)
    assert offsets(table) == {0: list(range(20))}


def test_an_exporter_that_fails_leaves_the_state_before(
    node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 10)
    export(client, table)
    node.publish(0, 10)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(table), "append", fail)
    with pytest.raises(OSError, match="full"):
        export(client, table)
    monkeypatch.undo()
    assert offsets(table) == {0: list(range(10))}
    assert len(loose(table)) == 1
    export(client, table)
    assert offsets(table) == {0: list(range(20))}


def test_the_progress_is_in_the_transaction_of_the_records(node: FakeNode, client: Client, table: Table):
    """Whoever commits between the check and the commit of a slow exporter: one of them succeeds."""
    node.publish(0, 10)
    export(client, table)
    node.publish(0, 10)
    slow = Exporter(client, table)
    entered = threading.Event()
    module = delta_table if isinstance(table, DeltaHistory) else iceberg_table
    with pytest.MonkeyPatch.context() as patch:
        original = module._progress

        def late(read: Any) -> dict[int, Progress]:
            """The progress as read before the other exporter commits."""
            found = original(read)
            if not entered.is_set():
                entered.set()
                export(client, table)
            return found

        patch.setattr(module, "_progress", late)
        with pytest.raises(HistoryChanged, match="another writer"):
            slow.run()
    assert offsets(table) == {0: list(range(20))}


def test_a_checkpoint_of_the_log_has_the_progress(node: FakeNode, client: Client, tmp_path: Path):
    """Delta Lake writes one with each hundredth commit, and removes the older entries of its log later."""
    table = opened("delta", tmp_path)
    node.publish(0, 2)
    export(client, table)
    DeltaTable(table.folder.location("sensors")).create_checkpoint()
    log = Path(table.folder.path(table.data)) / "_delta_log"
    for each in sorted(log.glob("*.json"))[:-1]:
        each.unlink()
    node.publish(0, 1)
    assert export(client, table).rows == 1
    assert spans(table) == {0: Span(0, 3)}


def test_small_files_become_sorted_ones(node: FakeNode, client: Client, table: Table):
    for _ in range(3):
        node.publish(0, 3, DAY_MS // 4)
        node.publish(1, 4)
        export(client, table)
    before = files(table)
    done = table.compact(1 << 30, "2026-01-02", threading.Event())
    kept = [each for each in before if each.date >= "2026-01-02"]
    assert (done.old_files, done.new_files) == (len(before) - len(kept), 2)
    assert [each for each in files(table) if each.date >= "2026-01-02"] == kept
    done = table.compact(1 << 30, None, threading.Event())
    assert done.old_files > done.new_files
    assert {(each.partition, each.date) for each in files(table)} == {(each.partition, each.date) for each in before}
    assert len(files(table)) == len({(each.partition, each.date) for each in before})
    assert offsets(table) == {0: list(range(9)), 1: list(range(12))}
    assert table.compact(1 << 30, None, threading.Event()) == Compacted("sensors")
    assert list(faults(table.folder, files(table))) == []
    node.publish(0, 2)
    assert export(client, table).ends == {0: 11, 1: 12}


def test_what_a_version_has_is_on_disk(node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch):
    """The files of an export, those of a compaction, and what names them."""
    flushed: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        flushed.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    for _ in range(2):
        node.publish(0, 3)
        export(client, table)
    assert table.compact(1 << 30, None, threading.Event()).new_files == 1
    root = Path(table.folder.root).resolve()
    made = {str(each) for each in root.rglob("*") if each.suffix in (".parquet", ".avro", ".json")}
    made -= {each for each in made if "/metadata/00000-" in each}  # of the table before it had records
    assert made
    assert made <= flushed


def test_a_compaction_ends_with_the_partition_and_date_it_is_at(node: FakeNode, client: Client, table: Table):
    for _ in range(2):
        for number in range(3):
            node.publish(number, 2)
        export(client, table)
    stopping = threading.Event()
    stopping.set()
    assert table.compact(1 << 30, None, stopping).new_files == 0
    assert len(files(table)) == 6


def test_vacuum_removes_what_no_version_needs(
    node: FakeNode, client: Client, table: Table, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(2):
        node.publish(0, 5)
        export(client, table)
    table.compact(1 << 30, None, threading.Event())
    node.publish(0, 5)
    with monkeypatch.context() as patch:  # an exporter that is killed before its commit
        patch.setattr(type(table), "append", lambda *_: None)
        export(client, table)
    assert len(loose(table)) == 3
    assert table.vacuum(1) == []
    assert len(loose(table)) == 3
    left = loose(table)
    assert set(left) <= set(table.vacuum(0))
    assert loose(table) == []
    assert offsets(table) == {0: list(range(10))}
    assert export(client, table).rows == 5
    assert offsets(table) == {0: list(range(15))}


def test_faults_are_found(node: FakeNode, client: Client, table: Table):
    node.publish(0, 4)
    node.publish(1, 4)
    node.publish(2, 4)
    export(client, table)
    first, second, third = files(table)
    root = Path(table.folder.root)
    (root / first.path).unlink()
    whole = (root / second.path).read_bytes()
    (root / second.path).write_bytes(whole[:50] + bytes(100) + whole[150:])
    (root / third.path).write_bytes((root / third.path).read_bytes() + b"x")
    found = {each.path: each.problem for each in faults(table.folder, files(table))}
    assert set(found) == {first.path, second.path, third.path}
    assert found[third.path] == f"{third.size + 1} bytes, not {third.size}"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_any_parent_has_a_table(node: FakeNode, client: Client, kind: str, tmp_path: Path):
    parents = ["", "$SYS", "%", "..", "a b", "a=b", "sensors", "ä", "~7E."]
    folder, catalog = str(tmp_path / "h"), f"sqlite:///{tmp_path}/catalog.db"
    tables = DeltaFolder(folder) if kind == "delta" else IcebergCatalog(catalog, HistoryFolder(folder))
    assert tables.parents() == []
    for parent in parents:
        assert "/" not in name_of(parent)
        assert parent_of(name_of(parent)) == parent
        assert tables.table(parent).progress() == {}
        tables.table(parent).append([], {}, {0: Progress(7)})
    assert tables.parents() == sorted(parents)
    assert [tables.table(parent).progress() for parent in parents] == [{0: Progress(7)}] * len(parents)


def test_a_table_of_something_else_is_refused(tmp_path: Path):
    DeltaTable.create(str(tmp_path / "sensors"), pa.schema([("a", pa.int64())]))
    with pytest.raises(HistoryError, match="other columns than a history"):
        DeltaFolder(str(tmp_path)).table("sensors").progress()


def test_a_damaged_log_of_a_table_is_said(node: FakeNode, client: Client, tmp_path: Path):
    table = opened("delta", tmp_path)
    node.publish(0, 3)
    export(client, table)
    for each in (Path(table.folder.path(table.data)) / "_delta_log").glob("*.json"):
        each.write_text("{")
    with pytest.raises(HistoryError, match="the history of 'sensors' in "):
        table.progress()


@pytest.mark.parametrize("uri", ["nonsense://x/y", "memory://x", "s3://a b/c", "/tmp/50%25"])
def test_a_place_that_is_none_is_said(uri: str):
    with pytest.raises(HistoryError, match="cannot open"):
        HistoryFolder(uri)


def test_secrets_in_names_are_refused(tmp_path: Path):
    with pytest.raises(HistoryError, match="must not contain a secret"):
        HistoryFolder("s3://key:secret@bucket/folder")
    with pytest.raises(HistoryError, match="must not contain a secret"):
        IcebergCatalog("postgresql://user:secret@host/db", HistoryFolder(str(tmp_path)))


def test_a_catalog_that_nobody_configured_is_said(tmp_path: Path):
    with pytest.raises(HistoryError, match="the catalog 'nobodys'"):
        IcebergCatalog("nobodys", HistoryFolder(str(tmp_path)))


def test_libraries_read_the_tables(node: FakeNode, client: Client, table: Table):
    """DuckDB, pandas and Arrow, without Sluice: before a compaction and after it."""
    for _ in range(2):
        node.publish(0, 6, DAY_MS // 2)
        node.publish(1, 4)
        export(client, table)
    for _ in range(2):
        if isinstance(table, DeltaHistory):
            delta = DeltaTable(table.folder.location("sensors"))
            frame, records = delta.to_pandas(), delta.to_pyarrow_dataset()
        else:
            iceberg = SqlCatalog("sluice", uri=f"sqlite:///{Path(table.folder.root).parent}/catalog.db")
            scan = iceberg.load_table("sluice.sensors").scan()
            frame, records = scan.to_pandas(), scan.to_arrow()
        assert len(frame) == 20
        query = 'SELECT "partition", count(*), max("offset"), min("date") FROM records GROUP BY 1 ORDER BY 1'
        found = duckdb.sql(query).fetchall()
        assert found == [
            (0, 12, 11, datetime(2026, 1, 1, tzinfo=UTC).date()),
            (1, 8, 7, datetime(2026, 1, 1, tzinfo=UTC).date()),
        ]
        assert sorted(frame["payload"].map(int)) == sorted([*range(12), *range(8)])
        assert set(frame.columns) == set(SCHEMA.names)
        table.compact(1 << 30, None, threading.Event())
    assert records is not None
