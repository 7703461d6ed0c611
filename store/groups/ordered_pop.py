"""What one pop of an ordered group leases: messages of a key in the order of their queue, one pop's at a time.

A key is the ordering key that a message names, or else its topic. While something of a key is leased, or waits to come
again, the other messages of the key wait. Those of other keys go on. New messages that have to wait are *kept back*:
the group moves past them, and they are not finished.

A pop builds on committed records only: a key goes on when its settlement is in the log. What a pop examines is bounded,
and what it has examined is remembered (`store.views.groups.key_order`).
"""

from bisect import bisect_left
from heapq import heappop, heappush, heapreplace
from typing import Final

from matcher.selector import Selection
from record.layout import NAMES_KEY, REFERENCE
from store.api import Ordering, PopRequest, Run
from store.config import StoreConfig
from store.groups.partition_growth import limit_of, not_passed, unfinished_growths
from store.groups.pop_decision import PASSED, PopDecision, begin_all, turn_of
from store.groups.queue_decision import MOST_DEAD, QueueDecision, runs_of
from store.groups.selection import MOST_EXAMINED, SelectedMessages
from store.views.fold import Views
from store.views.groups.key_order import KeyMessages, KeyOrder
from store.views.groups.leases import UNSENT, QueueLeases
from store.views.groups.pops import Key
from store.views.queues.partitions import PartitionGrowth

_MOST_COVERED: Final = 1 << 18  # offsets that all of `KeyOrders` cover: up to 200 bytes each
_ORDER: Final = 64  # a `KeyOrder` counts as so many offsets more
_FIRST_PAGE: Final = 32  # new messages that are examined at once; each further page is twice as long
_PAGE: Final = 512  # at most
_COMMIT_MS: Final = 10  # until a call is repeated that could not build on records under way
_GROWTH_MS: Final = 1000  # until a message is examined again that waits for another partition
_GONE: Final = bytes(REFERENCE)  # in place of a reference that is gone

# What has to come before a message can be leased, if that is not a time.
_NOTHING: Final = 0
_COMMIT: Final = -1  # of a record under way
_FINISHED: Final = -2  # it is not leased again


class KeyOrders:
    """Drops the least recently used `KeyOrder`s when there is too much of them."""

    def __init__(self, limit: int = _MOST_COVERED) -> None:
        self._limit = limit  # offsets that all cover
        self._known: dict[Key, tuple[QueueLeases, KeyOrder]] = {}  # the least recently used first
        self._covered = 0

    def use(self, leases: QueueLeases, order: KeyOrder) -> None:
        """A pop uses this order of the leases."""
        key = (leases.group, leases.queue)
        known = self._known.pop(key, None)
        if known is not None:
            self._covered -= known[1].counted
        leases.order = order
        leases.is_ordered = True
        self._known[key] = (leases, order)
        order.counted = order.size + _ORDER
        self._covered += order.counted
        while self._covered > self._limit and len(self._known) > 1:
            oldest, old = self._known.pop(next(iter(self._known)))
            self._covered -= old.counted
            if oldest.order is old:
                oldest.order = None

    def drop(self, leases: QueueLeases) -> None:
        """Pops of the leases keep no order."""
        known = self._known.pop((leases.group, leases.queue), None)
        if known is not None:
            self._covered -= known[1].counted
        leases.order = None
        leases.is_ordered = False


class _OrderedQueue:
    """A queue of an ordered pop."""

    __slots__ = ("ahead", "chosen", "first", "full", "is_window_full", "order", "queue", "tags")

    def __init__(self, queue: QueueDecision, order: KeyOrder, first: int) -> None:
        self.queue = queue
        self.order = order
        self.first = first  # the first offset whose record may be in the log
        self.chosen: list[tuple[int, int]] = []  # leased: offset, deliveries from then on
        self.tags: set[int] = set()  # keys of which something is leased or given up
        self.is_window_full = False  # new messages are not examined before older ones are finished or passed over
        self.full: set[int] = set()  # those of which this pop leases no more
        self.ahead: list[int] | None = None  # `order.ahead` before the decision changed it


class OrderedPopDecision(PopDecision):
    """One pop of an ordered group."""

    def __init__(
        self,
        views: Views,
        config: StoreConfig,
        request: PopRequest,
        queues: list[QueueDecision],
        now: int,
        selected: dict[bytes, SelectedMessages] | None,
        orders: KeyOrders,
        met: tuple[bytes, int] | None = None,  # `PopDecision.met` of the decision that this one replaces
    ) -> None:
        super().__init__(views, config, request, queues, now, selected)
        self._is_of_named = request.ordering is Ordering.NAMED_KEYS
        self._replaced = met
        self._orders = orders
        self._passed = min(PASSED, config.max_group_window)  # a whole window of unwanted messages is recorded
        self._selection: Selection = request.selection
        self._left = MOST_EXAMINED  # references and keys that may still be examined
        self._room = 0  # new messages that the group may still have unfinished
        self._opened: dict[bytes, _OrderedQueue] = {}
        self._growths: list[PartitionGrowth] = []  # from before which the group may have unfinished messages
        self._unexamined: list[PartitionGrowth] = []  # those of which it has not examined all from before
        self._limits: dict[bytes, int] = {}  # of queues where these kept it from leasing more

    def decide(self) -> None:
        begin_all(self._views, self._group, self._queues, self._start, self._now)
        self._room = self._config.max_group_leases - self._unfinished()
        queues = sorted(self._queues, key=turn_of)
        self._growths = unfinished_growths(self._views.partitions, queues)
        if self._growths:
            self._decide_by_growths(queues)
            return
        for queue in queues:
            if not self._has_room:
                break
            opened = self._open(queue)
            if opened is not None:
                self._opened[queue.queue] = opened
                self._lease_queue(opened)
                self._finish(opened)

    def _decide_by_growths(self, queues: list[QueueDecision]) -> None:
        """Decide where messages of a partition may wait for those of any other."""
        for queue in queues:
            opened = self._open(queue)
            if opened is not None:
                self._opened[queue.queue] = opened
        waiting = list(self._opened.values())
        self._unexamined = not_passed(self._growths, self._reached())
        while waiting and self._has_room:
            for opened in waiting:
                if self._has_room:
                    self._lease_queue(opened)
            self._unexamined = not_passed(self._unexamined, self._reached())
            lifted = [name for name, at in self._limits.items() if limit_of(name, self._unexamined) > at]
            for name in lifted:
                del self._limits[name]
            waiting = [self._opened[name] for name in lifted]
        if self._limits:
            self._wait(_GROWTH_MS)
        for opened in self._opened.values():
            self._finish(opened)

    def undo(self) -> None:
        super().undo()
        for opened in self._opened.values():
            if opened.ahead is not None:
                opened.order.ahead = opened.ahead
            opened.order.make_ready(opened.tags)

    def _next_due(self, queue: QueueDecision) -> int | None:
        opened = self._opened.get(queue.queue)
        return None if opened is None else opened.order.next_due()

    def _open(self, queue: QueueDecision) -> _OrderedQueue | None:
        """The order of a queue; None if this pop cannot have it."""
        first = 0 if self._is_whole else self._views.first(queue.queue)
        state = queue.state
        if state is None:
            if queue.uncommitted is not None:
                self._wait(_COMMIT_MS)
                return None
            return _OrderedQueue(queue, self._new_order(queue, queue.next), first)
        order = state.order
        if (
            order is None
            or order.selection != self._selection
            or (order.is_of_named and not self._is_of_named)  # the stricter order serves both
            or (order.ahead and order.ahead[0] < queue.next)
        ):
            order = self._new_order(queue, state.floor)
        order.drop_before(state.floor)
        opened = _OrderedQueue(queue, order, first)
        is_complete = self._cover_entries(opened, state)
        self._orders.use(state, order)
        if is_complete and order.end < queue.next:  # a pop of the group that was not ordered is under way
            self._wait(_COMMIT_MS)
            return None
        return opened if is_complete else None

    def _new_order(self, queue: QueueDecision, begin: int) -> KeyOrder:
        met = self._replaced[1] if self._replaced is not None and self._replaced[0] == queue.queue else -1
        return KeyOrder(begin, self._selection, self._is_of_named, met)

    def _wait(self, ms: int) -> None:
        """Have the call be repeated: records under way may be committed then, or another partition examined."""
        self.is_limited = True
        self._retry_at = min(self._now + ms, self._retry_at) if self._retry_at >= 0 else self._now + ms

    def _cover_entries(self, opened: _OrderedQueue, state: QueueLeases) -> bool:
        """Have the order cover all entries. Returns False if that takes more pops."""
        order = opened.order
        while order.end < state.next:
            count = min(self._left, state.next - order.end)
            if count <= 0:
                self._is_cut_short = True
                return False
            begin = order.end
            if begin < opened.first:
                refs = _GONE * min(count, opened.first - begin)
            else:
                refs = self._views.references(opened.queue.queue, begin, count)
            if not refs:
                self.is_limited = True
                return False
            order.extend(refs)
            self._left -= order.end - begin
            for low, high, was_leased in state.entries(begin, order.end):
                order.add(low, high, was_leased)
        return True

    def _lease_queue(self, opened: _OrderedQueue) -> None:
        order = opened.order
        order.take_due(self._now)
        self._lease_ready(opened)
        page = min(max(self._records, _FIRST_PAGE), _PAGE)
        while self._has_room and self._look_ahead(opened, page):
            self._lease_ready(opened)
            page = min(2 * page, _PAGE)
        if order.keys and self._has_room:
            self.is_limited = True

    def _lease_ready(self, opened: _OrderedQueue) -> None:
        """Lease messages of the ready keys, in the order of the queue as far as they are examined at once."""
        order = opened.order
        free: list[tuple[int, int, int]] = []  # heap of the keys that may be leased: offset, its index, tag
        waiting: list[int] = []  # keys that wait for a commit
        try:
            while order.ready and self._has_room:
                while order.ready and len(free) < self._records:
                    if self._left <= 0:
                        self._is_cut_short = True
                        return
                    self._left -= 1
                    self._examine(opened, order.ready.popleft(), free, waiting)
                while free and self._lease_first(opened, free):
                    pass
        finally:
            for _, _, tag in sorted(free, reverse=True):
                if tag not in opened.tags:
                    order.make_ready_first(tag)
            order.make_ready(waiting)

    def _examine(self, opened: _OrderedQueue, tag: int, free: list[tuple[int, int, int]], waiting: list[int]) -> None:
        """Add a ready key to those that may be leased, or to those that wait."""
        order = opened.order
        key = order.keys.get(tag)
        if key is None:
            return
        key.is_ready = False
        if tag in opened.full:
            return
        if tag in opened.tags:  # what is before was leased by this pop
            at, wait = bisect_left(key.offsets, key.leased), _NOTHING
        else:
            at, wait = 0, self._wait_of_leased(opened.queue, key)
        if wait == _NOTHING:
            at, wait = self._next_free(opened, key, at)
        if wait == _COMMIT:
            waiting.append(tag)
        elif wait != _NOTHING:
            order.expect(tag, key, wait)
        elif at < len(key.offsets):
            if self._is_behind_limit(opened, key.offsets[at]):
                waiting.append(tag)
            elif self._growths and self._has_older(opened, key.offsets[at], tag):
                order.expect(tag, key, self._now + _GROWTH_MS)
            else:
                heappush(free, (key.offsets[at], at, tag))
        elif not key.offsets:
            order.remove(tag)

    def _lease_first(self, opened: _OrderedQueue, free: list[tuple[int, int, int]]) -> bool:
        """Lease the first message that may be leased. Returns False if there is no room."""
        offset, at, tag = free[0]
        queue, key = opened.queue, opened.order.keys[tag]
        if self._is_gone(opened, offset):
            queue.gone.append((offset, 1))
            queue.claim(offset, offset + 1, 0)
            queue.reclaimed += 1
        elif not self._lease_message(opened, offset):
            return False
        key.leased = offset + 1
        opened.tags.add(tag)
        if self._is_of_named and opened.chosen and opened.chosen[-1][0] == offset:
            opened.full.add(tag)
            heappop(free)
            return True
        at, wait = self._next_free(opened, key, at + 1)
        if at < len(key.offsets) and (
            self._is_behind_limit(opened, key.offsets[at])
            or (self._growths and self._has_older(opened, key.offsets[at], tag))
        ):
            heappop(free)
        elif wait == _NOTHING and at < len(key.offsets):
            heapreplace(free, (key.offsets[at], at, tag))
        else:
            heappop(free)
        return True

    def _has_older(self, opened: _OrderedQueue, offset: int, tag: int) -> bool:
        """Whether an older message of a key is not finished that entered another partition, before the parent topic got
        more of them."""
        name = opened.queue.queue
        for growth in self._growths:
            if offset < growth.begin(name) or (self._is_of_named and not tag & NAMES_KEY):
                continue
            before = growth.queue_of(tag)
            if before != name and self._has_unfinished(before, tag, growth.ends[before]):
                return True
        return False

    def _has_unfinished(self, queue: bytes, tag: int, end: int) -> bool:
        """Whether messages of a key before the offset `end` of a queue are not finished."""
        opened = self._opened.get(queue)
        if opened is None:
            return any(each.queue == queue for each in self._queues)
        key = opened.order.keys.get(tag)
        for offset in key.offsets if key is not None else ():
            if offset >= end:
                break
            if self._wait_of(opened.queue, offset) != _FINISHED:
                return True
        return False

    def _reached(self) -> dict[bytes, int]:
        """The first offset of each queue that is not examined."""
        reached = {each.queue: 0 for each in self._queues}
        for name, opened in self._opened.items():
            reached[name] = max(opened.order.end, opened.first)
        return reached

    def _next_free(self, opened: _OrderedQueue, key: KeyMessages, at: int) -> tuple[int, int]:
        """Examine a key's messages from the index `at` on. Returns the index of the first unfinished one, or their
        number, and what that waits for, as `_wait_of`."""
        queue = opened.queue
        while at < len(key.offsets):
            offset = key.offsets[at]
            wait = self._wait_of(queue, offset)
            if wait != _FINISHED and not (offset >= queue.next and self._is_gone(opened, offset)):
                return at, wait
            del key.offsets[at]
        return at, _NOTHING

    def _wait_of_leased(self, queue: QueueDecision, key: KeyMessages) -> int:
        """What the messages of a key wait for that were leased before. Forgets those that are finished."""
        wait = count = 0
        unfinished: list[int] = []
        for offset in key.offsets:
            if offset >= key.leased:
                break
            own = self._wait_of(queue, offset)
            if own == _COMMIT:
                return _COMMIT
            if own != _FINISHED:
                unfinished.append(offset)
                wait = max(wait, own)
            count += 1
        key.offsets[:count] = unfinished
        key.due = 0
        return wait

    def _wait_of(self, queue: QueueDecision, offset: int) -> int:
        """The time (ms) that a message waits for, or `_NOTHING`, `_COMMIT` or `_FINISHED`."""
        uncommitted, state = queue.uncommitted, queue.state
        if uncommitted is not None:
            claim = uncommitted.claims.get(offset)
            if claim is not None:
                return _NOTHING if claim.is_kept_back else _COMMIT
        if offset >= queue.next:
            return _NOTHING
        if state is None or offset >= state.next:
            return _COMMIT
        deliveries, at = state.entry(offset)
        if not deliveries:
            return _FINISHED
        return at if at > self._now else _NOTHING

    def _is_gone(self, opened: _OrderedQueue, offset: int) -> bool:
        if self._is_whole:
            return False
        return offset < opened.first or self._views.is_gone(opened.order.position(offset))

    def _lease_message(self, opened: _OrderedQueue, offset: int) -> bool:
        """Lease a message, or give it up. Returns False if there is no room."""
        queue = opened.queue
        deliveries = UNSENT if offset >= queue.next else queue.deliveries_of(offset)
        if self._is_dead(queue, deliveries):
            if self._dead >= MOST_DEAD:
                self._is_cut_short = True
                return False
            queue.dead.append(offset)
            queue.claim(offset, offset + 1, 0)
            self._dead += 1
            return True
        length = opened.order.length(offset)
        if self._records <= 0 or (length > self._bytes and self._is_begun):
            self._bytes = 0
            return False
        self._is_begun = True
        self._records -= 1
        self._bytes -= length
        opened.chosen.append((offset, self._deliveries_then(queue, deliveries)))
        return True

    def _look_ahead(self, opened: _OrderedQueue, page: int) -> bool:
        """Examine new messages. Returns False if there are none, or no more may be examined."""
        queue, order = opened.queue, opened.order
        if order.end < opened.first and not order.keys:
            order.restart(opened.first)
        begin, end = order.end, self._end(queue.queue)
        if begin >= end:
            return False
        floor = queue.state.floor if queue.state is not None else queue.next
        window = floor + self._config.max_group_window - begin
        room = min(self._room - self._ahead(order), window)
        if room <= 0:
            opened.is_window_full = window <= 0
            self.is_limited = True
            self._is_cut_short |= bool(queue.gone or queue.dead)  # which makes room
            return False
        if self._left <= 0:
            self._is_cut_short = True
            return False
        wanted: list[int] | None = None
        if begin < queue.first:  # other pops found that there is nothing to lease before
            end = min(end, queue.first)
            wanted = []
        elif self._selected is not None and begin >= opened.first:
            selected = self._selected[queue.queue]
            if not selected.first <= begin < selected.end:  # other calls were faster, or the rest is not examined
                self._is_cut_short = True
                return False
            end = min(end, selected.end)
            wanted = selected.offsets
        count = min(page, room, self._left, end - begin)
        if begin < opened.first:
            refs = _GONE * min(count, opened.first - begin)
        else:
            refs = self._views.references(queue.queue, begin, count)
        if not refs:
            self._is_short = True
            return False
        order.extend(refs)
        self._left -= order.end - begin
        if wanted is not None:
            found = wanted[bisect_left(wanted, begin) : bisect_left(wanted, order.end)]
        else:
            found = list(range(begin, order.end))
        if not self._is_whole:
            found = [offset for offset in found if not self._is_gone(opened, offset)]
        for first, last in runs_of(found):
            order.add(first, last, False)
        order.ahead += found
        order.make_ready(opened.tags.intersection(order.tags(begin)))
        return True

    def _end(self, queue: bytes) -> int:
        """The offset of a queue up to which new messages may be examined."""
        end = self._views.end(queue)
        return self._limit(queue, end) if self._unexamined else end

    def _is_behind_limit(self, opened: _OrderedQueue, offset: int) -> bool:
        """Whether a message came after a growth before which there may be messages that are not examined."""
        return bool(self._unexamined) and self._limit(opened.queue.queue, offset + 1) <= offset

    def _limit(self, queue: bytes, end: int) -> int:
        """The offset of a queue, `end` at most, up to which messages may be examined and leased now."""
        limit = limit_of(queue, self._unexamined)
        if limit >= end:
            return end
        self._limits[queue] = limit
        return limit

    def _ahead(self, order: KeyOrder) -> int:
        """New messages that were examined and that `_room` does not count."""
        if not self._growths:
            return len(order.ahead)
        return sum([len(each.order.ahead) for each in self._opened.values()])  # `_finish` comes after all queues

    def _finish(self, opened: _OrderedQueue) -> None:
        """Lease what was chosen of a queue, and keep back what lies between."""
        queue, order = opened.queue, opened.order
        chosen = sorted(opened.chosen)
        at = 0
        while at < len(chosen):
            first, deliveries = chosen[at]
            end = first
            while at < len(chosen) and chosen[at] == (end, deliveries) and (end < queue.next) == (first < queue.next):
                at += 1
                end += 1
            refs = b"".join([order.reference(offset) for offset in range(first, end)])
            self._add_run(queue, Run(queue.queue, first, end - first, deliveries, b""), refs)
            if first < queue.next:
                queue.claim(first, end, deliveries)
            else:
                queue.fresh_runs.append((first, end))
                queue.fresh += end - first
                queue.entered += end - first
        self._move(opened)

    def _move(self, opened: _OrderedQueue) -> None:
        """Move the group past new messages that are leased, kept back or not wanted."""
        queue, order = opened.queue, opened.order
        recorded = behind = queue.fresh_runs[-1][1] if queue.fresh else queue.next
        if order.end - queue.next >= self._passed and not order.ready:
            behind = order.end
        ahead = order.ahead
        cut = bisect_left(ahead, behind)
        leased = {offset for first, end in queue.fresh_runs for offset in range(first, end)}
        kept = [offset for offset in ahead[:cut] if offset not in leased and not self._is_gone(opened, offset)]
        for first, end in runs_of(kept):
            queue.keep_back(first, end)
            recorded = max(recorded, end)
        opened.ahead = ahead
        order.ahead = ahead[cut:]
        reached = order.ahead[0] if order.ahead else order.end
        if queue.entered or queue.is_new or reached - queue.next >= self._passed:
            if self._selected is None:
                queue.reclaimed += reached - queue.next - queue.entered
            queue.passed = reached - recorded
            queue.next = reached
            self._is_cut_short |= opened.is_window_full and queue.passed > 0  # which makes room
        self._room -= queue.entered
