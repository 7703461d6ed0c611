"""The part of the model that is about groups that pop: what they have out of which queue."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import astuple

from record.layout import Kind
from store import control
from store.api import DeadLetter

MOST = 254  # deliveries that are counted
UNSENT = 255  # in their place: it was leased out, and given back as if it had not been


@dataclass(slots=True)
class Place:
    """Where a group is in a queue."""

    next: int  # from here on nothing was ever leased out
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → (deliveries, at ms), not finished
    times: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → ms of its first and its last lease
    done: set[int] = field(default_factory=set)  # offsets that were settled so
    passed: set[int] = field(default_factory=set)  # offsets that were jumped over

    @property
    def floor(self) -> int:
        """Everything below is finished."""
        return min(self.entries, default=self.next)


class Groups:
    """Places by group and queue. `committed` is what the records of kind 10 say, by group and parent."""

    def __init__(self, committed: "dict[tuple[bytes, bytes], dict[int, int]]") -> None:
        self.places: dict[tuple[bytes, bytes], Place] = {}
        self.pauses: dict[bytes, tuple[int, bytes]] = {}  # ms and user, by group
        self._committed = committed
        self.is_over: Callable[[bytes, bytes], bool] = lambda _group, _queue: False  # no group may have the queue now

    def fold(self, kind: Kind, group: bytes, payload: bytes, time: int) -> list[DeadLetter]:
        """What becomes dead letters of the group by this record, which was stored at `time` (ms), in order."""
        if kind == Kind.POPPED:
            until_ms, leased = astuple(control.Popped.parse(payload))
            over = {queue for queue in leased if self.is_over(group, queue)}
            for queue, runs in leased.items():
                if queue not in over:
                    self._popped(group, queue, runs, until_ms, time)
        elif kind == Kind.SETTLED:
            settled = control.Settled.parse(payload)
            for queue in {**settled.done, **settled.again}:
                self._settled(group, queue, settled.done.get(queue, []), settled.again.get(queue, []))
        elif kind == Kind.DEAD_LETTERED:
            queue, offsets, reason, error = astuple(control.DeadLettered.parse(payload))
            letters: list[DeadLetter] = []
            for offset in offsets:
                deliveries = self.finish(group, queue, offset)
                if deliveries:
                    times = self.places[group, queue].times[offset]
                    count = 0 if deliveries == UNSENT else deliveries
                    letters.append(DeadLetter(reason, error, count, queue, offset, *times))
            return letters
        elif kind == Kind.GROUP_RESET:
            for queue, offset in control.GroupReset.parse(payload).offsets.items():
                if self.is_over(group, queue):
                    continue
                self.places[group, queue] = Place(offset)
        else:
            self.remove(group)
        return []

    def finish(self, group: bytes, queue: bytes, offset: int) -> int:
        """The deliveries that the entry of the offset had; 0: it was finished."""
        place = self.places.get((group, queue))
        return 0 if place is None else place.entries.pop(offset, (0, 0))[0]

    def pause(self, kind: Kind, group: bytes, payload: bytes, time: int) -> bool:
        """Pause or resume a group. Returns whether it is resumed now."""
        if kind == Kind.GROUP_RESUMED:
            return self.pauses.pop(group, None) is not None
        if any(name == group for name, _ in self.places):
            self.pauses.setdefault(group, (time, control.GroupPaused.parse(payload).by))
        return False

    def remove(self, group: bytes) -> None:
        self.pauses.pop(group, None)
        self._remove(group, self.places)
        self._remove(group, self._committed)

    def _popped(self, group: bytes, queue: bytes, runs: list[list[int]], until_ms: int, time: int) -> None:
        place = self.places.get((group, queue))
        if place is None:
            place = self.places[group, queue] = Place(self._begin(group, queue))
        for first, count in runs:
            if not count and first > place.next:
                place.passed.update(range(place.next, first))
                place.next = first
            for offset in range(max(first, place.next), first - count):  # kept back
                place.passed.update(range(place.next, offset))
                place.entries[offset] = UNSENT, 0
                place.times[offset] = time, time
                place.next = offset + 1
            for offset in range(first, first + count):
                if offset >= place.next:
                    place.passed.update(range(place.next, offset))
                    place.next = offset + 1
                    place.entries[offset] = 1, until_ms
                    place.times[offset] = time, time
                elif offset in place.entries:
                    deliveries, at = place.entries[offset]
                    was_kept_back = deliveries == UNSENT and not at
                    place.entries[offset] = 1 if deliveries == UNSENT else min(deliveries + 1, MOST), until_ms
                    place.times[offset] = time if was_kept_back else place.times[offset][0], time

    def _settled(self, group: bytes, queue: bytes, done: list[list[int]], again: list[list[int]]) -> None:
        place = self.places.get((group, queue))
        if place is None:
            return
        for first, count in done:
            for offset in range(first, first + count):
                if place.entries.pop(offset, None) is not None:
                    place.done.add(offset)
        for first, count, at in again:
            for offset in range(first, first + count):
                if offset not in place.entries:
                    continue
                deliveries = place.entries[offset][0]
                if at < 0:
                    deliveries = UNSENT if deliveries in (1, UNSENT) else deliveries - 1
                place.entries[offset] = deliveries, abs(at)

    def _begin(self, group: bytes, queue: bytes) -> int:
        """Where a group begins in a queue that is new to it."""
        if queue[:1] != b"p":
            return 0
        return self._committed.get((group, queue[1:-3]), {}).get(int.from_bytes(queue[-2:], "big"), 0)

    def _remove(self, group: bytes, rows: "Mapping[tuple[bytes, bytes], object]") -> None:
        for key in [key for key in rows if key[0] == group]:
            del rows[key]  # type: ignore[attr-defined]
