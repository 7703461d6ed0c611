"""`sluice backup`: make a consistent copy of the data folder of a running or stopped node."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_data_dir, add_json, declare, print_result
from sluice.console.times import format_size, format_time

if TYPE_CHECKING:
    from sluice.console.progress import ProgressLine
    from store.exports.backup import Made

EXAMPLE: Final = "sluice backup --data-dir /var/lib/sluice /mnt/backups/2025-06-01"
REST: Final = 1.0  # pause as long as each copy took: a running node gets at least half of the disk


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "backup", "back up the data folder of a running or stopped node", EXAMPLE, run)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the folder to create for the backup")
    text = "copy every file; share none with the data folder or an earlier backup"
    parser.add_argument("--copy", action="store_true", help=text)
    add_data_dir(parser)
    add_json(parser)


def run(arguments: Arguments) -> int:
    from sluice.console.progress import ProgressLine  # noqa: PLC0415

    began = time.monotonic()
    with ProgressLine() as progress:
        made = _back_up(arguments, progress)
    seconds, manifest = time.monotonic() - began, made.manifest
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
    text = f"{arguments.target}: the log from {manifest.begin} to {manifest.position}"
    text += f", as of {format_time(manifest.time_ms)}\n{format_size(made.copied_bytes)} copied"
    text += f", {format_size(made.linked_bytes)} shared with the data folder"
    text += f", {format_size(made.reused_bytes)} with earlier backups"
    print_result(arguments, facts, f"{text}, in {seconds:.1f} s; new parts of the log were read back")
    return 0


def _back_up(arguments: Arguments, progress: "ProgressLine") -> "Made":
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415
    from sluice.node.http_link import HttpLink  # noqa: PLC0415
    from store.data_folder import is_data_folder  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415
    from store.exports.backup import back_up_staged, back_up_stopped  # noqa: PLC0415
    from store.exports.copying import CopyOptions  # noqa: PLC0415
    from store.exports.stage import Staged, stage  # noqa: PLC0415

    data, target = arguments.data_dir, arguments.target
    if not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}")
    options = CopyOptions(may_link=not arguments.copy, on_progress=progress.report)
    node = HttpLink.find(data)
    if node is None:
        return back_up_stopped(data, target, options)
    options.rest = REST
    with stage(data) as folder:
        reply = node.call("StageStore", pb.StageStoreRequest(name=folder.name), pb.StageStoreReply)
        node.close()
        staged = Staged(reply.begin, reply.position, reply.time_ms)
        return back_up_staged(data, folder, staged, target, options)
