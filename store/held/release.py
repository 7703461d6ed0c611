"""Releases held messages: fires due timers, checks open transactions, and recalls, commits or rolls back on request.

Each of these appends a control record, or a copy of the message if its own record is gone. The held view
(`store.views.held`) knows which messages are held. A *claim* on a handle means that an append about it is not yet
committed. A handle has at most one claim, so a caller whose recall succeeded can rely on it.

One timer wakes at the next due time and starts a round. A round is one append of bounded size; the next round starts
when it is committed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import record
from record.layout import FLAG_HELD, FLAG_REVIVED, FLAG_TRACK_ID, FLAG_WILL
from store import control
from store.api import Appended, Done, HeldMessage, TransactionListener
from store.config import StoreConfig
from store.errors import StoreBusy, StoreClosed, StoreError, StoreFailed
from store.log.writer import Clock
from store.views.held import Held

logger = logging.getLogger(__name__)

_MAX_HANDLES: Final = 256  # in one record: folding it blocks the loop for some milliseconds
_AROUND: Final = 128  # bytes of such a record beside the handles
_DIGITS: Final = 21  # of a handle in it, with a comma
_COPIED_BYTES: Final = 1 << 20  # limit of copies in one append; one copy may exceed it
_LONGEST_S: Final = 10.0  # the timer sleeps no longer: the clock may be set meanwhile
_PAYLOAD_FORMAT: Final = 0x01  # properties of a message (MQTT 5.0, 2.2.2.2); all others are strings
_MESSAGE_EXPIRY: Final = 0x02
_USER_PROPERTY: Final = 0x26
_BUSY_S: Final = 0.1  # delay before a round is repeated that the log had no room for
_MAX_ASKED: Final = 65_536  # half messages of which is known that their publisher was asked


class HeldMessages:
    """Releases the held messages of one store. Runs on the loop."""

    def __init__(
        self,
        config: StoreConfig,
        held: Held,
        append: Callable[[list[bytes], Done], None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._max_handles = min(_MAX_HANDLES, (config.segment_size - _AROUND) // _DIGITS)
        self._check_ms = int(config.transaction_check_s * 1000)
        self._checks = config.transaction_checks
        self._held = held
        self._append = append
        self._clock = clock
        self._loop = loop
        self._listeners: list[TransactionListener] = []
        self._asked: dict[int, None] = {}  # handles whose publisher was asked at their last check, the oldest first
        self._claims: dict[int, asyncio.Future[Appended]] = {}  # by handle: the append about it
        self._round: asyncio.Future[Appended] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._blocked = False  # all due handles are claimed
        self._stopped = False

    def start(self) -> None:
        """Start the timer. Messages that fell due while the store was closed come first."""
        self._arm()

    def stop(self) -> None:
        """Start no more rounds. A round that is not committed yet ends with the log."""
        self._stopped = True
        self._cancel_timer()

    def on_check(self, listener: TransactionListener) -> None:
        """Call `listener` with half messages whose producer has to be checked with."""
        self._listeners.append(listener)

    def reschedule(self) -> None:
        """Wake earlier, for a new held message that is due before all others."""
        if self._round is None:
            self._arm()

    async def wait_for_commits(self) -> None:
        """Wait until the appends of now are committed and folded, or have failed."""
        under_way = set(self._claims.values())
        if under_way:
            await asyncio.wait(under_way)

    async def release_due(self) -> None:
        """Release what is due now and wait until it is committed. A later round does what the log has no room for."""
        await self.wait_for_commits()
        if self._round is None:
            self._wake()
        while self._round is not None:
            await asyncio.wait((self._round,))

    async def recall(self, handles: Sequence[int]) -> list[int]:
        """See `store.api.Store.recall`."""
        return await self._change(handles, False, lambda some: ([control.TimersRecalled(some).frame()], len(some)))

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        """See `store.api.Store.end_transaction`."""
        if commit:
            return await self._change(handles, True, lambda some: self._entering(some, _committed))
        return await self._change(
            handles, True, lambda some: ([control.TransactionsEnded(rolled_back=some).frame()], len(some))
        )

    async def _change(
        self, handles: Iterable[int], half: bool, frames_of: Callable[[list[int]], tuple[list[bytes], int]]
    ) -> list[int]:
        """Append the records that `frames_of` builds; it also returns how many of the given handles they cover.

        Returns the handles that are not half messages (`half`), or not delayed ones.
        """
        missing: list[int] = []
        rest = list(dict.fromkeys(handles))
        while rest:
            some, rest = rest[: self._max_handles], rest[self._max_handles :]
            while claims := {self._claims[handle] for handle in some if handle in self._claims}:
                await asyncio.wait(claims)
            held: list[int] = []
            for handle in some:
                (held if self._held.waits(handle, half) else missing).append(handle)
            if held:
                frames, count = frames_of(held)
                rest = held[count:] + rest
                appended = await asyncio.shield(self._commit(frames, held[:count]))
                if appended.error is not None:
                    raise appended.error
        return missing

    def _commit(self, frames: list[bytes], handles: list[int]) -> "asyncio.Future[Appended]":
        """Append records about handles, which are claimed until the append is answered."""
        answer: asyncio.Future[Appended] = self._loop.create_future()
        for handle in handles:
            self._claims[handle] = answer

        def done(appended: Appended) -> None:
            for handle in handles:
                del self._claims[handle]
            answer.set_result(appended)
            if self._blocked:
                self._arm()

        self._append(frames, done)
        return answer

    def _entering(self, handles: list[int], build: Callable[[list[int]], bytes]) -> tuple[list[bytes], int]:
        """Build records that enter messages into their queues in this order. Returns them and how many handles they
        cover."""
        frames: list[bytes] = []
        run: list[int] = []
        count = copied = 0
        for handle in handles:
            kept = self._held.kept(handle)
            if kept is None:
                run.append(handle)
            else:
                if copied and copied + len(kept) > _COPIED_BYTES:
                    break
                if run:
                    frames.append(build(run))
                    run = []
                frames.append(_copy(kept, handle, self._clock()))
                copied += len(kept)
            count += 1
        if run:
            frames.append(build(run))
        return frames, count

    def _wake(self) -> None:
        """Start a round if anything is due. Otherwise set the timer."""
        self._cancel_timer()
        if self._stopped or self._round is not None:
            return
        try:
            self._begin_round()
        except StoreError:
            logger.exception("held messages cannot be read; the next attempt follows")
            self._timer = self._loop.call_later(_LONGEST_S, self._wake)

    def _begin_round(self) -> None:
        now, limit = self._clock(), self._max_handles
        due = self._held.due.until(now, limit)
        halves = self._held.new.until(now - self._check_ms, limit)
        halves += self._held.asked.until(now, limit - len(halves))
        fired = self._unclaimed(due)
        frames, count = self._entering(fired, _fired)
        rows = [row for row in map(self._held.find, self._unclaimed(halves)) if row is not None]
        orphans = [row.handle for row in rows if row.rounds >= self._checks]
        asked = [row.handle for row in rows if row.rounds < self._checks]
        if orphans:
            frames.append(control.TransactionsEnded(rolled_back=orphans).frame())
        if asked:
            frames.append(control.TransactionsChecked(now + self._check_ms, asked).frame())
        if frames:
            self._round = self._commit(frames, fired[:count] + orphans + asked)
            self._round.add_done_callback(lambda answer: self._on_round(answer.result(), asked))
        elif due or halves:
            self._blocked = True  # the timer is set when a claim ends
        else:
            self._arm()

    def _on_round(self, appended: Appended, asked: list[int]) -> None:
        self._round = None
        error = appended.error
        if error is None:
            self._check_transactions(asked)
            self._wake()
        elif isinstance(error, (StoreClosed, StoreFailed)):
            self.stop()
        else:
            is_busy = isinstance(error, StoreBusy)
            if not is_busy:
                logger.error("held messages cannot be released; the next attempt follows: %s", error)
            self._timer = self._loop.call_later(_BUSY_S if is_busy else _LONGEST_S, self._wake)

    def _check_transactions(self, asked: list[int]) -> None:
        """Call the listeners with the half messages among these handles that are still held."""
        halves = [row.message() for row in map(self._held.find, asked) if row is not None and row.is_half]
        if not halves:
            return
        halves = [replace(each, is_orphan=each.rounds > 1 and each.handle not in self._asked) for each in halves]
        for half in halves:
            self._asked.pop(half.handle, None)
        if self._call_listeners(halves):  # otherwise gateways in other processes know more, before the next check
            orphans = [each for each in halves if not each.is_orphan and each.handle not in self._asked]
            if orphans:
                self._call_listeners([replace(each, is_orphan=True) for each in orphans])

    def _call_listeners(self, halves: Sequence[HeldMessage]) -> bool:
        """Returns whether it is known now whose publishers are asked."""
        is_known = True
        for listener in self._listeners:
            try:
                asked = listener(halves)
            except Exception:
                logger.exception("a transaction listener failed")
                is_known = False
            else:
                is_known = is_known and asked is not None
                self.asked(asked or ())
        return is_known

    def asked(self, handles: Iterable[int]) -> None:
        """The publishers of these half messages are asked about their transactions."""
        for handle in handles:
            self._asked[handle] = None
        while len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def _unclaimed(self, handles: list[int]) -> list[int]:
        return [handle for handle in handles if handle not in self._claims]

    def _arm(self) -> None:
        """Set the timer to the next due time."""
        self._cancel_timer()
        if self._stopped:
            return
        self._blocked = False
        self._held.earlier.is_set = False
        new = self._held.new.first()
        times = [self._held.due.first(), self._held.asked.first(), None if new is None else new + self._check_ms]
        wakes = [time for time in times if time is not None]
        if wakes:
            delay = min((min(wakes) - self._clock()) / 1000, _LONGEST_S)
            self._timer = self._loop.call_later(max(delay, 0), self._wake)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _fired(handles: list[int]) -> bytes:
    return control.TimersFired(handles).frame()


def _committed(handles: list[int]) -> bytes:
    return control.TransactionsEnded(handles).frame()


def _copy(kept: bytes, handle: int, now_ms: int) -> bytes:
    """Build a copy of a kept message, to be appended because its record is gone.

    Its message expiry interval is reduced by the time since it was published.
    """
    kind, flags, _, topic, publisher, properties, payload = record.decode(kept, 0)
    properties = _expiring(properties, max(0, now_ms - record.store_time_of(kept, 0)) // 1000)
    flags = flags & ~(FLAG_HELD | FLAG_TRACK_ID | FLAG_WILL) | FLAG_REVIVED
    return record.frame(kind, flags, 0, topic, publisher, properties, payload, handle)


def _expiring(block: bytes, seconds: int) -> bytes:
    """Reduce the message expiry interval in a property block, if it has one, by `seconds` (MQTT-3.3.2-6)."""
    at = 0
    while at < len(block):
        identifier = block[at]
        if identifier == _MESSAGE_EXPIRY:
            left = max(0, int.from_bytes(block[at + 1 : at + 5], "big") - seconds)
            return block[: at + 1] + left.to_bytes(4, "big") + block[at + 5 :]
        if identifier == _PAYLOAD_FORMAT:
            at += 2
            continue
        for _ in range(2 if identifier == _USER_PROPERTY else 1):  # strings and binary data
            at += 2 + int.from_bytes(block[at + 1 : at + 3], "big")
        at += 1
    return block
