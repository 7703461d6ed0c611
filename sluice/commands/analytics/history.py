"""`sluice history export|show|verify|compact|vacuum`: export the log to Delta or Iceberg tables and maintain them."""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    add_actions,
    add_json,
    declare,
    positive,
    print_result,
    seconds,
)
from sluice.console.signals import stopped_by_signals
from sluice.console.times import format_size, format_time, milliseconds, parse_time
from sluice.node import grpc_client

if TYPE_CHECKING:
    from cloud_sdk.blocking import Client
    from streaming.history.delta_table import DeltaFolder
    from streaming.history.export import Exported
    from streaming.history.iceberg_table import IcebergCatalog
    from streaming.history.table import HistoryTable

    _Tables = DeltaFolder | IcebergCatalog

FAULTY: Final = 1
_MIB: Final = 1 << 20


def add(subparsers: Subparsers) -> None:
    example = "sluice history export /mnt/history sensors orders"
    about = "export the log to Delta or Iceberg tables, and maintain them"
    actions = add_actions(declare(subparsers, "history", about, example))
    summary = "export the records that the history does not have yet"
    export = declare(actions, "export", summary, example, run_export)
    show = declare(actions, "show", "show what a history holds", "sluice history show /mnt/history", run_show)
    example = "sluice history verify s3://bucket/history sensors"
    verify = declare(actions, "verify", "read every file and report faults", example, run_verify)
    summary = "merge small files of the same partition and date"
    compact = declare(actions, "compact", summary, "sluice history compact /mnt/history", run_compact)
    summary = "remove unused files: compacted ones, and those of exporters that were killed"
    vacuum = declare(actions, "vacuum", summary, "sluice history vacuum /mnt/history", run_vacuum)
    for action in (export, show, verify, compact, vacuum):
        action.add_argument("folder", metavar="FOLDER", help="the history: a path or a URI such as s3://bucket/folder")
        action.add_argument("parents", nargs="*", metavar="PARENT", help="parent topics (default: all)")
        text = "Iceberg tables in this catalog, a name or an SQL URI such as sqlite:////srv/catalog.db (default: Delta)"
        action.add_argument("--iceberg", metavar="CATALOG", help=text)
        add_json(action)
    text = "the size of the largest file, in MiB (default: 256)"
    for action in (export, compact):
        action.add_argument("--file-mib", type=positive, default=256, metavar="N", help=text)
    compact.add_argument("--today", action="store_true", help="also merge today's files, although more will follow")
    text = "keep what versions of the last N hours need, and younger files (default: 168)"
    vacuum.add_argument("--keep-hours", type=int, default=168, metavar="N", help=text)
    export.add_argument("--until", type=parse_time, metavar="TIME", help="export only records stored before this time")
    text = "repeat the export at this interval until Ctrl-C or SIGTERM"
    export.add_argument("--every", type=seconds, metavar="SECONDS", help=text)
    text = "limit the rate at which the log is read (default: no limit)"
    export.add_argument("--max-mib-per-second", type=positive, metavar="N", help=text)
    text = "continue when records were removed before they were exported; count them"
    export.add_argument("--allow-losses", action="store_true", help=text)
    grpc_client.add_arguments(export)


def run_export(arguments: Arguments) -> int:
    tables = _tables(arguments)
    with stopped_by_signals() as stopping, grpc_client.connect(arguments) as client:
        while True:
            began, failed = time.monotonic(), False
            for parent in arguments.parents or client.parents():
                if not stopping.is_set():
                    failed = not _export_parent(arguments, client, tables, parent, stopping) or failed
            if arguments.every is None or stopping.wait(max(0.0, arguments.every - (time.monotonic() - began))):
                return FAULTY if failed else 0


def _export_parent(
    arguments: Arguments, client: "Client", tables: "_Tables", parent: str, stopping: threading.Event
) -> bool:
    """Export one parent topic. Return whether that succeeded: a topic that cannot be exported does not stop the others,
    because devices choose the names."""
    from streaming.history.errors import HistoryError  # noqa: PLC0415

    try:
        done = _export(arguments, client, tables.table(parent), stopping)
    except (HistoryError, OSError) as error:
        print(f"{arguments.full_name}: {error}", file=sys.stderr, flush=True)
        return False
    lost = f", {done.lost} lost" if done.lost else ""
    text = f"{done.parent}: {done.rows} records in {done.files} files, {format_size(done.size)}{lost}"
    print_result(arguments, asdict(done), text)
    return True


def _export(arguments: Arguments, client: "Client", table: "HistoryTable", stopping: threading.Event) -> "Exported":
    from streaming.history.export import Exporter, ExportOptions  # noqa: PLC0415

    rate = arguments.max_mib_per_second
    options = ExportOptions(
        until_ms=None if arguments.until is None else milliseconds(arguments.until),
        file_bytes=arguments.file_mib * _MIB,
        bytes_per_second=None if rate is None else rate * _MIB,
        allow_losses=arguments.allow_losses,
    )
    return Exporter(client, table, options).run(stopping)


def run_show(arguments: Arguments) -> int:
    for table in _chosen(arguments):
        state = table.state()
        spans, rows = state.spans(), sum(each.rows for each in state.files)
        facts: dict[str, Any] = {
            "parent": table.parent,
            "records": rows,
            "files": len(state.files),
            "bytes": sum(each.size for each in state.files),
            "lost": sum(span.end - span.begin for span in spans.values()) - rows,
            "first_ms": min((each.first_ms for each in state.files), default=0),
            "last_ms": max((each.last_ms for each in state.files), default=0),
            "spans": {str(number): [span.begin, span.end] for number, span in sorted(spans.items())},
        }
        first, last = format_time(facts["first_ms"]), format_time(facts["last_ms"])
        text = f"{table.parent}: {rows} records in {facts['files']} files, {format_size(facts['bytes'])}"
        text += f", stored from {first} to {last}; {facts['lost']} lost"
        for number, span in sorted(spans.items()):
            text += f"\n  partition {number}: [{span.begin}, {span.end})"
        print_result(arguments, facts, text)
    return 0


def run_verify(arguments: Arguments) -> int:
    from streaming.history.verify import faults  # noqa: PLC0415

    faulty = False
    for table in _chosen(arguments):
        files = table.state().files
        found = list(faults(table.folder, files))
        faulty = faulty or bool(found)
        lines = [f"FAULT: {fault.path}: {fault.problem}" for fault in found]
        state = f"{len(found)} of them faulty" if found else "no faults"
        facts = {"parent": table.parent, "files": len(files), "faults": [asdict(each) for each in found]}
        print_result(arguments, facts, "\n".join([*lines, f"{table.parent}: {len(files)} files, {state}"]))
    return FAULTY if faulty else 0


def run_compact(arguments: Arguments) -> int:
    before = None if arguments.today else datetime.now(UTC).date().isoformat()
    with stopped_by_signals() as stopping:
        for table in _chosen(arguments):
            done = table.compact(arguments.file_mib * _MIB, before, stopping)
            print_result(arguments, asdict(done), f"{done.parent}: {done.old_files} files became {done.new_files}")
    return 0


def run_vacuum(arguments: Arguments) -> int:
    for table in _chosen(arguments):
        removed = table.vacuum(arguments.keep_hours)
        facts = {"parent": table.parent, "removed": removed}
        print_result(arguments, facts, f"{table.parent}: {len(removed)} files removed")
    return 0


def _tables(arguments: Arguments) -> "_Tables":
    if arguments.iceberg is None:
        from streaming.history.delta_table import DeltaFolder  # noqa: PLC0415

        return DeltaFolder(arguments.folder)
    from streaming.history.folder import HistoryFolder  # noqa: PLC0415
    from streaming.history.iceberg_table import IcebergCatalog  # noqa: PLC0415

    return IcebergCatalog(arguments.iceberg, HistoryFolder(arguments.folder))


def _chosen(arguments: Arguments) -> "Sequence[HistoryTable]":
    """Return the tables of the requested parent topics. Raises `HistoryError` when a topic has no history."""
    from streaming.history.errors import HistoryError  # noqa: PLC0415

    tables = _tables(arguments)
    known = tables.parents()
    if missing := [each for each in arguments.parents if each not in known]:
        raise HistoryError(f"{arguments.folder} has no history of {', '.join(missing)}")
    if not known:
        raise HistoryError(f"there is no history in {arguments.folder}")
    return [tables.table(parent) for parent in arguments.parents or known]
