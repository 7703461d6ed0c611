"""The loop's side of the commitlog: gathers appends, paces flushes, and answers the appends in order.

One flush runs at a time. Appends that arrive meanwhile are gathered and go with the next flush (group commit).
The flush thread releases the GIL in its system calls. A small flush is sealed on the loop, and the thread writes it
without Python where that is compiled (`store.log.flush_queue`).

Pacing: a flush starts as soon as the disk is free. That is right for large batches, and for a single publisher that
waits for each answer. When flushes carry many small appends (a thousand devices with one message in flight each),
starting at once makes two half-full batches out of one. Then a flush waits until as many appends are there as are
likely: those that were waiting when the last flush ended, and one from each publisher that it answered. It starts
without the rest `spacing_ms` after the end of the last flush (decisions/0016).

With `commit_delay_ms`, a flush behind one of few appends starts that long after the start of that one: fewer flushes,
and later answers. Many appends or many bytes start it at once.

Who hears of a batch may need several turns of the loop (`on_batch`, `go_on`). Until it is done, no append of the batch
is answered and no later batch is folded. So those who publish wait for those who receive, and what waits is bounded.

An append without a waiting caller (`offer_later`) starts no flush for a while and joins the next one.

The batches of a shared log are sealed here, and decided elsewhere (`decide`) before the flush thread writes them. What
is decided is durable, so it is folded and answered while the thread writes it. A decision is much dearer than a flush,
and an append of a gateway has records of many clients. So records are counted there, and not appends, and a batch waits
for them no longer than the last decision took (decisions/0043). A log that follows gets batches that are decided
(`apply`).

Messages are refused when too many bytes wait, or when they would wait for longer than `max_wait_ms`
(`store.log.wait_limit`): a publisher should hear of a slow disk in time. What was accepted is not refused later,
because appends are committed in the order of the calls.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from time import monotonic_ns
from typing import Final

from record.layout import FLAG_HALF, FLAG_HELD, FLAG_REVIVED, HEADER_SIZE, TRAILER_SIZE, Kind
from store.api import Appended, Done
from store.config import StoreConfig
from store.errors import RecordInvalid, RecordTooLarge, StoreBusy, StoreClosed, StoreError, StoreFailed
from store.histogram import LATENCIES_US, Histogram
from store.log.flush_queue import FlushQueue, native_queue
from store.log.wait_limit import WaitLimit
from store.log.writer import PreparedWrite, SealedBatch, Writer

logger = logging.getLogger(__name__)

# Decides that a shared log goes on with sealed bytes at a position. Raises `StoreClosed` if this log may not go on.
Decide = Callable[[int, bytes], Awaitable[None]]

MANY: Final = 16  # appends in the last flush, or records in the last decision, from which flushes are spaced
LARGE: Final = 128 << 10  # bytes that start a flush at once
LARGE_DECISION: Final = 512 << 10  # bytes that start a decision at once
SMALL: Final = 32 << 10  # bytes of a flush from which on the flush thread seals it, beside the loop
PATIENCE_S: Final = 0.1  # how long an append without a waiting caller starts no flush
_KIND: Final = 11  # where a frame has its kind
_FLAGS: Final = 32  # where a frame has the low byte of its flags
_MESSAGE: Final = bytes([Kind.MESSAGE])


def _is_revived(frame: bytes) -> bool:
    return len(frame) > HEADER_SIZE and bool(frame[_FLAGS] & FLAG_REVIVED)


def _largest(frame: bytes) -> int:
    """The size of a frame, or of a copy of it if that is larger: the copy of a half message has a trailer."""
    if len(frame) > HEADER_SIZE and frame[_FLAGS] & FLAG_HELD == FLAG_HALF:
        return len(frame) + TRAILER_SIZE
    return len(frame)


def refusal(
    frames: list[bytes], size: int, pending_bytes: int, limit: int, waits: WaitLimit, max_record: int
) -> StoreError | None:
    """Why frames of `size` bytes are refused while `pending_bytes` of at most `limit` wait; None if accepted."""
    if pending_bytes + size > waits.room:
        # Control records, such as those of a closing session, and copies of messages that were accepted long ago
        # still find room when new messages have to wait. Messages of a producer are behind a record of its progress.
        is_new = bool(frames) and frames[-1][_KIND : _KIND + 1] == _MESSAGE and not _is_revived(frames[-1])
        if is_new:
            limit = waits.most
        if size > limit:
            return RecordTooLarge(f"{size} bytes in one append, the limit is {limit}")
        if pending_bytes + size > limit:
            return StoreBusy(f"{pending_bytes} bytes wait to be committed")
        if is_new and pending_bytes:
            return StoreBusy(f"a message would wait to be committed for more than {waits.max_s:g} s")
    if size > max_record - TRAILER_SIZE and max(map(_largest, frames)) > max_record:
        return RecordTooLarge(f"a record is larger than {max_record} bytes")
    return None


class PendingAppend:
    """One append, whose frames share an answer."""

    __slots__ = ("done", "frames", "size", "weight")

    def __init__(self, frames: list[bytes], size: int, done: Done, weight: int) -> None:
        self.frames = frames
        self.size = size  # bytes
        self.done = done
        self.weight = weight  # for the pace of flushes: one, or its records; 0: no caller waits for it


class Flush:
    """A flush, and what came of it. The loop gives it to the flush thread, and gets it back."""

    __slots__ = (
        "appended_ns",
        "appends",
        "batches",
        "began_ns",
        "ended_ns",
        "error",
        "folded",
        "positions",
        "prepared",
    )

    def __init__(self, appends: list[PendingAppend], prepared: PreparedWrite | None = None) -> None:
        self.appends = appends  # none: a sync, or with batches a write that nobody waits for
        self.prepared = prepared  # None: the flush thread seals
        self.batches: list[SealedBatch] = []  # before the thread has the flush: those that are sealed and decided
        self.folded: int = 0  # of these batches
        self.positions: list[int] = []  # of all frames of all appends
        self.error: Exception | None = None
        # For the histograms, of any clock; 0: it does not count.
        self.appended_ns: int = 0  # when the oldest append came
        self.began_ns: int = 0
        self.ended_ns: int = 0  # when it was on disk, or decided


def _weight(appends: list[PendingAppend]) -> int:
    """What these appends weigh."""
    weight = 0
    for pending in appends:
        weight += pending.weight
    return weight


class CommitLog:
    """Appends to the log.

    `on_batch` is called on the loop with each committed batch, before the `done` of its appends. If it returns True,
    `go_on` is called in the following turns of the loop until it returns False. `on_sync` is called
    after a sync: each batch that `on_batch` was called with is on disk then, or the log has failed. `on_fail` is
    called when the log fails. `decide` is given for a shared log that this process writes.
    """

    def __init__(
        self,
        writer: Writer,
        config: StoreConfig,
        loop: asyncio.AbstractEventLoop,
        on_batch: Callable[[SealedBatch], bool],
        go_on: Callable[[], bool],
        on_sync: Callable[[], None],
        on_fail: Callable[[], None],
        decide: Decide | None = None,
    ) -> None:
        self._writer = writer
        self._config = config
        self._loop = loop
        self._on_batch = on_batch
        self._go_on = go_on
        self._on_sync = on_sync
        self._on_fail = on_fail
        self._decide = decide
        self._deciding: asyncio.Task[None] | None = None
        self._decided_end = writer.position  # where the next batch is sealed for, if batches are decided
        self._is_writing_behind = False  # the thread writes a batch that is folded already, or right now
        self._syncs = 0  # that the thread has, or whose end the loop has not heard of
        self._max_record = config.max_record
        self._max_pending = config.max_pending_bytes
        self._waits = WaitLimit(config.max_wait_ms, config.max_pending_bytes, config.batch_bytes)
        self._overdue_timer: asyncio.TimerHandle | None = None  # set while flushes are under way
        self._appends: deque[PendingAppend] = deque()
        self._waiting_bytes = 0  # in `_appends`
        self._direct = native_queue(writer.disk)  # writes what the loop has sealed; None: the thread's Python does
        self._jobs: FlushQueue | SimpleQueue[Flush | None] = SimpleQueue()  # at most one flush and two syncs
        if self._direct is not None:
            self._jobs = self._direct
            loop.add_reader(self._direct.done_fd, self._on_written)
        self._writing: Flush | None = None  # given to `_direct`
        self._in_flight = False
        self._unfinished: Flush | None = None  # the batch that was folded last is not done
        self._behind: Flush | None = None  # waits for that; no flush starts meanwhile
        self._scheduled = False  # a `_tick` is about to run
        self._timer: asyncio.TimerHandle | None = None  # of a delayed `_tick`
        self._sync_timer: asyncio.TimerHandle | None = None
        self._last_start = 0.0  # of a flush
        self._last_end = 0.0
        self._flush_size = 0  # bytes of the last flush
        self._eager = 0  # what `_appends` weigh
        self._last_count = 0  # what the last flush weighed
        self._enough = MANY  # what starts the next flush at once
        self._large = LARGE if decide is None else LARGE_DECISION
        self._late_at = 0.0  # when appends without a waiting caller start a flush; 0: `_appends` has none
        self._idle: asyncio.Future[None] | None = None  # done when everything is flushed
        self._error: StoreError | None = None  # why appends are refused: closing, or failed
        self._oldest_ns: int = 0  # when the first of `_appends` came
        self._taken_ns: int = 0  # the same of the flush that started last
        self.append_us = Histogram(LATENCIES_US)  # from the oldest append of each batch to the answers
        self.flush_us = Histogram(LATENCIES_US)  # until each batch was on disk, or decided
        self.folding: Flush | None = None  # the flush whose batches are folded now
        self.failed = False  # appends and checkpoints fail until a restart
        self.pending_bytes = 0  # accepted and not committed
        self.end = writer.position  # of the committed log
        self._flusher = threading.Thread(target=self._run, name="sluice-flush", daemon=True)
        self._flusher.start()

    def append(self, frames: list[bytes], done: Done) -> None:
        """Append unsealed frames and call `done` when they are committed or refused (see `Store.append`)."""
        error = self.offer(frames, done)
        if error is not None:
            self._loop.call_soon(done, Appended(error=error))

    def offer(self, frames: list[bytes], done: Done) -> StoreError | None:
        """Append unsealed frames, or return at once why not; then `done` is never called.

        Accepted appends are committed in the order of the calls. If one fails, all later ones fail too.
        """
        weight = 1 if self._decide is None or len(frames) < 2 else len(frames) - 1  # less the one of its producer
        error = self._accept(frames, done, weight)
        if error is not None:
            return error
        is_first = not self._eager
        self._eager += weight
        self._call(is_first or self._eager >= self._enough)
        return None

    def offer_later(self, frames: list[bytes], done: Done) -> StoreError | None:
        """`offer` an append without a waiting caller: it joins the next flush, which starts within `PATIENCE_S`."""
        error = self._accept(frames, done, 0)
        if error is not None:
            return error
        if not self._late_at:
            self._late_at = self._loop.time() + PATIENCE_S
        self._call(False)
        return None

    def _call(self, is_worth: bool) -> None:
        """Call `_tick` soon. If a delayed call is set, leave it unless `is_worth` or there are many bytes."""
        if self._timer is not None:
            if not is_worth and self._waiting_bytes < self._large:
                return
            self._timer.cancel()
            self._timer = None
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self._tick)

    def _accept(self, frames: list[bytes], done: Done, weight: int) -> StoreError | None:
        size = 0
        for frame in frames:
            size += len(frame)
        pending = self.pending_bytes
        error = self._error or refusal(frames, size, pending, self._max_pending, self._waits, self._max_record)
        if error is not None:
            return error
        if not self._appends:
            self._oldest_ns = monotonic_ns()
        self._appends.append(PendingAppend(frames, size, done, weight))
        self.pending_bytes = pending + size
        self._waiting_bytes += size
        return None

    def apply(self, batch: SealedBatch, done: Done) -> None:
        """Write and fold a batch that is sealed and decided, and call `done`. One at a time, and without appends."""
        assert not self._is_busy()
        size = len(batch.data)
        self._writer.store_time = max(self._writer.store_time, batch.store_time)
        flush = Flush([PendingAppend([], size, done, 0)])
        flush.batches.append(batch)
        self.pending_bytes += size
        self._last_start = self._loop.time()
        self._flush_size = size
        self._in_flight = True
        self._jobs.put(flush)

    def fail(self, cause: BaseException) -> None:
        """Refuse all appends from now on. Those that are not committed fail too.

        With `StoreClosed` as the cause, another process writes the log from now on, and nothing is wrong with this one.
        """
        if isinstance(cause, StoreClosed):
            self._error = self._error or cause
        elif not self.failed:
            self.failed = True
            self._error = StoreFailed(f"the log failed and refuses appends until a restart: {cause}")
            if isinstance(cause, OSError):
                logger.critical("log failed: %s", cause)  # the disk, and no fault of this program
            else:
                logger.critical("log failed", exc_info=cause)
            self._on_fail()
        appends, self._appends = list(self._appends), deque()
        self._waiting_bytes = self._eager = 0
        for pending in appends:
            self._answer(pending, self._error)
        self._check_idle()

    async def close(self) -> None:
        """Commit accepted appends, refuse new ones and end the flush thread."""
        if self._error is None:
            self._error = StoreClosed("the store is closing")
        if self._is_busy():
            self._idle = self._loop.create_future()
            self._tick()
            await self._idle
        for timer in (self._timer, self._sync_timer, self._overdue_timer):
            if timer is not None:
                timer.cancel()
        self._jobs.put(None)
        await self._loop.run_in_executor(None, self._flusher.join)
        if self._direct is not None:
            self._loop.remove_reader(self._direct.done_fd)

    def _tick(self) -> None:
        """Start a flush, or delay it to gather more appends."""
        self._scheduled = False
        self._timer = None
        if self._in_flight or self._behind is not None or not self._appends:
            return
        now = self._loop.time()
        at = self._starts_at()
        if now < at and self._waiting_bytes < self._large and self._idle is None:
            self._timer = self._loop.call_at(at, self._tick)
        else:
            self._start(now)

    def _starts_at(self) -> float:
        """Loop time at which the gathered small appends are to be flushed."""
        if not self._eager:
            return self._late_at
        if self._eager >= self._enough:
            return 0.0
        if self._last_count < MANY:
            at = self._last_start + self._config.commit_delay_ms / 1000
        else:
            spacing = self._config.spacing_ms / 1000
            if self._decide is not None:
                spacing = min(spacing, self._last_end - self._last_start)
            at = self._last_end + spacing
        return min(at, self._late_at) if self._late_at else at

    def _start(self, now: float) -> None:
        appends: list[PendingAppend] = []
        size = 0
        waiting = self._appends
        while waiting and (not appends or size + waiting[0].size <= self._config.batch_bytes):
            pending = waiting.popleft()
            size += pending.size
            appends.append(pending)
        self._waiting_bytes -= size
        self._last_start = now
        self._flush_size = size
        self._last_count = _weight(appends)
        self._eager -= self._last_count
        self._taken_ns = self._oldest_ns
        if not waiting:
            self._late_at = 0.0
        else:
            self._oldest_ns = monotonic_ns()
        self._in_flight = True
        self._hand_over(appends, size)
        if self._overdue_timer is None and self._waits.max_s:
            self._overdue_timer = self._loop.call_at(now + self._waits.max_s, self._check_overdue)

    def _hand_over(self, appends: list[PendingAppend], size: int) -> None:
        """Give a flush of `size` bytes to the flush thread. Small ones are sealed here: the thread then needs no
        interpreter to write them, and waits for none."""
        prepared: PreparedWrite | None = None
        if self._decide is not None:
            self._deciding = self._loop.create_task(self._hand_over_decided(self._timed(Flush(appends)), self._decide))
            return
        if size < SMALL:
            frames = appends[0].frames if len(appends) == 1 else [f for pending in appends for f in pending.frames]
            try:
                prepared = self._writer.prepare(frames, size)
            except Exception:  # noqa: BLE001  the thread meets it again, and its appends are answered
                prepared = None
        flush = self._timed(Flush(appends, prepared))
        if prepared is not None and self._direct is not None:
            self._writing = flush
            self._direct.write(prepared.fd, prepared.pages, prepared.offset)
        else:
            self._jobs.put(flush)

    def _timed(self, flush: Flush) -> Flush:
        """A flush that begins now, and counts in the histograms."""
        flush.appended_ns = self._taken_ns
        flush.began_ns = monotonic_ns()
        return flush

    async def _hand_over_decided(self, flush: Flush, decide: Decide) -> None:
        """Seal a flush, have its batches decided, and give it to the flush thread then.

        It is folded without waiting for the thread if that has nothing else to do. So a sync is behind all that is
        folded before it ends, and only the last batch of the tail cache may be folded and not in its segment.
        """
        try:
            frames = [f for pending in flush.appends for f in pending.frames]
            batches, flush.positions = self._writer.seal(frames, self._decided_end, self._config.max_batch_bytes)
            for batch in batches:
                await decide(batch.position, batch.data)
                self._decided_end = batch.position + len(batch.data)
        except Exception as error:  # noqa: BLE001  its appends have to be answered
            flush.error = error
            self._on_flushed(flush)
            return
        flush.batches = batches
        if self._is_writing_behind or self._syncs or len(batches) != 1 or not self._writer.is_open_at(batches[0]):
            self._jobs.put(flush)
            return
        written = Flush([])
        written.batches = batches
        self._is_writing_behind = True
        self._jobs.put(written)
        self._on_flushed(flush)

    def _on_written_behind(self, written: Flush) -> None:
        self._is_writing_behind = False
        if written.error is not None:
            self.fail(written.error)
        self._check_idle()

    def _on_written(self) -> None:
        """The write that `_direct` was given has ended."""
        flush = self._writing
        if flush is None or self._direct is None:
            return
        try:
            if not self._direct.ended():
                return
        except OSError as error:
            flush.error = error
        self._writing = None
        self._on_flushed(flush)

    def _check_overdue(self) -> None:
        """Refuse messages while a flush is under way for too long. Runs rarely, whatever the number of flushes."""
        self._overdue_timer = None
        if self._in_flight:
            at = self._last_start + self._waits.max_s
            if at <= self._loop.time():
                self._waits.overdue()
            else:
                self._overdue_timer = self._loop.call_at(at, self._check_overdue)

    def _on_flushed(self, flush: Flush) -> None:
        self._in_flight = False
        self._last_end = self._loop.time()
        self._waits.committed(self._last_end - self._last_start, self._flush_size)
        error = self._error if self.failed else flush.error
        if isinstance(error, RecordInvalid):
            self._split(flush.appends, error)
            return
        flush.error = error
        if error is None:
            if flush.began_ns:
                flush.ended_ns = monotonic_ns()
                self.flush_us.add((flush.ended_ns - flush.began_ns) // 1000)
            if flush.prepared is not None:
                self._writer.complete(flush.prepared)
                flush.batches.append(flush.prepared.batch)
                flush.positions = flush.prepared.positions
            # After a flush of many: all that are likely to be there before the next one.
            self._enough = MANY if self._last_count < MANY else self._eager + _weight(flush.appends)
        if self._unfinished is not None:
            self._behind = flush
            return
        if error is None:
            self._tick()  # the disk works on the next batch while this one is folded
        self._fold(flush)

    def _continue(self) -> None:
        """Go on with the batch that was folded last, and with what is behind it."""
        if self._go_on():
            self._loop.call_soon(self._continue)
            return
        flush, self._unfinished = self._unfinished, None
        if flush is not None:
            self._fold(flush)
        self._take_next()

    def _take_next(self) -> None:
        """Fold the flush that waited for the one before it, if that is done."""
        behind = self._behind
        if behind is not None and self._unfinished is None:
            self._behind = None
            self._tick()
            self._fold(behind)

    def _fold(self, flush: Flush) -> None:
        """Fold the batches of a flush that are not folded, and answer its appends when all of them are done."""
        error = self._error if self.failed else flush.error
        if error is None:
            self.folding = flush
            try:
                while flush.folded < len(flush.batches):
                    batch = flush.batches[flush.folded]
                    flush.folded += 1
                    self.end = batch.position + len(batch.data)
                    if self._on_batch(batch):
                        self._unfinished = flush
                        self._loop.call_soon(self._continue)
                        return
            except Exception as failure:  # noqa: BLE001  the views cannot be trusted after any error
                error = failure
        if error is not None:
            self.fail(error)
            flush.positions = []
        self._answer_all(flush, None if error is None else self._error)
        if self._config.policy == "interval" and self._sync_timer is None and self._error is None:
            self._sync_timer = self._loop.call_later(self._config.interval_ms / 1000, self._sync)
        if self._idle is not None:
            self._check_idle()

    def _answer_all(self, flush: Flush, error: StoreError | None) -> None:
        positions = flush.positions
        store_time = flush.batches[-1].store_time if flush.batches else self._writer.store_time
        at = 0
        for pending in flush.appends:
            count = len(pending.frames)
            own = positions if count == len(positions) else positions[at : at + count]
            at += count
            self._answer(pending, error, own, store_time)
        self.folding = None
        if flush.appended_ns and error is None:
            self.append_us.add((monotonic_ns() - flush.appended_ns) // 1000)

    def _answer(
        self, pending: PendingAppend, error: StoreError | None, positions: Sequence[int] = (), store_time: int = 0
    ) -> None:
        self.pending_bytes -= pending.size
        try:
            pending.done(Appended(positions, store_time, error))
        except Exception:
            logger.exception("a commit callback failed")

    def _split(self, appends: list[PendingAppend], error: RecordInvalid) -> None:
        """Flush halves of a failed flush separately, to refuse only the append whose bytes are not a frame.

        Nothing of the failed flush was written.
        """
        if len(appends) == 1:
            self._answer(appends[0], error)
        else:
            half = (len(appends) + 1) // 2
            appends, back = appends[:half], appends[half:]
            self._appends.extendleft(reversed(back))
            self._waiting_bytes += sum(pending.size for pending in back)
            self._eager += _weight(back)
            self._in_flight = True
            if self._decide is not None:
                self._deciding = self._loop.create_task(self._hand_over_decided(Flush(appends), self._decide))
            else:
                self._jobs.put(Flush(appends))
            return
        self._tick()
        self._check_idle()

    def sync(self) -> None:
        """Sync after the running flush, then call `on_sync`. Do not call this again before that."""
        self._syncs += 1
        self._jobs.put(Flush([]))

    def _sync(self) -> None:
        self._sync_timer = None
        self.sync()

    def _on_synced(self, error: Exception | None) -> None:
        self._syncs -= 1
        if error is not None:
            self.fail(error)
        self._on_sync()

    def _check_idle(self) -> None:
        if self._idle is not None and not self._is_busy() and not self._idle.done():
            self._idle.set_result(None)

    def _is_busy(self) -> bool:
        """Whether appends are not flushed, or not answered."""
        return (
            self._in_flight
            or self._is_writing_behind
            or self._unfinished is not None
            or self._behind is not None
            or bool(self._appends)
        )

    def _run(self) -> None:
        """The main function of the flush thread."""
        writer = self._writer
        failure: Exception | None = None  # after a failure, nothing is written or flushed again
        while (flush := self._jobs.get()) is not None:
            try:
                if failure is not None:
                    raise failure
                if flush.prepared is not None:
                    writer.disk.write_durable(flush.prepared.fd, flush.prepared.pages, flush.prepared.offset)
                elif flush.batches:
                    for batch in flush.batches:
                        writer.apply(batch)
                elif flush.appends:
                    flush.batches, flush.positions = writer.write(
                        [f for pending in flush.appends for f in pending.frames]
                    )
                else:
                    writer.sync()
            except RecordInvalid as error:
                flush.error = error
            except Exception as error:  # noqa: BLE001  if the thread died, its appends would never be answered
                failure = flush.error = error
            if flush.appends:
                self._loop.call_soon_threadsafe(self._on_flushed, flush)
            elif flush.batches:
                self._loop.call_soon_threadsafe(self._on_written_behind, flush)
            else:
                self._loop.call_soon_threadsafe(self._on_synced, flush.error)
        try:
            if failure is None:
                writer.sync()
        except OSError:
            logger.exception("the last flush of the log failed")
        writer.close()
