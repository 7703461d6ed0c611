"""The object store of a simulated cluster's tier: it refuses, loses answers, and does some things late."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

from store.errors import TierUnavailable
from tests.store.cluster.simulation.loop import ClusterLoop
from tests.store.tier.memory_objects import MemoryObjects

LATEST_S = 6.0  # that something is done after it was asked for


class LateObjects(MemoryObjects):
    """What all nodes reach. `trouble`: probability that something goes wrong with a request, and `removal_trouble` that
    it does with those of a removal, so that these wait for long."""

    def __init__(self, loop: ClusterLoop, rng: Random, counts: Counter[str]) -> None:
        super().__init__()
        self.trouble = 0.0
        self.removal_trouble = 0.0
        self._loop = loop
        self._rng = rng
        self._counts = counts
        self.fault = self._fault

    def put(self, name: str, pieces: Iterator[bytes]) -> None:
        data = b"".join(pieces)
        if self._is_late():
            self._counts["objects written late"] += 1
            self._later(lambda: self.objects.setdefault(name, data))
            raise TierUnavailable("no answer")
        self._counts["objects written"] += 1
        super().put(name, iter((data,)))

    def delete(self, names: Sequence[str]) -> None:
        if self._is_late():
            self._counts["objects removed late"] += len(names)
            self._later(lambda: self._delete(names))
            raise TierUnavailable("no answer")
        self._counts["objects removed"] += len(names)
        super().delete(names)

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.objects:
                self.deleted[name] = self.objects.pop(name)

    def _is_late(self) -> bool:
        return self._rng.random() < self.trouble / 2

    def _later(self, work: Callable[[], object]) -> None:
        self._loop.call_later(self._rng.random() * LATEST_S, work, context=self._loop.outside)

    def _fault(self, kind: str) -> str:
        trouble = max(self.trouble / 2, self.removal_trouble if kind in {"list", "delete"} else 0.0)
        if self._rng.random() >= trouble:
            return ""
        self._counts[f"requests for objects that failed: {kind}"] += 1
        return self._rng.choice(("refused", "unanswered"))
