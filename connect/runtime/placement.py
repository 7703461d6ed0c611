"""Which tasks a worker runs: it takes free ones up to its share, and gives up what is above it.

A task that n workers can run counts 1/n for each of them. The share of a worker is the sum of that, rounded up. So
workers with the same plug-ins run ceil(tasks / workers) each at most, and all shares together are enough for all tasks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from connect.runtime.entries import Snapshot, TaskId, WorkerEntry


@dataclass(slots=True)
class Placement:
    """What a worker does about its tasks."""

    take: list[TaskId] = field(default_factory=list)
    give_up: list[TaskId] = field(default_factory=list)


def place(snapshot: Snapshot, worker: str, kinds: Mapping[TaskId, str], most: int) -> Placement:
    """Decide for a worker. kinds: the kind of connector of each task that this worker can run. most: how many tasks it
    runs at most."""
    able = {kind: _able(snapshot, kind) for kind in set(kinds.values())}
    bound = min(most, math.ceil(sum((Fraction(1, max(1, able[kind])) for kind in kinds.values()), Fraction())))
    mine, free = [], []
    for task in sorted(kinds, key=lambda task: (able[kinds[task]], task)):  # those that few workers can run come first
        lease = snapshot.leases.get(task)
        if lease is not None and lease.worker == worker:
            mine.append(task)
        elif lease is None or lease.worker not in snapshot.workers:
            free.append(task)
    room = bound - len(mine)
    if room >= 0:
        # At its bound, it makes room for a task that fewer workers can run.
        swaps = bool(free and mine and not room and able[kinds[free[0]]] < able[kinds[mine[-1]]])
        return Placement(free[:room], mine[-1:] if swaps else [])
    return Placement([], mine[room:])


def _able(snapshot: Snapshot, kind: str) -> int:
    return sum(kind in each.plugins for each in snapshot.workers.values())


class Observer:
    """Tells which workers are dead: their heartbeat has not changed for some time by the clock of this one. No clock is
    compared with that of another machine."""

    def __init__(self, dead_after_s: float) -> None:
        self._dead_after_s = dead_after_s
        self._seen: dict[str, tuple[int, float]] = {}  # revision of each heartbeat, and when it was first seen

    def dead(self, workers: Mapping[str, WorkerEntry], now: float) -> list[WorkerEntry]:
        """The dead ones. now: seconds of a monotonic clock."""
        self._seen = {
            each.id: seen if seen is not None and seen[0] == each.revision else (each.revision, now)
            for each in workers.values()
            for seen in (self._seen.get(each.id),)
        }
        return [each for each in workers.values() if now - self._seen[each.id][1] >= self._dead_after_s]
