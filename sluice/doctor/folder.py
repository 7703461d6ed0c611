"""The data folder: whether it can be opened, its disk, its damage, and its time."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Final

from gateway.config.config import Config
from sluice.console.times import format_size, format_time
from sluice.doctor.findings import Finding, error, ok, warning
from store.data_folder import DRAINED, META, RESTORING, is_data_folder, kept_closed, read_meta
from store.errors import StoreError
from store.log.damaged_ranges import read_damaged
from store.log.disk import Disk
from store.log.recovery import segment_batches
from store.log.segments import Segments

_FLUSHES: Final = 20
_FLUSH_BYTES: Final = 4096
_SLOW_MS: Final = 20.0  # a publisher with one message in flight gets fewer than 50 acknowledgements a second
_LEAST_INODES: Final = 10_000
_AHEAD_MS: Final = 1000
_UNFIT: Final = {"nfs": "a network file system", "nfs4": "a network file system", "cifs": "a network file system"}
_FORGETFUL: Final = ("tmpfs", "ramfs")


def check_folder(config: Config, is_running: bool) -> Iterator[Finding]:
    """Check the folder that the configuration names."""
    data = config.data_dir
    if not data.is_dir():
        yield from _missing(data)
        return
    yield from _state(data, is_running)
    yield _file_system(data)
    yield from _room(config)
    yield _flushes(data)
    yield from _store_time(data)


def _missing(data: Path) -> Iterator[Finding]:
    parent = next((each for each in data.absolute().parents if each.exists()), Path("/"))
    if data.exists() or not os.access(parent, os.W_OK):
        text = f"{data} cannot be created" if not data.exists() else f"{data} is no folder"
        yield error("data folder", text, f"create it for the node's user, or change data_dir ({data})")
    else:
        yield ok("data folder", f"{data} is not there yet: a node creates it")


def _state(data: Path, is_running: bool) -> Iterator[Finding]:
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield error("data folder", f"{data} is not this user's", "run this as the node's user, or as root")
        return
    if (data / RESTORING).exists() and not (data / META).exists():
        advice = "repeat `sluice restore`, or remove the folder"
        yield error("data folder", f"restoring a backup into {data} did not finish", advice)
        return
    if not is_data_folder(data):
        if any((data / "log").glob("*.log")):
            yield error("data folder", f"{data / META} is missing, but there is a log", "restore it from a backup")
        else:
            yield ok("data folder", f"{data} is empty: a node creates its log there")
        return
    try:
        meta = read_meta(data)
        damaged = read_damaged(data / "log")
        if not is_running:
            with kept_closed(data):
                Segments(data / "log", meta.segment_size, Disk()).find()
    except (StoreError, OSError) as wrong:
        advice = "docs/operations.md, 'When something is wrong', has the ways out"
        yield error("data folder", str(wrong), advice)
        return
    whose = "a copy of a shared log" if meta.shared else "a log of its own"
    state = "a node runs on it" if is_running else "no node runs on it"
    yield ok("data folder", f"format {meta.format}, {whose}, opened {meta.epoch} times; {state}")
    if damaged:
        size = sum(end - begin for begin, end in damaged)
        advice = "`sluice log verify` names the places; retention removes them in time, or restore a backup"
        yield warning("damage", f"{len(list(damaged))} places with {format_size(size)} are served around", advice)
    cut = sorted(path.name for path in data.glob("damaged-*"))
    if cut:
        advice = "keep the folder until you do not need the removed part any more, then remove it"
        yield warning("damage", f"the log was cut: {', '.join(cut)}", advice)
    if (data / DRAINED).exists():
        yield warning(
            "cluster", "this node is drained: it serves no clients", "`sluice cluster undrain`, or restart it"
        )


def _file_system(data: Path) -> Finding:
    kind = _kind_of_mount(data)
    if kind in _UNFIT:
        advice = "use a local disk: the log needs a flush that keeps its word, and locks"
        return warning("file system", f"{data} is on {kind}, {_UNFIT[kind]}", advice)
    if kind in _FORGETFUL:
        return error("file system", f"{data} is on {kind}: everything is gone with the machine", "use a disk")
    return ok("file system", f"{data} is on {kind or 'an unknown file system'}")


def _kind_of_mount(data: Path) -> str:
    """The file system of the longest mount point above the folder."""
    found, longest = "", -1
    with suppress(OSError):
        path = data.resolve()
        for line in Path("/proc/self/mounts").read_text().splitlines():
            point, kind = line.split()[1:3]
            at = Path(point.encode().decode("unicode_escape"))
            if (path == at or at in path.parents) and len(point) >= longest:
                found, longest = kind, len(point)
    return found


def _room(config: Config) -> Iterator[Finding]:
    disk, store = os.statvfs(config.data_dir), config.store
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    text = f"{format_size(free)} of {format_size(total)} are free"
    advice = "make room, or let the log be shorter: store.retention_bytes, store.retention_free_bytes"
    if free < 2 * store.segment_size:
        yield error("disk", f"{text}: less than two segments of the log", advice)
    elif free < store.retention_free_bytes:
        yield warning("disk", f"{text}, fewer than store.retention_free_bytes", advice)
    elif free < total // 10 and not (store.retention_bytes or store.retention_free_bytes):
        yield warning("disk", f"{text}, and nothing limits the length of the log", advice)
    else:
        yield ok("disk", text)
    if disk.f_files and disk.f_favail < _LEAST_INODES:
        yield warning("disk", f"only {disk.f_favail} more files can be created", "remove files of others")


def _flushes(data: Path) -> Finding:
    """How long the disk takes for small writes, as the log does them one after the other."""
    times: list[float] = []
    try:
        with TemporaryFile(dir=data) as file:
            for number in range(_FLUSHES):
                began = time.perf_counter()
                os.pwrite(file.fileno(), bytes(_FLUSH_BYTES), number * _FLUSH_BYTES)
                os.fdatasync(file.fileno())
                times.append((time.perf_counter() - began) * 1000)
    except OSError as wrong:
        return error("flush", f"{data} cannot be written: {wrong.strerror}", "repair the disk, or its permissions")
    text = f"{median(times):.1f} ms for a small flush, {max(times):.1f} ms at most of {_FLUSHES}"
    if median(times) <= _SLOW_MS:
        return ok("flush", text)
    advice = "each acknowledgement waits for one: use a faster disk, or one without other work"
    return warning("flush", text, advice)


def _store_time(data: Path) -> Iterator[Finding]:
    """Whether the newest record is later than the clock. Then the clock was set back."""
    newest = 0
    with suppress(StoreError, OSError, ValueError):  # another check names it; a running node may remove the segment
        bases = sorted(int(path.stem) for path in (data / "log").glob("*.log"))
        segments = Segments(data / "log", read_meta(data).segment_size, Disk())
        for base in reversed(bases[-2:]):  # the newest may be prepared and empty
            newest = max((batch.store_time for batch in segment_batches(segments, base)), default=0)
            if newest:
                break
    ahead = newest - time.time_ns() // 1_000_000
    if newest and ahead > _AHEAD_MS:
        text = f"the newest record is of {format_time(newest)}, {ahead / 1000:.0f} s ahead of the clock"
        advice = "correct the clock; until it has caught up, all new records have that time, and leases and delays wait"
        yield warning("clock", text, advice)
    elif newest:
        yield ok("clock", f"the newest record is of {format_time(newest)}")
