"""`sluice restore`: restore a backup into a new data folder, whole or up to a moment."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare
from sluice.console.times import format_size, format_time, position_or_time

if TYPE_CHECKING:
    from store.exports.restore import Restored

EXAMPLE: Final = "sluice restore /mnt/backups/2025-06-01 /var/lib/sluice --until 2025-06-01T11:59:00Z"


def add(subparsers: Subparsers) -> None:
    summary = "restore a backup into a new data folder, whole or up to a moment"
    parser = declare(subparsers, "restore", summary, EXAMPLE, run)
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="a backup, or the data folder of a stopped node")
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="the data folder to create; it may exist if it is empty"
    )
    parser.add_argument("--until", type=position_or_time, metavar="WHEN",
                        help="leave out what was stored later: a time (ISO 8601, UTC without an offset), or a "
                             "position of the log before which to stop")  # fmt: skip
    parser.add_argument("--base", type=Path, action="append", default=[], metavar="BACKUP",
                        help="an older backup of the same node. Its views are the starting point when WHEN is before "
                             "the views of BACKUP and the log no longer begins at 0; may be repeated")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: Arguments) -> int:
    from sluice.console.progress import ProgressLine  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415
    from store.exports.copying import CopyOptions  # noqa: PLC0415
    from store.exports.restore import restore  # noqa: PLC0415
    from store.exports.until import Until  # noqa: PLC0415

    began = time.monotonic()
    try:
        with ProgressLine() as progress:
            options = CopyOptions(on_progress=progress.report)
            until = arguments.until or Until()
            found = restore(arguments.backup, arguments.data, until, arguments.base, options)
    except (StoreError, OSError) as error:
        print(f"sluice restore: {error}", file=sys.stderr)
        return 1
    _tell(arguments, found, time.monotonic() - began)
    return 0


def _tell(arguments: Arguments, found: "Restored", seconds: float) -> None:
    if arguments.json:
        facts = {
            "data": str(arguments.data),
            "begin": found.begin,
            "position": found.position,
            "time_ms": found.time_ms,
            "views": found.views,
            "dropped_bytes": found.dropped_bytes,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(facts))
        return
    print(f"{arguments.data}: the log from {found.begin} to {found.position}, as of {format_time(found.time_ms)}")
    if found.dropped_bytes:
        print(f"left out: {format_size(found.dropped_bytes)} of the log after that position")
    if found.views < found.position:
        print(f"the first start replays {format_size(found.position - found.views)} of the log into the views")
