"""What one pop takes: decided at once, from the views and from what other calls have under way (`store.groups.pop`).

First what is to come again and whose time has come, the longest due first; what was leased out too often goes to the
dead-letter queue instead. Then what was never leased out, from the queue that waited longest for its turn. Nothing is
changed here but claims, which `undo` takes back.
"""

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import record
from store import control
from store.api import Start, dead_letter_queue
from store.config import StoreConfig
from store.groups.selection import LOOKS, Chosen
from store.views.fold import Views
from store.views.leases import MAX_DELIVERIES, UNSENT, GroupQueue

_LOOK: Final = 4096  # references of records that are gone, looked at in one pop
MOST_DEAD: Final = 1024  # messages that one pop gives up, and one record tells of
_RUNS: Final = 128  # in one control record
_PASSED: Final = LOOKS // 4  # messages that nobody wants for which a record is written


class Claim:
    """What a record under way says of messages: how often they were leased out then."""

    __slots__ = ("deliveries",)

    def __init__(self, deliveries: int) -> None:
        self.deliveries = deliveries  # 0: they are finished


class Flight:
    """What is decided about a group's place in a queue, by records that are not committed yet."""

    __slots__ = ("busy", "fresh", "leased", "next", "records", "untils")

    def __init__(self) -> None:
        self.records = 0  # appends under way
        self.busy: dict[int, Claim] = {}  # what the last of these records says of messages that were leased out before
        self.fresh = 0  # offsets that they lease out for the first time
        self.leased: list[Place] = []  # those that lease these out, in the order of their records
        self.next = -1  # behind those; -1: there are none
        self.untils: list[int] = []  # ms, of each record of leases

    def is_clear(self, first: int, end: int) -> bool:
        """Whether no record says anything of [first, end) but that it is leased out for the first time."""
        busy = self.busy
        if not busy:
            return True
        if len(busy) < end - first:
            return not any(first <= offset < end for offset in busy)
        return not any(offset in busy for offset in range(first, end))

    def leases(self, first: int, end: int) -> bool:
        """Whether all of [first, end) is leased out for the first time by one record."""
        return any(low <= first and end <= high for place in self.leased for low, high in place.fresh_runs)


class Lease:
    """Consecutive messages that are leased out: as references."""

    __slots__ = ("count", "deliveries", "lengths", "offset", "positions", "queue")

    def __init__(self, queue: bytes, offset: int, deliveries: int, positions: list[int], lengths: list[int]) -> None:
        self.queue = queue
        self.offset = offset
        self.count = len(positions)
        self.deliveries = deliveries  # this one included
        self.positions = positions
        self.lengths = lengths


class Place:
    """A queue in one call: what the group has there, and what the call decides about it."""

    __slots__ = (
        "begin",
        "claimed",
        "dead",
        "flight",
        "fresh",
        "fresh_runs",
        "gone",
        "is_new",
        "leases",
        "next",
        "passed",
        "queue",
        "reclaimed",
        "replaced",
        "returned",
        "state",
        "turn",
        "until",
    )

    def __init__(self, queue: bytes, state: GroupQueue | None, flight: Flight | None) -> None:
        self.queue = queue
        self.state = state  # None: nothing is committed about it
        self.flight = flight
        self.claimed: list[tuple[int, int, Claim]] = []  # [first, end) that are busy because of this call
        self.replaced: list[tuple[int, Claim]] = []  # what earlier records under way say of them, by offset
        # What a pop takes:
        self.is_new = False  # the group has no place there yet: it gets one
        self.begin = 0  # and begins here
        self.next = 0  # the first offset that nobody was ever leased
        self.leases: list[Lease] = []
        self.fresh = 0  # messages among them that are leased out for the first time
        self.fresh_runs: list[tuple[int, int]] = []  # the same, as [first, end)
        self.reclaimed = 0  # messages that left the log before they could be leased out (again)
        self.passed = 0  # messages in front of `next`, and behind the leases, that the group does not want
        self.turn = 0  # when that was, by the service's count
        self.until = 0  # ms, of the leases
        self.dead: list[int] = []
        self.gone: list[tuple[int, int]] = []  # (first offset, count) of entries whose records left the log
        self.returned: list[tuple[int, int, int]] = []  # (at, first, end) taken out of `due`

    @property
    def is_touched(self) -> bool:
        """Whether there is something to append about it."""
        return bool(self.leases or self.is_new or self.claimed or self.passed)

    def undo(self) -> None:
        """What was to be appended was refused: nothing was taken."""
        self.unclaim()
        if self.flight is not None:
            self.flight.busy.update(reversed(self.replaced))
        if self.state is not None:
            for at, first, end in self.returned:
                self.state.expect(at, first, end)

    def claim(self, first: int, end: int, deliveries: int) -> None:
        """Have a record tell of these messages: how often they were leased out then, 0 if they are finished."""
        if self.flight is None:
            self.flight = Flight()
        busy = self.flight.busy
        if not self.flight.is_clear(first, end):
            self.replaced += [(offset, busy[offset]) for offset in range(first, end) if offset in busy]
        claim = Claim(deliveries)
        busy.update(dict.fromkeys(range(first, end), claim))
        self.claimed.append((first, end, claim))

    def unclaim(self) -> None:
        """The record is committed, or was refused. What a later one says of the same messages stays."""
        if self.flight is None:
            return
        busy = self.flight.busy
        for first, end, claim in self.claimed:
            for offset in range(first, end):
                if busy.get(offset) is claim:
                    del busy[offset]

    def free(self, first: int, end: int) -> list[tuple[int, int]]:
        """The runs of [first, end) that no record under way tells of."""
        flight = self.flight
        if flight is None or flight.is_clear(first, end):
            return [(first, end)]
        return runs_of([offset for offset in range(first, end) if offset not in flight.busy])

    def out(self, first: int, end: int, deliveries: int) -> list[tuple[int, int]]:
        """The runs of [first, end) that are out, leased so often, when all records under way are committed."""
        state, flight = self.state, self.flight
        if flight is None:
            if state is None:
                return []
            if first >= 0 and 0 < end - first <= state.unfinished and state.is_run(first, end, deliveries):
                return [(first, end)]
        elif flight.is_clear(first, end):
            if state is not None and 0 <= first < end <= state.next and end - first <= state.unfinished:
                if state.is_run(first, end, deliveries):
                    return [(first, end)]
            elif deliveries == 1 and flight.leases(first, end):
                return [(first, end)]
        begin, behind = self._bounds()
        return runs_of([o for o in range(max(first, begin), min(end, behind)) if self.deliveries_of(o) == deliveries])

    def _bounds(self) -> tuple[int, int]:
        """Where what is out begins at the earliest, and ends at the latest."""
        runs = [run for place in self.flight.leased for run in place.fresh_runs] if self.flight is not None else []
        if self.state is not None:
            runs.append((self.state.floor, self.state.next))
        return min([low for low, _ in runs], default=0), max([high for _, high in runs], default=0)

    def deliveries_of(self, offset: int) -> int:
        """How often the message was leased out, when all records under way are committed; 0: it is not out."""
        if self.flight is not None:
            claim = self.flight.busy.get(offset)
            if claim is not None:
                return claim.deliveries
            if self.flight.leased and self.flight.leases(offset, offset + 1):
                return 1
        return 0 if self.state is None else self.state.deliveries_of(offset)


class Taking:
    """One pop, as `take` decided it. `frames` are the records that make it true, none if there is nothing to do."""

    def __init__(
        self,
        views: Views,
        config: StoreConfig,
        group: bytes,
        places: list[Place],
        *,
        now: int,
        until: int,
        max_records: int,
        max_bytes: int,
        max_deliveries: int,
        ordered: bool,
        chosen: dict[bytes, Chosen] | None,
        member: bytes,
    ) -> None:
        self._views = views
        self._config = config
        self.group = group
        self.places = places
        self._now = now
        self._until = until
        self._records = max_records  # that may still be taken
        self._bytes = max_bytes
        self._max_deliveries = max_deliveries
        self._ordered = ordered  # nothing of a queue is taken while something of it is out
        self._chosen = chosen  # by queue, what the group wants; None: everything
        self._member = member  # whom the log is to say that it leases to
        self._dead = 0
        self._looks = _LOOK
        self._is_begun = False  # something was taken
        self._is_short = False  # fewer references came than were asked for
        self.leases: list[Lease] = []  # in the order in which they are to be told
        self.is_limited = False  # there is more, for which something has to be settled
        self.is_cut_short = False  # there may be more, for which the call has to be repeated

    def take(self, start: Start) -> None:
        for place in self.places:
            begin_at(self._views, self.group, place, start)
        if self._ordered:
            self._take_in_order()
        else:
            self._take_due()
        self._take_fresh()

    def undo(self) -> None:
        """Nothing is appended: nothing was taken."""
        for place in self.places:
            place.undo()

    def frames(self) -> list[bytes]:
        """The records, in the order in which they are to be in the log."""
        resets = {place.queue: place.begin for place in self.places if place.is_new}
        frames = [control.group_reset(self.group, resets)] if resets else []
        for place in self.places:
            if place.dead:
                frames.append(control.dead_lettered(self.group, place.queue, place.dead))
            if place.gone:
                frames += settled(self.group, place.queue, place.gone, ())
            runs = [(lease.offset, lease.count) for lease in place.leases]
            if place.passed:
                runs.append((place.next, 0))
            for at in range(0, len(runs), _RUNS):
                frames.append(control.popped(self.group, place.queue, self._until, runs[at : at + _RUNS], self._member))
        return frames

    def available_at(self) -> int | None:
        """When more may come by itself, ms; None if only a new message brings some."""
        times = [self._now] if self.is_cut_short else []
        for place in self.places:
            if place.leases:
                times.append(self._until)
            if place.flight is not None:
                times += place.flight.untils
            due = self._next_due(place)
            if due is not None:
                times.append(due)
        return min(times, default=None)

    def _next_due(self, place: Place) -> int | None:
        """When the first of what is out of a queue comes again, that this call has left there."""
        state = place.state
        if state is None or (self._ordered and (place.flight is not None or not state.unfinished)):
            return None
        return state.last_due() if self._ordered else state.next_due()

    def _take_due(self) -> None:
        due = [
            (at, index)
            for index, place in enumerate(self.places)
            if place.state is not None and (at := place.state.next_due()) is not None and at <= self._now
        ]
        if not due:
            return
        heapify(due)
        while due and self._has_room:
            _, index = heappop(due)
            place = self.places[index]
            assert place.state is not None
            self._take_returned(place, place.state)
            at = place.state.next_due()
            if at is not None and at <= self._now:
                heappush(due, (at, index))

    @property
    def is_full(self) -> bool:
        """Whether more was not looked for, for which nothing has to be settled."""
        return self._records <= 0 or self._bytes <= 0 or self._is_short

    @property
    def _has_room(self) -> bool:
        return self._records > 0 and self._bytes > 0 and not self.is_cut_short

    def _take_returned(self, place: Place, state: GroupQueue) -> None:
        """Take what was due first in a queue, or the beginning of it."""
        at, runs = state.take_due()
        try:
            for low, high, deliveries in runs:
                for first, end in place.free(low, high):
                    behind = self._take_run(place, first, end, deliveries) if self._has_room else first
                    if behind > first:
                        place.claim(first, behind, self._deliveries_then(place, deliveries))
                        place.returned.append((at, first, behind))
                    if behind < end:
                        state.expect(at, behind, end)
        except BaseException:
            for low, high, _ in runs:
                state.expect(at, low, high)
            raise

    def _take_run(self, place: Place, first: int, end: int, deliveries: int) -> int:
        """Take a run of entries that are due. Returns the first offset for which there was no room."""
        if self._is_dead(place, deliveries):
            end = min(end, first + MOST_DEAD - self._dead)
            place.dead += range(first, end)
            self._dead += end - first
            self.is_cut_short = self._dead >= MOST_DEAD
            return end
        begin = self._views.first(place.queue)
        if first < begin:  # even its reference may be gone, with its generation of the index
            behind = min(begin, end)
            place.gone.append((first, behind - first))
            place.reclaimed += behind - first
            return behind
        positions, lengths = self._references(place.queue, first, min(end - first, self._records))
        behind, gone = self._lease(place, first, self._deliveries_then(place, deliveries), positions, lengths)
        place.gone += gone
        place.reclaimed += sum(count for _, count in gone)
        return behind

    def _is_dead(self, place: Place, deliveries: int) -> bool:
        """Whether the group gives up on messages that were leased out so often."""
        tries = 0 if deliveries == UNSENT else deliveries
        return tries >= self._max_deliveries and place.queue != dead_letter_queue(self.group)

    def _deliveries_then(self, place: Place, deliveries: int) -> int:
        """How often messages were leased out when this call is through with them; 0: they are finished."""
        if self._is_dead(place, deliveries):
            return 0
        return 1 if deliveries == UNSENT else min(deliveries + 1, MAX_DELIVERIES)

    def _take_fresh(self) -> None:
        leased = sum(place.state.unfinished for place in self.places if place.state is not None)
        leased += sum(place.flight.fresh for place in self.places if place.flight is not None)
        for place in sorted(self.places, key=_turn):
            if not self._has_room:
                return
            end = self._views.end(place.queue)
            if place.next >= end:
                continue
            if self._ordered and is_begun(place):
                self.is_limited = True
                self.is_cut_short |= bool(place.gone or place.dead)  # perhaps they were all
                continue
            first = fresh_from(self._views, place)
            floor = place.state.floor if place.state is not None and place.state.unfinished else first
            room = min(self._config.max_group_leases - leased, floor + self._config.max_group_window - first)
            if room <= 0:
                self.is_limited = True
                self.is_cut_short |= any(other.gone or other.dead for other in self.places)  # which makes room
                continue
            if self._chosen is not None:
                leased += self._take_chosen(place, first, self._chosen[place.queue], room)
            else:
                leased += self._take_new(place, first, min(end, first + min(room, self._records)))

    def _take_in_order(self) -> None:
        """Take what is to come again of queues of which nothing is out: all of it has come due, and the first comes
        first. The order of `due` is not touched: nobody else looks there while a record is under way."""
        for place in self.places:
            state = place.state
            if state is None or not state.unfinished:
                continue
            if place.flight is not None or state.last_due() > self._now:
                self.is_limited = True
                continue
            for first, end, deliveries in state.out_after(-1):
                behind = self._take_run(place, first, end, deliveries) if self._has_room else first
                if behind > first:
                    place.claim(first, behind, self._deliveries_then(place, deliveries))
                if behind < end:
                    break

    def _take_chosen(self, place: Place, first: int, chosen: Chosen, room: int) -> int:
        """Take what is wanted from offset `first` on, and pass over what is not. Returns how many."""
        end = min(chosen.end, self._views.end(place.queue))
        if first >= self._views.end(place.queue):
            return 0
        if not chosen.first <= first < end:  # the group was moved, or others were faster
            self.is_cut_short = True
            return 0
        before = self._records
        end = min(end, first + room)
        at = bisect_left(chosen.offsets, first)
        wanted = chosen.offsets[at : bisect_left(chosen.offsets, end)]
        behind = first
        for low, high in runs_of(wanted):
            run = slice(at, at + high - low)
            behind, _ = self._lease(place, low, 1, chosen.positions[run], chosen.lengths[run])
            at += high - low
            if behind < high:
                end = behind
                break
        self._note_fresh(place, before - self._records)
        self._pass(place, behind, end)
        self.is_cut_short |= end < self._views.end(place.queue) and self._has_room
        return place.fresh

    def _pass(self, place: Place, behind: int, end: int) -> None:
        """Nobody wants [behind, end), which lies behind all that is leased out of a queue."""
        if place.fresh or place.is_new or end - place.next >= _PASSED:
            place.passed = end - behind
            place.next = end
        elif place.state is not None:
            place.state.seen = end

    def _take_new(self, place: Place, first: int, end: int) -> int:
        """Take from [first, end), where nothing was ever leased out. Returns how many."""
        positions, lengths = self._references(place.queue, first, end - first)
        self._is_short |= len(positions) < end - first
        if positions and all(map(self._views.is_gone, positions)):
            end = self._views.end(place.queue)
            looked = min(end, first + max(self._looks, len(positions)))
            positions, lengths = self._references(place.queue, first, looked - first)
            self._looks -= len(positions)
            if all(map(self._views.is_gone, positions)):
                self.is_cut_short = looked < end or self._looks <= 0
                if place.state is not None:
                    place.state.seen = looked
        before = self._records
        behind, _ = self._lease(place, first, 1, positions, lengths)
        taken = before - self._records
        if taken:
            self._note_fresh(place, taken)
            place.reclaimed += behind - place.next - taken
            place.next = behind
        return taken

    @staticmethod
    def _note_fresh(place: Place, taken: int) -> None:
        """The last of the leases are of messages that nobody had before."""
        place.fresh = taken
        for lease in reversed(place.leases):
            if not taken:
                break
            place.fresh_runs.append((lease.offset, lease.offset + lease.count))
            taken -= lease.count

    def _lease(
        self, place: Place, first: int, deliveries: int, positions: list[int], lengths: list[int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Lease out messages of a queue while there is room, passing over those that left the log. Returns the first
        offset that was not looked at, and what left the log as (first offset, count)."""
        is_gone = self._views.is_gone
        gone: list[tuple[int, int]] = []
        at = 0
        while at < len(positions):
            run = at
            if is_gone(positions[at]):
                while at < len(positions) and is_gone(positions[at]):
                    at += 1
                gone.append((first + run, at - run))
                continue
            while at < len(positions) and not is_gone(positions[at]) and self._fits(lengths[at]):
                at += 1
            if at == run:
                break
            lease = Lease(place.queue, first + run, deliveries, positions[run:at], lengths[run:at])
            place.until = self._until
            place.leases.append(lease)
            self.leases.append(lease)
        return first + at, gone

    def _fits(self, length: int) -> bool:
        """Count one more record in, if there is room for it: the first always finds some."""
        if self._records <= 0 or (length > self._bytes and self._is_begun):
            self._bytes = 0
            return False
        self._is_begun = True
        self._records -= 1
        self._bytes -= length
        return True

    def _references(self, queue: bytes, offset: int, count: int) -> tuple[list[int], list[int]]:
        positions, lengths, _, _ = record.unpack_refs(self._views.references(queue, offset, count))
        return positions, lengths


def settled(
    group: bytes,
    queue: bytes,
    done: Sequence[tuple[int, int]],
    again: Sequence[tuple[int, int, int]],
    member: bytes = b"",
) -> list[bytes]:
    """The records that settle these runs of a queue."""
    frames = [control.settled(group, queue, done[at : at + _RUNS], (), member) for at in range(0, len(done), _RUNS)]
    frames += [control.settled(group, queue, [], again[at : at + _RUNS], member) for at in range(0, len(again), _RUNS)]
    return frames


def is_begun(place: Place) -> bool:
    """Whether order has the new messages of a queue wait for others of it."""
    return place.flight is not None or (place.state is not None and place.state.unfinished > 0)


def begin_at(views: Views, group: bytes, place: Place, start: Start) -> None:
    """Find where a group goes on in a queue; `start` is where it begins one that it is new to."""
    state, flight = place.state, place.flight
    if flight is not None and flight.next >= 0:
        place.next = flight.next if state is None else max(flight.next, state.next)
    elif state is not None:
        place.next = state.next
    else:
        known = views.pops.begin_of(group, place.queue)
        if known is None:
            known = views.end(place.queue) if start is Start.LATEST else views.first(place.queue)
        place.is_new = True
        place.begin = place.next = known


def fresh_from(views: Views, place: Place) -> int:
    """The first offset of a queue that may be leased out for the first time."""
    first = max(place.next, views.first(place.queue))
    return first if place.state is None else max(first, place.state.seen)


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as runs [first, end)."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


def _turn(place: Place) -> int:
    return 0 if place.state is None else place.state.turn
