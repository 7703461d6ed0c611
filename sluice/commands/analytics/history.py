"""`sluice history export|show|verify|compact|clean`: export the log to Parquet files and maintain them."""

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
    from streaming.history.export import Exported
    from streaming.history.folder import HistoryFolder
    from streaming.history.manifest import HistoryManifest

FAULTY: Final = 1
_MIB: Final = 1 << 20


def add(subparsers: Subparsers) -> None:
    example = "sluice history export /mnt/history sensors orders"
    about = "export the log to Parquet files, and maintain the exported files"
    actions = add_actions(declare(subparsers, "history", about, example))
    summary = "export the records that the history does not have yet"
    export = declare(actions, "export", summary, example, run_export)
    show = declare(actions, "show", "show what a history holds", "sluice history show /mnt/history", run_show)
    example = "sluice history verify s3://bucket/history sensors"
    verify = declare(actions, "verify", "read every file and report faults", example, run_verify)
    summary = "merge small files of the same partition and date"
    compact = declare(actions, "compact", summary, "sluice history compact /mnt/history", run_compact)
    summary = "remove unused files: compacted ones, and those of exporters that were killed"
    clean = declare(actions, "clean", summary, "sluice history clean /mnt/history", run_clean)
    for action in (export, show, verify, compact, clean):
        action.add_argument("folder", metavar="FOLDER", help="the history: a path or a URI such as s3://bucket/folder")
        action.add_argument("parents", nargs="*", metavar="PARENT", help="parent topics (default: all)")
        add_json(action)
    text = "the size of the largest file, in MiB (default: 256)"
    for action in (export, compact):
        action.add_argument("--file-mib", type=positive, default=256, metavar="N", help=text)
    compact.add_argument("--today", action="store_true", help="also merge today's files, although more will follow")
    text = "keep younger files, which may still be in use (default: 86400)"
    clean.add_argument("--older-than", type=seconds, default=86_400.0, metavar="SECONDS", help=text)
    export.add_argument("--until", type=parse_time, metavar="TIME", help="export only records stored before this time")
    text = "repeat the export at this interval until Ctrl-C or SIGTERM"
    export.add_argument("--every", type=seconds, metavar="SECONDS", help=text)
    text = "limit the rate at which the log is read (default: no limit)"
    export.add_argument("--max-mib-per-second", type=positive, metavar="N", help=text)
    text = "continue when records were removed before they were exported; count them"
    export.add_argument("--allow-losses", action="store_true", help=text)
    grpc_client.add_arguments(export)


def run_export(arguments: Arguments) -> int:
    folder = _folder(arguments)
    with stopped_by_signals() as stopping, grpc_client.connect(arguments) as client:
        while True:
            began, failed = time.monotonic(), False
            for parent in arguments.parents or client.parents():
                if not stopping.is_set():
                    failed = not _export_parent(arguments, client, folder, parent, stopping) or failed
            if arguments.every is None or stopping.wait(max(0.0, arguments.every - (time.monotonic() - began))):
                return FAULTY if failed else 0


def _export_parent(
    arguments: Arguments, client: "Client", folder: "HistoryFolder", parent: str, stopping: threading.Event
) -> bool:
    """Export one parent topic. Return whether that succeeded: a topic that cannot be exported does not stop the others,
    because devices choose the names."""
    from streaming.history.manifest import HistoryError  # noqa: PLC0415

    try:
        done = _export(arguments, client, folder, parent, stopping)
    except (HistoryError, OSError) as error:
        print(f"{arguments.full_name}: {error}", file=sys.stderr, flush=True)
        return False
    facts: dict[str, Any] = asdict(done)
    facts["spans"] = {number: [span["begin"], span["end"]] for number, span in facts["spans"].items()}
    lost = f", {done.lost} lost" if done.lost else ""
    text = f"{done.parent}: {done.rows} records in {done.files} files, {format_size(done.size)}{lost}"
    print_result(arguments, facts, text)
    return True


def _export(
    arguments: Arguments, client: "Client", folder: "HistoryFolder", parent: str, stopping: threading.Event
) -> "Exported":
    from streaming.history.export import Exporter, ExportOptions  # noqa: PLC0415

    rate = arguments.max_mib_per_second
    options = ExportOptions(
        until_ms=None if arguments.until is None else milliseconds(arguments.until),
        file_bytes=arguments.file_mib * _MIB,
        bytes_per_second=None if rate is None else rate * _MIB,
        allow_losses=arguments.allow_losses,
    )
    return Exporter(client, folder, parent, options).run(stopping)


def run_show(arguments: Arguments) -> int:
    for manifest in _manifests(arguments):
        spans = manifest.spans()
        first = min((each.first_ms for each in manifest.files), default=0)
        last = max((each.last_ms for each in manifest.files), default=0)
        facts: dict[str, Any] = {
            "parent": manifest.parent,
            "records": sum(each.rows for each in manifest.files),
            "files": len(manifest.files),
            "bytes": sum(each.size for each in manifest.files),
            "replaced": len(manifest.replaced),
            "lost": sum(span.end - span.begin for span in spans.values()) - sum(each.rows for each in manifest.files),
            "first_ms": first,
            "last_ms": last,
            "spans": {str(number): [span.begin, span.end] for number, span in spans.items()},
        }
        text = f"{manifest.parent}: {facts['records']} records in {facts['files']} files, {format_size(facts['bytes'])}"
        text += f", stored from {format_time(first)} to {format_time(last)}; {facts['lost']} lost"
        for number, span in sorted(spans.items()):
            text += f"\n  partition {number}: [{span.begin}, {span.end})"
        print_result(arguments, facts, text)
    return 0


def run_verify(arguments: Arguments) -> int:
    from streaming.history.verify import faults, orphans  # noqa: PLC0415

    folder, faulty = _folder(arguments), False
    for manifest in _manifests(arguments):
        found, left = list(faults(folder, manifest)), orphans(folder, manifest)
        faulty = faulty or bool(found)
        facts = {"parent": manifest.parent, "files": len(manifest.files), "orphans": left}
        lines = [f"FAULT: {fault.path}: {fault.problem}" for fault in found]
        state = f"{len(found)} of them faulty" if found else "no faults"
        text = f"{manifest.parent}: {len(manifest.files)} files, {state}; {len(manifest.replaced)} compacted and"
        lines.append(f"{text} {len(left)} abandoned files remain: `sluice history clean` removes them")
        print_result(arguments, facts | {"faults": [asdict(each) for each in found]}, "\n".join(lines))
    return FAULTY if faulty else 0


def run_compact(arguments: Arguments) -> int:
    from streaming.history.compaction import Compactor  # noqa: PLC0415

    folder = _folder(arguments)
    before = None if arguments.today else datetime.now(UTC).date().isoformat()
    with stopped_by_signals() as stopping:
        for manifest in _manifests(arguments):
            done = Compactor(folder, manifest.parent, arguments.file_mib * _MIB, before).run(stopping)
            text = f"{done.parent}: {done.old_files} files became {done.new_files}, {done.rows} records"
            text += f", {format_size(done.old_size)} before and {format_size(done.new_size)} now"
            print_result(arguments, asdict(done), text)
    return 0


def run_clean(arguments: Arguments) -> int:
    from streaming.history.compaction import clean_up  # noqa: PLC0415

    folder = _folder(arguments)
    for manifest in _manifests(arguments):
        removed = clean_up(folder, manifest.parent, arguments.older_than)
        facts = {"parent": manifest.parent, "removed": removed}
        print_result(arguments, facts, f"{manifest.parent}: {len(removed)} files removed")
    return 0


def _folder(arguments: Arguments) -> "HistoryFolder":
    from streaming.history.folder import HistoryFolder  # noqa: PLC0415

    return HistoryFolder(arguments.folder)


def _manifests(arguments: Arguments) -> "Sequence[HistoryManifest]":
    """Return the manifests of the requested parent topics. Raises `HistoryError` when a topic has no history."""
    from streaming.history.manifest import HistoryError  # noqa: PLC0415

    folder = _folder(arguments)
    known = folder.parents()
    if missing := [each for each in arguments.parents if each not in known]:
        raise HistoryError(f"{arguments.folder} has no history of {', '.join(missing)}")
    if not known:
        raise HistoryError(f"there is no history in {arguments.folder}")
    return [folder.manifest(parent) for parent in arguments.parents or known]
