"""Metrics of groups: of those that have the most messages to handle each, of the others together.

Each scrape looks at some more groups, so that one without members, which does nothing and falls behind, is found too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from time import monotonic, time
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from gateway.http.histograms import histogram_family
from gateway.http.shown import OTHER, Rest, Shown, Slices
from matcher.names import is_shared
from store.api import GroupProgress
from store.engine import Engine
from store.views.groups.counts import GroupCount

_PER_SECOND: Final = 32  # groups that are looked at for each second since the last scrape ...
_AT_MOST: Final = 512  # ... and in one scrape
_LOOK_S: Final = 1.0  # after which a look ends: on a busy node a scrape should still be in time
_COUNTERS: Final = (
    ("sluice_group_deliveries", "Messages leased to members of a group", "deliveries"),
    ("sluice_group_redeliveries", "Messages leased again to members of a group", "redeliveries"),
    ("sluice_group_acknowledged", "Messages finished by members of a group", "acknowledged"),
    ("sluice_group_dead_lettered", "Messages that became dead letters of a group", "dead_lettered"),
)
_NO_COUNT: Final = GroupCount()


@dataclass(slots=True)
class _Pass:
    """What a look at all groups, over several scrapes, has found so far."""

    lag: int = 0  # of the groups that are not shown
    unfinished: int = 0
    dead_letters: int = 0


class GroupMetrics:
    """Metrics of the groups of one store. limit: groups that are shown."""

    def __init__(self, store: Engine, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._shown = Shown(limit)
        self._rests = {key: Rest() for _, _, key in _COUNTERS}
        self._after: bytes | None = None  # the group that was looked at last
        self._pass = _Pass()
        self._found = _Pass()  # of the last pass that came to its end
        self._lags: dict[bytes, int] = {}  # of groups with the most, from this pass and the last
        self._last_lags: dict[bytes, int] = {}
        self._looked = monotonic() - _AT_MOST  # the first look is at as many as possible
        self._delivered: dict[bytes, int] = {}  # deliveries as of the last scrape
        self._recent: dict[bytes, float] = {}  # deliveries lately

    async def collect(self) -> Iterable[Metric]:
        """Not to be called again before it has ended."""
        slices = Slices()
        progress = await self._look(slices)
        shown = self._shown
        shown.choose(await self._scores(slices), monotonic())
        shown.fill(progress, monotonic())
        self._store.group_counts.kept = set(shown.names)
        found: dict[bytes, GroupProgress] = {}
        for name in shown.names:
            state = progress.get(name) or await self._store.group_progress(name)
            if state is None:
                shown.drop(name)
            else:
                found[name] = state
            await slices.rest()
        return [*self._gauges(found), *self._counters(found)]

    async def _look(self, slices: Slices) -> dict[bytes, GroupProgress]:
        """Look at the next groups. Returns how far they are."""
        now = monotonic()
        wanted = int(min((now - self._looked) * _PER_SECOND + 1, _AT_MOST))
        self._looked = now
        names = self._store.group_names(self._after, wanted)
        is_last = len(names) < wanted
        progress: dict[bytes, GroupProgress] = {}
        for name in names:
            if monotonic() - now > _LOOK_S:
                is_last = False
                break
            self._after = name
            state = await self._store.group_progress(name)
            if state is None:
                continue
            progress[name] = state
            if name not in self._shown:
                self._pass.lag += state.lag
                self._pass.unfinished += state.unfinished
                self._pass.dead_letters += state.dead_letters
            if state.lag:
                self._lags[name] = state.lag
            await slices.rest()
        if len(self._lags) > 4 * self._limit:
            self._lags = dict(nlargest(2 * self._limit, self._lags.items(), key=lambda item: item[1]))
        if is_last:
            self._after = None
            self._found, self._pass = self._pass, _Pass()
            self._last_lags, self._lags = self._lags, {}
        return progress

    async def _scores(self, slices: Slices) -> Mapping[bytes, float]:
        """Messages of groups: what was delivered lately, and what waits."""
        recent: dict[bytes, float] = {}
        delivered: dict[bytes, int] = {}
        for name, count in self._store.group_counts.all():
            since = max(count.deliveries - self._delivered.get(name, 0), 0)
            delivered[name] = count.deliveries
            recent[name] = self._recent.get(name, 0) / 2 + since
            await slices.rest()
        self._delivered, self._recent = delivered, recent
        scores = dict(recent)
        for name, lag in (self._last_lags | self._lags).items():
            scores[name] = scores.get(name, 0) + lag
        return scores

    def _gauges(self, found: Mapping[bytes, GroupProgress]) -> Iterable[Metric]:
        now_ms = int(time() * 1000)
        lag = GaugeMetricFamily("sluice_group_lag", "Messages that a group has not finished", labels=["group"])
        age = GaugeMetricFamily("sluice_group_lag_seconds", "Age of the oldest of these", labels=["group"])
        text = "Messages of these that were leased, or wait for others of their ordering key"
        unfinished = GaugeMetricFamily("sluice_group_unfinished", text, labels=["group"])
        letters = GaugeMetricFamily("sluice_group_dead_letters", "Dead letters that are not finished", labels=["group"])
        text = "Members that asked for messages in the last minutes"
        members = GaugeMetricFamily("sluice_group_members", text, labels=["group"])
        for name, state in found.items():
            label = [name.decode(errors="replace")]
            lag.add_metric(label, state.lag)
            age.add_metric(label, max(now_ms - state.oldest_ms, 0) / 1000 if state.oldest_ms else 0)
            unfinished.add_metric(label, state.unfinished)
            letters.add_metric(label, state.dead_letters)
            if not is_shared(name):
                members.add_metric(label, self._store.group_members(name))
        lag.add_metric([OTHER], self._found.lag)
        unfinished.add_metric([OTHER], self._found.unfinished)
        letters.add_metric([OTHER], self._found.dead_letters)
        return lag, age, unfinished, letters, members

    def _counters(self, found: Mapping[bytes, GroupProgress]) -> Iterable[Metric]:
        counts = self._store.group_counts
        known = {name: counts.find(name) or _NO_COUNT for name in found}
        for metric, text, key in _COUNTERS:
            family = CounterMetricFamily(metric, text, labels=["group"])
            rest = self._rests[key]
            rest.update(getattr(counts.total, key), {name: getattr(count, key) for name, count in known.items()})
            for name, count in known.items():
                family.add_metric([name.decode(errors="replace")], getattr(count, key))
            family.add_metric([OTHER], rest.value)
            yield family
        text = "Time from a lease to its acknowledgement, of one message in each acknowledgement"
        handling = SummaryMetricFamily("sluice_group_handling_seconds", text, labels=["group"])
        for name, count in known.items():
            handling.add_metric([name.decode(errors="replace")], count.handled, count.handled_ms / 1000)
        yield handling
        text = "The same, of all groups together"
        yield histogram_family("sluice_handling_seconds", text, counts.handling, 1000)
