"""A manifest comes into being at once, whole, and made by one only, whatever the file system can do.

A local file system can make a link that is not there yet. Object stores as pyarrow and fsspec show them replace what is
there without asking. What all of them have today is that who lists sees what was written before. So whoever wants to
commit says so first, by an object of its own (a *bid*), and looks who else does: who is not alone steps back. Of two
bids, the one that was written later sees the other; at the worst both step back, and come again after different times.
"""

import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

from pyarrow import fs

from streaming.history.manifest import HistoryError

BID: Final = ".bid"  # how the names of bids end
_ABANDONED_S: Final = 600.0  # so old a bid is of somebody who ended in between; clocks differ by less
_LONGEST_S: Final = 30.0  # from a bid to the object: who takes longer may have been taken for ended


class HistoryChanged(HistoryError):
    """Another exporter went on with the same history meanwhile."""


def create_file(path: Path, data: bytes) -> None:
    """A local file that is there with all its bytes, on the disk, and that nobody else made. Raises `HistoryChanged`
    and `OSError`."""
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
    """The same in an object store, of which an object is there when all of it is. `path` ends with a number that grows
    with each commit, and `.json`. Raises `HistoryChanged` and `OSError`."""
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
    """What is in a local file, or what was made in a folder, stays there over a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _others(files: fs.FileSystem, path: str) -> list[str]:
    """The files of the same folder."""
    infos = files.get_file_info(fs.FileSelector(path.rpartition("/")[0]))
    return [info.path for info in infos if info.type == fs.FileType.File]


def _begun_ms(bid: str) -> int:
    """When its maker began to commit; long ago where the name is no bid's."""
    text = bid.removesuffix(BID).rpartition(".")[2].partition("-")[0]
    return int(text) if text.isdecimal() else 0
