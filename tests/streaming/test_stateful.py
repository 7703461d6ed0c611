"""Pipelines with state per device, over a stream of files that come one by one, and what else they are made of."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import csv, dataset, parquet

pytest.importorskip("pyspark")

from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.archive import SCHEMA, Archive, downsampled
from streaming.pipelines.detector import Detector, Settings
from streaming.pipelines.enrichment import Registry, enriched
from streaming.pipelines.liveness import liveness
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.running import describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 300  # for what Spark does on a busy machine
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
READINGS = "device string, time timestamp, value double"
Reading = tuple[str, datetime, float]

pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture
def stateful(spark: "SparkSession") -> Iterator["SparkSession"]:
    """One partition of state: each takes a process of Python in each batch."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    for name, value in {**STATE_CONFIG, "spark.sql.shuffle.partitions": "1"}.items():
        spark.conf.set(name, value)
    yield spark
    for name in STATE_CONFIG:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.shuffle.partitions", before or "2")


class Files:
    """A stream whose micro-batches are written one after the other, and a query over it that is started again."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.rows: list[Row] = []
        (folder / "in").mkdir()

    def stream(self) -> "DataFrame":
        reader = self.spark.readStream.schema(READINGS).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "in"))

    def batch(self, number: int, readings: list[Reading], *, times: tuple[str, ...] = ()) -> None:
        """Also readings of the device `a` at other `times`, such as only Java has."""
        lines = [json.dumps({"device": d, "time": t.isoformat(), "value": v}) for d, t, v in readings]
        lines += [json.dumps({"device": "a", "time": time, "value": 7.0}) for time in times]
        path = self.folder / "in" / f"{number}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their times

    def run(self, result: "DataFrame", write: Any = None) -> "StreamingQuery":
        def collect(batch: "DataFrame", _number: int) -> None:
            self.rows += batch.collect()

        sink = result.writeStream.outputMode("append").foreachBatch(write or collect)
        sink = sink.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True)
        query = sink.start()
        assert query.awaitTermination(SECONDS)
        return query


@pytest.fixture
def files(stateful: "SparkSession", tmp_path: Path) -> Files:
    return Files(stateful, tmp_path)


def naive(time: datetime) -> datetime:
    """As Spark's Python side hands timestamps over: local time without a zone."""
    return time.astimezone().replace(tzinfo=None)


def test_anomalies_are_those_of_the_detector_whatever_the_batches(files: Files) -> None:
    settings = Settings(warm_up=20, warm_up_s=0.0, slots=1, rest_s=600.0, tail=0.0)
    series: dict[str, list[Reading]] = {}
    for number, device in enumerate(("a", "b/c")):
        values = [20.0 + n % 3 + (40.0 if n in (50 + number, 51 + number, 52 + number) else 0.0) for n in range(80)]
        series[device] = [(device, BEGIN + timedelta(minutes=n), value) for n, value in enumerate(values)]
    every = [reading for readings in series.values() for reading in readings]
    every.sort(key=lambda reading: reading[1])
    first, second = every[:90], every[90:]
    files.batch(0, first[::-1], times=("0001-01-01T00:00:00Z", "+12000-01-01T00:00:00Z"))
    files.run(anomalies(files.stream(), settings))
    files.batch(1, [*second, second[0], ("a", BEGIN, 900.0)])
    files.run(anomalies(files.stream(), settings))
    expected = set()
    for device, readings in series.items():
        detector = Detector(settings)
        for _, time, value in readings:
            if (found := detector.observe(time.timestamp(), value)) is not None:
                expected.add((device, naive(time), value, round(found.score, 6), found.kind))
    assert len(expected) == 2
    assert {(row.device, row.time, row.value, round(row.score, 6), row.kind) for row in files.rows} == expected
    assert len(files.rows) == 2


def test_times_are_what_they_are_wherever_a_machine_stands(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the hour that its clock is set back, and where a device says what no clock shows."""
    monkeypatch.setitem(files.spark.sparkContext.environment, "TZ", "Europe/Berlin")  # of the workers
    begin = datetime(2026, 10, 24, 20, tzinfo=UTC)
    settings = Settings(warm_up=10, warm_up_s=3_600.0, slots=1, rest_s=600.0, tail=0.0)
    times = [begin + timedelta(minutes=10 * number) for number in range(60)]
    values = [number % 3 + (50.0 if number in (33, 34, 35) else 0.0) for number in range(60)]
    detector = Detector(settings)
    pairs = zip(times, values, strict=True)
    expected = [found.time for time, value in pairs if (found := detector.observe(time.timestamp(), value))]
    assert expected
    files.batch(0, [("a", time, value) for time, value in zip(times, values, strict=True)])
    with (files.folder / "in" / "0.json").open("a") as lines:
        for time in ("+12345-01-01T00:00:00Z", "-0100-01-01T00:00:00Z"):
            lines.write("\n" + json.dumps({"device": "b", "time": time, "value": 1.0}))
    os.utime(files.folder / "in" / "0.json", (1, 1))
    files.run(anomalies(files.stream(), settings).selectExpr("unix_seconds(time) AS at"))
    assert [row.at for row in files.rows] == expected


def test_no_device_is_silent_when_the_clock_is_set_back(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.spark.sparkContext.environment, "TZ", "Europe/Berlin")
    begin = datetime(2026, 10, 24, 20, tzinfo=UTC)
    files.batch(0, [("a", begin + timedelta(minutes=10 * number), 0.0) for number in range(60)])
    files.batch(1, [("a", begin + timedelta(minutes=10 * number), 0.0) for number in range(60, 62)])
    files.run(liveness(files.stream(), silent_after_s=1200))
    assert files.rows == []


def test_alerts_are_messages(spark: "SparkSession") -> None:
    found = spark.createDataFrame([("a/b+c", BEGIN, 9.0)], READINGS)
    (row,) = alerts(found, "alerts/x", retain=True).collect()
    assert (row.topic, row.retain, row.content_type) == ("alerts/x/a_b_c", True, "application/json")
    assert json.loads(row.payload)["device"] == "a/b+c"
    odd = spark.createDataFrame([(None, BEGIN, 9.0), ("x" * 70_000, BEGIN, 9.0)], READINGS)
    assert [row.topic for row in alerts(odd, "alerts").collect()] == ["alerts/_", "alerts/" + "x" * 256]


def test_silent_and_returned_devices_are_reported(files: Files) -> None:
    def at(second: float) -> datetime:
        return BEGIN + timedelta(seconds=second)

    def run() -> None:
        files.run(liveness(files.stream(), silent_after_s=60, late="5 seconds"))

    files.batch(0, [("a", at(0), 0), ("b", at(1), 0), ("c", at(2), 0)])
    second = [("a", at(30), 0.0), ("c", at(40), 0.0), ("c", at(190), 0.0)]  # c: silent and back in one batch
    files.batch(1, second, times=("0001-01-01T00:00:00Z", "+12000-01-01T00:00:00Z"))
    run()
    assert ("c", "back", naive(at(190)), 150.0) in {(r.device, r.event, r.time, r.silent_s) for r in files.rows}
    files.batch(2, [("a", at(200), 0)])
    files.batch(3, [("c", at(210), 0)])
    run()
    events = sorted((row.device, row.event, row.time, row.last_seen, row.silent_s) for row in files.rows)
    assert events == [
        ("a", "back", naive(at(200)), naive(at(30)), 170.0),
        ("a", "silent", naive(at(90)), naive(at(30)), 60.0),
        ("b", "silent", naive(at(61)), naive(at(1)), 60.0),
        ("c", "back", naive(at(190)), naive(at(40)), 150.0),
        ("c", "silent", naive(at(100)), naive(at(40)), 60.0),
    ]


def test_a_device_is_forgotten_when_it_was_silent_for_long(files: Files) -> None:
    def at(second: float) -> datetime:
        return BEGIN + timedelta(seconds=second)

    def run() -> None:
        files.run(liveness(files.stream(), silent_after_s=60, forget_after_s=600, late="5 seconds"))

    files.batch(0, [("a", at(0), 0), ("b", at(0), 0), ("c", at(0), 0)])
    files.batch(1, [("b", at(30), 0), ("c", at(650), 0), ("c", at(1_400), 0)])  # c: long away, twice
    files.batch(2, [("c", at(1_401), 0)])
    run()
    files.batch(3, [("a", at(1_402), 0)])  # forgotten: its first message
    run()
    events = sorted((row.device, row.event, row.time) for row in files.rows)
    assert events == [
        ("a", "silent", naive(at(60))),
        ("b", "silent", naive(at(90))),
        ("c", "silent", naive(at(60))),
        ("c", "silent", naive(at(710))),
    ]
    with pytest.raises(ValueError, match="must be above silent_after_s"):
        liveness(files.stream(), silent_after_s=60, forget_after_s=60)


def test_a_detector_is_forgotten_when_nothing_comes(files: Files) -> None:
    """`a` and `c` are seen again after more than an hour, `b` in time: only `b` knows what is usual."""
    settings = Settings(warm_up=20, warm_up_s=0.0, slots=1, rest_s=600.0, tail=0.0)

    def run() -> int:
        stream = files.stream().selectExpr("*", "CASE WHEN value < 1000 THEN time END AS seen")
        query = files.run(anomalies(stream, settings, forget_after_s=3600, seen="seen"))
        return int(query.recentProgress[-1]["stateOperators"][0]["numRowsTotal"])

    def batch(number: int, first: int, last: int, value: float, *devices: str) -> None:
        readings = ((d, BEGIN + timedelta(minutes=n), value + n % 3) for n in range(first, last) for d in devices)
        files.batch(number, list(readings))

    batch(0, 0, 60, 20.0, "a", "b", "c")
    batch(1, 110, 111, 20.0, "b")
    with (files.folder / "in" / "1.json").open("a") as lines:  # one of which nobody knows when it was seen
        lines.write("\n" + json.dumps({"device": "b", "time": BEGIN.isoformat(), "value": 2000.0}))
    os.utime(files.folder / "in" / "1.json", (2, 2))
    assert run() == 3
    assert files.rows == []
    batch(2, 130, 131, 90.0, "c")  # forgotten, before its timer came
    batch(3, 165, 168, 90.0, "b")
    assert run() == 3
    assert {row.device for row in files.rows} == {"b"}
    batch(4, 183, 184, 20.0, "b")
    assert run() == 2  # of `a` the state is gone
    batch(5, 184, 187, 90.0, "a", "c")
    assert run() == 3
    assert {row.device for row in files.rows} == {"b"}
    for wrong in (0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be finite and above 0"):
            anomalies(files.stream(), settings, forget_after_s=wrong)


def test_late_rows_are_counted_in_the_progress_of_the_query(files: Files) -> None:
    readings = [("a", BEGIN + timedelta(minutes=n), 1.0) for n in range(0, 180, 10)]
    files.batch(0, readings)
    files.batch(1, [("a", BEGIN + timedelta(hours=3), 3.0)])  # Spark calls late what was so a batch before
    files.batch(2, [("a", BEGIN, 2.0), ("a", BEGIN + timedelta(hours=3), 3.0)])
    query = files.run(window_statistics(files.stream(), window="1 hour", late="10 minutes"))
    lines = [describe(progress) for progress in query.recentProgress]
    assert [line for line in lines if ", late 1," in line and "watermark 2026-01-01T02:50:00.000Z" in line], lines
    assert sorted((row.window_start, row.readings) for row in files.rows) == [
        (naive(BEGIN), 6),
        (naive(BEGIN + timedelta(hours=1)), 6),
    ]


def test_a_registry_is_a_table_of_a_database(spark: "SparkSession", tmp_path: Path) -> None:
    """Derby, which Spark brings."""
    assert spark._jvm is not None
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
    url = f"jdbc:derby:{tmp_path}/registry;create=true"
    options = {"url": url, "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}

    def write(*rows: tuple[str, str]) -> None:
        table = spark.createDataFrame(rows, "device string, room string")
        types = "device VARCHAR(64), room VARCHAR(64)"
        writer = table.write.format("jdbc").options(dbtable="devices", createTableColumnTypes=types, **options)
        writer.mode("overwrite").save()

    def execute(statement: str) -> None:
        assert spark._jvm is not None
        connection = spark._jvm.java.sql.DriverManager.getConnection(url)
        connection.createStatement().execute(statement)
        connection.close()

    def rooms() -> dict[str, str | None]:
        return {
            row.device: row.registry and row.registry.room for row in enriched(readings, registry.frame()).collect()
        }

    readings = spark.createDataFrame([("a", BEGIN, 1.0), ("z", BEGIN, 2.0)], READINGS)
    with pytest.raises(Exception, match=r"(?i)devices"):
        Registry(spark, "devices", kind="jdbc", options=options).frame()
    write(("a", "bath"))
    registry = Registry(spark, "devices", kind="jdbc", options=options)
    try:
        assert rooms() == {"a": "bath", "z": None}
        write(("a", "attic"), ("z", "cellar"))
        assert rooms() == {"a": "attic", "z": "cellar"}
        execute("DROP TABLE devices")
        assert rooms() == {"a": "attic", "z": "cellar"}  # the last good one
        assert registry.loads == 2
        write(("z", "hall"))
        assert rooms() == {"a": None, "z": "hall"}
    finally:
        with contextlib.suppress(Exception):  # which is how Derby says that it has closed it
            assert spark._jvm is not None
            spark._jvm.java.sql.DriverManager.getConnection(url.replace("create=true", "shutdown=true"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_a_registry_that_is_broken_leaves_the_one_before(spark: "SparkSession", tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"devices.{kind}"

    def write(**columns: list[str]) -> None:
        table = pa.table(columns)
        if kind == "parquet":
            parquet.write_table(table, path)
        elif kind == "json":
            path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
        else:
            csv.write_csv(table, path)

    def rooms() -> list[tuple[str, str]]:
        return sorted((row.device, row.room) for row in registry.frame().collect())

    registry = Registry(spark, str(path))
    with pytest.raises(Exception, match=r"(?i)exist"):
        registry.frame()
    write(device=["a"], room=["bath"])
    assert rooms() == [("a", "bath")]
    for broken in (b"", b"PAR1 half of it"):
        path.write_bytes(broken)
        assert rooms() == [("a", "bath")]
    write(name=["b"], room=["hall"])  # without its key
    assert rooms() == [("a", "bath")]
    write(device=["b"], room=["hall"])
    assert rooms() == [("b", "hall")]
    assert registry.loads == 2


def test_a_registry_is_read_again_when_it_changes(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("device,room\na,bath\na,hall\n")
    readings = spark.createDataFrame([("a", BEGIN, 1.0), ("z", BEGIN, 2.0)], READINGS)
    registry = Registry(spark, str(path))

    def rooms() -> dict[str, str | None]:
        rows = enriched(readings, registry.frame()).collect()
        assert len(rows) == 2
        return {row.device: row.registry and row.registry.room for row in rows}

    assert rooms()["a"] in ("bath", "hall") and rooms()["z"] is None
    assert registry.loads == 1
    path.write_text("device,room,floor\n007,bath,1\n")
    (row,) = enriched(spark.createDataFrame([("007", BEGIN, 1.0)], READINGS), registry.frame()).collect()
    assert (row.registry.room, row.registry.floor) == ("bath", 1)
    path.write_text("device,room\na,attic\nz,cellar\n")
    assert rooms() == {"a": "attic", "z": "cellar"}
    path.unlink()
    assert rooms() == {"a": "attic", "z": "cellar"}  # while it is replaced
    assert registry.loads == 3
    with pytest.raises(ValueError, match="one of csv"):
        Registry(spark, "devices.xlsx")


def test_down_sampled_hours_are_one_file_each(files: Files, tmp_path: Path) -> None:
    archive = Archive(str(tmp_path / "archive"))

    def run() -> None:
        files.run(downsampled(files.stream(), window="10 minutes", late="1 minute"), archive.write)

    for batch in range(4):
        times = [BEGIN + timedelta(minutes=40 * batch + 5 * step) for step in range(8)]
        files.batch(batch, [(device, time, float(time.minute)) for time in times for device in "ab"])
    run()
    found = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    assert [str(path.relative_to(tmp_path / "archive")) for path in sorted((tmp_path / "archive").glob("d*/*"))] == [
        "date=2026-01-01/00.parquet",
        "date=2026-01-01/01.parquet",
    ]
    rows = found.to_pylist()
    assert len(rows) == 2 * 12 and {row["readings"] for row in rows} == {2}
    assert [row["last"] for row in rows if row["device"] == "a"][:6] == [5.0, 15.0, 25.0, 35.0, 45.0, 55.0]
    assert archive.close_hours(also_last=True) == ["2026-01-01T02"]


def table(*minutes: int) -> pa.Table:
    rows = [
        {
            "device": "a",
            "window_start": BEGIN + timedelta(minutes=minute),
            "window_end": BEGIN + timedelta(minutes=minute + 1),
            "readings": 1,
            **dict.fromkeys(("mean", "minimum", "maximum", "last"), float(minute)),
        }
        for minute in minutes
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize("crash", ["before", "written", "half-removed"])
def test_an_archive_that_a_crash_left_anywhere_has_each_row_once(tmp_path: Path, crash: str) -> None:
    archive = Archive(str(tmp_path))
    archive.stage(table(1, 2), 0)
    archive.stage(table(59, 61), 1)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "_staging", kept)
    if crash != "before":
        archive.close_hours()
    if crash == "half-removed":
        (kept / "2026-01-01T00" / f"{0:020}.parquet").unlink()
    shutil.rmtree(tmp_path / "_staging")
    kept.rename(tmp_path / "_staging")
    again = Archive(str(tmp_path))
    again.stage(table(59, 61), 1)  # Spark does the batch again
    assert again.close_hours() == ["2026-01-01T00"]
    assert again.close_hours(also_last=True) == ["2026-01-01T01"]
    assert not list((tmp_path / "_staging").iterdir())
    hours = [
        parquet.read_table(tmp_path / "date=2026-01-01" / name)["last"].to_pylist()
        for name in ("00.parquet", "01.parquet")
    ]
    assert hours == [[1.0, 2.0, 59.0], [61.0]]
