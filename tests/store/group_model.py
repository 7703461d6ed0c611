"""A plain model of groups: a dictionary of entries."""

from dataclasses import dataclass, field

from msgspec.structs import astuple

import record
from record.layout import Kind
from store import control
from store.api import DeadLetter


@dataclass(slots=True)
class Place:
    """A group's place in one queue."""

    next: int = 0
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → (deliveries, at ms)
    times: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → ms of its first and its last lease

    @property
    def floor(self) -> int:
        return min(self.entries, default=self.next)

    def popped(self, offset: int, until: int, time: int = 0) -> None:
        if offset >= self.next:
            self.next = offset + 1
            self.entries[offset] = (1, until)
            self.times[offset] = (time, time)
        elif offset in self.entries:
            was_kept_back = self.entries[offset] == (255, 0)
            self.entries[offset] = (
                1 if self.entries[offset][0] == 255 else min(self.entries[offset][0] + 1, 254),
                until,
            )
            self.times[offset] = (time if was_kept_back else self.times[offset][0], time)

    def again(self, offset: int, at: int) -> None:
        if offset in self.entries:
            deliveries = self.entries[offset][0]
            if at < 0:  # it was given to nobody
                deliveries = 255 if deliveries in (1, 255) else deliveries - 1
            self.entries[offset] = (deliveries, abs(at))


class GroupModel:
    """All groups. `ends` is how long each queue is at this point of the log: for who counts dead letters."""

    def __init__(self) -> None:
        self.places: dict[bytes, dict[bytes, Place]] = {}  # group → queue → place
        self.dead: dict[bytes, list[DeadLetter]] = {}  # by group, in order
        self.committed: dict[tuple[bytes, bytes], int] = {}  # (group, partition queue) → offset

    def fold(self, frame: bytes, time: int) -> None:
        """Take a record of one of the kinds that groups make, which was stored at `time` (ms)."""
        kind, _, _, group, _, _, payload = record.decode(frame, 0)
        queues = self.places.get(group, {})
        if kind == Kind.POPPED:
            self._popped(group, *astuple(control.Popped.parse(payload)), time)
        elif kind == Kind.SETTLED:
            self._settled(queues, *astuple(control.Settled.parse(payload)))
        elif kind == Kind.DEAD_LETTERED:
            queue, offsets, reason, error = astuple(control.DeadLettered.parse(payload))
            dying = queues.get(queue, Place())
            for offset in offsets:
                entry = dying.entries.pop(offset, None)
                if entry is not None:
                    deliveries = 0 if entry[0] == 255 else entry[0]
                    letter = DeadLetter(reason, error, deliveries, queue, offset, *dying.times[offset])
                    self.dead.setdefault(group, []).append(letter)
        elif kind == Kind.GROUP_RESET:
            if resets := control.GroupReset.parse(payload).offsets:
                self.places.setdefault(group, {}).update({queue: Place(offset) for queue, offset in resets.items()})
        elif kind == Kind.GROUP_REMOVED:
            self.places.pop(group, None)
            self.committed = {key: offset for key, offset in self.committed.items() if key[0] != group}

    def _popped(self, group: bytes, until: int, leased: dict[bytes, list[list[int]]], time: int) -> None:
        for queue, runs in leased.items():
            queues = self.places.setdefault(group, {})
            place = queues.setdefault(queue, Place(self.committed.get((group, queue), 0)))
            for first, count in runs:
                for offset in range(max(first, place.next), first - count):  # kept back
                    place.entries[offset] = (255, 0)
                    place.times[offset] = (time, time)
                    place.next = offset + 1
                for offset in range(first, first + count):
                    place.popped(offset, until, time)
                if count >= 0:
                    place.next = max(place.next, first)

    def _settled(
        self, queues: dict[bytes, Place], done: dict[bytes, list[list[int]]], again: dict[bytes, list[list[int]]]
    ) -> None:
        for queue in {**done, **again}:
            place = queues.get(queue, Place())
            for offset in _offsets(done.get(queue, [])):
                place.entries.pop(offset, None)
            for first, count, at in again.get(queue, []):
                for offset in range(first, first + count):
                    place.again(offset, at)


def _offsets(runs: list[list[int]]) -> list[int]:
    return [offset for first, count in runs for offset in range(first, first + count)]
