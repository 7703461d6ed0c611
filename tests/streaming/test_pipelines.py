"""The pipelines' functions: JSON payloads, statistics and anomalies against a plain computation, sinks, chart."""

import math
import random
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streaming.pipelines.chart import WindowRow, draw_statistics
from streaming.pipelines.payload import inferred_schema, with_cbor, with_json
from streaming.pipelines.sinks import read_updates, update_parquet
from streaming.pipelines.windows import window_statistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
READINGS = "device string, time timestamp, value double"


def naive(time: datetime) -> datetime:
    """As Spark's Python side hands timestamps over: local time without a zone."""
    return time.astimezone().replace(tzinfo=None)


def test_statistics_are_those_of_a_plain_computation(spark: "SparkSession") -> None:
    dice = random.Random(4)
    rows: list[tuple[str, datetime, float]] = []
    for device in range(3):
        for hour in range(4):
            for minute in range(dice.randint(1, 14)):
                time = BEGIN + hour * HOUR + timedelta(minutes=minute)
                rows.append((f"d{device}", time, round(dice.gauss(20, 2), 3)))
    rows.append(("d0", BEGIN + timedelta(minutes=59), 95.0))
    resent = [*rows, *dice.sample(rows, 10)]
    resent += [("d1", BEGIN + timedelta(minutes=58), value) for value in (math.nan, math.inf, -math.inf)]
    dice.shuffle(resent)
    found = window_statistics(spark.createDataFrame(resent, READINGS), window="1 hour", late="1 day", k=5.0).collect()

    expected: dict[tuple[str, datetime], list[tuple[datetime, float]]] = {}
    for name, time, value in rows:
        expected.setdefault((name, naive(time.replace(minute=0))), []).append((naive(time), value))
    assert {(row.device, row.window_start) for row in found} == set(expected)
    for row in found:
        group = expected[row.device, row.window_start]
        values = [value for _, value in group]
        median = statistics.median(values)
        spread = statistics.median(abs(value - median) for value in values)
        assert row.readings == len(group)
        assert row["mean"] == pytest.approx(statistics.fmean(values))
        assert (row.minimum, row.maximum) == (min(values), max(values))
        assert row["median"] == pytest.approx(median)
        assert row.spread == pytest.approx(spread)
        flagged = sorted(time for time, value in group if spread and abs(value - median) > 5 * 1.4826 * spread)
        assert [anomaly.time for anomaly in row.anomalies] == flagged
    assert any(anomaly.value == 95.0 for row in found for anomaly in row.anomalies)


def test_a_sensor_that_stands_still_is_flagged_only_with_a_floor(spark: "SparkSession") -> None:
    rows = [("d", BEGIN + timedelta(minutes=minute), 20.0) for minute in range(10)]
    rows.append(("d", BEGIN + timedelta(minutes=10), 21.0))
    readings = spark.createDataFrame(rows, READINGS)
    (plain,) = window_statistics(readings, window="1 hour", late="1 day").collect()
    (floored,) = window_statistics(readings, window="1 hour", late="1 day", min_spread=0.05).collect()
    assert plain.spread == 0
    assert plain.anomalies == []
    assert [anomaly.value for anomaly in floored.anomalies] == [21.0]


def test_json_that_is_broken_gives_nulls(spark: "SparkSession") -> None:
    payloads = [b'{"value": 4.5, "device": "a"}', b"{", b'{"value": "x"}', b"\xff\xfe"]
    frame = spark.createDataFrame([(bytearray(payload),) for payload in payloads], "payload binary")
    bodies = [row.body for row in with_json(frame, "device string, value double").collect()]
    assert bodies[0].value == 4.5
    assert [body.value if body else None for body in bodies[1:]] == [None, None, None]


def test_updates_keep_the_newest_row_of_each_key(spark: "SparkSession", tmp_path: Path) -> None:
    """Two runs of one streaming query: the second changes a window that the first has written."""
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    for minutes in ((0, 1), (2, 70)):
        rows = [("d", BEGIN + timedelta(minutes=minute), float(minute)) for minute in minutes]
        spark.createDataFrame(rows, READINGS).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(READINGS).parquet(str(source))
        windows = window_statistics(stream, window="1 hour", late="1 day")
        query = update_parquet(windows, out, checkpoint, name="windows", every=None)
        assert query.awaitTermination(60)
    newest = read_updates(spark, out, ["device", "window_start"]).orderBy("window_start").collect()
    assert [(row.readings, row["median"]) for row in newest] == [(3, 1.0), (1, 70.0)]


def test_chart_is_a_picture_of_the_devices_with_most_anomalies(tmp_path: Path) -> None:
    rows = [
        WindowRow(f"d{device}", BEGIN + hour * HOUR, 1.0, 2.0, 3.0, [(BEGIN, 9.0)] * (device % 2))
        for device in range(8)
        for hour in range(5)
    ]
    path = tmp_path / "chart.png"
    assert draw_statistics(rows, path, title="All", limit=5) == 5
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_statistics([], path, title="None")


def test_a_schema_is_found_in_a_sample_and_cbor_is_read_by_it(spark: "SparkSession") -> None:
    texts = [b'{"device": "d", "value": 1}', b'{"value": 2.5, "tags": ["x"]}', b"no JSON", b"[1]", b"[" * 100_000]
    json_records = spark.createDataFrame([(bytearray(text),) for text in texts], "payload binary")
    schema = inferred_schema(json_records)
    assert schema.simpleString() == "struct<device:string,tags:array<string>,value:double>"
    rows = with_json(json_records, schema).select("body.*").collect()
    read = [(row.device, row.value, row.tags) for row in rows[:3]]
    assert read == [("d", 1.0, None), (None, 2.5, ["x"]), (None, None, None)]
    cbor = [bytes.fromhex("a2666465766963656164" + "6576616c7565f93e00"), b"\xff", bytes.fromhex("01")]
    records = spark.createDataFrame([(bytearray(item),) for item in cbor], "payload binary")
    assert inferred_schema(records, "cbor").simpleString() == "struct<device:string,value:double>"
    found = with_cbor(records, schema).select("body.device", "body.value").collect()
    assert [tuple(row) for row in found] == [("d", 1.5), (None, None), (None, None)]
    with pytest.raises(ValueError, match="none of 3"):
        inferred_schema(records)


def test_names_are_one_field_in_any_case_and_iso_times_are_timestamps(spark: "SparkSession") -> None:
    texts = [
        b'{"device": "a", "at": "2026-01-01T00:00:00Z", "day": "2026-01-01", "id": "20260101", "x": {"Y": 1, "y": 2}}',
        b'{"Device": 7, "at": "2026-01-01T01:00:00.5+01:00", "day": null, "id": "2026", "mixed": "2026-01-01"}',
        b'{"DEVICE": "b", "at": null, "mixed": "soon"}',
    ]
    found = inferred_schema(spark.createDataFrame([(bytearray(text),) for text in texts], "payload binary"))
    assert found.simpleString() == (
        "struct<at:timestamp,day:timestamp,device:string,id:string,mixed:string,x:struct<Y:bigint>>"
    )
