"""Fills a node's folder from a snapshot of the shared log (`store.cluster.snapshots`), and takes part from there.

The folder has `store.json` first, then the log, and the views at last, each durably. Without views a copy counts for
nothing (`store.cluster.copy`), so a node that dies halfway begins again.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from store.cluster.replica import Replica
from store.cluster.shared_log import SharedLog, SharedLogDamaged, SlotRemoved
from store.cluster.slot import Founded, parse_slot
from store.cluster.snapshots import (
    VIEWS,
    Contents,
    Manifest,
    Numbered,
    Part,
    SnapshotFile,
    SnapshotUnreadable,
    newest_numbers,
    read_contents,
    read_part,
    snapshots_of,
)
from store.data_folder import Folder, Meta
from store.exports.stage import stage
from store.log.disk import Disk

logger = logging.getLogger(__name__)

T = TypeVar("T")

_READS: Final = 4  # parts at a time


class Reach(Protocol):
    """Asks until the shared log's service answers."""

    async def __call__(self, ask: Callable[[], Awaitable[T]]) -> T: ...


async def take_part(log: SharedLog, replica: Replica, reach: Reach, run: Callable[[], Awaitable[None]]) -> None:
    """Call `run`, which takes part in the cluster, with a copy of the log. Begin with a snapshot if there is no copy,
    and again if slots were removed that the copy lacks.

    Raises what `run` raises, `SharedLogDamaged` if there is no snapshot that goes with the slots, and OSError.
    """
    if replica.history.slot == 0:
        await _begin(log, replica, reach)
    while True:
        try:
            await run()
        except SlotRemoved as removed:
            history = replica.history
            if history.slot == 0:  # others founded the log meanwhile
                await _begin(log, replica, reach)
                continue
            logger.warning(
                "slots before %d of the shared log were removed, and this node has those up to %d: a snapshot takes "
                "the place of its copy",
                removed.begin,
                history.slot,
            )
            log_id = "" if history.founded is None else history.founded.log_id
            await _begin_with_snapshot(log, replica, reach, removed.begin, log_id)
        else:
            return


async def _begin(log: SharedLog, replica: Replica, reach: Reach) -> None:
    """Begin with a snapshot if there is one, without a copy. Raises like `_begin_with_snapshot`."""
    try:
        data = await reach(lambda: log.read(1))
    except SlotRemoved as removed:
        await _begin_with_snapshot(log, replica, reach, removed.begin, "")
        return
    if data is not None and isinstance((first := parse_slot(1, data)).content, Founded):
        begin = 2 if first.position else 1  # a snapshot has the records that the log was founded with
        await _begin_with_snapshot(log, replica, reach, begin, first.content.log_id)


async def _begin_with_snapshot(log: SharedLog, replica: Replica, reach: Reach, begin: int, log_id: str) -> None:
    """Replace the copy by the newest snapshot that can be read, if there is one. The slots begin with `begin`.

    Raises `SharedLogDamaged` if the slots do not begin with 1 and no snapshot goes with them, and OSError.
    """
    failed = 0  # the newest snapshot of a round in which none could be read
    while True:
        for each in await reach(lambda: snapshots_of(log, log_id)):
            if each.manifest.slot + 1 < begin:
                continue
            try:
                await _join(log, replica, reach, each)
            except SnapshotUnreadable as error:
                logger.warning("snapshot %d of the shared log cannot be read: %s", each.number, error)
            else:
                return
        newest = max(await reach(lambda: newest_numbers(log)), default=0)
        if newest == failed:
            break
        failed = newest  # another snapshot may have taken the place of the one that was read
    if begin > 1:
        text = f"slots before {begin} of the shared log are gone, and no snapshot that can be read has them"
        raise SharedLogDamaged(text)


async def _join(log: SharedLog, replica: Replica, reach: Reach, numbered: Numbered) -> None:
    """Raises `SnapshotUnreadable`, and OSError."""
    number, manifest = numbered.number, numbered.manifest
    logger.info(
        "this node begins with snapshot %d of the shared log: slot %d, position %d, %d MB",
        number,
        manifest.slot,
        manifest.position,
        manifest.size >> 20,
    )
    contents = await reach(lambda: read_contents(log, manifest))
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def fill(folder: Folder, disk: Disk) -> None:
        await _Filling(log, reach, folder, disk, contents, manifest).fill()

    await replica.replace(fill)
    if replica.history.slot != manifest.slot:
        raise SnapshotUnreadable(f"it does not have the log up to slot {manifest.slot}")
    seconds = loop.time() - began
    logger.info("this node has the log up to slot %d from a snapshot, after %.1f s", manifest.slot, seconds)


class _Filling:
    """Writes the files of a snapshot into an empty folder."""

    def __init__(
        self, log: SharedLog, reach: Reach, folder: Folder, disk: Disk, contents: Contents, manifest: Manifest
    ) -> None:
        self._log = log
        self._reach = reach
        self._folder = folder
        self._disk = disk
        self._contents = contents
        self._manifest = manifest

    async def fill(self) -> None:
        folder, disk = self._folder, self._disk
        try:
            meta = msgspec.json.decode(self._contents.meta, type=Meta)
        except msgspec.MsgspecError as error:
            raise SnapshotUnreadable(f"its store.json is malformed: {error}") from None
        if not meta.shared or meta.log_id != self._manifest.log_id:
            raise SnapshotUnreadable("its store.json is of another log")
        await _in_thread(lambda: folder.write_meta(meta))
        await _in_thread(lambda: disk.make_folder(folder.log))
        staging = stage(folder.path)
        staged = await _in_thread(staging.__enter__)
        try:
            views = staged / "views"
            await _in_thread(lambda: views.mkdir(0o750))
            for file in self._contents.files:
                name = file.name.partition("/")[2]
                if file.name.startswith(VIEWS):
                    await self._write(file, views / name, Disk())
                else:
                    await self._write(file, folder.log / name, disk)
            await _in_thread(lambda: disk.sync_folder(folder.log))
            await _in_thread(lambda: _put_in_place(views, folder, disk))
        finally:
            await _in_thread(lambda: staging.__exit__(None, None, None))

    async def _write(self, file: SnapshotFile, path: Path, disk: Disk) -> None:
        """Write a file durably. Raises `SnapshotUnreadable` and OSError."""
        fd = await _in_thread(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640))
        try:
            offset = 0
            waiting = iter(file.parts)
            window: list[tuple[int, asyncio.Task[bytes]]] = []
            try:
                while True:
                    while len(window) < _READS and (part := next(waiting, None)) is not None:
                        window.append((offset, asyncio.ensure_future(self._read(part))))
                        offset += part.length
                    if not window:
                        break
                    at, reading = window[0]
                    data = await reading
                    window.pop(0)
                    await _in_thread(_writer(disk, fd, data, at))
            finally:
                for _, reading in window:
                    reading.cancel()
            await _in_thread(lambda: _end_file(disk, fd, offset, file.size))
        finally:
            os.close(fd)

    async def _read(self, part: Part) -> bytes:
        return await self._reach(lambda: read_part(self._log, part))


def _writer(disk: Disk, fd: int, data: bytes, at: int) -> Callable[[], None]:
    return lambda: disk.write(fd, data, at)


def _end_file(disk: Disk, fd: int, length: int, size: int) -> None:
    """Reserve room up to the size, and sync."""
    if length < size:
        disk.reserve(fd, size)
    disk.sync(fd)
    os.fsync(fd)  # its size, too


def _put_in_place(views: Path, folder: Folder, disk: Disk) -> None:
    Disk().sync_folder(views)
    views.rename(folder.views)
    disk.sync_folder(folder.path)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
