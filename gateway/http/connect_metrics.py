"""Metrics of connectors: what the heartbeats of workers say, of the tasks with the most records each, of the others
together.

Workers may run on any machine. Their heartbeats are entries of the bucket `connect`, so this needs no connection to
them. A heartbeat is parsed once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic, time
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.http.shown import OTHER, Shown, Slices
from gateway.observe.connectors import CONNECTOR, GONE_MS, WORKER, connector_of, entries_of, lag_of, said_of
from store.engine import Engine

_COUNTERS: Final = (
    ("sluice_connect_records_in", "Records that a task has read, from the log or the other system", "records_in"),
    ("sluice_connect_records_out", "Records that a task has delivered, or stored", "records_out"),
    ("sluice_connect_bytes", "Bytes of payloads that a task has read from the log, or stored in it", "bytes"),
    ("sluice_connect_records_dropped", "Records that transforms of a task have dropped", "dropped"),
    ("sluice_connect_records_failed", "Records that a task could not convert, transform or deliver", "failed"),
    ("sluice_connect_dead_letters", "Records of these that became dead letters", "dead"),
    ("sluice_connect_retries", "Calls that a task has repeated", "retried"),
)
_RECORDS: Final = 0  # place in a task's counts
_GONE: Final = "UNASSIGNED"
_STATES: Final = ("RUNNING", "PAUSED", "FAILED", _GONE)
_MAX_CONNECTORS: Final = 1_000
_MAX_WORKERS: Final = 1_000
_MAX_TASKS: Final = 1_000  # of one worker
_MAX_COUNT: Final = 1 << 53  # that a sample holds exactly
_FAILED: Final = 1e18  # the score of a task that needs somebody


@dataclass(slots=True, frozen=True)
class _Task:
    """A task, as the last heartbeat with it says. number: ""; there is a connector of which no worker has a task."""

    connector: str
    number: str
    state: str
    heard_ms: int
    counts: tuple[int, ...]  # since its worker has it, in the order of `_COUNTERS`

    @property
    def labels(self) -> list[str]:
        return [self.connector, self.number]


class ConnectMetrics:
    """Metrics of the connectors of one store. limit: tasks that are shown."""

    def __init__(self, store: Engine, limit: int) -> None:
        self._store = store
        self._shown = Shown(limit)
        self._said: dict[bytes, tuple[int, list[_Task]]] = {}  # revision of a worker's heartbeat, and its tasks
        self._known: dict[
            bytes, tuple[int, str | None]
        ] = {}  # that of a connector, and its topics; None: it is stopped
        self._counted: dict[bytes, tuple[int, ...]] | None = None  # counts as of the last scrape
        self._recent: dict[bytes, float] = {}  # records lately
        self._rest = [0] * len(_COUNTERS)  # what tasks that are not shown have counted

    async def collect(self) -> Iterable[Metric]:
        """Not to be called again before it has ended."""
        slices = Slices()
        await self._read_connectors(slices)
        tasks = await self._read_tasks(slices)
        grown = self._grown(tasks)
        shown = self._shown
        for name in shown.names:
            if name not in tasks:
                shown.drop(name)
        shown.choose(self._scores(tasks, grown), monotonic())
        for name, counts in grown.items():
            if name not in shown:
                self._rest = [rest + count for rest, count in zip(self._rest, counts, strict=True)]
        await slices.rest()
        found = [tasks[name] for name in shown.names]
        others = [task for name, task in tasks.items() if name not in shown]
        return [*self._gauges(found, others), await self._lags(found, slices), *self._counters(found)]

    # --- what the bucket says

    async def _read_connectors(self, slices: Slices) -> None:
        known: dict[bytes, tuple[int, str | None]] = {}
        async for entry in entries_of(self._store, CONNECTOR, None, _MAX_CONNECTORS):
            name = entry.key[len(CONNECTOR) :]
            before = self._known.get(name)
            if before is None or before[0] != entry.revision:
                said = connector_of(entry)
                topics = None if said["state"] == "STOPPED" else said["config"].get("topics", "")
                before = (entry.revision, topics)
            if name != OTHER.encode():
                known[name] = before
            await slices.rest()
        self._known = known

    async def _read_tasks(self, slices: Slices) -> dict[bytes, _Task]:
        """All tasks of connectors that are not stopped, by name. Of two reports of a task the later one counts."""
        oldest_ms = int(time() * 1000) - GONE_MS
        said: dict[bytes, tuple[int, list[_Task]]] = {}
        async for entry in entries_of(self._store, WORKER, None, _MAX_WORKERS):
            before = self._said.get(entry.key)
            if before is None or before[0] != entry.revision:
                reports = islice(said_of(entry)["tasks"], _MAX_TASKS)
                made = (_task_of(each, entry.put_ms) for each in reports)
                before = (entry.revision, [task for task in made if task is not None])
            said[entry.key] = before
            await slices.rest()
        self._said = said
        found: dict[bytes, _Task] = {}
        connectors = set()
        for _, tasks in sorted(said.values(), key=lambda each: each[0]):
            for task in tasks:
                name = task.connector.encode()
                if self._known.get(name, (0, None))[1] is not None:
                    connectors.add(name)
                    is_gone = task.heard_ms < oldest_ms
                    found[name + b"/" + task.number.encode()] = replace(task, state=_GONE) if is_gone else task
            await slices.rest()
        for name, (_, topics) in self._known.items():
            if topics is not None and name not in connectors:
                nothing = (0,) * len(_COUNTERS)
                found[name + b"/"] = _Task(name.decode(errors="replace"), "", _GONE, 0, nothing)
        return found

    # --- what is shown

    def _grown(self, tasks: Mapping[bytes, _Task]) -> dict[bytes, tuple[int, ...]]:
        """What tasks have counted since the last scrape. A worker that takes a task begins at 0."""
        known = self._counted
        grown: dict[bytes, tuple[int, ...]] = {}
        for name, task in tasks.items():
            before = task.counts if known is None else known.get(name, (0,) * len(_COUNTERS))
            has_begun_anew = any(now < then for now, then in zip(task.counts, before, strict=True))
            grown[name] = (
                task.counts
                if has_begun_anew
                else tuple(now - then for now, then in zip(task.counts, before, strict=True))
            )
        self._counted = {name: task.counts for name, task in tasks.items()}
        return grown

    def _scores(self, tasks: Mapping[bytes, _Task], grown: Mapping[bytes, tuple[int, ...]]) -> dict[bytes, float]:
        """Records lately. A task that needs somebody comes before all others."""
        self._recent = {name: self._recent.get(name, 0) / 2 + counts[_RECORDS] for name, counts in grown.items()}
        return {
            name: _FAILED if tasks[name].state in ("FAILED", _GONE) else score for name, score in self._recent.items()
        }

    def _gauges(self, found: Iterable[_Task], others: Iterable[_Task]) -> Iterable[Metric]:
        now_ms = int(time() * 1000)
        labels = ["connector", "task"]
        states = GaugeMetricFamily("sluice_connect_tasks", "Tasks in a state", labels=[*labels, "state"])
        text = "Time since the heartbeat of the worker of a task"
        age = GaugeMetricFamily("sluice_connect_heartbeat_seconds", text, labels=labels)
        for task in found:
            states.add_metric([*task.labels, task.state], 1)
            if task.number:
                age.add_metric(task.labels, max(now_ms - task.heard_ms, 0) / 1000)
        counts = Counter(task.state for task in others)
        for state in _STATES:
            states.add_metric([OTHER, "", state], counts[state])
        return states, age

    async def _lags(self, found: Iterable[_Task], slices: Slices) -> Metric:
        lag = GaugeMetricFamily("sluice_connect_lag", "Messages that a sink has not delivered", labels=["connector"])
        for name in sorted({task.connector.encode() for task in found}):
            _, topics = self._known[name]
            behind = await lag_of(self._store, name, topics or "")
            if behind is not None:
                lag.add_metric([name.decode(errors="replace")], behind)
            await slices.rest()
        return lag

    def _counters(self, found: list[_Task]) -> Iterable[Metric]:
        for place, (metric, text, _) in enumerate(_COUNTERS):
            family = CounterMetricFamily(metric, text, labels=["connector", "task"])
            for task in found:
                if task.number:
                    family.add_metric(task.labels, task.counts[place])
            family.add_metric([OTHER, ""], self._rest[place])
            yield family


def _task_of(report: Any, heard_ms: int) -> _Task | None:
    """What a heartbeat says of a task; None: nothing that can be read."""
    if not isinstance(report, dict):
        return None
    connector, number, state = report.get("connector"), report.get("task"), report.get("state")
    if not isinstance(connector, str) or type(number) is not int or not 0 <= number < _MAX_TASKS:
        return None
    if state not in _STATES:
        return None
    counts = tuple(_count_of(report.get(key)) for _, _, key in _COUNTERS)
    return _Task(connector, str(number), state, heard_ms, counts)


def _count_of(count: Any) -> int:
    return count if type(count) is int and 0 <= count < _MAX_COUNT else 0
