"""Groups in pop mode: messages of queues are leased to the members of a group, and settled one by one.

The state is folded from records (`store.views.groups.pops`): a call appends what it decides, and answers once that is
committed. The rules of this file:

* A call decides and appends in one turn of the loop. What the log accepts is committed in that order, or fails for good
  with everything behind it: a decision may build on records under way (`store.groups.queue_decision`).
* A message that a record under way names is leased to nobody else until that is committed. Its member may settle it.
* While a group is reset or removed, its other calls wait.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import record
from matcher.names import is_shared
from matcher.selector import EVERYTHING
from record.layout import REFERENCE
from store import control
from store.api import (
    MAX_ERROR,
    Appended,
    DeadLetter,
    DeadLetterReason,
    Done,
    Failed,
    Handed,
    Ordering,
    PopRequest,
    PopResult,
    Receipts,
    Redelivery,
    Run,
    dead_letter_queue,
    subscription_queue,
)
from store.config import StoreConfig
from store.errors import LogCorrupt, OffsetOutOfRange, StoreBusy, StoreError, StoreFailed, TooManyGroups
from store.groups.lease_owners import LeaseOwners
from store.groups.members import Members
from store.groups.ordered_pop import KeyOrders, OrderedPopDecision
from store.groups.partition_growth import limit_of, not_passed, unfinished_growths
from store.groups.pop_decision import PopDecision, begin_all, turn_of
from store.groups.queue_decision import QueueDecision, UncommittedQueues, runs_of
from store.groups.selection import QueueSelector, SelectedMessages
from store.groups.settle import LeaseSettlement, SettleDecision
from store.groups.turns import Turns
from store.log.reader import LogReader
from store.log.writer import Clock
from store.views.fold import Views
from store.views.groups.key_order import KeyOrder
from store.views.groups.leases import UNSENT

logger = logging.getLogger(__name__)

_LONGEST_MS: Final = 100 * 365 * 86_400_000
_BUSY_S: Final = 0.05  # until a settlement is tried again for which the log had no room

Offer = Callable[[list[bytes], Done], StoreError | None]
_Answer = asyncio.Future[Appended]
_PAUSED_MS: Final = 1000  # until members of a paused shared subscription ask again
_QUEUES: Final = (b"t", b"f", b"p", b"d")  # first bytes of their names


class GroupService:
    """The groups of one store. Everything happens on the loop."""

    def __init__(
        self, config: StoreConfig, views: Views, reader: LogReader, offer: Offer, offer_later: Offer, clock: Clock
    ) -> None:
        self._config = config
        self._views = views
        self._reader = reader
        self._offer = offer
        self._offer_later = offer_later
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._uncommitted = UncommittedQueues(views.pops)
        self._orders = KeyOrders()
        self._locks: dict[bytes, asyncio.Future[None]] = {}  # groups that are being reset or removed
        self.owners = LeaseOwners()
        self.members = Members()
        self.turns = Turns()
        self.on_back: Callable[[bytes], None] | None = None  # leases of a group's gateways ended before their time
        self._error: StoreError | None = None  # why no record is committed any more: early leases never will be
        self.redelivery = Redelivery(config.max_deliveries, [int(delay * 1000) for delay in config.retry_delays_s])

    async def pop(self, request: PopRequest, gateway: bytes = b"") -> PopResult:
        """Lease messages (`store.api.GroupStore.pop`). `gateway` is the name of the gateway that asks, empty in the
        store's own process. Gateways that share a group take turns."""
        _check_ms(request.invisible_ms)
        group, owner = request.group, request.owner
        asking = owner or gateway
        if self.turns.are_taken or asking:
            await self.turns.wait(asking, group)
        if group in self._locks:
            await self._unlocked(group)
        if group in self._views.groups.pauses:
            return _nothing(group, self._clock())
        selected = await self._select(request) if request.selection != EVERYTHING else None
        now = self._clock()
        self.members.asked(group, request.member, now)
        decision = self._decide(request, now, selected)
        try:
            touched = decision.touched()
            popped = PopResult(
                [],
                decision.available_at(),
                decision.is_limited,
                decision.is_full,
                decision.reclaimed(),
                left=decision.left(),
            )
            answer: _Answer | None = None
            if touched:
                # That a group begins in a queue is not forgotten, so it is waited for.
                is_early = request.early and not any(queue.is_new for queue in touched)
                answer = None if is_early else self._loop.create_future()
                offer = self._offer_later if is_early else self._offer
                self._append(group, decision.frames(), touched, offer, answer)
        except BaseException:
            decision.undo()
            raise
        leases = decision.leases
        letters = self._letters(leases)
        if owner:
            self.owners.add(owner, group, leases)
        if self.turns.are_taken or asking:
            self.turns.served(asking, group, bool(leases), is_full=bool(touched) and popped.is_full)
        if popped.is_limited:
            self._views.pops.wait_for_room(group)
        if not touched:
            return popped
        try:
            popped.runs, damage = await self._read(group, leases, decision.refs, popped)  # while the disk writes
            if answer is not None:
                _check(await asyncio.shield(answer))
        except BaseException:
            self._revoke(group, leases)
            raise
        if damage is not None:
            if not popped.runs:
                raise damage
            logger.error("a group does not get messages that are damaged: %s", damage)
        if self._clock() >= now + request.invisible_ms:
            popped.runs = self._still_leased(group, popped.runs)
        popped.dead_letters = _of_runs(letters, popped.runs) if letters else []
        return popped

    def _decide(self, request: PopRequest, now: int, selected: dict[bytes, SelectedMessages] | None) -> PopDecision:
        """Decide about a pop. Raises `TooManyGroups` and ValueError."""
        group = request.group
        queues = self._uncommitted.open(group, dict.fromkeys(request.queues))
        self._admit(group, [each.queue for each in queues if each.state is None and each.uncommitted is None])
        met: tuple[bytes, int] | None = None
        if not _is_in_order(request, queues):
            for queue in queues:
                state = queue.state
                is_named = request.ordering is Ordering.NAMED_KEYS
                if state is not None and state.is_ordered and (is_named or state.order is None):
                    self._orders.drop(state)
            decision = PopDecision(self._views, self._config, request, queues, now, selected)
            _complete(decision)
            met = decision.met
            if met is None:
                return decision
            decision.undo()
            queues = self._uncommitted.open(group, dict.fromkeys(request.queues))
        decision = OrderedPopDecision(self._views, self._config, request, queues, now, selected, self._orders, met)
        _complete(decision)
        return decision

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
        member: bytes = b"",
        failed: Sequence[Failed] = (),
        max_deliveries: int = 0,
        late: bool = False,
    ) -> list[Receipts]:
        """See `store.api.GroupStore.settle`."""
        if not again and not unsent and not failed:
            return await self._settle(group, LeaseSettlement(done), member, late)
        now = self._clock()
        is_back = False
        postponed: list[tuple[Receipts, int, bool]] = []
        for receipts, delay in again:
            is_back |= delay == 0
            _check_ms(delay)
            postponed.append((receipts, now + delay, not delay))
        dead: list[tuple[Receipts, DeadLetterReason, bytes]] = []
        limit, letters = max_deliveries or self._config.max_deliveries, dead_letter_queue(group)
        for each in failed:
            receipts = each.receipts
            if len(each.error) > MAX_ERROR:
                raise ValueError(f"an error has up to {MAX_ERROR} bytes, not {len(each.error)}")
            if limit <= receipts.deliveries != UNSENT and receipts.queue != letters:
                dead.append((receipts, DeadLetterReason.FAILED, each.error))
                continue
            later = self._delay(receipts) if each.delay_ms is None else each.delay_ms
            _check_ms(later)
            is_back |= later == 0
            postponed.append((receipts, now + later, True))
        for _, later in unsent:
            _check_ms(later)
            is_back |= later == 0
        settlement = LeaseSettlement(done, postponed, [(receipts, now + later) for receipts, later in unsent], dead)
        stale = await self._settle(group, settlement, member, late)
        if is_back and not self.owners.is_empty:
            self._notify_back(group)
        return stale

    async def dead_letter(
        self, group: bytes, receipts: Sequence[Receipts], reason: DeadLetterReason, member: bytes = b""
    ) -> list[Receipts]:
        """See `store.api.GroupStore.dead_letter`."""
        letters = dead_letter_queue(group)
        if any(each.queue == letters for each in receipts):
            raise ValueError("a dead letter cannot become one again")
        return await self._settle(group, LeaseSettlement(dead=[(each, reason, b"") for each in receipts]), member)

    async def _settle(
        self, group: bytes, settlement: LeaseSettlement, member: bytes, late: bool = False
    ) -> list[Receipts]:
        """Append a settlement. Returns the stale receipts once it is committed."""
        while True:
            if group in self._locks:
                await self._unlocked(group)
            answer: _Answer = self._loop.create_future()
            try:
                decision = self._append_settled(group, settlement, member, answer, late)
            except StoreBusy:
                await asyncio.sleep(_BUSY_S)
                continue
            _check(await answer)
            return decision.stale

    def _append_settled(
        self, group: bytes, settlement: LeaseSettlement, member: bytes, answer: _Answer | None, late: bool = False
    ) -> SettleDecision:
        """Decide and append; `answer` gets the outcome, at once if all receipts are stale. Raises `StoreError`."""
        decision = SettleDecision(self._uncommitted, group, settlement, member)
        try:
            decision.decide()
            touched = decision.touched()
            if touched:
                self._append(group, decision.frames(), touched, self._offer_later if late else self._offer, answer)
        except BaseException:
            decision.undo()
            raise
        if touched:
            self._end_ownership(group, decision)
        elif answer is not None:
            answer.set_result(Appended(error=self._error))
        return decision

    def now(self) -> int:
        """The time of the store's clock, ms."""
        return self._clock()

    async def release(self, group: bytes, queue: bytes) -> None:
        """See `store.api.GroupStore.release_leases`."""
        await self._release(group, queue, None)

    async def release_of(self, owner: bytes) -> None:
        """End all leases of a gateway that has ended. Raises `StoreError` after all were tried."""
        fault: StoreError | None = None
        for (group, queue), offsets in self.owners.remove_owner(owner).items():
            try:
                await self._release(group, queue, offsets)
            except StoreError as error:
                fault = fault or error
        if fault is not None:
            raise fault

    async def release_unowned(self, group: bytes, queue: bytes) -> None:
        """End all leases that no gateway is known to have. Raises `StoreError`."""
        state = self._views.pops.find(group, queue)
        runs = state.out_after(self._clock()) if state is not None else ()
        offsets = {offset for first, end, _ in runs for offset in range(first, end)}
        await self._release(group, queue, offsets)

    async def _release(self, group: bytes, queue: bytes, only: set[int] | None) -> None:
        """End leases now: all of the queue, or `only` these offsets where no gateway is known to have them by then."""
        await self._unlocked(group)
        now = self._clock()
        opened = self._uncommitted.open(group, (queue,))[0]
        if only is not None:
            leased: dict[int, list[int]] = {}  # by deliveries; leases under way too
            for offset in sorted(only - self.owners.offsets(group, queue)):
                leased.setdefault(opened.deliveries_of(offset), []).append(offset)
            found = [(*run, deliveries) for deliveries, offsets in leased.items() for run in runs_of(offsets)]
        else:
            found = opened.state.out_after(now) if opened.state is not None else []
        again = [(Receipts(queue, first, end - first, deliveries), now, True) for first, end, deliveries in found]
        await self._settle(group, LeaseSettlement(again=again), b"")
        self._notify_back(group)

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        """See `store.api.GroupStore.hand_over`. It decides before it waits for anything."""
        if group in self._locks:
            return [each.offset for each in handed]
        queue = subscription_queue(group)
        settlement = LeaseSettlement([Receipts(queue, each.offset, 1, each.deliveries) for each in handed])
        decision = SettleDecision(self._uncommitted, group, settlement)
        try:
            decision.decide()
            stale = {receipts.offset for receipts in decision.stale}
            rows = [(each.client_id, each.packet_id, each.offset) for each in handed if each.offset not in stale]
            answer: _Answer = self._loop.create_future()
            if rows:
                frame = control.ShareHandedOver(rows).frame(group)
                self._append(group, [frame], decision.touched(), self._offer, answer)
        except BaseException:
            decision.undo()
            raise
        if rows:
            self._end_ownership(group, decision)
            _check(await answer)
        return sorted(stale)

    async def reset(self, group: bytes, offsets: Mapping[bytes, int], user: bytes = b"") -> None:
        """See `store.api.GroupStore.reset_group`."""
        await self._unlocked(group)
        for queue, offset in offsets.items():
            _check_queue(queue)
            begin, end = self._views.first(queue), self._views.end(queue)
            if not begin <= offset <= end:
                raise OffsetOutOfRange(queue, offset, begin, end)
        self._admit(group, [queue for queue in offsets if self._views.pops.find(group, queue) is None])
        if offsets:
            await self._append_alone(group, control.GroupReset(offsets, user).frame(group))

    async def remove(self, group: bytes) -> None:
        """See `store.api.GroupStore.remove_group`."""
        await self._unlocked(group)
        await self._append_alone(group, control.GroupRemoved().frame(group))

    async def _select(self, request: PopRequest) -> dict[bytes, SelectedMessages]:
        """The wanted messages of each queue, from the offset at which the group goes on."""
        group = request.group
        selector = QueueSelector(self._views, self._reader, request.selection)
        selected: dict[bytes, SelectedMessages] = {}
        wanted = request.max_records
        queues = self._uncommitted.open(group, dict.fromkeys(request.queues))
        begin_all(self._views, group, queues, request.start, self._clock())
        is_in_order = _is_in_order(request, queues)
        growths = unfinished_growths(self._views.partitions, queues) if is_in_order else []
        reached: dict[bytes, int] = {}
        if growths:
            reached = {each.queue: max(_examined(each, request), self._views.first(each.queue)) for each in queues}
        waiting = sorted(queues, key=turn_of)
        while waiting:
            unexamined = not_passed(growths, reached)
            ready = [each for each in waiting if reached.get(each.queue, 0) < limit_of(each.queue, unexamined)]
            if not ready:  # no more of the others may be leased yet
                selected.update({each.queue: SelectedMessages(reached[each.queue]) for each in waiting})
                break
            for each in ready:
                first, some = each.first, wanted
                if is_in_order:
                    first = _examined(each, request)
                    order = _order_of(each, request)
                    some = wanted if order is None else max(wanted - len(order.ready), 1)
                found = selected[each.queue] = await selector.select(each.queue, first, some)
                wanted -= len(found.offsets)
                reached[each.queue] = found.end
            waiting = [each for each in waiting if each.queue not in selected]
        await self._unlocked(group)
        return selected

    def _letters(self, leases: list[Run]) -> dict[tuple[bytes, int], DeadLetter]:
        """Where the dead letters among these messages came from, by queue and offset."""
        letters: dict[tuple[bytes, int], DeadLetter] = {}
        for lease in leases:
            if lease.queue[:1] == b"d":
                found = self._views.dead_letters.find(lease.queue, lease.offset, lease.count)
                for index in range(lease.count):
                    letters[lease.queue, lease.offset + index] = found[index]
        return letters

    def _end_ownership(self, group: bytes, decision: SettleDecision) -> None:
        """No gateway has the settled messages any more: others may lease them before that is committed."""
        if not self.owners.is_empty:
            for queue, first, end in decision.released:
                self.owners.remove(group, queue, first, end)

    def _still_leased(self, group: bytes, runs: list[Run]) -> list[Run]:
        """The messages that nobody else leased while they were read for longer than their lease."""
        kept: list[Run] = []
        for run in runs:
            starts = [*record.split(run.data), len(run.data)]
            opened = self._uncommitted.open(group, (run.queue,))[0]
            for first, end in opened.leased_runs(run.offset, run.offset + run.count, run.deliveries):
                data = run.data[starts[first - run.offset] : starts[end - run.offset]]
                kept.append(Run(run.queue, first, end - first, run.deliveries, data))
        return kept

    def _notify_back(self, group: bytes) -> None:
        if self.on_back is not None:
            self.on_back(group)

    def _admit(self, group: bytes, queues: list[bytes]) -> None:
        """Admit queues that are new to the group. Raises `TooManyGroups` and ValueError."""
        if not queues:
            return
        for queue in queues:
            _check_queue(queue)
        known = self._views.pops.queues_of(group)
        if known + len(queues) > self._config.max_group_queues:
            raise TooManyGroups(f"the group receives from {known} queues; the limit is {self._config.max_group_queues}")
        if not known and self._views.pops.groups() >= self._config.max_groups:
            raise TooManyGroups(f"there are {self._config.max_groups} groups, which is the limit")

    def _delay(self, receipts: Receipts) -> int:
        delays = self.redelivery.delays_ms
        return delays[min(max(receipts.deliveries, 1), len(delays)) - 1]

    def _append(
        self,
        group: bytes,
        frames: list[bytes],
        queues: Sequence[QueueDecision],
        offer: Offer,
        answer: _Answer | None,
    ) -> None:
        """Append the records of a decision; `answer` gets the outcome. Raises `StoreError` when they are refused: the
        caller has to undo the decision then."""

        def done(appended: Appended) -> None:
            if isinstance(appended.error, StoreFailed):
                self._error = appended.error
            self._uncommitted.remove(group, queues)
            if answer is not None and not answer.done():
                answer.set_result(appended)

        error = offer(frames, done)
        if error is not None:
            raise error
        self._uncommitted.add(group, queues)

    async def _read(
        self, group: bytes, leases: list[Run], refs: list[bytes], popped: PopResult
    ) -> tuple[list[Run], LogCorrupt | None]:
        """Fill in the data of the leases that can be read. Returns them, and the damage of the first that cannot."""
        if not leases:
            return [], None
        try:
            data = await self._reader.frames(refs[0] if len(refs) == 1 else b"".join(refs))
        except LogCorrupt:
            runs: list[Run] = []
            damage: LogCorrupt | None = None
            for lease, packed in zip(leases, refs, strict=True):
                found, fault = await self._read_each(group, lease, packed, popped)
                runs += found
                damage = damage or fault
            return runs, damage
        if len(leases) == 1:
            leases[0].data = data
            return leases, None
        starts = [*record.split(data), len(data)]
        at = 0
        for lease in leases:
            lease.data = data[starts[at] : starts[at + lease.count]]
            at += lease.count
        return leases, None

    async def _read_each(
        self, group: bytes, lease: Run, refs: bytes, popped: PopResult
    ) -> tuple[list[Run], LogCorrupt | None]:
        """Read message by message. Those that left the log meanwhile are finished; damaged ones stay leased."""
        runs: list[Run] = []
        gone: list[int] = []
        damage: LogCorrupt | None = None
        for index in range(lease.count):
            reference, offset = refs[index * REFERENCE : (index + 1) * REFERENCE], lease.offset + index
            try:
                data = await self._reader.frames(reference)
            except LogCorrupt as error:
                if self._views.has_gone(reference):
                    gone.append(offset)
                else:
                    damage = damage or error
                continue
            runs.append(Run(lease.queue, offset, 1, lease.deliveries, data))
        if gone:
            popped.reclaimed += len(gone)
            for first, end in runs_of(gone):
                self._offer([control.Settled({lease.queue: [(first, end - first)]}, {}).frame(group)], _ignore)
                self.owners.remove(group, lease.queue, first, end)
        return runs, damage

    def _revoke(self, group: bytes, leases: list[Run]) -> None:
        """Nobody waits for these leases any more, and they do not count. While the group is being reset, or the log has
        no room, they end by their time."""
        if group in self._locks:
            return
        now = self._clock()
        receipts = [Receipts(lease.queue, lease.offset, lease.count, lease.deliveries) for lease in leases]
        with suppress(StoreError):
            self._append_settled(group, LeaseSettlement(unsent=[(each, now) for each in receipts]), b"", None)

    async def _append_alone(self, group: bytes, frame: bytes) -> None:
        """Append a record on which no decision may build before it is committed."""
        answer: _Answer = self._loop.create_future()
        lock: asyncio.Future[None] = self._loop.create_future()

        def done(appended: Appended) -> None:
            del self._locks[group]
            lock.set_result(None)
            if not answer.done():
                answer.set_result(appended)

        error = self._offer([frame], done)
        if error is not None:
            raise error
        self._locks[group] = lock
        _check(await answer)

    async def _unlocked(self, group: bytes) -> None:
        while (lock := self._locks.get(group)) is not None:
            await asyncio.wait((lock,))


def _is_in_order(request: PopRequest, queues: Sequence[QueueDecision]) -> bool:
    """Whether a pop has to look at ordering keys. Named keys count only while the group has messages that name some."""
    if request.ordering is not Ordering.NAMED_KEYS:
        return request.ordering is Ordering.ALL_KEYS
    for queue in queues:
        if queue.state is not None and queue.state.order is not None and queue.state.order.is_needed:
            return True
    return False


def _order_of(queue: QueueDecision, request: PopRequest) -> KeyOrder | None:
    """What pops with the same selection have examined of a queue."""
    order = None if queue.state is None else queue.state.order
    return order if order is not None and order.selection == request.selection else None


def _examined(queue: QueueDecision, request: PopRequest) -> int:
    """The first offset of a queue that pops in order have not examined."""
    order = _order_of(queue, request)
    return queue.next if order is None else max(queue.next, order.end)


def _of_runs(letters: "dict[tuple[bytes, int], DeadLetter]", runs: Sequence[Run]) -> list[DeadLetter]:
    """The dead letters of these messages, by queue and offset."""
    offsets = [(run.queue, run.offset + index) for run in runs for index in range(run.count)]
    return [letters[key] for key in offsets if key in letters]


def _nothing(group: bytes, now: int) -> PopResult:
    """What a pop of a paused group gets. The commit that resumes it wakes its members. Those of a shared subscription
    hear of no such commit: they ask again after a second."""
    return PopResult([], now + _PAUSED_MS if is_shared(group) else None, False)


def _complete(decision: PopDecision) -> None:
    """Make a decision, or leave everything as it was."""
    try:
        decision.decide()
    except BaseException:
        decision.undo()
        raise


def _check_ms(time: int) -> None:
    """ValueError for a time from now that could not be folded."""
    if not 0 <= time <= _LONGEST_MS:
        raise ValueError(f"{time} ms is not a time from now of up to 100 years")


def _check_queue(name: bytes) -> None:
    """ValueError for what is no queue's name, or one that no record could contain."""
    is_partition = name[:1] == b"p"
    try:
        (name[:-3] if is_partition else name).decode()
        is_known = name[:1] in _QUEUES and (not is_partition or (len(name) > 3 and name[-3] == 0))
    except UnicodeDecodeError:
        is_known = False
    if not is_known:
        raise ValueError(f"{name!r} is no queue: store.api makes the names of queues")


def _check(appended: Appended) -> None:
    if appended.error is not None:
        raise appended.error


def _ignore(_: Appended) -> None:
    """For records that nobody waits for."""
