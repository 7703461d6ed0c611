"""What one settlement changes: valid receipts are settled at once, stale ones are returned."""

from collections.abc import Callable

from store import control
from store.api import Receipts
from store.groups.pop_decision import MOST_DEAD, Place, settled
from store.views.leases import MAX_DELIVERIES


class Settling:
    """Receipts of one group. `place_of` gives its place in a queue; `member`: whose they are, as the log is to say."""

    def __init__(self, group: bytes, place_of: Callable[[bytes], Place], member: bytes = b"") -> None:
        self._group = group
        self._member = member
        self._place_of = place_of
        self._places: dict[bytes, Place] = {}
        self._done: dict[bytes, list[tuple[int, int]]] = {}
        self._again: dict[bytes, list[tuple[int, int, int]]] = {}
        self._dead: dict[bytes, list[int]] = {}
        self.stale: list[Receipts] = []
        self.freed: list[tuple[bytes, int, int]] = []  # (queue, first, end) that nobody has any more

    @property
    def places(self) -> list[Place]:
        """Those that something is settled of."""
        return [place for place in self._places.values() if place.claimed]

    def finish(self, receipts: Receipts) -> None:
        """The messages are done."""
        for first, end in self._claim(receipts, 0):
            self._done.setdefault(receipts.queue, []).append((first, end - first))
            self.freed.append((receipts.queue, first, end))

    def postpone(self, receipts: Receipts, at: int, is_back: bool) -> None:
        """The messages may be leased out again at `at`, ms. `is_back`: who has them is through with them."""
        for first, end in self._claim(receipts, receipts.deliveries):
            self._again.setdefault(receipts.queue, []).append((first, end - first, at))
            if is_back:
                self.freed.append((receipts.queue, first, end))

    def take_back(self, receipts: Receipts, at: int) -> None:
        """The messages were never given to anybody: the lease does not count, they may be leased out from `at`, ms."""
        for first, end in self._claim(receipts, receipts.deliveries - 1):
            self._again.setdefault(receipts.queue, []).append((first, end - first, -at))
            self.freed.append((receipts.queue, first, end))

    def bury(self, receipts: Receipts) -> None:
        """The messages are dead letters."""
        for first, end in self._claim(receipts, 0):
            self._dead.setdefault(receipts.queue, []).extend(range(first, end))
            self.freed.append((receipts.queue, first, end))

    def undo(self) -> None:
        """Nothing is appended: nobody's claim is left."""
        for place in self._places.values():
            place.undo()

    def frames(self) -> list[bytes]:
        """The records that settle what is good."""
        frames: list[bytes] = []
        for queue in self._places:
            frames += settled(self._group, queue, self._done.get(queue, ()), self._again.get(queue, ()), self._member)
            dead = self._dead.get(queue, ())
            frames += [
                control.dead_lettered(self._group, queue, dead[at : at + MOST_DEAD], self._member)
                for at in range(0, len(dead), MOST_DEAD)
            ]
        return frames

    def _claim(self, receipts: Receipts, deliveries: int) -> list[tuple[int, int]]:
        """The runs [first, end) of the receipts that are good: nobody else has the messages by now. They have so many
        deliveries then."""
        queue, first, end = receipts.queue, receipts.offset, receipts.offset + receipts.count
        place = self._places.get(queue)
        if place is None:
            place = self._places[queue] = self._place_of(queue)
        good = place.out(first, end, receipts.deliveries) if 0 < receipts.deliveries <= MAX_DELIVERIES else []
        at = first
        for low, high in good:
            place.claim(low, high, deliveries)
            self._refuse(receipts, at, low)
            at = high
        self._refuse(receipts, at, end)
        return good

    def _refuse(self, receipts: Receipts, first: int, end: int) -> None:
        if first < end:
            self.stale.append(Receipts(receipts.queue, first, end - first, receipts.deliveries))
