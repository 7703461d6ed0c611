"""A gateway's appends on their way to the store: gathered per turn of the loop, numbered, kept until answered.

The rules of the file:

* What was handed in is committed in that order, or fails. An append is sent again to a store that does not know it.
* What a store would refuse is refused here: nothing that has a number is refused for what it is.
* Memory is bounded as in `store.log.commitlog`: beyond it appends fail with `StoreBusy`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

import record
from store.api import Appended, Done
from store.errors import RecordInvalid, StoreError
from store.log.commitlog import refusal

logger = logging.getLogger(__name__)

SEQUENCE: Final = Struct("<Q")
OUTCOME: Final = Struct("<QQQ")  # sequence, store time, position of the first record if they lie side by side
_APART: Final = 0xFFFF_FFFF_FFFF_FFFF  # they do not: each has its position (u64) behind it
_SIZE: Final = 256 << 10  # of one append, unless a single one is larger
_UNKNOWN: Final = -1  # position of a record that was committed before the store knew that it was asked again


class _Unit:
    """What somebody waits for."""

    __slots__ = ("done", "frames", "size")

    def __init__(self, frames: list[bytes], size: int, done: Done) -> None:
        self.frames = frames
        self.size = size  # bytes
        self.done = done


class Parcel:
    """Units that go as one append."""

    __slots__ = ("body", "sequence", "units")

    def __init__(self, sequence: int, body: bytes, units: list[_Unit]) -> None:
        self.sequence = sequence
        self.body = body  # as it travels
        self.units = units


class Appends:
    """What was appended and is not answered. `send` has a parcel go; `limit` and `max_record` are the store's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, max_record: int, send: Callable[[bytes], None]):
        self._loop = loop
        self._limit = limit  # bytes that may wait for an answer
        self._max_record = max_record
        self._send = send
        self._units: deque[_Unit] = deque()  # of this turn of the loop
        self._parcels: deque[Parcel] = deque()  # sent, the oldest first
        self._sequence: int = 0
        self._scheduled: bool = False
        self._error: StoreError | None = None  # why appends are refused
        self._idle: asyncio.Future[None] | None = None  # who waits until everything is answered
        self.pending_bytes: int = 0

    def append(self, frames: list[bytes], done: Done) -> None:
        """See `store.api.Store.append`."""
        size = 0
        for frame in frames:
            size += len(frame)
        error = self._error or refusal(frames, size, self.pending_bytes, self._limit, self._max_record)
        if error is not None:
            self._loop.call_soon(done, Appended(error=error))
            return
        self._units.append(_Unit(frames, size, done))
        self.pending_bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was gathered."""
        self._scheduled = False
        units = self._units
        while units:
            parcel: list[_Unit] = []
            size = 0
            while units and (not parcel or size + units[0].size <= _SIZE):
                unit = units.popleft()
                parcel.append(unit)
                size += unit.size
            self._dispatch(parcel)

    def outcome(self, body: bytes) -> None:
        """The store's answer to a parcel."""
        sequence, store_time, first = OUTCOME.unpack_from(body)
        parcel = self._take(sequence)
        if parcel is None:
            return
        if first != _APART:
            starts = record.split(parcel.body[SEQUENCE.size :])
            positions = [first + start for start in starts]
        else:
            positions = [int.from_bytes(body[at : at + 8], "little") for at in range(OUTCOME.size, len(body), 8)]
            missing = sum(len(unit.frames) for unit in parcel.units) - len(positions)
            positions = [_UNKNOWN] * missing + positions
        at = 0
        for unit in parcel.units:
            count = len(unit.frames)
            self._answer(unit, Appended(positions[at : at + count], store_time))
            at += count

    def refused(self, sequence: int, error: StoreError) -> None:
        """The store could not commit a parcel."""
        parcel = self._take(sequence)
        if parcel is not None:
            for unit in parcel.units:
                self._answer(unit, Appended(error=error))

    def resume(self, sequence: int) -> None:
        """The store is another one now, which knows parcels up to `sequence` as committed: the others go again."""
        while self._parcels and self._parcels[0].sequence <= sequence:
            for unit in self._parcels.popleft().units:
                self._answer(unit, Appended([_UNKNOWN] * len(unit.frames), 0))
        for parcel in self._parcels:
            self._send(parcel.body)

    def fail(self, error: StoreError) -> None:
        """Whether what waits is committed nobody knows, and more is refused until `reopen`."""
        self._error = error
        units = [unit for parcel in self._parcels for unit in parcel.units]
        units += self._units
        self._parcels.clear()
        self._units.clear()
        for unit in units:
            self._answer(unit, Appended(error=error))

    def reopen(self, limit: int, max_record: int) -> None:
        """Take appends (again)."""
        self._limit = limit
        self._max_record = max_record
        self._error = None

    async def drained(self) -> None:
        """Wait until everything is answered."""
        if self._parcels or self._units:
            self._idle = self._loop.create_future()
            await self._idle

    def _dispatch(self, units: list[_Unit]) -> None:
        frames = [frame for unit in units for frame in unit.frames]
        data = b"".join(frames)
        if not _are_frames(data, len(frames)):
            for unit in units:
                if not _are_frames(b"".join(unit.frames), len(unit.frames)):
                    self._answer(unit, Appended(error=RecordInvalid("not an unsealed frame of a known kind")))
                else:
                    self._number(b"".join(unit.frames), [unit])
            return
        self._number(data, units)

    def _number(self, data: bytes, units: list[_Unit]) -> None:
        self._sequence += 1
        parcel = Parcel(self._sequence, SEQUENCE.pack(self._sequence) + data, units)
        self._parcels.append(parcel)
        self._send(parcel.body)

    def _take(self, sequence: int) -> Parcel | None:
        """The parcel with this number. They are answered in order, but for those that a busy store refused."""
        parcels = self._parcels
        if parcels and parcels[0].sequence == sequence:
            return parcels.popleft()
        found = next((parcel for parcel in parcels if parcel.sequence == sequence), None)
        if found is not None:
            parcels.remove(found)
        return found

    def _answer(self, unit: _Unit, answer: Appended) -> None:
        self.pending_bytes -= unit.size
        try:
            unit.done(answer)
        except Exception:
            logger.exception("a commit callback failed")
        if self._idle is not None and not self._parcels and not self._units and not self._idle.done():
            self._idle.set_result(None)


def outcome_of(sequence: int, store_time: int, positions: Sequence[int], spread: int) -> bytes:
    """The answer to a parcel that is committed; between its first and its last record are `spread` bytes of it, or -1
    when it is only the last records of a parcel."""
    first = positions[0] if positions else 0
    if spread >= 0 and (not positions or positions[-1] - first == spread):
        return OUTCOME.pack(sequence, store_time, first)
    return OUTCOME.pack(sequence, store_time, _APART) + b"".join(p.to_bytes(8, "little") for p in positions)


def _are_frames(data: bytes, count: int) -> bool:
    """Whether `data` is so many unsealed frames."""
    try:
        return len(record.check_unsealed(data, False)) == count
    except ValueError:
        return False
