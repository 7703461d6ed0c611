"""What publishers of held messages were promised: a delayed message comes once, at or after its time, unless it was
recalled; a committed one comes, one that was rolled back never does, and nothing is held for ever."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

import record
from record.layout import FLAG_DELAYED, FLAG_HALF
from store.api import HeldMessage
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError
from tests.store.simulation.clock import BACK_MS
from tests.store.simulation.model import Model

SLACK_MS = 2_000  # until the store's own looks come to what is due


class Wish(Enum):
    """The wish of a publisher for a held message."""

    RECALL = "recall"
    COMMIT = "commit"
    ROLL_BACK = "roll back"


@dataclass(slots=True)
class Fate:
    """A held message that was acknowledged."""

    time: int  # ms, of its record
    due: int | None
    is_half: bool
    tried: set[Wish] = field(default_factory=set)
    # By what was promised, up to where the log has what makes it true.
    granted: dict[Wish, int] = field(default_factory=dict)


class HeldClients:
    """The publishers of one history."""

    def __init__(self, rng: Random, config: StoreConfig, counts: Counter[str]) -> None:
        self._rng = rng
        self._checks = config.transaction_checks
        self._check_ms = int(config.transaction_check_s * 1000)
        self._counts = counts
        self._fates: dict[int, Fate] = {}  # by handle
        self._complaints: list[str] = []  # of publishers that were asked

    def on_acknowledged(self, handle: int, frame: bytes, time: int) -> None:
        """A held message is in the log since `time`, ms, or earlier."""
        flags = record.decode(frame, 0)[1]
        due = record.trailer_of(frame, 0) if flags & FLAG_DELAYED else None
        self._fates[handle] = Fate(time, due, bool(flags & FLAG_HALF))

    def on_check(self, messages: Sequence[HeldMessage]) -> None:
        """The store asks what became of transactions."""
        for message in messages:
            self._counts["asked"] += 1
            fate = self._fates.get(message.handle)
            if not 1 <= message.rounds <= self._checks:
                self._complaints.append("a publisher is asked too often")
            if fate is not None and (not fate.is_half or fate.granted.keys() & {Wish.COMMIT, Wish.ROLL_BACK}):
                self._complaints.append("a publisher is asked of what is not open")

    def forget(self, durable: int) -> None:
        """Forget promises from `durable` on: they need not survive the next crash."""
        self._fates = {handle: fate for handle, fate in self._fates.items() if handle < durable}
        for fate in self._fates.values():
            fate.granted = {wish: end for wish, end in fate.granted.items() if end <= durable}

    async def act(self, engine: Engine, model: Model) -> None:
        """A publisher wants something of its messages, most of which are held, or of others, of none, or of some
        twice."""
        held = [handle for handle in self._fates if handle in model.held.messages]
        own = sorted(held if self._rng.random() < 0.8 else self._fates)
        known = self._rng.sample(own, min(len(own), self._rng.randrange(5)))
        handles = [*known, *self._rng.sample((1 << 40, 1 << 50, *known), self._rng.choice((0, 0, 1)))]
        wish = self._rng.choice(list(Wish))
        half = wish is not Wish.RECALL
        for handle in known:
            self._fates[handle].tried.add(wish)
        try:
            missing = await (engine.end_transaction(handles, wish is Wish.COMMIT) if half else engine.recall(handles))
        except StoreError:
            return
        assert set(missing) <= set(handles), "what is missing was not asked for"
        for handle in known:
            if handle not in missing:
                assert self._fates[handle].is_half or not half, "the transaction of no transaction ended"
                self._fates[handle].granted[wish] = engine._log.end
                self._counts[wish.value] += 1

    def check(self, model: Model) -> None:
        """Promises that must hold by now."""
        assert not self._complaints, self._complaints
        came: defaultdict[int, list[int]] = defaultdict(list)
        for handle, time in model.came:
            came[handle].append(time)
        for handle, fate in self._fates.items():
            held = model.held.messages.get(handle)
            times, granted = came[handle], fate.granted
            assert len(times) <= 1, "a held message came twice"
            assert not (times and held), "a message came that is held"
            if times:
                # The clock may go back between the decision and its record.
                assert fate.due is None or times[0] >= fate.due - BACK_MS, "a message came before its time"
                assert not fate.is_half or Wish.COMMIT in fate.tried, "a half came that nobody committed"
                assert not granted.keys() & {Wish.RECALL, Wish.ROLL_BACK}, "a message came that never should"
            elif held is None:
                self._check_dropped(fate, model)
            else:
                assert not granted.keys() & {Wish.RECALL, Wish.ROLL_BACK}, "a message is held that was dropped"
                assert not (held.is_half and Wish.COMMIT in granted), "a committed half is half"

    def _check_dropped(self, fate: Fate, model: Model) -> None:
        if fate.is_half and Wish.COMMIT not in fate.granted:
            given_up = model.time >= fate.time + self._check_ms * (self._checks + 1)
            assert given_up or Wish.ROLL_BACK in fate.tried or Wish.RECALL in fate.tried, "a half is lost"
        else:
            assert Wish.RECALL in fate.tried, "a held message is lost"

    def check_end(self, model: Model, now: int) -> None:
        """Nothing is held at `now`, long after all times."""
        for handle, held in model.held.messages.items():
            assert held.is_half or held.due is None or held.due > now - SLACK_MS, f"{handle} does not come"
            assert not held.is_half or held.rounds <= self._checks, f"{handle} is asked about for ever"

    def last_due(self, model: Model) -> int:
        """When the last message is due or given up, ms."""
        times = [model.time]
        for held in model.held.messages.values():
            times.append(held.due or 0)
            if held.is_half:
                times.append(held.check + self._check_ms * (self._checks + 2))
        return max(time for time in times if time < model.time + 10**6)
