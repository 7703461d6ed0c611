"""Metrics of parent topics: those with the most traffic each, the others together.

The number of messages of a parent topic is the sum of the ends of its partitions, which the store has anyway. Which
topics have the most traffic is found by samples: of one message for each 64 KB of log, the parent topic is counted.
"""

from collections.abc import Iterable
from time import monotonic
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.http.shown import MAX_NAME, OTHER, Rest, Shown, Slices
from matcher.names import parent_of
from store.api import Commit
from store.commit_listeners import MESSAGES
from store.local_store import LocalStore

_SAMPLE_BYTES: Final = 64 << 10  # of log, for each sample
_SAMPLED: Final = 8  # counters for each topic that is shown
_HALF_LIFE_S: Final = 600.0  # after which samples count half


class Samples:
    """How often names were sampled lately: approximate, with a bounded number of counters (Misra and Gries 1982)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: dict[bytes, float] = {}

    def add(self, name: bytes) -> None:
        counts = self.counts
        if name in counts:
            counts[name] += 1
        elif len(counts) < self._limit:
            counts[name] = 1
        else:
            self.counts = {each: count - 1 for each, count in counts.items() if count > 1}

    def halve(self) -> None:
        self.counts = {name: count / 2 for name, count in self.counts.items() if count > 0.5}


class TopicMetrics:
    """Metrics of the parent topics of one store. limit: topics that are shown."""

    def __init__(self, store: LocalStore, limit: int) -> None:
        self._store = store
        self._shown = Shown(limit)
        self._samples = Samples(_SAMPLED * limit)
        self._rest = Rest()
        self._sampled = 0  # position of the log behind which the next sample is taken
        self._halved = monotonic()
        if limit:
            store.on_commit(self._on_commit, MESSAGES)

    def _on_commit(self, commit: Commit) -> None:
        if commit.end < self._sampled:
            return
        self._sampled = commit.end + _SAMPLE_BYTES
        topics = commit.topics
        if topics:
            name = parent_of(topics[(commit.position >> 4) % len(topics)])
            if len(name) <= MAX_NAME:
                self._samples.add(name)

    async def collect(self) -> Iterable[Metric]:
        """Not to be called again before it has ended."""
        now, store, shown = monotonic(), self._store, self._shown
        if now - self._halved > _HALF_LIFE_S:
            self._halved = now
            self._samples.halve()
        shown.choose(self._samples.counts, now)
        if shown.room:
            page = await store.children(b"", None, 2 * len(shown.names) + shown.room)
            shown.fill([child.name for child in page.children], now)
        slices = Slices()
        total = store.entered
        counts: dict[bytes, int] = {}
        for name in shown.names:
            counts[name] = await store.entered_of(name)
            await slices.rest()
        self._rest.update(total, counts)
        text = "Messages that entered a parent topic"
        family = CounterMetricFamily("sluice_topic_messages", text, labels=["topic"])
        for name, count in counts.items():
            family.add_metric([name.decode(errors="replace")], count)
        family.add_metric([OTHER], self._rest.value)
        return [family]
