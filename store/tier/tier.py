"""The tier of a log: which segments it has, reads of them, and writing and removing their objects.

Its list is `Segments.tiered`. Reads come by ranges of objects through a cache of blocks, in threads of their own: what
reads the newest part of the log, or local segments, never waits for them. Names of objects are used once, so what was
read stays true.

A manifest is `<folder>/manifests/<number>`. It is written conditionally, and counts if none with a higher number is
there: only the newest always stays. Objects that are written for manifest n are `<folder>/segments/<n>-…`. So who has
manifest n may remove all objects with numbers up to n that it does not name: nobody else can still be about to name
them. Somebody who finds the next number taken, because a copy of the data folder was started, goes on in a new folder,
and never removes from the old one (docs/decisions/0044).

The log of several nodes has no manifests. Its records say what the tier has, and the epoch of a leader takes the place
of a manifest's number (`store.retention.tier_lists`, docs/decisions/0047).
"""

import asyncio
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

from store.config import TierConfig
from store.errors import LogCorrupt, StoreClosed, TierUnavailable
from store.log.segments import Segments, segment_name
from store.log.tiered import Tiered, TieredSegment, unpack_tiered, write_tiered
from store.tier.block_cache import BlockCache
from store.tier.codec import Codec
from store.tier.objects import Objects
from store.tier.segment_object import (
    ObjectDamaged,
    SegmentIndex,
    index_size,
    pack_object,
    unpack_index,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Read = Callable[[int, int], bytes]  # bytes of a segment: how many, from which offset on

_AHEAD: Final = 4  # blocks that are read at once when a reader goes on behind what it has read
_INDEXES: Final = 1024  # of objects, in memory; about 3 KB each
_RETRY_S: Final = 1.0  # after an error, for which reads and writes fail without a request
_DIGITS: Final = 20


class Tier:
    """The segments of one log that an object store has. Methods are for the loop except where they say otherwise."""

    def __init__(
        self,
        segments: Segments,
        objects: Objects,
        codec: Codec,
        config: TierConfig,
        openings: Sequence[str] = (),
    ) -> None:
        """openings: the names of the times that the data folder was opened, the last one is that of this process; none
        for a process that only reads."""
        self._segments = segments
        self._openings = openings
        self._objects = objects
        self._codec = codec
        self._cache = BlockCache(config.cache_bytes)
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._lock = threading.Lock()  # of `_indexes` and the numbers
        self._readers: Executor = ThreadPoolExecutor(config.max_reads, "sluice-tier-read")
        self._writer: Executor = ThreadPoolExecutor(1, "sluice-tier-write")
        self._counted = segments.tiered  # whose bytes are known
        self._object_bytes = _total(segments.tiered)
        self._unpublished: TieredSegment | None = None  # uploaded last; no manifest may name it yet
        self._closed = False
        self._reading = _Direction("reads of old segments fail", "old segments can be read again")
        self._writing = _Direction("segments cannot go to the tier, and stay here", "segments go to the tier again")
        self._looking = _Direction("files of segments stay here", "files of segments can be removed again")
        self.reads = 0  # requests for blocks

    @property
    def tiered(self) -> Tiered:
        """What is in the tier. For any thread."""
        return self._segments.tiered

    @property
    def object_bytes(self) -> int:
        """Bytes of all objects in the tier."""
        if self._counted is not self.tiered:
            self._counted = self.tiered
            self._object_bytes = _total(self._counted)
        return self._object_bytes

    @property
    def hits(self) -> int:
        """Blocks that were in the cache when they were read."""
        return self._cache.hits

    @property
    def error(self) -> str:
        """Why the last request to write, to read or to look for an object failed; "" if none did."""
        return self._writing.error or self._reading.error or self._looking.error

    @property
    def errors(self) -> int:
        """Requests that failed."""
        return self._writing.errors + self._reading.errors + self._looking.errors

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache."""
        return self._cache.size

    def has(self, base: int) -> bool:
        """Whether the tier has the segment at `base`. For any thread."""
        return self.tiered.find(base) is not None

    def time_of(self, base: int) -> int:
        """Store time of the first record of a segment in the tier, ms; 0 if it is not there, or not known."""
        found = self.tiered.find(base)
        return 0 if found is None else found.time_ms

    async def run(self, base: int, function: Callable[[Read, *Arguments], T], *arguments: *Arguments) -> T:
        """Call a function that reads a segment, in a thread for cold reads. Raises `TierUnavailable`, and `LogCorrupt`
        for an object that is damaged or missing."""
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, function, partial(self.read, base), *arguments)

    async def write(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Call a function that writes to the tier, in the thread for that. Raises `StoreClosed` behind `stop`."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)

    def read(self, base: int, length: int, offset: int) -> bytes:
        """`length` bytes of a segment in the tier from byte `offset` on. For any thread but the loop's.

        Behind its last record there are zeros. Raises what `run` does.
        """
        segment = self.tiered.find(base)
        if segment is None:
            raise LogCorrupt(segment_name(base), base + offset, "segment is missing")
        try:
            index = self._index(segment)
            pieces: list[bytes] = []
            at, end = offset, min(offset + length, index.end - base)
            while at < end:
                number = at // index.block
                block = self._block(segment, index, number)
                pieces.append(block[at - number * index.block : end - number * index.block])
                at += len(pieces[-1])
        except ObjectDamaged as error:
            raise LogCorrupt(segment_name(base), base + offset, f"object {segment.name}: {error}") from None
        found = b"".join(pieces)
        return found + bytes(min(length, self._segments.size - offset) - len(found))

    def start_for(self, base: int) -> str:
        """How the name of a segment's object begins that the next manifest is to have. Raises OSError."""
        tiered = self._in_folder()
        return object_start(_above(tiered), tiered.number + 1, base)

    def upload(
        self, start: str, base: int, end: int, time_ms: int, read: Read, rest: Callable[[], None]
    ) -> TieredSegment:
        """Write a segment into an object, read that back, and return its entry for the list. Blocks.

        start: how the object's name begins. end: position behind its last record, time_ms: store time of its first one.
        read: of the segment; rest: is called between blocks. Raises `TierUnavailable`, also if the object is not what
        was written, and `StoreClosed`.
        """
        self._check_open()
        self._check_store()  # before segments fill a disk that is not the tier's
        left = self._unpublished
        if left is not None and left.name.startswith(start):
            with suppress(ObjectDamaged):
                self._verify(left, rest)
                return left
        name = start + uuid.uuid4().hex
        size = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in pack_object(base, end, read, self._codec):
                self._check_open()
                rest()
                size += len(piece)
                yield piece

        self._request(self._objects.put, name, pieces())
        segment = self._unpublished = TieredSegment(base, name, size, end, time_ms)
        self._verify(segment, rest)
        return segment

    async def is_there(self, segment: TieredSegment) -> bool:
        """Whether the object of a segment can be found, with its size. Raises `TierUnavailable`."""
        self._check_open()
        find = partial(self._looking.request, self._objects.size, segment.name)
        return await asyncio.get_running_loop().run_in_executor(self._readers, find) == segment.size

    def missing(self, segments: Iterable[TieredSegment]) -> list[TieredSegment]:
        """Those of these segments that have no object. Raises `TierUnavailable`. Blocks."""
        return [each for each in segments if self._request(self._objects.size, each.name) is None]

    def publish(self, segments: Sequence[TieredSegment]) -> bool:
        """Let the tier have these segments: write the next manifest, and then the list in the data folder. Blocks.

        Returns False if the list is another one now: that of a manifest whose writing had no answer, or one in another
        folder. Raises `TierUnavailable`, and OSError.
        """
        tiered = self._in_folder()
        new = tiered.next(segments, self._openings[-1])
        name = _manifest(new)
        found = new
        if not self._request(self._objects.create, name, new.packed()):
            data = self._request(self._objects.get, name)
            if data is None:
                raise TierUnavailable(f"another write of {name} was under way")
            found = unpack_tiered(data, name)
        # A number is free again when a newer manifest is there: the newest one always stays.
        numbers = {number_of(each) for each in self._request(self._objects.list, _folder_of_manifests(tiered))}
        is_newest = max(numbers) == new.number
        if is_newest and tiered.number and tiered.number not in numbers:
            raise self._writing.failed(_other_store(_manifest(tiered)))
        if found.opening in self._openings and is_newest:
            self._keep(found)
            return found == new
        # What the other one names is not ours to remove, but it can be read.
        forked = tiered.moved(uuid.uuid4().hex)
        logger.warning(
            "another copy of this data folder writes to %s in the tier: this one goes on in %s",
            _above(tiered),
            _above(forked),
        )
        self._keep(forked)
        return False

    def sweep(self) -> int:
        """Remove the objects that no manifest needs any more, and older manifests. Returns how many. Blocks.

        Raises `TierUnavailable`.
        """
        tiered = self.tiered
        if not tiered.number:
            return 0
        named = {segment.name for segment in tiered.segments}
        removed, _ = self.remove_unnamed(_above(tiered), tiered.number, named)
        manifests = self._writing.attempt(self._objects.list, _folder_of_manifests(tiered))
        old = [name for name in manifests if number_of(name) < tiered.number]
        if old:
            self._request(self._objects.delete, old)
        return removed + len(old)

    def remove_unnamed(self, above: str, number: int, named: Collection[str]) -> tuple[int, set[str]]:
        """Remove the objects of segments in a folder that have numbers up to `number` and other names than these.
        Returns how many, and the names of these that are there. Raises `TierUnavailable`. Blocks."""
        found = self._writing.attempt(self._objects.list, f"{above}/segments")
        old = [name for name in found if name not in named and number_of(name) <= number]
        if old:
            self._writing.attempt(self._objects.delete, old)
        self._writing.answered()  # a store that lists and deletes nothing has failed
        return len(old), {name for name in found if name in named}

    def audit(self, segment: TieredSegment) -> None:
        """Read the whole object of a segment. Raises `LogCorrupt` if it is damaged, and `TierUnavailable`. Blocks."""
        try:
            self._verify(segment, lambda: None)
        except ObjectDamaged as error:
            raise LogCorrupt(segment_name(segment.base), segment.base, f"object {segment.name}: {error}") from None

    def stop(self) -> None:
        """End uploads, and refuse further requests."""
        self._closed = True

    def close(self, wait: bool = True) -> None:
        """End the threads. Blocks until requests that are under way have ended, unless `wait` is false."""
        self.stop()
        for executor in (self._readers, self._writer):
            executor.shutdown(wait, cancel_futures=True)

    def _verify(self, segment: TieredSegment, rest: Callable[[], None]) -> None:
        """Read an object and compare it with its checksums. Raises `ObjectDamaged` and `TierUnavailable`."""
        found = self._writing.attempt(self._objects.size, segment.name)
        if found is None:
            raise self._missing(self._writing)
        if found != segment.size:
            raise ObjectDamaged(f"it has {found} bytes, and {segment.size} were written")
        index = self._read_index(segment, False)
        for number in range(0, len(index.checksums), _AHEAD):
            self._check_open()
            for block, data in self._read_blocks(segment, index, number, number + _AHEAD, False):
                index.open_block(block, data, self._codec)
                rest()

    def _block(self, segment: TieredSegment, index: SegmentIndex, number: int) -> bytes:
        return self._cache.get((segment.name, number), partial(self._load, segment, index, number))

    def _load(self, segment: TieredSegment, index: SegmentIndex, number: int) -> list[tuple[tuple[str, int], bytes]]:
        """A block, and those behind it if the one before it was read."""
        name = segment.name
        end = number + 1
        if self._cache.has((name, number - 1)):
            while end < min(number + _AHEAD, len(index.checksums)) and not self._cache.has((name, end)):
                end += 1
        try:
            blocks = self._read_blocks(segment, index, number, end, True)
            return [((name, each), index.open_block(each, data, self._codec)) for each, data in blocks]
        except ObjectDamaged as error:
            at = segment.base + number * index.block
            raise LogCorrupt(segment_name(segment.base), at, f"object {name}: {error}") from None

    def _read_blocks(
        self, segment: TieredSegment, index: SegmentIndex, first: int, end: int, for_readers: bool
    ) -> list[tuple[int, bytes]]:
        """The compressed blocks [first, end) of an object by their numbers."""
        end = min(end, len(index.checksums))
        begin = index.starts[first]
        data = self._read_range(segment, begin, index.starts[end], for_readers)
        return [(i, data[index.starts[i] - begin : index.starts[i + 1] - begin]) for i in range(first, end)]

    def _index(self, segment: TieredSegment) -> SegmentIndex:
        with self._lock:
            found = self._indexes.get(segment.name)
            if found is not None:
                self._indexes.move_to_end(segment.name)
                return found
        index = self._read_index(segment, True)
        with self._lock:
            self._indexes[segment.name] = index
            if len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
        return index

    def _read_index(self, segment: TieredSegment, for_readers: bool) -> SegmentIndex:
        size = min(segment.size, index_size(segment.end - segment.base))
        found = unpack_index(self._read_range(segment, segment.size - size, segment.size, for_readers), segment.size)
        if isinstance(found, int):
            found = unpack_index(
                self._read_range(segment, segment.size - found, segment.size, for_readers), segment.size
            )
        if isinstance(found, int) or (found.base, found.end) != (segment.base, segment.end):
            raise ObjectDamaged("it is that of another segment")
        return found

    def _get(self, segment: TieredSegment, begin: int, end: int, for_readers: bool) -> bytes | None:
        self._check_open()
        if not for_readers:
            return self._writing.attempt(self._objects.read, segment.name, begin, end)
        with self._lock:
            self.reads += 1
        self._reading.check()
        return self._reading.attempt(self._objects.read, segment.name, begin, end)

    def _read_range(self, segment: TieredSegment, begin: int, end: int, for_readers: bool) -> bytes:
        data = self._get(segment, begin, end, for_readers)
        direction = self._reading if for_readers else self._writing
        if data is None:
            raise self._missing(direction)
        direction.answered()
        if len(data) != end - begin:
            raise ObjectDamaged(f"it ends at {begin + len(data)}, and has {segment.size} bytes by the list")
        return data

    def _check_store(self) -> None:
        """Raise `TierUnavailable` if the store is another one than was written to."""
        tiered, sign = self.tiered, _sign(self.tiered)
        if tiered.number:
            is_there = bool(self._writing.attempt(self._objects.list, _folder_of_manifests(tiered)))
        else:
            is_there = not sign or self._writing.attempt(self._objects.size, sign) is not None
            # It may be the one object that a replica of the store lacks.
            is_there = is_there or bool(self._writing.attempt(self._objects.list, sign.rpartition("/")[0]))
        if not is_there:
            raise self._writing.failed(_other_store(sign))

    def _missing(self, direction: "_Direction") -> ObjectDamaged:
        """The error about an object that is not there. Raises `TierUnavailable` if nothing else of the tier is."""
        sign = _sign(self.tiered)
        if sign and direction.attempt(self._objects.size, sign) is None:
            raise direction.failed(_other_store(sign))
        direction.answered()
        return ObjectDamaged("it is missing in the tier")

    def _request(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Ask the store, for writing and for checks of what was written. Raises `TierUnavailable`."""
        self._check_open()
        return self._writing.request(function, *arguments)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closing")

    def _keep(self, tiered: Tiered) -> None:
        write_tiered(self._segments.folder, tiered, self._segments.disk)
        self._segments.set_tiered(tiered)

    def _in_folder(self) -> Tiered:
        """What is in the tier, with a folder to write to."""
        if not self.tiered.folder:
            self._keep(self.tiered.moved(uuid.uuid4().hex))
        return self.tiered


class _Direction:
    """Requests of one kind, which may be allowed or possible while others are not. For any thread."""

    def __init__(self, fails: str, works: str) -> None:
        self._fails = fails
        self._works = works
        self._lock = threading.Lock()
        self._failed_at = float("-inf")
        self.error = ""  # of the last request
        self.errors = 0

    def check(self) -> None:
        """Fail for a moment after an error, without a request: all who read would wait for its answer.

        Raises `TierUnavailable`.
        """
        if time.monotonic() - self._failed_at < _RETRY_S:
            raise TierUnavailable(self.error)

    def failed(self, text: str) -> TierUnavailable:
        """Note that a request has failed, and return the error for it."""
        with self._lock:
            is_new, self.error = not self.error, text
            self._failed_at = time.monotonic()
            self.errors += 1
        if is_new:
            logger.warning("the tier does not answer, %s: %s", self._fails, text)
        return TierUnavailable(text)

    def request(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Make a request. Raises `TierUnavailable`. The first error is logged, and the first answer behind it."""
        result = self.attempt(function, *arguments)
        self.answered()
        return result

    def attempt(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Make a request whose answer does not show yet that it is the tier which answers. Raises `TierUnavailable`."""
        try:
            return function(*arguments)
        except TierUnavailable as error:
            self.failed(str(error))
            raise

    def answered(self) -> None:
        """Note that the tier answers."""
        if self.error:
            with self._lock:
                was, self.error, self._failed_at = self.error, "", float("-inf")
            if was:
                logger.warning("the tier answers: %s", self._works)


def object_start(above: str, number: int, base: int) -> str:
    """How the name of a segment's object begins in a folder. It is written for this manifest, or in this epoch."""
    return f"{above}/segments/{number:0{_DIGITS}}-{base:0{_DIGITS}}-"


def _sign(tiered: Tiered) -> str:
    """An object that is there if the store is the tier's; "": there is none yet."""
    if tiered.number:
        return _manifest(tiered)
    return tiered.last.name if tiered.last is not None else ""


def _other_store(sign: str) -> str:
    return f"{sign} is not there: this is not the store that was written to, or it is not mounted"


def _total(tiered: Tiered) -> int:
    return sum(segment.size for segment in tiered.segments)


def _above(tiered: Tiered) -> str:
    """The folder of a log in the tier."""
    return f"logs/{tiered.folder}"


def _folder_of_manifests(tiered: Tiered) -> str:
    return f"{_above(tiered)}/manifests"


def _manifest(tiered: Tiered) -> str:
    return f"{_folder_of_manifests(tiered)}/{tiered.number:0{_DIGITS}}"


def number_of(name: str) -> int:
    """The number of a manifest, or of the manifest or the epoch for which an object was written."""
    return int(name.rpartition("/")[2].partition("-")[0])
