"""The lag of a query and the records that it skipped, from its progress, and a listener for Prometheus."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from streaming.pipelines.readings import Reason
from streaming.pipelines.rejects import rejected
from streaming.source.lag import PartitionLag, lags_from_json
from streaming.source.offsets import LAG, Partition, StreamProgress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_NONE = StreamProgress({})


def lag(progress: Mapping[str, Any]) -> int:
    """Return the number of records, of all sources, that were not read yet when the batch ended. `progress` is
    `StreamingQuery.lastProgress` or an element of `recentProgress`."""
    behind = 0
    for source in progress.get("sources", ()):
        read, there = _progress(source.get("endOffset")).offsets, _progress(source.get("latestOffset")).offsets
        behind += sum(max(end - read.get(each, 0), 0) for each, end in there.items())
    return behind


def partition_lags(progress: Mapping[str, Any]) -> dict[Partition, PartitionLag]:
    """Return what was not read yet of each partition, (parent topic, number), when the batch was planned: records, and
    for up to 64 partitions bytes and the age of the oldest record in seconds. Partitions without a lag are left out."""
    found: dict[Partition, PartitionLag] = {}
    for source in progress.get("sources", ()):
        report = _object(source.get("latestOffset"))
        with suppress(ValueError, TypeError, AttributeError):
            found.update(lags_from_json(report.get(LAG, {})))
    return found


def skipped(progress: Mapping[str, Any]) -> int:
    """Return the number of records that were removed before the query read them (`failOnDataLoss` is false)."""
    return sum(_progress(source.get("endOffset")).skipped for source in progress.get("sources", ()))


def late(progress: Mapping[str, Any]) -> int:
    """Return the number of rows that the operators of a query dropped in a batch, because they came after the
    watermark."""
    return sum(state.get("numRowsDroppedByWatermark", 0) for state in progress.get("stateOperators") or ())


class PrometheusListener(StreamingQueryListener):
    """Shows the lag and the rejects of queries as metrics of `prometheus_client`:
    `spark.streams.addListener(PrometheusListener())`, and `prometheus_client.start_http_server(port, "127.0.0.1")` in
    the driver.

    The label `query` is the query's name, or its id if it has none. When a query ends, its rows are removed.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        """registry: `prometheus_client.REGISTRY` if it is None. Raises `ImportError` without that package."""
        from prometheus_client import REGISTRY, Counter, Gauge  # noqa: PLC0415  only who uses it needs it

        registry = REGISTRY if registry is None else registry
        labels = ("query", "parent", "partition")
        self._records = Gauge("sluice_spark_lag_records", "Records not read yet", labels, registry=registry)
        self._bytes = Gauge("sluice_spark_lag_bytes", "Bytes of these records", labels, registry=registry)
        self._seconds = Gauge("sluice_spark_lag_seconds", "Age of the oldest of them", labels, registry=registry)
        self._skipped = Gauge(
            "sluice_spark_skipped_records",
            "Records that were gone before they were read",
            ("query",),
            registry=registry,
        )
        self._rejected = Counter(
            "sluice_spark_rejected_records", "Records that were no readings", ("query", "reason"), registry=registry
        )
        self._names: dict[str, str] = {}  # by id
        self._shown: dict[str, set[tuple[str, str, str]]] = {}  # labels, by id

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802 - Spark names it
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        query = str(progress["id"])
        name = self._names.setdefault(query, progress.get("name") or query)
        rows = {(name, parent, str(number)): each for (parent, number), each in partition_lags(progress).items()}
        self._hide(self._shown.get(query, set()) - set(rows))
        self._shown[query] = set(rows)
        for labels, each in rows.items():
            self._records.labels(*labels).set(each.records)
            if each.bytes is not None:
                self._bytes.labels(*labels).set(each.bytes)
            if each.seconds is not None:
                self._seconds.labels(*labels).set(each.seconds)
        self._skipped.labels(name).set(skipped(progress))
        for reason, count in rejected(progress).items():
            self._rejected.labels(name, reason).inc(count)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802
        self._hide(self._shown.pop(str(event.id), set()))

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802
        query = str(event.id)
        self._hide(self._shown.pop(query, set()))
        name = self._names.pop(query, None)
        if name is not None:
            with suppress(KeyError):
                self._skipped.remove(name)
            for reason in Reason:
                with suppress(KeyError):
                    self._rejected.remove(name, reason.value)

    def _hide(self, rows: set[tuple[str, str, str]]) -> None:
        for gauge in (self._records, self._bytes, self._seconds):
            for labels in rows:
                with suppress(KeyError):
                    gauge.remove(*labels)


def _object(value: object) -> Mapping[str, Any]:
    """Parse a report of offsets, which Spark gives as an object or as its text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _progress(value: object) -> StreamProgress:
    """Parse offsets. Other sources have no such offsets."""
    try:
        return StreamProgress.from_json(_object(value), None)
    except ValueError:
        return _NONE
