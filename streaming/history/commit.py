"""Creating a manifest atomically, by one writer only, on local file systems and object stores.

A local file system can create a link only if the name is free. Object stores, as pyarrow and fsspec present them,
overwrite an existing object. But a listing shows every object that was written before it. So a writer first creates an
object of its own, a *bid*, and then lists the others. It backs off when it finds another bid. The later of two bids
sees the earlier one. At worst both writers back off and retry after different times.
"""

import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

from pyarrow import fs

from streaming.history.manifest import HistoryError

BID: Final = ".bid"  # the suffix of a bid
_ABANDONED_S: Final = 600.0  # the writer of an older bid has died; clocks must differ by less
_LONGEST_S: Final = 30.0  # from the bid to the manifest; after a longer time others may ignore the bid


class HistoryChanged(HistoryError):
    """Another writer has changed the same history meanwhile."""


def create_file(path: Path, data: bytes) -> None:
    """Create a local file with all of its bytes on the disk. Raises `HistoryChanged` when it exists, and `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(path).hardlink_to(name)
        except FileExistsError:
            raise HistoryChanged(f"another exporter wrote {path}") from None
    finally:
        Path(name).unlink()
    sync(path.parent)


def create_object(files: fs.FileSystem, path: str, data: bytes) -> None:
    """Create an object in an object store, where objects appear complete. `path` ends with a number that grows with
    each commit, and `.json`. Raises `HistoryChanged` when another writer commits, and `OSError`."""
    began, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    bid = f"{path}.{now_ms}-{uuid.uuid4().hex[:12]}{BID}"
    with files.open_output_stream(bid) as file:
        file.write(b"a commit is under way\n")
    try:
        for other in _others(files, path):
            if other.endswith(".json") and other >= path:
                raise HistoryChanged(f"another exporter wrote {other}")
            if other.endswith(BID) and other != bid and now_ms - _begun_ms(other) < _ABANDONED_S * 1000:
                raise HistoryChanged(f"another exporter is about to write to {path.rpartition('/')[0]}: {other}")
        if time.monotonic() - began > _LONGEST_S:
            raise HistoryChanged(f"{path} was to be written, but the store took too long to answer")
        with files.open_output_stream(path) as file:
            file.write(data)
    finally:
        files.delete_file(bid)


def sync(path: Path) -> None:
    """Flush a local file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _others(files: fs.FileSystem, path: str) -> list[str]:
    """List the files of the same folder."""
    infos = files.get_file_info(fs.FileSelector(path.rpartition("/")[0]))
    return [info.path for info in infos if info.type == fs.FileType.File]


def _begun_ms(bid: str) -> int:
    """Return when the writer of a bid began, in ms since 1970; 0 if the name is not that of a bid."""
    text = bid.removesuffix(BID).rpartition(".")[2].partition("-")[0]
    return int(text) if text.isdecimal() else 0
