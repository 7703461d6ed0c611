"""One settlement: leases that are still good are settled, stale receipts are returned."""

from collections.abc import Iterable, Sequence

from store import control
from store.api import Receipts
from store.groups.pop_decision import MOST_DEAD, in_records
from store.groups.queue_decision import QueueDecision


class SettleDecision:
    """What one call settles of a group. `queues`: all those that its receipts name."""

    def __init__(self, group: bytes, queues: Iterable[QueueDecision], member: bytes = b"") -> None:
        self._group = group
        self._member = member  # that settles, for the log
        self._queues = {queue.queue: queue for queue in queues}
        self._done: dict[bytes, list[tuple[int, int]]] = {}  # by queue: first offset, count
        self._again: dict[bytes, list[tuple[int, int, int]]] = {}  # by queue: first offset, count, at
        self._dead: dict[bytes, list[int]] = {}  # offsets by queue
        self.stale: list[Receipts] = []
        self.released: list[tuple[bytes, int, int]] = []  # (queue, first, end) that are leased no more

    def touched(self) -> list[QueueDecision]:
        """The queues that the records are about."""
        return [queue for queue in self._queues.values() if queue.claimed]

    def finish(self, receipts: Iterable[Receipts]) -> None:
        """The messages are done."""
        for each in receipts:
            queue, first, end = each.queue, each.offset, each.offset + each.count
            runs = self._queues[queue].claim_leased(first, end, each.deliveries, 0)
            if len(runs) != 1 or runs[0] != (first, end):
                self._note_stale(each, runs)
            for low, high in runs:
                self._done.setdefault(queue, []).append((low, high - low))
                self.released.append((queue, low, high))

    def postpone(self, receipts: Receipts, at: int, ends_lease: bool) -> None:
        """The messages may be leased again at `at`, ms. `ends_lease`: their member does not have them any more."""
        for first, end in self._claim(receipts, receipts.deliveries):
            self._again.setdefault(receipts.queue, []).append((first, end - first, at))
            if ends_lease:
                self.released.append((receipts.queue, first, end))

    def revoke(self, receipts: Receipts, at: int) -> None:
        """The messages reached nobody: their lease does not count, and they may be leased again at `at`, ms."""
        for first, end in self._claim(receipts, receipts.deliveries - 1):
            self._again.setdefault(receipts.queue, []).append((first, end - first, -at))
            self.released.append((receipts.queue, first, end))

    def dead_letter(self, receipts: Receipts) -> None:
        """The messages are dead letters."""
        for first, end in self._claim(receipts, 0):
            self._dead.setdefault(receipts.queue, []).extend(range(first, end))
            self.released.append((receipts.queue, first, end))

    def undo(self) -> None:
        """Forget the decision: nothing is appended."""
        for queue in self._queues.values():
            queue.undo()

    def frames(self) -> list[bytes]:
        """The records."""
        group, member = self._group, self._member
        done, again = in_records(self._done), in_records(self._again)
        if len(done) <= 1 and len(again) <= 1:
            frames = [control.Settled(self._done, self._again).frame(group, member)] if done or again else []
        else:
            frames = [control.Settled(some, {}).frame(group, member) for some in done]
            frames += [control.Settled({}, some).frame(group, member) for some in again]
        for queue, dead in self._dead.items():
            for at in range(0, len(dead), MOST_DEAD):
                frames.append(control.DeadLettered(queue, dead[at : at + MOST_DEAD]).frame(group, member))
        return frames

    def _claim(self, receipts: Receipts, then: int) -> Sequence[tuple[int, int]]:
        """The runs [first, end) of the receipts whose leases are good; their messages have `then` deliveries now."""
        end = receipts.offset + receipts.count
        runs = self._queues[receipts.queue].claim_leased(receipts.offset, end, receipts.deliveries, then)
        self._note_stale(receipts, runs)
        return runs

    def _note_stale(self, receipts: Receipts, good: Sequence[tuple[int, int]]) -> None:
        """Return what of the receipts is not in the good runs."""
        at, end = receipts.offset, receipts.offset + receipts.count
        for low, high in [*good, (end, end)]:
            if at < low:
                self.stale.append(Receipts(receipts.queue, at, low - at, receipts.deliveries))
            at = high
