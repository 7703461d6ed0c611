"""The lag of each partition, in the progress of a query and as metrics."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import orjson
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.datasource import ReadMaxRows

from cloud_sdk.arrow import SCHEMA
from streaming.progress import PrometheusListener, lag, partition_lags
from streaming.source.lag import PartitionLag, lags_from_json, lags_to_json
from streaming.source.options import SourceOptions
from streaming.source.stream import StreamReader


def progress_of(node: Any, limit: int) -> dict[str, Any]:
    reader = StreamReader(SourceOptions.parse({"endpoint": node.endpoint, "parent": "sensors"}), SCHEMA)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(limit))
    report = reader.reportLatestOffset()
    reader.stop()
    return {"sources": [{"endOffset": end, "latestOffset": orjson.dumps(report).decode()}]}


def test_records_bytes_and_seconds_of_each_partition(node: Any) -> None:
    node.publish(0, 10, size=100)
    node.publish(1, 4)
    progress = progress_of(node, 7)
    found = partition_lags(progress)
    assert {each: found[each].records for each in found} == {("sensors", 0): 5, ("sensors", 1): 2}
    assert lag(progress) == 7
    first = found["sensors", 0]
    assert first.bytes is not None and 5 * 100 < first.bytes < 5 * 300
    assert first.seconds is not None and first.seconds > 0
    assert partition_lags(progress_of(node, 14)) == {}


def test_lags_as_json() -> None:
    found = {("a", 1): PartitionLag(3, 30, 1.5), ("a", 0): PartitionLag(1), ("b/c", 0): PartitionLag(2, 20)}
    assert lags_from_json(lags_to_json(found)) == found
    assert partition_lags({"sources": [{"latestOffset": {"#lag": {"a": {"0": {"other": 1}}}}}, {}]}) == {}


def test_a_listener_for_prometheus(node: Any) -> None:
    node.publish(0, 10)
    registry = CollectorRegistry()
    listener = PrometheusListener(registry)
    name = {"query": "copy", "parent": "sensors", "partition": "0"}

    def event(limit: int) -> Any:
        metrics = {"observedMetrics": {"readings": {"usable": limit, "missing": 2, "null": 0}}}
        text = orjson.dumps({"id": "q1", "name": "copy", **metrics, **progress_of(node, limit)}).decode()
        return SimpleNamespace(progress=SimpleNamespace(json=text))

    listener.onQueryStarted(SimpleNamespace(id="q1", name="copy"))
    listener.onQueryProgress(event(4))
    assert registry.get_sample_value("sluice_spark_lag_records", name) == 6
    assert registry.get_sample_value("sluice_spark_lag_bytes", name) > 6 * 48
    assert registry.get_sample_value("sluice_spark_lag_seconds", name) > 0
    assert registry.get_sample_value("sluice_spark_skipped_records", {"query": "copy"}) == 0
    listener.onQueryProgress(event(10))
    assert registry.get_sample_value("sluice_spark_lag_records", name) is None
    listener.onQueryProgress(event(4))
    missing = {"query": "copy", "reason": "missing"}
    assert registry.get_sample_value("sluice_spark_rejected_records_total", missing) == 6
    assert registry.get_sample_value("sluice_spark_rejected_records_total", {**missing, "reason": "null"}) is None
    listener.onQueryTerminated(SimpleNamespace(id="q1"))
    assert registry.get_sample_value("sluice_spark_rejected_records_total", missing) is None
    assert registry.get_sample_value("sluice_spark_lag_records", name) is None
    assert registry.get_sample_value("sluice_spark_skipped_records", {"query": "copy"}) is None
