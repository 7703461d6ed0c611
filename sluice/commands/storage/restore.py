"""`sluice restore`: restore a backup into a new data folder, whole or up to a moment."""

import time
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, Subparsers, add_json, declare, print_result
from sluice.console.times import format_size, format_time, position_or_time

EXAMPLE: Final = "sluice restore /mnt/backups/2025-06-01 /var/lib/sluice --until 2025-06-01T11:59:00Z"


def add(subparsers: Subparsers) -> None:
    summary = "restore a backup into a new data folder, whole or up to a moment"
    parser = declare(subparsers, "restore", summary, EXAMPLE, run)
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="a backup, or the data folder of a stopped node")
    text = "the data folder to create; it may exist if it is empty"
    parser.add_argument("data", type=Path, metavar="DATA", help=text)
    text = "leave out what was stored later: a time (ISO 8601, UTC without an offset), or a position of the log before"
    parser.add_argument("--until", type=position_or_time, metavar="WHEN", help=f"{text} which to stop")
    text = "an older backup of the same node. Its views are the starting point when WHEN is before the views of BACKUP"
    text += " and the log no longer begins at 0; may be repeated"
    parser.add_argument("--base", type=Path, action="append", default=[], metavar="BACKUP", help=text)
    add_json(parser)


def run(arguments: Arguments) -> int:
    from sluice.console.progress import ProgressLine  # noqa: PLC0415
    from store.exports.copying import CopyOptions  # noqa: PLC0415
    from store.exports.restore import restore  # noqa: PLC0415
    from store.exports.until import Until  # noqa: PLC0415

    began = time.monotonic()
    with ProgressLine() as progress:
        options = CopyOptions(on_progress=progress.report)
        found = restore(arguments.backup, arguments.data, arguments.until or Until(), arguments.base, options)
    facts = {
        "data": str(arguments.data),
        "begin": found.begin,
        "position": found.position,
        "time_ms": found.time_ms,
        "views": found.views,
        "dropped_bytes": found.dropped_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    text = f"{arguments.data}: the log from {found.begin} to {found.position}, as of {format_time(found.time_ms)}"
    if found.dropped_bytes:
        text += f"\nleft out: {format_size(found.dropped_bytes)} of the log after that position"
    if found.views < found.position:
        text += f"\nthe first start replays {format_size(found.position - found.views)} of the log into the views"
    print_result(arguments, facts, text)
    return 0
