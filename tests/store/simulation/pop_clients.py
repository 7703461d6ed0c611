"""What the members of groups were promised: a message is out with one of them at a time, comes again when its lease is
over, no more often than it may, and never after it was acknowledged; and none is passed over."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import NamedTuple

from store.api import DeadLetter, Failed, Ordering, PopRequest, PopResult, Receipts, Run, Start, dead_letter_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError
from tests.store.simulation.clock import Clock
from tests.store.simulation.model import Entry, Model
from tests.store.simulation.records import GROUPS, QUEUES

ALL = 1 << 20
LONG_MS = 10**6  # of a lease
NEVER = 1 << 62  # a position of the log
DRAINS = 1000  # pops until groups are expected to have all


class Key(NamedTuple):
    """A message of a group."""

    group: bytes
    queue: bytes
    offset: int


@dataclass(slots=True)
class Out:
    """A message as a member got it last."""

    deliveries: int
    until: int  # ms: nobody else gets it before
    came: int  # where the log ended when it came
    end: int  # where the log ended when that was last changed
    is_sure: bool = True  # nobody may have got it since, unknown to us


class PopClients:
    """The members of the groups of one history."""

    def __init__(self, rng: Random, config: StoreConfig, counts: Counter[str], clock: Clock) -> None:
        self._rng = rng
        self._config = config
        self._counts = counts
        self._clock = clock
        # Of the group's members: some have all the same, some differ.
        self._orderings = {group: rng.choice((*([each] for each in Ordering), list(Ordering))) for group in GROUPS}
        self._out: dict[Key, Out] = {}  # messages that came and were not settled
        self._settling: dict[Key, Out] = {}  # the same of those that are being settled, or perhaps are
        self._finished: dict[Key, int] = {}  # acknowledged, and up to where the log has that
        self._acknowledging: set[Key] = set()  # those that somebody ever wanted to acknowledge
        # What was popped, with where its dead letters came from, and where the log ended then; not compared yet.
        self._seen: list[tuple[Run, list[DeadLetter], int]] = []

    def forget(self, durable: int) -> None:
        """Forget promises from `durable` on: they need not survive the next crash."""
        self._finished = {key: end for key, end in self._finished.items() if end <= durable}
        self._seen = [seen for seen in self._seen if seen[-1] <= durable]
        for outs in (self._out, self._settling):
            for key in [key for key, out in outs.items() if out.came > durable]:
                del outs[key]
            for out in outs.values():
                if out.end > durable:
                    out.until, out.is_sure = 0, False

    def begin_life(self) -> None:
        """The store is opened anew: leases that were told of early may have failed with the log."""
        for outs in (self._out, self._settling):
            for key in [key for key, out in outs.items() if out.came == NEVER]:
                del outs[key]

    async def act(self, engine: Engine) -> None:
        """Members do something, some at the same time."""
        if self._rng.random() < 0.1:
            await self._begin_again(engine, self._rng.choice(GROUPS))
        for _ in range(self._rng.randrange(1, 6)):
            acts = [self._act(engine, self._rng.choice(GROUPS)) for _ in range(self._rng.choice((1, 1, 2, 4)))]
            await asyncio.gather(*acts)

    async def _act(self, engine: Engine, group: bytes) -> None:
        act = self._rng.choice((self._pop, self._pop, self._acknowledge, self._postpone, self._take_back))
        try:
            await act(engine, group)
        except StoreError:
            return

    async def _pop(self, engine: Engine, group: bytes) -> None:
        rng = self._rng
        queues = rng.sample(QUEUES, rng.choice((1, 1, 2, 5)))
        most, limit, invisible = rng.choice((0, 0, 1, 3)), rng.choice((1, 2, 10)), rng.choice((500, 5_000, 60_000))
        size, early = rng.choice((1, 500, ALL)), rng.random() < 0.3
        try:
            async with asyncio.timeout(rng.choice((0.001, 10, 10, 10))):
                until = self._clock.now() + invisible
                start = rng.choice(list(Start))
                ordering = rng.choice(self._orderings[group])
                popped = await engine.pop(
                    PopRequest(group, queues, limit, size, invisible, start, most, ordering=ordering, early=early)
                )
        except (StoreError, TimeoutError):
            self._unsure(group)
            return
        assert sum(run.count for run in popped.runs) <= limit, "more messages were popped than were asked for"
        assert popped.available_at is not None or not popped.runs, "what is out does not come again"
        self._take(engine, group, popped, most or self._config.max_deliveries, until, early)

    def _take(
        self, engine: Engine, group: bytes, popped: PopResult, most: int, until: int, early: bool = False
    ) -> None:
        letters = iter(popped.dead_letters)
        for run in popped.runs:
            self._counts["popped"] += run.count
            self._seen.append((run, list(islice(letters, run.count if run.queue[:1] == b"d" else 0)), engine._log.end))
            is_dead = run.queue == dead_letter_queue(group)
            assert 1 <= run.deliveries <= most or is_dead, "a message came too often"
            for offset in range(run.offset, run.offset + run.count):
                key = Key(group, run.queue, offset)
                assert key not in self._finished, "a message came that was acknowledged"
                last = self._out.get(key) or self._settling.pop(key, None)
                if last is not None:
                    assert self._clock.latest >= last.until, "a message came that is out with another"
                    again = last.deliveries + 1
                    assert run.deliveries == again or (run.deliveries > again and not last.is_sure), (
                        f"{key} came {run.deliveries} times, last was {last}"
                    )
                came = NEVER if early else engine._log.end  # a crash may forget a lease that was told of early
                self._out[key] = Out(run.deliveries, until, came, engine._log.end)

    def _unsure(self, group: bytes) -> None:
        """A call failed that may have leased messages out."""
        for outs in (self._out, self._settling):
            for key, out in outs.items():
                if key.group == group:
                    out.is_sure = False

    def _some(self, group: bytes) -> list[tuple[Key, Out]]:
        """Some messages that are out, to settle: nobody else settles them meanwhile."""
        keys = [key for key in self._out if key.group == group]
        some = self._rng.sample(keys, min(len(keys), self._rng.choice((1, 2, 5))))
        outs = [(key, self._out.pop(key)) for key in sorted(some)]
        self._settling.update(outs)
        return outs

    async def _acknowledge(self, engine: Engine, group: bytes) -> None:
        outs = self._some(group)
        self._acknowledging.update(key for key, _ in outs)
        stale = await engine.settle(group, [_receipts(key, out) for key, out in outs])
        for key, out in outs:
            if not self._is_stale(key, out, stale):
                self._finished[key] = engine._log.end
                self._settling.pop(key, None)
                self._counts["acknowledged"] += 1

    async def _postpone(self, engine: Engine, group: bytes) -> None:
        outs = self._some(group)
        delay = self._rng.choice((None, 0, 1000, 30_000))
        delays = self._config.retry_delays_s
        untils = {}
        again: list[tuple[Receipts, int]] = []
        failed: list[Failed] = []
        for key, out in outs:
            own = int(delays[min(out.deliveries, len(delays)) - 1] * 1000) if delay is None else delay
            untils[key] = out.until, self._clock.now() + own
            if delay is None and out.deliveries < self._config.max_deliveries:
                failed.append(Failed(_receipts(key, out), None, self._rng.choice((b"", b"KeyError: 1"))))
            else:
                again.append((_receipts(key, out), own))
            out.until = min(out.until, self._clock.now() + own)
        stale = await engine.settle(group, [], again, failed=failed)
        for key, out in outs:
            before, until = untils[key]
            if self._is_stale(key, replace(out, until=before), stale):
                out.until, out.is_sure = 0, False
            else:
                out.until, out.end = until, engine._log.end
                self._counts["postponed"] += 1
            if self._settling.pop(key, None) is not None:  # else somebody else has it by now
                self._out[key] = out

    async def _take_back(self, engine: Engine, group: bytes) -> None:
        outs = self._some(group)
        later = self._rng.choice((0, 0, 5_000))
        given = [(_receipts(key, out), later) for key, out in outs]
        sure = {key: out.is_sure for key, out in outs}
        until = self._clock.now() + later
        for _, out in outs:  # a call that fails may have done it
            out.deliveries, out.until, out.is_sure = out.deliveries - 1, min(out.until, until), False
        stale = await engine.settle(group, [], [], given)
        for key, out in outs:
            if self._is_stale(key, replace(out, deliveries=out.deliveries + 1), stale):
                out.deliveries += 1
            else:
                out.until, out.is_sure, out.end = until, sure[key], engine._log.end
                self._counts["taken back"] += 1
            if self._settling.pop(key, None) is not None:  # else somebody else has it by now
                self._out[key] = out

    def _is_stale(self, key: Key, out: Out, stale: list[Receipts]) -> bool:
        """Whether somebody may have got the message since. Raises AssertionError if nobody can have."""
        is_stale = any(
            (receipts.queue, receipts.deliveries) == (key.queue, out.deliveries)
            and receipts.offset <= key.offset < receipts.offset + receipts.count
            for receipts in stale
        )
        is_over = self._clock.latest >= out.until or not out.deliveries  # none: it was taken back, and is nobody's
        assert not is_stale or not out.is_sure or is_over, "a lease is refused that is not over"
        return is_stale

    async def _begin_again(self, engine: Engine, group: bytes) -> None:
        for keys in (self._out, self._settling, self._finished):
            for key in [key for key in keys if key.group == group]:
                del keys[key]
        try:
            if self._rng.random() < 0.3:
                await engine.remove_group(group)
            else:
                queues = self._rng.sample(QUEUES, 2)
                bounds = {queue: await engine.bounds(queue) for queue in queues}
                await engine.reset_group(group, {q: self._rng.randint(b.begin, b.end) for q, b in bounds.items()})
            self._counts["group begun again"] += 1
        except StoreError:
            return

    def check(self, model: Model, is_gone: Callable[[Entry], bool]) -> None:
        """Check that popped messages are those of the queues, and that passed ones are gone."""
        known = [seen for seen in self._seen if seen[-1] <= model.log_end]
        for run, letters, _ in known:
            entries = model.queues[run.queue][run.offset : run.offset + run.count]
            assert run.data == b"".join(entry.frame for entry in entries), "other messages were popped"
            wanted = model.letters.get(run.queue, [])[run.offset : run.offset + run.count]
            assert letters == wanted, "dead letters came from elsewhere"
        self._seen = [seen for seen in self._seen if seen[-1] > model.log_end]
        for (group, queue), place in model.groups.places.items():
            entries = model.queues.get(queue, [])
            for offset in place.passed | place.done:
                if offset in place.done and Key(group, queue, offset) in self._acknowledging:
                    continue
                assert offset < len(entries), "what is not there yet was passed over"
                assert is_gone(entries[offset]), f"{queue!r} {offset} was passed over"

    def check_end(self, model: Model, is_gone: Callable[[Entry], bool]) -> None:
        """Nothing is left to the groups."""
        for (group, queue), place in model.groups.places.items():
            if group in GROUPS and queue in QUEUES:
                assert not place.entries, f"{group!r} has not finished {sorted(place.entries)} of {queue!r}"
                left = [entry for entry in model.queues.get(queue, [])[place.next :] if not is_gone(entry)]
                assert not left, f"messages of {queue!r} never came to {group!r}"

    async def drain(self, engine: Engine) -> None:
        """Every group gets all that it can get, and acknowledges it."""
        for _ in range(DRAINS):
            end = engine._log.end
            came = [await self._drain(engine, group) for group in GROUPS]
            if not any(came) and engine._log.end == end:  # else there may be dead letters that another wants
                break
        else:
            raise AssertionError("a group never has all")

    async def _drain(self, engine: Engine, group: bytes) -> bool:
        """A member gets some messages and acknowledges them. False when there are none, and never will be."""
        popped = await engine.pop(PopRequest(group, QUEUES, 100, ALL, LONG_MS, Start.EARLIEST))
        self._take(engine, group, popped, self._config.max_deliveries, self._clock.now() + LONG_MS)
        if not popped.runs and popped.available_at is None:
            assert not popped.is_limited, "a group has to settle what it does not have"
            return False
        if not popped.runs:
            await asyncio.sleep(max(popped.available_at - self._clock.now(), 1) / 1000)
            return True
        for run in popped.runs:
            keys = [Key(group, run.queue, offset) for offset in range(run.offset, run.offset + run.count)]
            self._acknowledging.update(keys)
            for key in keys:
                del self._out[key]
        receipts = [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]
        assert not await engine.settle(group, receipts), "a lease is refused that is not over"
        return True


def _receipts(key: Key, out: Out) -> Receipts:
    return Receipts(key.queue, key.offset, 1, out.deliveries)
