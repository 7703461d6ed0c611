"""`sluice backup`: a consistent copy of a data folder, of a running node or a stopped one."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare

if TYPE_CHECKING:
    from sluice.console.progress import Progress
    from store.exports.backup import Made

EXAMPLE: Final = "sluice backup --data-dir /var/lib/sluice /mnt/backups/2025-06-01"
REST: Final = 1.0  # as long as each piece takes: a node that runs has half of the disk at least


def add(subparsers: Subparsers) -> None:
    summary = "back up a data folder, while its node runs or when it is stopped"
    parser = declare(subparsers, "backup", summary, EXAMPLE, run)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the backup to make: no folder yet")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    parser.add_argument("--copy", action="store_true",
                        help="share no file with the data folder or an earlier backup: copy everything")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object when it is done")


def run(arguments: Arguments) -> int:
    from sluice.console.progress import Progress  # noqa: PLC0415
    from sluice.node.admin_socket import NodeError  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415

    began = time.monotonic()
    try:
        with Progress() as progress:
            made = _back_up(arguments, progress)
    except (StoreError, NodeError, OSError) as error:
        print(f"sluice backup: {error}", file=sys.stderr)
        return 1
    _tell(arguments, made, time.monotonic() - began)
    return 0


def _back_up(arguments: Arguments, progress: "Progress") -> "Made":
    from sluice.node.admin_socket import LONG_TIMEOUT, NodeLink  # noqa: PLC0415
    from store.data_folder import is_data_folder  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415
    from store.exports.backup import Options, back_up_staged, back_up_stopped  # noqa: PLC0415
    from store.exports.stage import Staged, stage  # noqa: PLC0415

    data, target = arguments.data_dir, arguments.target
    if not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}")
    options = Options(may_link=not arguments.copy, tell=progress.tell)
    node = NodeLink.find(data)
    if node is None:
        return back_up_stopped(data, target, options)
    options.rest = REST
    with stage(data) as folder:
        staged = Staged(**node.ask("/stage", {"name": folder.name}, LONG_TIMEOUT))
        node.close()
        return back_up_staged(data, folder, staged, target, options)


def _tell(arguments: Arguments, made: "Made", seconds: float) -> None:
    from sluice.console.times import size, told  # noqa: PLC0415

    manifest = made.manifest
    if arguments.json:
        facts = {
            "backup": str(arguments.target),
            "begin": manifest.begin,
            "position": manifest.position,
            "time_ms": manifest.time_ms,
            "views": manifest.views,
            "copied_bytes": made.copied_bytes,
            "linked_bytes": made.linked_bytes,
            "reused_bytes": made.reused_bytes,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(facts))
        return
    print(f"{arguments.target}: the log from {manifest.begin} to {manifest.position}, as of {told(manifest.time_ms)}")
    shared = f"{size(made.linked_bytes)} shared with the data folder, {size(made.reused_bytes)} with earlier backups"
    print(f"{size(made.copied_bytes)} copied, {shared}, in {seconds:.1f} s; what is new of the log was read back")
