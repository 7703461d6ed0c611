"""Groups pop: messages of queues are leased to the members of a group, one by one, and settled one by one.

The state is the fold's (`store.views.pops`): what a call decides it appends, and it answers when that is committed.
What other calls decided meanwhile is known as *flights*, one for each group and queue that has records under way. They
are gone when all of it is committed, and the fold's state is all there is. So the rules of the file:

* A call decides and appends in one turn of the loop. What the log takes is committed in that order, or fails with
  everything behind it and for good: a decision may build on those that are under way. What it refuses never was.
* What a record under way tells of is leased out to nobody else until that is committed. Who has it may settle it.
* While a group is reset or removed its other calls wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import record
from store import control
from store.api import Appended, Done, Handed, Popped, PopRequest, Receipts, Run, dead_letter_queue, subscription_queue
from store.config import StoreConfig
from store.errors import LogCorrupt, OffsetOutOfRange, StoreBusy, StoreError, StoreFailed, TooManyGroups
from store.groups.lease_owners import Owners
from store.groups.pop_decision import Flight, Lease, Place, Taking, begin_at, fresh_from, is_begun, runs_of, settled
from store.groups.selection import Choosing, Chosen
from store.groups.settle import Settling
from store.log.reader import Reader
from store.log.writer import Clock
from store.views.fold import Views
from store.views.pops import Key

logger = logging.getLogger(__name__)

_LONGEST_MS: Final = 100 * 365 * 86_400_000
_BUSY_S: Final = 0.05  # until a settlement is tried again for which the log had no room

Offer = Callable[[list[bytes], Done], StoreError | None]
_QUEUES: Final = (b"t", b"f", b"p", b"d")  # what their names begin with


class GroupService:
    """The groups of one store. Everything happens on the loop."""

    def __init__(
        self, config: StoreConfig, views: Views, reader: Reader, offer: Offer, offer_later: Offer, clock: Clock
    ) -> None:
        self._config = config
        self._views = views
        self._reader = reader
        self._offer = offer
        self._offer_later = offer_later
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._flights: dict[Key, Flight] = {}  # as many as there are records under way, at most
        self._locks: dict[bytes, asyncio.Future[None]] = {}  # groups that are being reset or removed
        self.owners = Owners()
        self.on_back: Callable[[bytes], None] | None = None  # what gateways had of a group is to be had again
        self._error: StoreError | None = None  # why no record is committed any more: leases told of early never were
        self._turn = 0  # counts the times that something new was leased out
        self._delays_ms = [int(delay * 1000) for delay in config.retry_delays_s]

    @property
    def is_idle(self) -> bool:
        """Whether the fold's state is all there is."""
        return not self._flights and not self._locks

    async def pop(self, request: PopRequest) -> Popped:
        """See `store.api.GroupStore.pop`."""
        group, owner = request.group, request.owner
        _check_ms(request.invisible_ms)
        for queue in request.queues:
            _check_queue(queue)
        if owner:
            await self.owners.turn(owner, group)
        await self._unlocked(group)
        chosen = await self._choose(request) if request.selection else None
        now = self._clock()
        until = now + request.invisible_ms
        places = [self._known(group, queue) for queue in dict.fromkeys(request.queues)]
        self._admit(group, [place.queue for place in places if place.state is None and place.flight is None])
        taking = Taking(
            self._views,
            self._config,
            group,
            places,
            now=now,
            until=until,
            max_records=request.max_records,
            max_bytes=request.max_bytes,
            max_deliveries=request.max_deliveries or self._config.max_deliveries,
            ordered=request.ordered,
            chosen=chosen,
            member=request.member,
        )
        with _undone(taking):
            taking.take(request.start)
            frames = taking.frames()
        popped = Popped([], taking.available_at(), taking.is_limited, taking.is_full)
        popped.reclaimed = sum([place.reclaimed for place in places])
        touched = [place for place in places if place.is_touched]
        if not touched:
            if owner:
                self.owners.took(owner, group, (), is_full=False)
            return popped
        is_early = request.early and not any(place.is_new for place in touched)  # that a group begins is not forgotten
        answer = self._append(group, frames, touched, self._offer_later if is_early else self._offer)
        if owner:
            self.owners.took(owner, group, taking.leases, is_full=popped.is_full)
        try:
            runs, damage = await self._read(group, taking.leases, popped)  # while the disk writes
            if not is_early:
                _check(await asyncio.shield(answer))
        except BaseException:
            self._take_back(group, taking.leases)
            raise
        if damage is not None:
            if not runs:
                raise damage
            logger.error("messages are left out that a group was to have: %s", damage)
        popped.runs = runs if self._clock() < until else self._still_out(group, runs)
        return popped

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int | None]],
        unsent: Sequence[tuple[Receipts, int]],
        member: bytes,
    ) -> list[Receipts]:
        """See `store.api.GroupStore.settle`."""
        for _, delay in (*again, *unsent):
            if delay is not None:
                _check_ms(delay)

        def decide(settling: Settling) -> None:
            now = self._clock()
            for receipts in done:
                settling.finish(receipts)
            for receipts, delay in again:
                at = now + (self._delay(receipts) if delay is None else delay)
                settling.postpone(receipts, at, is_back=not delay)
            for receipts, later in unsent:
                settling.take_back(receipts, now + later)

        stale = await self._settle(group, decide, member)
        if self.owners.are_any and any(delay == 0 for _, delay in (*again, *unsent)):
            self._came_back(group)
        return stale

    async def bury(self, group: bytes, receipts: Sequence[Receipts], member: bytes) -> list[Receipts]:
        """See `store.api.GroupStore.bury`."""
        letters = dead_letter_queue(group)
        if any(each.queue == letters for each in receipts):
            raise ValueError("what is a dead letter cannot become one")

        def decide(settling: Settling) -> None:
            for each in receipts:
                settling.bury(each)

        return await self._settle(group, decide, member)

    async def _settle(self, group: bytes, decide: Callable[[Settling], None], member: bytes) -> list[Receipts]:
        """Append what `decide` settles. Returns once that is committed, with the receipts that were stale."""
        while True:
            await self._unlocked(group)
            settling = Settling(group, lambda queue: self._known(group, queue), member)
            with _undone(settling):
                decide(settling)
                frames = settling.frames()
            places = settling.places
            if not places:
                if self._error is not None:
                    raise self._error
                return settling.stale
            try:
                answer = self._append(group, frames, places, self._offer)
            except StoreBusy:
                await asyncio.sleep(_BUSY_S)
                continue
            self._free(group, settling)
            _check(await answer)
            return settling.stale

    async def release(self, group: bytes, queue: bytes) -> None:
        """See `store.api.GroupStore.release_leases`."""
        await self._release(group, queue, None)

    async def release_of(self, owner: bytes) -> None:
        """Have all that a gateway has out come again now: it has ended. Raises `StoreError`, when all was tried."""
        fault: StoreError | None = None
        for (group, queue), offsets in self.owners.ended(owner).items():
            try:
                await self._release(group, queue, offsets)
            except StoreError as error:
                fault = fault or error
        if fault is not None:
            raise fault

    async def release_unowned(self, group: bytes, queue: bytes) -> None:
        """Have all come again that no gateway is known to have. Raises `StoreError`."""
        state = self._views.pops.find(group, queue)
        runs = state.out_after(self._clock()) if state is not None else ()
        offsets = {offset for first, end, _ in runs for offset in range(first, end)}
        await self._release(group, queue, offsets)

    async def _release(self, group: bytes, queue: bytes, only: set[int] | None) -> None:
        """Have what is out come again now; of `only` these offsets, where no gateway is known to have them by then."""

        def decide(settling: Settling) -> None:
            now = self._clock()
            place = self._known(group, queue)
            if only is not None:
                out: dict[int, list[int]] = {}  # by deliveries; of leases under way too
                for offset in sorted(only - self.owners.of(group, queue)):
                    out.setdefault(place.deliveries_of(offset), []).append(offset)
                found = [(*run, deliveries) for deliveries, offsets in out.items() for run in runs_of(offsets)]
            else:
                found = place.state.out_after(now) if place.state is not None else []
            for first, end, deliveries in found:
                settling.postpone(Receipts(queue, first, end - first, deliveries), now, is_back=True)

        await self._settle(group, decide, b"")
        self._came_back(group)

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        """See `store.api.GroupStore.hand_over`. Decides in the turn of the loop in which it is called."""
        if group in self._locks:
            return [each.offset for each in handed]
        queue = subscription_queue(group)
        settling = Settling(group, lambda name: self._known(group, name))
        with _undone(settling):
            for each in handed:
                settling.finish(Receipts(queue, each.offset, 1, each.deliveries))
        stale = {receipts.offset for receipts in settling.stale}
        rows = [(each.client_id, each.packet_id, each.offset) for each in handed if each.offset not in stale]
        if rows:
            answer = self._append(group, [control.share_handed(group, rows)], settling.places, self._offer)
            self._free(group, settling)
            _check(await answer)
        return sorted(stale)

    async def reset(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        """See `store.api.GroupStore.reset_group`."""
        await self._unlocked(group)
        for queue, offset in offsets.items():
            _check_queue(queue)
            begin, end = self._views.first(queue), self._views.end(queue)
            if not begin <= offset <= end:
                raise OffsetOutOfRange(queue, offset, begin, end)
        self._admit(group, [queue for queue in offsets if self._views.pops.find(group, queue) is None])
        if offsets:
            await self._alone(group, control.group_reset(group, offsets))

    async def remove(self, group: bytes) -> None:
        """See `store.api.GroupStore.remove_group`."""
        await self._unlocked(group)
        await self._alone(group, control.group_removed(group))

    async def _choose(self, request: PopRequest) -> dict[bytes, Chosen]:
        """What is wanted of each queue, from where it would be taken."""
        group = request.group
        choosing = Choosing(self._views, self._reader, request.selection)
        chosen: dict[bytes, Chosen] = {}
        wanted = request.max_records
        places = [self._known(group, queue) for queue in dict.fromkeys(request.queues)]
        for place in sorted(places, key=lambda place: 0 if place.state is None else place.state.turn):
            begin_at(self._views, group, place, request.start)
            some = 0 if request.ordered and is_begun(place) else wanted
            chosen[place.queue] = await choosing.look(place.queue, fresh_from(self._views, place), some)
            wanted -= len(chosen[place.queue].offsets)
        await self._unlocked(group)
        return chosen

    def _free(self, group: bytes, settling: Settling) -> None:
        """What is settled is nobody's: from the decision on, because others may take it before that is committed."""
        if self.owners.are_any:
            for queue, first, end in settling.freed:
                self.owners.settled(group, queue, first, end)

    def _still_out(self, group: bytes, runs: list[Run]) -> list[Run]:
        """What nobody else was leased while it was read, for longer than its lease: others may be through with it."""
        kept: list[Run] = []
        for run in runs:
            starts = [*record.split(run.data), len(run.data)]
            for first, end in self._known(group, run.queue).out(run.offset, run.offset + run.count, run.deliveries):
                data = run.data[starts[first - run.offset] : starts[end - run.offset]]
                kept.append(Run(run.queue, first, end - first, run.deliveries, data))
        return kept

    def _came_back(self, group: bytes) -> None:
        if self.on_back is not None:
            self.on_back(group)

    def _known(self, group: bytes, queue: bytes) -> Place:
        """A group's place in a queue, and what is under way there."""
        return Place(queue, self._views.pops.find(group, queue), self._flights.get((group, queue)))

    def _admit(self, group: bytes, queues: list[bytes]) -> None:
        """Raise `TooManyGroups` if the group may not have a place in these queues, which are new to it."""
        if not queues:
            return
        known = self._views.pops.queues_of(group)
        if known + len(queues) > self._config.max_group_queues:
            raise TooManyGroups(
                f"the group has a place in {known} queues: {self._config.max_group_queues} is the limit"
            )
        if not known and self._views.pops.groups() >= self._config.max_groups:
            raise TooManyGroups(f"there are {self._config.max_groups} groups, which is the limit")

    def _delay(self, receipts: Receipts) -> int:
        return self._delays_ms[min(max(receipts.deliveries, 1), len(self._delays_ms)) - 1]

    def _append(
        self, group: bytes, frames: list[bytes], places: Sequence[Place], offer: Offer
    ) -> "asyncio.Future[Appended]":
        """Append records that tell of these places. Raises `StoreError` when they are refused: nothing was decided."""
        answer: asyncio.Future[Appended] = self._loop.create_future()

        def done(appended: Appended) -> None:
            if isinstance(appended.error, StoreFailed):
                self._error = appended.error
            for place in places:
                self._land(group, place)
            if not answer.done():
                answer.set_result(appended)

        error = offer(frames, done)
        if error is not None:
            for place in places:
                place.undo()
            raise error
        for place in places:
            self._take_off(group, place)
        return answer

    def _take_off(self, group: bytes, place: Place) -> None:
        """Have what was decided about a place be known, while its records are under way."""
        flight = place.flight = self._flights[group, place.queue] = place.flight or Flight()
        flight.records += 1
        flight.fresh += place.fresh
        if place.fresh or place.passed or place.is_new:
            flight.next = place.next
        if place.leases:
            flight.untils.append(place.until)
        if place.fresh:
            flight.leased.append(place)
            self._turn += 1
            place.turn = self._turn
            if place.state is not None:
                place.state.turn = self._turn

    def _land(self, group: bytes, place: Place) -> None:
        """The records are committed and folded, or the log has failed."""
        flight = place.flight
        assert flight is not None
        place.unclaim()
        flight.fresh -= place.fresh
        if place.fresh:
            flight.leased.remove(place)
        if place.leases:
            flight.untils.remove(place.until)
        if place.state is None:
            state = self._views.pops.find(group, place.queue)
            if state is not None:
                state.turn = place.turn
        flight.records -= 1
        if not flight.records:
            del self._flights[group, place.queue]

    async def _read(self, group: bytes, leases: list[Lease], popped: Popped) -> tuple[list[Run], LogCorrupt | None]:
        """What can be read, and what is the matter with the first that cannot."""
        runs: list[Run] = []
        damage: LogCorrupt | None = None
        for lease in leases:
            try:
                data = await self._reader.records(lease.positions, lease.lengths)
            except LogCorrupt:
                found, fault = await self._read_each(group, lease, popped)
                runs += found
                damage = damage or fault
            else:
                runs.append(Run(lease.queue, lease.offset, lease.count, lease.deliveries, data))
        return runs, damage

    async def _read_each(self, group: bytes, lease: Lease, popped: Popped) -> tuple[list[Run], LogCorrupt | None]:
        """Read what can be read. What left the log meanwhile is finished; what is damaged stays leased out."""
        runs: list[Run] = []
        gone: list[int] = []
        damage: LogCorrupt | None = None
        for index in range(lease.count):
            position, offset = lease.positions[index], lease.offset + index
            try:
                data = await self._reader.records([position], [lease.lengths[index]])
            except LogCorrupt as error:
                if self._views.is_gone(position):
                    gone.append(offset)
                else:
                    damage = damage or error
                continue
            runs.append(Run(lease.queue, offset, 1, lease.deliveries, data))
        if gone:
            popped.reclaimed += len(gone)
            done = [(first, end - first) for first, end in runs_of(gone)]
            self._offer(settled(group, lease.queue, done, []), _ignore)
            for first, end in runs_of(gone):
                self.owners.settled(group, lease.queue, first, end)
        return runs, damage

    def _take_back(self, group: bytes, leases: list[Lease]) -> None:
        """Nobody waits any more for what was leased out: it was given to nobody. While the group is being reset, or the
        log has no room, the leases run out by themselves."""
        if group in self._locks:
            return
        settling = Settling(group, lambda queue: self._known(group, queue))
        now = self._clock()
        with suppress(StoreError), _undone(settling):
            for lease in leases:
                settling.take_back(Receipts(lease.queue, lease.offset, lease.count, lease.deliveries), now)
            if settling.places:
                self._append(group, settling.frames(), settling.places, self._offer)
                self._free(group, settling)

    async def _alone(self, group: bytes, frame: bytes) -> None:
        """Append a record that no decision of the group may build on before it is committed."""
        answer: asyncio.Future[Appended] = self._loop.create_future()
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


@contextmanager
def _undone(decision: Taking | Settling) -> Iterator[None]:
    """What is decided is not, where it comes to nothing."""
    try:
        yield
    except BaseException:
        decision.undo()
        raise


def _check_ms(time: int) -> None:
    """A time from now that was asked for. ValueError where what comes of it could not be folded."""
    if not 0 <= time <= _LONGEST_MS:
        raise ValueError(f"{time} ms is not a time from now of up to 100 years")


def _check_queue(name: bytes) -> None:
    """ValueError where this is no queue's name, or one that no record could tell of."""
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
