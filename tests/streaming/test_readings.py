"""What payloads mean, leniently and strictly, and why one is no reading."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import DoubleType, StringType, StructType, TimestampType

from streaming.pipelines.readings import MOST_ITEMS, ReadingFormat, body_type, parsed
from streaming.pipelines.rejects import SOURCE_COLUMNS, counted, reject_messages, reject_rows, rejected, replayed
from streaming.source.body import BODY, BodyParser
from streaming.source.columns import checked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

STORED = datetime(2026, 1, 1, tzinfo=UTC)
STORED_S = 1_767_225_600
FORM = ReadingFormat(StructType().add("device", StringType()).add("time", TimestampType()).add("value", DoubleType()))
HEAD = b'"device":"d","time":1767225600'


def of(rest: bytes) -> bytes:
    return b"{" + HEAD + rest + b"}"


def records(spark: "SparkSession", payloads: Sequence[bytes]) -> "DataFrame":
    rows = [(number, "s/d", ["s", "d"], bytearray(payload)) for number, payload in enumerate(payloads)]
    frame = spark.createDataFrame(rows, "offset long, topic string, levels array<string>, payload binary")
    return frame.select(
        "topic",
        "levels",
        "payload",
        F.lit("client").alias("client_id"),
        F.lit(3).alias("partition"),
        "offset",
        F.timestamp_seconds(F.lit(STORED_S)).alias("stored_at"),
        (F.col("offset") * 100).alias("position"),
    )


def with_bodies(rows: "DataFrame", form: ReadingFormat) -> "DataFrame":
    """Add the column `body` as the source does."""
    kind = body_type(form)
    assert kind is not None
    schema = StructType([*rows.schema.fields]).add(BODY, kind)
    arrow = checked(StructType().add(BODY, kind)).field(BODY)

    def added(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parser = BodyParser(arrow.type)
        for batch in batches:
            yield batch.append_column(arrow, parser.parsed(batch.column("payload")))

    return rows.mapInArrow(added, schema)


def results(
    spark: "SparkSession", form: ReadingFormat, payloads: Sequence[bytes], *, by_tasks: bool = False
) -> list[list[Any]]:
    """For each payload what is found in it: values, or reasons with their fields, in the order of an array.

    by_tasks: with the column `body`."""
    source = records(spark, payloads)
    rows = parsed(with_bodies(source, form) if by_tasks else source, form).select(
        "offset",
        F.unix_micros("reading.time").alias("at"),
        "reading.value",
        "reading.device",
        F.col("reject.reason").alias("reason"),
        F.col("reject.field").alias("field"),
    )
    found: list[list[Any]] = [[] for _ in payloads]
    for row in rows.collect():
        if row.reason is not None:
            found[row.offset].append(f"{row.reason} {row.field}" if row.field else row.reason)
        else:
            found[row.offset].append((row.device, (row.at - STORED_S * 10**6) / 10**6, row.value))
    return found


READING = ("d", 0.0, 12.5)
# A payload, what is found in it, and what is found strictly.
PAYLOADS: list[tuple[bytes, list[Any], list[Any]]] = [
    (of(b',"value":12.5'), [READING], [READING]),
    (of(b',"value":"12.5"'), [READING], ["wrong_type value"]),
    (of(b',"value":" 1.25e1 "'), [READING], ["wrong_type value"]),
    (of(b',"Value":12.5'), [READING], ["missing value"]),
    (b'{"DEVICE":"d","Time":1767225600,"VALUE":"12.5"}', [READING], ["missing device"]),
    (b"\xef\xbb\xbf" + of(b',"value":12.5'), [READING], ["malformed"]),
    (b'{"device":"d","time":1767225600250,"value":12.5}', [("d", 0.25, 12.5)], ["bad_time time"]),
    (b'{"device":"d","time":1767225600.25,"value":12.5}', [("d", 0.25, 12.5)], ["bad_time time"]),
    (b'{"device":"d","time":"1767225600250","value":12.5}', [("d", 0.25, 12.5)], ["bad_time time"]),
    (b'{"device":"d","time":"2026-01-01T00:00:00.25Z","value":12.5}', [("d", 0.25, 12.5)], [("d", 0.25, 12.5)]),
    (b'{"device":"d","time":"2026-01-01T02:00:00+02:00","value":12.5}', [READING], [READING]),
    (b'{"device":"d","time":"2026-01-01","value":12.5}', [READING], [READING]),
    (b'{"device":7,"time":1767225600,"value":12.5}', [("7", 0.0, 12.5)], [("7", 0.0, 12.5)]),
    (
        b" [" + of(b',"value":12.5') + b",3,null," + of(b',"value":"x"') + b"]",
        [READING, "not_object", "not_object", "wrong_type value"],
        ["not_object"],
    ),
    (b"[]", ["empty"], ["not_object"]),
    (b"[ \n]", ["empty"], ["not_object"]),
    (b"[" + b"1," * MOST_ITEMS + b"1]", ["too_many"], ["not_object"]),
    (b"[[1]]", ["not_object"], ["not_object"]),
    (b"", ["empty"], ["empty"]),
    (b" \n", ["empty"], ["empty"]),
    (b"\xff\xfe{}", ["binary"], ["binary"]),
    (b"{", ["malformed"], ["malformed"]),
    (b"[" * 100_000, ["malformed"], ["malformed"]),
    (of(b',"value":12.5') + b" x", ["malformed"], ["malformed"]),
    (of(b',"value":1') + of(b',"value":2'), ["malformed"], ["malformed"]),
    (of(b',"value":1') + b"," + of(b',"value":2'), ["malformed"], ["malformed"]),
    (b"12.5", ["not_object"], ["not_object"]),
    (b"null", ["not_object"], ["not_object"]),
    (b"{}", ["missing device"], ["missing device"]),
    (b'{"device":null,"time":1767225600,"value":1}', ["null device"], ["null device"]),
    (of(b""), ["missing value"], ["missing value"]),
    (of(b',"value":null'), ["null value"], ["null value"]),
    (of(b',"value":NaN'), ["not_finite value"], ["not_finite value"]),
    (of(b',"value":"-inf"'), ["not_finite value"], ["not_finite value"]),
    (of(b',"value":1e400'), ["not_finite value"], ["not_finite value"]),
    (of(b',"value":true'), ["wrong_type value"], ["wrong_type value"]),
    (of(b',"value":[1]'), ["wrong_type value"], ["wrong_type value"]),
    (of(b',"value":"12d"'), ["wrong_type value"], ["wrong_type value"]),
    (of(b',"value":"0x1p3"'), ["wrong_type value"], ["wrong_type value"]),
    (b'{"device":"d","value":1}', ["missing time"], ["missing time"]),
    (b'{"device":"d","time":"noon","value":1}', ["bad_time time"], ["bad_time time"]),
    (b'{"device":"d","time":"12:00","value":1}', ["bad_time time"], None),
    (b'{"device":"d","time":-5,"value":1}', ["bad_time time"], ["bad_time time"]),
    (b'{"device":"d","time":1767225600250000,"value":1}', ["bad_time time"], None),  # microseconds
    (b'{"device":"d","time":9223372036854775807,"value":1}', ["bad_time time"], None),
    (b'{"device":"d","time":"-0100-01-01T00:00:00Z","value":1}', ["bad_time time"], ["bad_time time"]),
    (b'{"device":"d","time":"+12000-01-01T00:00:00Z","value":1}', ["bad_time time"], ["bad_time time"]),
    (b'{"device":"d","time":1767229201,"value":1}', ["future_time time"], ["future_time time"]),
    (b'{"device":"d","device":"e","x":{"y":1,"y":2},"time":1767225600,"value":null}', ["null value"], ["null value"]),
]


@pytest.mark.parametrize("by_tasks", [False, True])
def test_payloads_are_read_leniently(spark: "SparkSession", by_tasks: bool) -> None:
    found = results(spark, FORM, [payload for payload, _, _ in PAYLOADS], by_tasks=by_tasks)
    for (payload, expected, _), each in zip(PAYLOADS, found, strict=True):
        assert each == expected, payload[:200]


@pytest.mark.parametrize("by_tasks", [False, True])
def test_strictly_only_what_the_schema_says_is_a_reading(spark: "SparkSession", by_tasks: bool) -> None:
    found = results(spark, replace(FORM, strict=True), [payload for payload, _, _ in PAYLOADS], by_tasks=by_tasks)
    for (payload, _, expected), each in zip(PAYLOADS, found, strict=True):
        assert expected is None or each == expected, payload[:200]


@pytest.mark.parametrize("by_tasks", [False, True])
def test_fields_may_be_nested_and_have_other_names(spark: "SparkSession", by_tasks: bool) -> None:
    schema = StructType.fromDDL("meta struct<id:string,at:timestamp>, data struct<t:int>")
    form = ReadingFormat(schema, "meta.id", "meta.at", "data.t")
    payloads = [
        b'{"meta":{"id":"d","at":1767225600},"data":{"t":12}}',
        b'{"Meta":{"ID":"d","at":"1767225600000"},"data":{"T":"12"}}',
        b'{"meta":{"id":"d","at":1767225600},"data":{"t":12.5}}',
        b'{"meta":{"id":"d","at":1767225600},"data":7}',
    ]
    assert results(spark, form, payloads, by_tasks=by_tasks) == [
        [("d", 0.0, 12)],
        [("d", 0.0, 12)],
        ["wrong_type data.t"],
        ["missing data.t"],
    ]
    with pytest.raises(ValueError, match=r"no field 'data\.u'"):
        parsed(records(spark, payloads), replace(form, value="data.u"))


def test_the_device_may_be_a_level_and_the_time_that_of_storing(spark: "SparkSession") -> None:
    form = replace(FORM, device="level:1", time="stored_at")
    assert results(spark, form, [b'{"value":1}', b"{}"]) == [[("d", 0.0, 1.0)], ["missing value"]]
    assert results(spark, replace(form, device="level:2"), [b'{"value":1}']) == [["missing level:2"]]
    assert results(spark, replace(form, largest=0.5), [b'{"value":1}']) == [["not_finite value"]]


def test_a_device_that_is_not_needed_is_found_all_the_same(spark: "SparkSession") -> None:
    form = replace(FORM, needs=frozenset({"time", "value"}))
    payloads = [b'{"DEVICE":"d","time":1767225600,"value":1}', b'{"time":1767225600,"value":1}']
    assert results(spark, form, payloads) == [[("d", 0.0, 1.0)], [(None, 0.0, 1.0)]]


def test_other_fields_are_converted_or_rejected(spark: "SparkSession") -> None:
    schema = StructType.fromDDL("device string, n int, on boolean, tags array<string>, at timestamp")
    form = ReadingFormat(schema, needs=frozenset(), ahead=None, others=True)
    payloads = [
        b'{"device":"d","n":"7","ON":"true","tags":["a"],"at":1767225600000}',
        b'{"device":"d"}',
        b'{"device":"d","n":"seven"}',
        b'{"n":1}',
    ]
    assert body_type(form) is None  # tasks parse no arrays
    rows = parsed(records(spark, payloads), form).orderBy("offset").select("reading.*", "reject.reason", "reject.field")
    first, *rest = rows.collect()
    assert (first.device, first.n, first.on, first.tags) == ("d", 7, True, ["a"])
    assert first.at.timestamp() == STORED_S
    assert [(row.device, row.n, row.reason, row.field) for row in rest] == [
        ("d", None, None, None),
        ("d", None, "wrong_type", "n"),
        (None, 1, None, None),
    ]


def test_rejects_are_counted_and_kept_and_replayed_as_they_were(spark: "SparkSession") -> None:
    payloads = [of(b',"value":1'), b"\xff", b"[" + of(b',"value":2') + b"," + of(b"") + b"]", of(b',"value":"x"')]
    observation = Observation("readings")
    rows = counted(parsed(records(spark, payloads), FORM), observation)
    kept = reject_rows(rows, "windows")
    messages = reject_messages(kept, "rejects").collect()
    assert rejected({"observedMetrics": {"readings": observation.get}}) == {"binary": 1, "missing": 1, "wrong_type": 1}
    assert observation.get["usable"] == 2
    assert [row.topic for row in messages] == ["rejects/binary", "rejects/missing", "rejects/wrong_type"]
    assert [bytes(row.payload) for row in messages] == [b"\xff", of(b""), of(b',"value":"x"')]
    assert messages[1].properties == {
        "reject-pipeline": "windows",
        "reject-reason": "missing",
        "reject-field": "value",
        "reject-topic": "s/d",
        "reject-partition": "3",
        "reject-offset": "2",
        "reject-position": "200",
        "reject-index": "1",
        "reject-client-id": "client",
        "reject-stored-at": str(STORED_S * 1000),
    }
    expected = records(spark, payloads).where("offset > 0").drop("payload").collect()
    for again in (replayed(reject_messages(kept, "rejects"), "windows"), replayed(kept, "windows")):
        found = again.orderBy("offset").collect()
        assert [row.asDict() for row in again.select(*SOURCE_COLUMNS).drop("payload").collect()] == [
            row.asDict() for row in expected
        ]
        assert [row["index"] for row in found] == [None, 1, None]
        (first, second, third) = reject_rows(parsed(again, FORM), "windows").collect()
        assert (first.reason, second.reason, third.reason) == ("binary", "missing", "wrong_type")
        assert second["index"] == 1
    assert replayed(kept, "anomalies").count() == 0
