"""What one pop leases: decided at once, from the views and from what other calls have under way.

Messages that come again and are due go first, the longest due before others; those that were leased too often become
dead letters instead. New messages follow, from the queue that waited longest for its turn. Nothing is changed here but
claims and `QueueLeases.due`, which `undo` restores. `ordered_pop` has the pops of ordered groups. Where only named keys
are in order, a pop is decided here first. It counts only if it met no message that names a key (`met`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import record
from record.layout import NAMES_KEY, REFERENCE
from store import control
from store.api import Ordering, PopRequest, Run, Start, dead_letter_queue
from store.config import StoreConfig
from store.groups.queue_decision import MOST_DEAD, QueueDecision, runs_of
from store.groups.selection import MOST_EXAMINED, SelectedMessages
from store.views.fold import Views
from store.views.groups.leases import MAX_DELIVERIES, UNSENT, QueueLeases

_MOST_GONE: Final = 4096  # references to records that left the log, examined in one pop
_RECENT_MS: Final = 3_600_000  # age of a queue's first message at which a group with `Start.RECENT` begins there
PASSED: Final = MOST_EXAMINED // 4  # unwanted messages for which a record is written

_Runs = dict[bytes, list[tuple[int, int]]]  # by queue: first offset, count


class PopDecision:
    """One pop. `decide` makes the decision; `frames` are the records that make it true."""

    def __init__(
        self,
        views: Views,
        config: StoreConfig,
        request: PopRequest,
        queues: list[QueueDecision],
        now: int,
        selected: dict[bytes, SelectedMessages] | None,
    ) -> None:
        self._views = views
        self._config = config
        self._group = request.group
        self._queues = queues
        self._now = now
        self._until = now + request.invisible_ms
        self._records = request.max_records  # that may still be leased
        self._bytes = request.max_bytes
        self._max_deliveries = request.max_deliveries or config.max_deliveries
        self._start: Start = request.start
        self._selected = selected  # wanted messages by queue; None: all are wanted
        self._member = request.member
        self._user = request.user
        self._is_whole = views.is_whole  # no record left the log
        self._dead = 0
        self._gone_left = _MOST_GONE
        self._is_begun = False  # something is leased
        self._is_short = False  # fewer references came than were asked for
        self.leases: list[Run] = []  # in the order in which the caller gets them, without their data
        self.refs: list[bytes] = []  # of each lease: packed references to its records
        self._retry_at = -1  # ms, when a call may get more because records under way are committed by then
        self.is_limited = False  # there is more, for which something has to be settled
        self._is_for_unnamed = request.ordering is Ordering.NAMED_KEYS  # it may not lease messages that name a key
        self.met: tuple[bytes, int] | None = None  # the first such message that it met: its queue and offset
        self._is_cut_short = False  # there may be more, for which the call has to be repeated

    def decide(self) -> None:
        begin_all(self._views, self._group, self._queues, self._start, self._now)
        self._lease_due()
        if self._has_room:
            self._lease_new()

    def undo(self) -> None:
        """Forget the decision: nothing is appended."""
        for queue in self._queues:
            queue.undo()

    def frames(self) -> list[bytes]:
        """The records, in the order in which they are to be in the log."""
        group = self._group
        begins: dict[bytes, int] = {}
        gone: _Runs = {}
        leased: _Runs = {}
        frames: list[bytes] = []
        for queue in self._queues:
            if queue.is_new:
                begins[queue.queue] = queue.begin
            if queue.dead:
                frames.append(control.DeadLettered(queue.queue, queue.dead).frame(group))
            if queue.gone:
                gone[queue.queue] = queue.gone
            if queue.leases or queue.passed or queue.kept_back:
                runs = [(lease.offset, lease.count) for lease in queue.leases]
                if queue.kept_back:
                    runs = sorted(runs + [(first, first - end) for first, end in queue.kept_back])
                if queue.passed:
                    runs.append((queue.next, 0))
                leased[queue.queue] = runs
        if begins:
            frames.insert(0, control.GroupReset(begins, self._user).frame(group))
        for some in control.in_records(gone):
            frames.append(control.Settled(some, {}).frame(group))
        for some in control.in_records(leased):
            frames.append(control.Popped(self._until, some).frame(group, self._member))
        return frames

    def touched(self) -> list[QueueDecision]:
        """The queues that the records are about."""
        return [each for each in self._queues if each.leases or each.is_new or each.claimed or each.passed]

    def reclaimed(self) -> int:
        """Messages that left the log before they could be leased out."""
        return sum([queue.reclaimed for queue in self._queues])

    def available_at(self) -> int | None:
        """When more may come by itself, ms; None if only a new message brings some."""
        first = self._now if self._is_cut_short else self._retry_at
        for queue in self._queues:
            times = queue.uncommitted.untils if queue.uncommitted is not None else []
            if queue.leases:
                times = [*times, self._until]
            due = self._next_due(queue)
            if due is not None:
                times = [*times, due]
            for time in times:
                if first < 0 or time < first:
                    first = time
        return None if first < 0 else first

    def _next_due(self, queue: QueueDecision) -> int | None:
        """When the first committed entry of a queue may be leased again (ms)."""
        return None if queue.state is None or not queue.state.unfinished else queue.state.next_due()

    @property
    def is_full(self) -> bool:
        """Whether there may be more, for which nothing has to be settled."""
        return self._records <= 0 or self._bytes <= 0 or self._is_short

    def left(self) -> int:
        """Messages that this pop leaves in the queues, and that the group was never leased."""
        if not (self.is_full or self.is_limited or self._is_cut_short):
            return 0
        count = 0
        ends = self._views.ends([queue.queue for queue in self._queues])
        for i in range(len(ends)):
            count += max(ends[i] - self._queues[i].next, 0)
        return count

    @property
    def _has_room(self) -> bool:
        return self._records > 0 and self._bytes > 0 and not self._is_cut_short

    def _lease_due(self) -> None:
        due: list[tuple[int, int]] = []
        for index in range(len(self._queues)):
            state = self._queues[index].state
            if state is not None and state.unfinished:
                at = state.next_due()
                if at is not None and at <= self._now:
                    due.append((at, index))
        if not due:
            return
        heapify(due)
        while due and self._has_room:
            _, index = heappop(due)
            queue = self._queues[index]
            assert queue.state is not None
            self._lease_first_due(queue, queue.state)
            at = queue.state.next_due()
            if at is not None and at <= self._now:
                heappush(due, (at, index))

    def _lease_first_due(self, queue: QueueDecision, state: QueueLeases) -> None:
        """Lease what was due first in a queue, or the beginning of it."""
        at, runs = state.pop_due()
        try:
            for low, high, deliveries in runs:
                for first, end in queue.unclaimed_runs(low, high):
                    behind = self._lease_again(queue, first, end, deliveries) if self._has_room else first
                    if behind > first:
                        queue.claim(first, behind, self._deliveries_then(queue, deliveries))
                        queue.expected.append((at, first, behind))
                    if behind < end:
                        state.expect(at, behind, end)
        except BaseException:
            for low, high, _ in runs:
                state.expect(at, low, high)
            raise

    def _lease_again(self, queue: QueueDecision, first: int, end: int, deliveries: int) -> int:
        """Lease a run of entries that are due. Returns the first offset for which there was no room."""
        if self._is_dead(queue, deliveries):
            end = min(end, first + MOST_DEAD - self._dead)
            queue.dead += range(first, end)
            self._dead += end - first
            self._is_cut_short = self._dead >= MOST_DEAD
            return end
        begin = self._views.first(queue.queue)
        if first < begin:  # even its reference may be gone, with its generation of the index
            behind = min(begin, end)
            queue.gone.append((first, behind - first))
            queue.reclaimed += behind - first
            return behind
        refs = self._views.references(queue.queue, first, min(end - first, self._records))
        behind, gone = self._lease(queue, first, self._deliveries_then(queue, deliveries), refs)
        queue.gone += gone
        queue.reclaimed += sum([count for _, count in gone])
        return behind

    def _is_dead(self, queue: QueueDecision, deliveries: int) -> bool:
        """Whether messages that were leased so often become dead letters."""
        tries = 0 if deliveries == UNSENT else deliveries
        return tries >= self._max_deliveries and queue.queue != dead_letter_queue(self._group)

    def _deliveries_then(self, queue: QueueDecision, deliveries: int) -> int:
        """The deliveries of such messages after this call; 0: they are finished."""
        if self._is_dead(queue, deliveries):
            return 0
        return 1 if deliveries == UNSENT else min(deliveries + 1, MAX_DELIVERIES)

    def _unfinished(self) -> int:
        """The unfinished messages of the group in all queues of this pop."""
        count = 0
        for queue in self._queues:
            if queue.state is not None:
                count += queue.state.unfinished
            if queue.uncommitted is not None:
                count += queue.uncommitted.entered
        return count

    def _lease_new(self) -> None:
        """Lease new messages. The references of all queues are read at once."""
        leased = self._unfinished()
        queues = sorted(self._queues, key=turn_of) if len(self._queues) > 1 else self._queues
        ends = self._views.ends([queue.queue for queue in queues])
        left = self._records
        wanted: list[QueueDecision] = []
        runs: list[tuple[bytes, int, int]] = []  # of each of these: queue, first offset, count
        for i in range(len(queues)):
            if left <= 0:
                break
            queue, end = queues[i], ends[i]
            if queue.next >= end:
                continue
            first = queue.first if self._is_whole else max(queue.first, self._views.first(queue.queue))
            if first >= end:
                continue
            floor = queue.state.floor if queue.state is not None and queue.state.unfinished else first
            room = min(self._config.max_group_leases - leased, floor + self._config.max_group_window - first)
            if room <= 0:
                self.is_limited = True
                for other in self._queues:
                    self._is_cut_short |= bool(other.gone or other.dead)  # which makes room
                continue
            self.is_limited |= room < min(left, end - first)
            if self._selected is not None:
                leased += self._lease_selected(queue, first, end, self._selected[queue.queue], room)
                left = self._records if self._has_room else 0
            else:
                count = min(room, left, end - first)
                queue.end = end
                wanted.append(queue)
                runs.append((queue.queue, first, count))
                leased += count
                left -= count
        if runs:
            self._lease_wanted(wanted, runs)

    def _lease_wanted(self, queues: list[QueueDecision], runs: list[tuple[bytes, int, int]]) -> None:
        """Lease new messages of these queues, as far as there is room."""
        refs = self._views.references_of(runs)
        packed = refs[0] if len(refs) == 1 else b"".join(refs)
        if not self._is_whole and packed and self._views.has_gone(packed):
            self._lease_remaining(queues, runs, refs)
            return
        lengths = record.unpack_refs(packed)[1]
        at = 0
        for i in range(len(queues)):
            if not self._has_room:
                return
            _, first, wanted = runs[i]
            count = len(refs[i]) // REFERENCE
            self._is_short |= count < wanted
            leased = self._lease_run(queues[i], first, 1, refs[i], lengths[at : at + count])
            self._go_on(queues[i], leased, first + leased)
            at += count

    def _lease_remaining(
        self, queues: list[QueueDecision], runs: list[tuple[bytes, int, int]], refs: list[bytes]
    ) -> None:
        """Lease new messages of these queues where some have left the log."""
        planned = sum([wanted for _, _, wanted in runs])
        before_all = self._records
        is_all = planned < before_all
        all_gone: list[tuple[QueueDecision, int]] = []  # and the first offset behind those that are
        for i in range(len(queues)):
            if not self._has_room:
                break
            queue, packed = queues[i], refs[i]
            _, first, wanted = runs[i]
            count = len(packed) // REFERENCE
            self._is_short |= count < wanted
            if count and self._are_gone(packed):
                examined = min(queue.end, first + max(self._gone_left, count))
                packed = self._views.references(queue.queue, first, examined - first)
                self._gone_left -= len(packed) // REFERENCE
                if self._are_gone(packed):
                    behind = first + len(packed) // REFERENCE
                    self._is_cut_short = behind < queue.end or self._gone_left <= 0
                    all_gone.append((queue, behind))
                    continue
            before = self._records
            behind, _ = self._lease(queue, first, 1, packed)
            self._go_on(queue, before - self._records, behind)
        if self._has_room and (not is_all or (self.is_limited and before_all - self._records < planned)):
            self._is_cut_short = True  # there may be messages in place of those that left the log
        for queue, behind in all_gone:
            if self._is_cut_short:  # by a record: what is only `seen` may be forgotten when the call is repeated
                queue.passed = behind - queue.next
                queue.reclaimed += queue.passed
                queue.next = behind
            elif queue.state is not None:
                queue.state.seen = behind

    def _lease_selected(
        self, queue: QueueDecision, first: int, queue_end: int, selected: SelectedMessages, room: int
    ) -> int:
        """Lease wanted messages from offset `first` on, and pass over the others. Returns how many are leased."""
        end = min(selected.end, queue_end)
        if not selected.first <= first < end:  # the group was moved, or other calls were faster
            self._is_cut_short = True
            return 0
        before = self._records
        end = min(end, first + room)
        at = bisect_left(selected.offsets, first)
        wanted = selected.offsets[at : bisect_left(selected.offsets, end)]
        behind = first
        for low, high in runs_of(wanted):
            refs = b"".join(selected.refs[at : at + high - low])
            behind, _ = self._lease(queue, low, 1, refs)
            at += high - low
            if behind < high:
                end = behind
                break
        self._note_new(queue, before - self._records)
        self._pass(queue, behind, end)
        self._is_cut_short |= end < queue_end and self._has_room
        return queue.fresh

    def _pass(self, queue: QueueDecision, behind: int, end: int) -> None:
        """The group does not want [behind, end), which lies behind all that is leased of the queue."""
        if queue.fresh or queue.is_new or end - queue.next >= PASSED:
            queue.passed = end - behind
            queue.next = end
        elif queue.state is not None:
            queue.state.seen = end

    def _are_gone(self, refs: bytes) -> bool:
        """Whether all of these records left the log."""
        if not self._views.has_gone(refs):
            return False
        return all(self._views.is_gone(position) for position in record.unpack_refs(refs)[0])

    def _go_on(self, queue: QueueDecision, leased: int, behind: int) -> None:
        """Let the group go on at the offset `behind`: the last `leased` messages are leased for the first time."""
        if leased:
            self._note_new(queue, leased)
            queue.reclaimed += behind - queue.next - leased
            queue.next = behind

    @staticmethod
    def _note_new(queue: QueueDecision, leased: int) -> None:
        """Note that the last `leased` messages are leased for the first time."""
        queue.fresh = queue.entered = leased
        for lease in reversed(queue.leases):
            if not leased:
                break
            queue.fresh_runs.append((lease.offset, lease.offset + lease.count))
            leased -= lease.count

    def _lease(
        self, queue: QueueDecision, first: int, deliveries: int, refs: bytes
    ) -> tuple[int, list[tuple[int, int]]]:
        """Lease messages of a queue while there is room, passing over those that left the log. Returns the first offset
        that was not examined, and what left the log as (first offset, count)."""
        if not refs:
            return first, []
        if self._is_whole or not self._views.has_gone(refs):
            return first + self._lease_run(queue, first, deliveries, refs, record.unpack_refs(refs)[1]), []
        positions, lengths, _, _ = record.unpack_refs(refs)
        is_gone = [self._views.is_gone(position) for position in positions]
        gone: list[tuple[int, int]] = []
        at, count = 0, len(is_gone)
        while at < count:
            end = at
            while end < count and is_gone[end] == is_gone[at]:
                end += 1
            if is_gone[at]:
                gone.append((first + at, end - at))
            else:
                leased = self._lease_run(
                    queue, first + at, deliveries, refs[at * REFERENCE : end * REFERENCE], lengths[at:end]
                )
                if leased < end - at:
                    return first + at + leased, gone
            at = end
        return first + at, gone

    def _lease_run(self, queue: QueueDecision, first: int, deliveries: int, refs: bytes, lengths: list[int]) -> int:
        """Lease the first of these messages while there is room. Returns how many: the first of all always fits."""
        records, left = self._records, self._bytes
        count = 0
        for length in lengths:
            if records <= 0 or (length > left and self._is_begun):
                left = 0
                break
            self._is_begun = True
            records -= 1
            left -= length
            count += 1
        if self._is_for_unnamed and count:
            named = _first_named(refs[: count * REFERENCE])
            if named >= 0:
                self.met = (queue.queue, first + named)
                self._bytes = 0  # the pop ends
                return 0
        self._records, self._bytes = records, left
        if count:
            self._add_run(queue, Run(queue.queue, first, count, deliveries, b""), refs[: count * REFERENCE])
        return count

    def _add_run(self, queue: QueueDecision, lease: Run, refs: bytes) -> None:
        self.refs.append(refs)
        queue.until = self._until
        queue.leases.append(lease)
        self.leases.append(lease)


def begin_all(views: Views, group: bytes, queues: Sequence[QueueDecision], start: Start, now: int) -> None:
    """Find where a group goes on in queues; `start` is where it begins those that it is new to, at the time `now`."""
    for queue in queues:
        state, uncommitted = queue.state, queue.uncommitted
        if uncommitted is not None and uncommitted.next >= 0:
            queue.next = uncommitted.next if state is None else max(uncommitted.next, state.next)
        elif state is not None:
            queue.next = state.next
        else:
            known = views.pops.begin_of(group, queue.queue)
            if known is None:
                is_added = _is_added(views, group, queue.queue, queues)
                known = _start_of(views, queue.queue, Start.EARLIEST if is_added else start, now)
            queue.is_new = True
            queue.begin = queue.next = known
        queue.first = queue.next if state is None else max(queue.next, state.seen)


def _is_added(views: Views, group: bytes, queue: bytes, queues: Sequence[QueueDecision]) -> bool:
    """Whether a parent topic may have got this partition since a group began those before it.

    A pop begins all partitions that there are. Offsets may be committed of a few only: those that are not behind the
    ends of their partitions at a growth are of a group that has not come to it.
    """
    if queue[:1] != b"p" or queue[1:-3] not in views.partitions.counts:
        return False
    growths = [growth for growth in views.partitions.growths(queue[1:-3]) if queue not in growth.ends]
    if not growths:
        return False
    for each in queues:
        ends = [growth.ends[each.queue] for growth in growths if each.queue in growth.ends]
        if ends:
            if each.state is not None or each.uncommitted is not None:
                return True
            committed = views.pops.begin_of(group, each.queue)
            if committed is not None and committed <= max(ends):
                return True
    return False


def _start_of(views: Views, queue: bytes, start: Start, now: int) -> int:
    """The offset at which a group that is new to a queue begins it."""
    first = views.first(queue)
    if start is Start.EARLIEST:
        return first
    if start is Start.RECENT and not first:
        refs = views.references(queue, 0, 1)
        if not refs or now - record.unpack_refs(refs)[2][0] < _RECENT_MS:
            return 0
    return views.end(queue)


def _first_named(refs: bytes) -> int:
    """The index of the first of these messages that names its ordering key; -1: none does."""
    tags = record.unpack_refs(refs)[3]
    if max(tags) < NAMES_KEY:
        return -1
    return [tag >= NAMES_KEY for tag in tags].index(True)


def turn_of(queue: QueueDecision) -> int:
    """When the queue leased out something last."""
    return 0 if queue.state is None else queue.state.turn
