"""Writes a snapshot of a node's copy of the log (`store.cluster.snapshots`).

It is written from a stage, whose files do not change, one part after the other with pauses. What the snapshot before
has is not written again: tables of RocksDB never change, and neither does the log up to its end of then.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from store.cluster.history import History, unpack_history
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.cluster.snapshots import (
    LOG,
    VIEWS,
    Contents,
    Manifest,
    Numbered,
    Part,
    SnapshotFile,
    SnapshotUnreadable,
    create_manifest,
    digest_of,
    pack_contents,
    read_contents,
    written_parts,
)
from store.errors import LogCorrupt, StoreError
from store.exports.stage import stage
from store.local_store import LocalStore
from store.log.disk import Disk
from store.log.recovery import sound_batches
from store.log.segments import Segments, segment_name
from store.log.writer import Clock, SealedBatch
from store.views.database.database import saved_checkpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Name, inode, size and time of a table → digests and lengths of its parts.
_Tables = dict[tuple[str, int, int, int], list[tuple[bytes, int]]]

REST: Final = 1.0  # the pause of a node after a part, as a multiple of its time
_VERIFIED: Final = 8 << 20  # bytes of the log that are verified in one turn of the thread
_TRIES: Final = 5  # of the manifest, whose answer may be lost


@dataclass(slots=True)
class _Base:
    """The snapshot before, if its parts can be used."""

    position: int
    files: dict[str, SnapshotFile]
    parts: dict[bytes, Part]  # by digest


class SnapshotWriter:
    """Writes snapshots, one at a time."""

    def __init__(self, log: SharedLog, node: str, clock: Clock, rest: float) -> None:
        """rest: the pause after a part, as a multiple of its time."""
        self._log = log
        self._node = node
        self._clock = clock
        self._rest = rest
        self._tables: _Tables = {}

    async def write(self, local: LocalStore, path: Path, before: Numbered | None, number: int) -> Numbered | None:
        """Write snapshot `number` of the node's copy in the folder `path`. `before` is the newest one, if there is one
        and it is of this log.

        None if another node was faster, and if the copy has no slots yet. What was written of a snapshot that fails is
        used by the next try, or removed with the next snapshot. Raises `StoreError`, `LogCorrupt` if the copy is
        damaged, and OSError.
        """
        staging = stage(path)
        folder = await _in_thread(staging.__enter__)
        try:
            await local.stage(folder)
            writing = _Writing(self._log, self._node, self._clock, self._rest, self._tables, folder, local, number)
            return await writing.write(before)
        finally:
            await _in_thread(lambda: staging.__exit__(None, None, None))


class _Writing:
    """One snapshot in the making."""

    def __init__(
        self,
        log: SharedLog,
        node: str,
        clock: Clock,
        rest: float,
        tables: _Tables,
        folder: Path,
        local: LocalStore,
        number: int,
    ) -> None:
        self._log = log
        self._node = node
        self._clock = clock
        self._rest = rest
        self._tables = tables
        self._folder = folder
        self._meta = local.meta
        self._number = number
        self._base = _Base(0, {}, {})
        self._there: set[str] = set()  # parts
        self._written = 0  # bytes

    async def write(self, before: Numbered | None) -> Numbered | None:
        saved = await _in_thread(lambda: saved_checkpoint(self._folder / "views"))
        if saved is None or not saved.slots or not saved.position:
            return None
        history = unpack_history(saved.slots)
        self._there = await written_parts(self._log)
        await self._read_base(before)
        began = asyncio.get_running_loop().time()
        segments = Segments(self._folder / "log", self._meta.segment_size, Disk())
        await _in_thread(segments.find)
        begin = segments.base_of(saved.log_begin)
        # What has no file here is in the tier, which the leader has verified it for.
        await self._verify(segments, max(begin, segments.begin, self._base.position), history.end)
        files = [await self._segment(segments, base, history.end) for base in segments.bases if base >= begin]
        files += [await self._file(path, LOG) for path in await self._others("log")]
        files += [await self._file(path, VIEWS) for path in await self._others("views")]
        contents = Contents(msgspec.json.encode(self._meta), files)
        manifest = await self._manifest(history, begin, contents)
        if not await self._create(manifest):
            return None
        seconds = asyncio.get_running_loop().time() - began
        logger.info(
            "snapshot %d of the shared log is written: slot %d, position %d, %d MB, of which %d are new, in %.1f s",
            self._number,
            history.slot,
            history.end,
            manifest.size >> 20,
            self._written >> 20,
            seconds,
        )
        return Numbered(self._number, manifest)

    async def _read_base(self, before: Numbered | None) -> None:
        if before is None:
            return
        try:
            contents = await read_contents(self._log, before.manifest)
        except SnapshotUnreadable as error:
            logger.warning("a new snapshot of the shared log has nothing of the one before: %s", error)
            return
        files = {file.name: file for file in contents.files}
        parts = {part.digest: part for part in contents.parts() if part.name in self._there}
        self._base = _Base(before.manifest.position, files, parts)

    async def _verify(self, segments: Segments, position: int, end: int) -> None:
        """Read the log that no snapshot has, and raise `LogCorrupt` if it does not go up to `end`."""
        batches = sound_batches(segments, position)
        loop = asyncio.get_running_loop()
        while position < end:
            began = loop.time()
            position, goes_on = await _in_thread(_batch_reader(batches, position))
            if not goes_on and position < end:
                raise LogCorrupt(segment_name(segments.base_of(position)), position, "damaged record")
            await asyncio.sleep(self._rest * (loop.time() - began))

    async def _segment(self, segments: Segments, base: int, end: int) -> SnapshotFile:
        """A segment up to `end`. What the snapshot before has of it cannot have changed, and is not read."""
        name, size = LOG + segment_name(base), segments.size
        known = self._base.files.get(name)
        parts: list[Part] = []
        if known is not None:
            whole = known.parts if self._base.position >= base + size else known.parts[:-1]
            for part in whole:
                if part.digest not in self._base.parts:  # it was lost: what follows is read again
                    break
                parts.append(part)
        path = segments.folder / segment_name(base)
        length = min(size, end - base)
        at = sum(part.length for part in parts)
        while at < length:
            data = await _in_thread(_reader(path, at, min(self._log.max_object_bytes, length - at)))
            parts.append(await self._part(data, await _in_thread(_digester(data))))
            at += len(data)
        return SnapshotFile(name, size, parts)

    async def _file(self, path: Path, folder: str) -> SnapshotFile:
        """A file that is not a segment. Tables were perhaps read for an earlier snapshot."""
        identity = _identity(path)
        size, piece = identity[2], self._log.max_object_bytes
        is_table = path.suffix == ".sst"
        known = self._tables.get(identity) if is_table else None
        parts: list[Part] = []
        digests: list[tuple[bytes, int]] = []
        for number, at in enumerate(range(0, size, piece)):
            wanted = known[number] if known is not None and number < len(known) else None
            if wanted is not None and wanted[0] in self._base.parts:
                parts.append(self._base.parts[wanted[0]])
                digests.append(wanted)
                continue
            data = await _in_thread(_reader(path, at, min(piece, size - at)))
            digest = await _in_thread(_digester(data))
            parts.append(await self._part(data, digest))
            digests.append((digest, len(data)))
        if is_table:
            self._tables[identity] = digests
        return SnapshotFile(folder + path.name, size, parts)

    async def _others(self, folder: str) -> list[Path]:
        """The files of a folder that are no segments. Forgets tables that are not there any more."""
        paths = await _in_thread(lambda: sorted((self._folder / folder).iterdir()))
        if folder == "views":
            for gone in self._tables.keys() - set(map(_identity, paths)):
                del self._tables[gone]
        return [path for path in paths if path.suffix != ".log" and path.name != "LOCK" and path.name[:3] != "LOG"]

    async def _part(self, data: bytes, digest: bytes) -> Part:
        """The part with these bytes. Written, if it is not there."""
        known = self._base.parts.get(digest)
        if known is not None:
            return known
        part = Part(self._number, digest, len(data))
        if part.name not in self._there:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self._log.put_object(part.name, data)
            self._there.add(part.name)
            self._written += len(data)
            await asyncio.sleep(self._rest * (loop.time() - began))
        return part

    async def _manifest(self, history: History, begin: int, contents: Contents) -> Manifest:
        packed, piece = pack_contents(contents), self._log.max_object_bytes
        pieces = [packed[at : at + piece] for at in range(0, len(packed), piece)]
        return Manifest(
            log_id=self._meta.log_id,
            slot=history.slot,
            begin=begin,
            position=history.end,
            node=self._node,
            time_ms=self._clock(),
            size=sum(part.length for part in contents.parts()),
            contents=[await self._part(each, digest_of(each)) for each in pieces],
        )

    async def _create(self, manifest: Manifest) -> bool:
        """Whether this is the snapshot of its number from now on, as far as that can be known."""
        for _ in range(_TRIES - 1):
            try:
                return await create_manifest(self._log, self._number, manifest)
            except SharedLogUnavailable:
                await asyncio.sleep(1.0)
        return await create_manifest(self._log, self._number, manifest)


def _identity(path: Path) -> tuple[str, int, int, int]:
    found = path.stat()
    return path.name, found.st_ino, found.st_size, found.st_mtime_ns


def _reader(path: Path, at: int, length: int) -> Callable[[], bytes]:
    def read() -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = Disk().read(fd, length, at)
        finally:
            os.close(fd)
        if len(data) < length:
            raise StoreError(f"{path.name} ends at {at + len(data)}")
        return data

    return read


def _digester(data: bytes) -> Callable[[], bytes]:
    return lambda: digest_of(data)


def _batch_reader(batches: Iterator[SealedBatch], position: int) -> Callable[[], tuple[int, bool]]:
    """Reads some of the log from `position` on: where that ends, and whether it may go on there."""

    def read() -> tuple[int, bool]:
        end = position
        for batch in batches:
            end = batch.position + len(batch.data)
            if end - position >= _VERIFIED:
                return end, True
        return end, False

    return read


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
