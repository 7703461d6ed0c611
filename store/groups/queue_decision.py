"""A group's queue in one call: its committed state, what other calls have under way there, and what this call decides.

A call decides and appends in one turn of the loop, so decisions build on records that are not committed yet. Those are
known here as `Uncommitted`, one for each group and queue that has some; it goes when all of them are committed.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from store.api import Run
from store.views.groups.leases import MAX_DELIVERIES, UNSENT, QueueLeases
from store.views.groups.pops import Key, Pops

MOST_DEAD: Final = 1024  # dead letters that one pop makes, and one record names
_CLEAR: Final = -1  # no record under way leases out new messages
_NO_RUNS: Final[list[tuple[int, int]]] = []


class Claim:
    """What a record under way says of messages: their deliveries."""

    __slots__ = ("deliveries", "is_kept_back")

    def __init__(self, deliveries: int, is_kept_back: bool = False) -> None:
        self.deliveries = deliveries  # 0: they are finished
        self.is_kept_back = is_kept_back  # they are new, and wait for an older message of their ordering key


class Uncommitted:
    """What is decided about a group's queue by records that are not committed yet."""

    __slots__ = ("claims", "entered", "leased", "next", "records", "untils")

    def __init__(self) -> None:
        self.records = 0  # appends under way
        self.claims: dict[int, Claim] = {}  # by offset: the last such record about a message that was leased before
        self.entered = 0  # messages that are new, and unfinished from them on
        self.leased: list[QueueDecision] = []  # those that lease out new messages, in the order of their records
        self.next = _CLEAR  # the first offset behind the new messages
        self.untils: list[int] = []  # ms: the ends of the leases, one for each record

    def is_unclaimed(self, first: int, end: int) -> bool:
        """Whether no record changes or finishes a message of [first, end)."""
        claims = self.claims
        if not claims:
            return True
        if len(claims) < end - first:
            return not any(first <= offset < end for offset in claims)
        return not any(offset in claims for offset in range(first, end))

    def leases(self, first: int, end: int) -> bool:
        """Whether one record leases out all of [first, end) for the first time."""
        for decision in self.leased:
            for low, high in decision.fresh_runs:
                if low <= first and end <= high:
                    return True
        return False


class QueueDecision:
    """What one call decides about a queue."""

    __slots__ = (
        "begin",
        "claimed",
        "dead",
        "end",
        "entered",
        "expected",
        "first",
        "fresh",
        "fresh_runs",
        "gone",
        "is_new",
        "kept_back",
        "leases",
        "next",
        "passed",
        "queue",
        "reclaimed",
        "replaced",
        "state",
        "turn",
        "uncommitted",
        "until",
    )

    def __init__(self, queue: bytes, state: QueueLeases | None, uncommitted: Uncommitted | None) -> None:
        self.queue = queue
        self.state = state  # None: nothing is committed about it
        self.uncommitted = uncommitted
        self.claimed: list[tuple[int, int, Claim]] = []  # [first, end) that this call claims
        self.replaced: list[tuple[int, Claim]] = []  # earlier claims of the same messages, by offset
        # The rest is for a pop.
        self.is_new = False  # the group is new to the queue
        self.begin = 0  # where it begins then
        self.next = 0  # the first offset that nobody was ever leased
        self.first = 0  # the first offset from there on whose message may be in the log
        self.end = 0  # of the queue
        self.leases: list[Run] = []
        self.fresh = 0  # leased messages that nobody had before
        self.fresh_runs: list[tuple[int, int]] = []  # these, as [first, end)
        self.reclaimed = 0  # messages that left the log before they could be leased out
        self.kept_back: list[tuple[int, int]] = _NO_RUNS  # [first, end) before `next` that wait for their ordering key
        self.entered = 0  # messages that are new, and unfinished from this call on
        self.passed = 0  # messages in front of `next`, and behind the leases, that the group does not want
        self.turn = 0  # when something was leased out last
        self.until = 0  # ms: the end of the leases
        self.dead: list[int] = []  # offsets of new dead letters
        self.gone: list[tuple[int, int]] = []  # (first offset, count) of entries whose records left the log
        self.expected: list[tuple[int, int, int]] = []  # (at, first, end) to be put back into `QueueLeases.due`

    def undo(self) -> None:
        """Forget the decision: its records were not appended."""
        self.unclaim()
        if self.uncommitted is not None:
            self.uncommitted.claims.update(reversed(self.replaced))
        if self.state is not None:
            for at, first, end in self.expected:
                self.state.expect(at, first, end)

    def keep_back(self, first: int, end: int) -> None:
        """Have this call's record say that the messages [first, end) wait for an older one of their ordering key."""
        self._claim(first, end, Claim(UNSENT, is_kept_back=True))
        if not self.kept_back:
            self.kept_back = []
        self.kept_back.append((first, end))
        self.entered += end - first

    def claim(self, first: int, end: int, deliveries: int) -> None:
        """Have this call's record say that the messages [first, end) have so many deliveries; 0: they are finished."""
        self._claim(first, end, Claim(deliveries))

    def _claim(self, first: int, end: int, claim: Claim) -> None:
        if self.uncommitted is None:
            self.uncommitted = Uncommitted()
        claims = self.uncommitted.claims
        if not self.uncommitted.is_unclaimed(first, end):
            self.replaced += [(offset, claims[offset]) for offset in range(first, end) if offset in claims]
        for offset in range(first, end):
            claims[offset] = claim
        self.claimed.append((first, end, claim))

    def unclaim(self) -> None:
        """Drop this call's claims. Those of later records about the same messages stay."""
        if self.uncommitted is None:
            return
        claims = self.uncommitted.claims
        for first, end, claim in self.claimed:
            for offset in range(first, end):
                if claims.get(offset) is claim:
                    del claims[offset]

    def unclaimed_runs(self, first: int, end: int) -> list[tuple[int, int]]:
        """The runs of [first, end) that no record under way changes or finishes."""
        uncommitted = self.uncommitted
        if uncommitted is None or uncommitted.is_unclaimed(first, end):
            return [(first, end)]
        return runs_of([offset for offset in range(first, end) if offset not in uncommitted.claims])

    def claim_leased(self, first: int, end: int, deliveries: int, then: int) -> list[tuple[int, int]]:
        """Claim the messages of [first, end) that are leased with so many deliveries; they have `then` afterwards.
        Returns their runs."""
        if not 0 < deliveries <= MAX_DELIVERIES:
            return []
        runs = self.leased_runs(first, end, deliveries)
        for low, high in runs:
            self.claim(low, high, then)
        return runs

    def leased_runs(self, first: int, end: int, deliveries: int) -> list[tuple[int, int]]:
        """The runs of [first, end) that are leased with so many deliveries once all records under way are committed."""
        state, uncommitted = self.state, self.uncommitted
        if uncommitted is None:
            if state is None:
                return []
            if first >= 0 and 0 < end - first <= state.unfinished and state.is_run(first, end, deliveries):
                return [(first, end)]
        elif uncommitted.is_unclaimed(first, end):
            if state is not None and 0 <= first < end <= state.next and end - first <= state.unfinished:
                if state.is_run(first, end, deliveries):
                    return [(first, end)]
            elif deliveries == 1 and uncommitted.leases(first, end):
                return [(first, end)]
        low, high = self._bounds()
        return runs_of([o for o in range(max(first, low), min(end, high)) if self.deliveries_of(o) == deliveries])

    def deliveries_of(self, offset: int) -> int:
        """Deliveries of a message once all records under way are committed; 0: it is not leased."""
        if self.uncommitted is not None:
            claim = self.uncommitted.claims.get(offset)
            if claim is not None:
                return claim.deliveries
            if self.uncommitted.leased and self.uncommitted.leases(offset, offset + 1):
                return 1
        return 0 if self.state is None else self.state.deliveries_of(offset)

    def _bounds(self) -> tuple[int, int]:
        """The first offset that may be leased, and the one behind the last."""
        runs: list[tuple[int, int]] = []
        behind = 0  # messages that were kept back may lie behind all of the runs
        if self.uncommitted is not None:
            behind = self.uncommitted.next
            for decision in self.uncommitted.leased:
                runs += decision.fresh_runs
        if self.state is not None:
            runs.append((self.state.floor, max(self.state.next, behind)))
        return min([low for low, _ in runs], default=0), max([high for _, high in runs], default=0)


class UncommittedQueues:
    """The `Uncommitted` of all groups and queues: at most as many as there are records under way."""

    def __init__(self, pops: Pops) -> None:
        self._pops = pops
        self._by_key: dict[Key, Uncommitted] = {}
        self._turn = 0  # counts the decisions that leased out something

    def open(self, group: bytes, queues: Iterable[bytes]) -> list[QueueDecision]:
        """A decision to be made about each of these queues."""
        names = list(queues)
        states = self._pops.find_all(group, names)
        found: list[QueueDecision] = []
        for i in range(len(names)):
            found.append(QueueDecision(names[i], states[i], self._by_key.get((group, names[i]))))
        return found

    def add(self, group: bytes, decisions: Sequence[QueueDecision]) -> None:
        """The records of these decisions are appended."""
        for decision in decisions:
            uncommitted = decision.uncommitted
            if uncommitted is None:
                uncommitted = decision.uncommitted = Uncommitted()
            self._by_key[group, decision.queue] = uncommitted
            uncommitted.records += 1
            uncommitted.entered += decision.entered
            if decision.fresh or decision.passed or decision.is_new or decision.kept_back:
                uncommitted.next = decision.next
            if decision.leases:
                uncommitted.untils.append(decision.until)
                self._turn += 1
                decision.turn = self._turn
                if decision.state is not None:
                    decision.state.turn = self._turn
            if decision.fresh:
                uncommitted.leased.append(decision)

    def remove(self, group: bytes, decisions: Sequence[QueueDecision]) -> None:
        """The records of these decisions are committed and folded, or have failed."""
        for decision in decisions:
            uncommitted = decision.uncommitted
            assert uncommitted is not None
            if decision.claimed:
                decision.unclaim()
            uncommitted.entered -= decision.entered
            if decision.fresh:
                uncommitted.leased.remove(decision)
            if decision.leases:
                uncommitted.untils.remove(decision.until)
            if decision.state is None:
                state = self._pops.find(group, decision.queue)
                if state is not None:
                    state.turn = decision.turn
            uncommitted.records -= 1
            if not uncommitted.records:
                del self._by_key[group, decision.queue]


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as runs [first, end)."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
