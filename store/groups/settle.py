"""One settlement: leases that are still good are settled, stale receipts are returned."""

from collections.abc import Sequence

from store import control
from store.api import DeadLetterReason, Receipts
from store.groups.queue_decision import MOST_DEAD, QueueDecision, UncommittedQueues


class LeaseSettlement:
    """What a call settles of a group. Times are in ms."""

    __slots__ = ("again", "dead", "done", "unsent")

    def __init__(
        self,
        done: Sequence[Receipts] = (),
        again: Sequence[tuple[Receipts, int, bool]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
        dead: Sequence[tuple[Receipts, DeadLetterReason, bytes]] = (),
    ) -> None:
        self.done = done
        self.again = again  # may be leased again at a time; True: their leases end now
        self.unsent = unsent  # may be leased again at a time; their leases end now and do not count as deliveries
        self.dead = dead  # become dead letters; with the consumer's error

    def queues(self) -> dict[bytes, None]:
        """The queues of all receipts."""
        queues = dict.fromkeys([receipts.queue for receipts in self.done])
        for receipts, _, _ in self.again:
            queues[receipts.queue] = None
        for receipts, _ in self.unsent:
            queues[receipts.queue] = None
        for receipts, _, _ in self.dead:
            queues[receipts.queue] = None
        return queues


class SettleDecision:
    """What a settlement comes to. `decide` makes the decision; `frames` are the records that make it true."""

    def __init__(
        self, uncommitted: UncommittedQueues, group: bytes, settlement: LeaseSettlement, member: bytes = b""
    ) -> None:
        self._group = group
        self._settlement = settlement
        self._member = member  # that settles, for the log
        queues = uncommitted.open(group, settlement.queues())
        self._queues = {queue.queue: queue for queue in queues}
        self._done: dict[bytes, list[tuple[int, int]]] = {}  # by queue: first offset, count
        self._again: dict[bytes, list[tuple[int, int, int]]] = {}  # by queue: first offset, count, at
        self._dead: dict[tuple[bytes, DeadLetterReason, bytes], list[int]] = {}  # offsets by queue, reason and error
        self._runs = 0  # in `_done` and `_again`
        self.stale: list[Receipts] = []
        self.released: list[tuple[bytes, int, int]] = []  # (queue, first, end) that are leased no more

    def decide(self) -> None:
        settlement = self._settlement
        for receipts in settlement.done:
            queue, first, end = receipts.queue, receipts.offset, receipts.offset + receipts.count
            runs = self._queues[queue].claim_leased(first, end, receipts.deliveries, 0)
            if len(runs) != 1 or runs[0] != (first, end):
                self._note_stale(receipts, runs)
            for low, high in runs:
                self._done.setdefault(queue, []).append((low, high - low))
                self._runs += 1
                self.released.append((queue, low, high))
        for receipts, at, ends_lease in settlement.again:
            self._postpone(receipts, at, receipts.deliveries, ends_lease)
        for receipts, at in settlement.unsent:
            self._postpone(receipts, -at, receipts.deliveries - 1, True)
        for receipts, reason, error in settlement.dead:
            for first, end in self._claim(receipts, 0):
                self._dead.setdefault((receipts.queue, reason, error), []).extend(range(first, end))
                self.released.append((receipts.queue, first, end))

    def touched(self) -> list[QueueDecision]:
        """The queues that the records are about."""
        return [queue for queue in self._queues.values() if queue.claimed]

    def undo(self) -> None:
        """Forget the decision: nothing is appended."""
        for queue in self._queues.values():
            queue.undo()

    def frames(self) -> list[bytes]:
        """The records."""
        group, member = self._group, self._member
        if self._runs <= control.MOST_RUNS:
            frames = [control.Settled(self._done, self._again).frame(group, member)] if self._runs else []
        else:
            frames = [control.Settled(some, {}).frame(group, member) for some in control.in_records(self._done)]
            frames += [control.Settled({}, some).frame(group, member) for some in control.in_records(self._again)]
        for (queue, reason, error), dead in self._dead.items():
            for at in range(0, len(dead), MOST_DEAD):
                letters = control.DeadLettered(queue, dead[at : at + MOST_DEAD], reason, error)
                frames.append(letters.frame(group, member))
        return frames

    def _postpone(self, receipts: Receipts, at: int, then: int, ends_lease: bool) -> None:
        """Postpone messages, which have `then` deliveries now. `at` is as in `control.Settled`."""
        for first, end in self._claim(receipts, then):
            self._again.setdefault(receipts.queue, []).append((first, end - first, at))
            self._runs += 1
            if ends_lease:
                self.released.append((receipts.queue, first, end))

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
