"""A gateway's appends to a remote store: gathered per turn of the loop, numbered, and kept until they are answered.

The rules of the file:

* Appends are committed in the order of the calls, or fail. A store that does not know an append gets it again.
* Invalid appends are refused here, before they get a number.
* Memory and time are bounded as in `store.log.commitlog`: appends beyond the bounds fail with `StoreBusy`. The time in
  which the store cannot be reached does not count: it ends by the grace time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import record
from store.api import Appended, Done
from store.errors import RecordInvalid, StoreError
from store.log.commitlog import refusal
from store.log.wait_limit import WaitLimit
from store.remote.wire.layout import APART, OUTCOME, SEQUENCE

logger = logging.getLogger(__name__)

_SIZE: Final = 256 << 10  # bytes of one parcel; a larger append has a parcel of its own
_UNIT: Final = 1 << 20  # bytes that are taken to be committed as quickly as fewer


class _Unit:
    """One append of a caller."""

    __slots__ = ("done", "frames", "size")

    def __init__(self, frames: list[bytes], size: int, done: Done) -> None:
        self.frames = frames
        self.size = size  # bytes
        self.done = done


class Parcel:
    """Appends that travel together as one append."""

    __slots__ = ("behind", "body", "pending_bytes", "sent_at", "sequence", "units")

    def __init__(
        self, sequence: int, body: bytes, units: list[_Unit], sent_at: float, pending_bytes: int, behind: int
    ) -> None:
        self.sequence = sequence
        self.body = body  # as it is sent
        self.units = units
        self.sent_at = sent_at  # loop time
        self.pending_bytes = pending_bytes  # of all appends that were not answered then
        self.behind = behind  # position before all of its records


class Appends:
    """The appends that are not answered. `send` sends a parcel. `log_end` is the end of the log, as far as it is
    known."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        send: Callable[[bytes], None],
        log_end: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._limit = limit  # bytes that may wait for an answer
        self._max_record = 1 << 62  # these three are the store's from `reopen` on
        self._waits = WaitLimit(0, limit, _UNIT)
        self._overdue_timer: asyncio.TimerHandle | None = None  # set while a parcel is not answered
        self._send = send
        self._log_end = log_end
        self._units: deque[_Unit] = deque()  # of this turn of the loop
        self._parcels: deque[Parcel] = deque()  # sent, the oldest first
        self._sequence: int = 0
        self._resumed: int = 0  # the last parcel that was in the log when a restarted store was found
        self._scheduled: bool = False
        self._error: StoreError | None = None  # why appends are refused
        self._idle: asyncio.Future[None] | None = None  # done when everything is answered
        self.pending_bytes: int = 0

    def append(self, frames: list[bytes], done: Done) -> None:
        """See `store.api.Store.append`."""
        size = 0
        for frame in frames:
            size += len(frame)
        error = self._error or refusal(frames, size, self.pending_bytes, self._limit, self._waits, self._max_record)
        if error is not None:
            self._loop.call_soon(done, Appended(error=error))
            return
        self._units.append(_Unit(frames, size, done))
        self.pending_bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the gathered appends."""
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
        """Answer the appends of a parcel that the store has committed."""
        sequence, store_time, first = OUTCOME.unpack_from(body)
        parcel = self._remove(sequence)
        if parcel is None:
            return
        self._waits.committed(self._loop.time() - parcel.sent_at, parcel.pending_bytes)
        if first != APART:
            starts = record.split(parcel.body[SEQUENCE.size :])
            positions = [first + start for start in starts]
        else:
            positions = [int.from_bytes(body[at : at + 8], "little") for at in range(OUTCOME.size, len(body), 8)]
            if len(positions) != sum(len(unit.frames) for unit in parcel.units):
                self._refuse(parcel, StoreError("the records are in the log, and a part of it cannot be read"))
                return
        at = 0
        for unit in parcel.units:
            count = len(unit.frames)
            self._answer(unit, Appended(positions[at : at + count], store_time))
            at += count

    def refused(self, sequence: int, error: StoreError) -> None:
        """Fail the appends of a parcel that the store did not commit. After a restart of the store, all older parcels
        fail too: those that it has were answered before."""
        if sequence <= self._resumed:
            while self._parcels and self._parcels[0].sequence < sequence:
                self._refuse(self._parcels.popleft(), error)
        parcel = self._remove(sequence)
        if parcel is not None:
            self._refuse(parcel, error)

    def resume(self, sequence: int) -> None:
        """Continue with a restarted store, which has the parcels up to `sequence`, and answers those that are open.
        Send all others again."""
        self._resumed = sequence
        for parcel in self._parcels:
            if parcel.sequence > sequence:
                self._send(parcel.body)

    def fail(self, error: StoreError) -> None:
        """Fail all appends, which may be committed or not, and refuse new ones until `reopen`."""
        self._error = error
        self._stop_timer()
        units = [unit for parcel in self._parcels for unit in parcel.units]
        units += self._units
        self._parcels.clear()
        self._units.clear()
        for unit in units:
            self._answer(unit, Appended(error=error))

    def part(self) -> None:
        """Refuse no append because of its wait until `reopen`: the store cannot be reached."""
        self._waits = WaitLimit(0, self._limit, _UNIT)
        self._stop_timer()

    def reopen(self, limit: int, max_record: int, max_wait_ms: int) -> None:
        """Accept appends, within these limits of the store. The wait of those that are not answered begins now."""
        self._limit = limit
        self._waits = WaitLimit(max_wait_ms, limit, _UNIT)
        self._max_record = max_record
        self._error = None
        now = self._loop.time()
        for parcel in self._parcels:
            parcel.sent_at = now
        if self._parcels:
            self._start_timer(now)

    @property
    def open_behind(self) -> int:
        """A position before the records of all parcels that are not answered; -1: there are none."""
        return self._parcels[0].behind if self._parcels else -1

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
        now = self._loop.time()
        body = SEQUENCE.pack(self._sequence) + data
        parcel = Parcel(self._sequence, body, units, now, self.pending_bytes, self._log_end())
        self._parcels.append(parcel)
        self._send(parcel.body)
        self._start_timer(now)

    def _start_timer(self, now: float) -> None:
        if self._overdue_timer is None and self._waits.max_s:
            self._overdue_timer = self._loop.call_at(now + self._waits.max_s, self._check_overdue)

    def _stop_timer(self) -> None:
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
            self._overdue_timer = None

    def _check_overdue(self) -> None:
        """Refuse messages while the oldest parcel waits for too long."""
        self._overdue_timer = None
        if self._parcels and self._waits.max_s:
            at = self._parcels[0].sent_at + self._waits.max_s
            if at <= self._loop.time():
                self._waits.overdue()
            else:
                self._overdue_timer = self._loop.call_at(at, self._check_overdue)

    def _remove(self, sequence: int) -> Parcel | None:
        """Remove and return the parcel with this number. Only refusals of a busy store come out of order."""
        parcels = self._parcels
        if parcels and parcels[0].sequence == sequence:
            return parcels.popleft()
        found = next((parcel for parcel in parcels if parcel.sequence == sequence), None)
        if found is not None:
            parcels.remove(found)
        return found

    def _refuse(self, parcel: Parcel, error: StoreError) -> None:
        for unit in parcel.units:
            self._answer(unit, Appended(error=error))

    def _answer(self, unit: _Unit, answer: Appended) -> None:
        self.pending_bytes -= unit.size
        try:
            unit.done(answer)
        except Exception:
            logger.exception("a commit callback failed")
        if self._idle is not None and not self._parcels and not self._units and not self._idle.done():
            self._idle.set_result(None)


def _are_frames(data: bytes, count: int) -> bool:
    """Whether `data` consists of `count` unsealed frames."""
    try:
        return len(record.check_unsealed(data, False)) == count
    except ValueError:
        return False
