"""The column `body`: what tasks make of JSON payloads."""

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, StringType, StructType

from streaming.option_values import OptionError
from streaming.source.body import BodyParser
from streaming.source.columns import checked, schema_of
from streaming.source.reading import read_piece
from tests.streaming.test_source import options, part_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = pa.timestamp("us", tz="UTC")
INNER = pa.struct([("a", pa.int8()), ("b", TIME)])
KIND = pa.struct(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("whole", pa.int64()),
        ("is", pa.bool_()),
        ("at", TIME),
        ("day", pa.date32()),
        ("inner", INNER),
    ]
)
ALL = {"text": "a", "number": 1.0, "whole": 2, "is": True}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(payload: bytes) -> dict[str, Any] | None:
    """The fields that a payload has; None if it has no body."""
    (body,) = BodyParser(KIND).parsed(pa.array([payload], pa.binary())).to_pylist()
    return None if body is None else {name: value for name, value in body.items() if value is not None}


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b' {"text":"a","number":1,"whole":2,"is":true,"other":[1,{}]} \n', ALL),
        (b'{"text":"a","text":"b","number":null}', {"text": "b"}),
        (b'{"Text":"a"}', {}),
        # another type makes that field null, and no other
        (b'{"text":"a","number":"1.5","whole":1.5,"is":0}', {"text": "a"}),
        (b'{"text":"a","whole":9223372036854775808,"number":1e999}', {"text": "a"}),
        (b'{"inner":{"a":128,"b":"2026-01-01T00:00:00Z"}}', {"inner": {"a": None, "b": NEW_YEAR}}),
        (b'{"text":"a","inner":3}', {"text": "a"}),
        # a string takes any value
        (b'{"text":1.50}', {"text": "1.50"}),
        (b'{"text":{"x": [1]}}', {"text": '{"x": [1]}'}),
        # times
        (b'{"at":"2026-01-01T00:00:00Z"}', {"at": NEW_YEAR}),
        (b'{"at":"2026-01-01T02:00:00.000000999+02:00"}', {"at": NEW_YEAR}),
        (b'{"at":"2026-01-01 00:00:00"}', {"at": NEW_YEAR}),
        (b'{"at":1767225600}', {"at": NEW_YEAR}),
        (b'{"at":"20260101"}', {}),
        (b'{"at":1767225600.5}', {}),
        (b'{"at":1e300}', {}),
        (b'{"day":"2026-01-01"}', {"day": date(2026, 1, 1)}),
        (b'{"day":"2026-02-30"}', {}),
        # no object
        (b"", None),
        (b"[]", None),
        (b"null", None),
        (b"{} {}", None),
        (b'{"number":NaN}', None),
        (b"\xef\xbb\xbf{}", None),
        (b'{"other":"\xff"}', None),
        (b'{"text":"\\udc00"}', None),
        (b'{"x":' * 100_000, None),
    ],
)  # fmt: skip
def test_a_payload_becomes_a_struct(payload: bytes, body: dict[str, Any] | None) -> None:
    assert parsed(payload) == body


@given(st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), max_size=5))
def test_no_payload_disturbs_others(payloads: list[bytes]) -> None:
    good = b'{"text":"a"}'
    mixed = [each for payload in payloads for each in (payload, good)]
    bodies = BodyParser(KIND).parsed(pa.array(mixed, pa.binary())).to_pylist()
    assert len(bodies) == len(mixed)
    assert all(body["text"] == "a" for body in bodies[1::2])


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
))  # fmt: skip
def test_any_value_in_any_field_leaves_the_others(value: Any) -> None:
    for name in KIND.names:
        payload = json.dumps({name: value, "later": 1, **({"whole": 7} if name != "whole" else {"text": "t"})}).encode()
        body = parsed(payload)
        assert body is not None
        assert body["text"] == "t" if name == "whole" else body["whole"] == 7


def test_types_that_tasks_do_not_parse_are_refused() -> None:
    inner = StructType().add("list", ArrayType(StringType()))
    with pytest.raises(OptionError, match=r"body\.inner\.list is of the type list<"):
        checked(StructType().add("body", StructType().add("inner", inner)))
    with pytest.raises(OptionError, match="no column 'body'"):
        checked(StructType().add("body", StringType()))


def test_a_task_reads_no_columns_but_those_that_are_asked_for(node: Any) -> None:
    node.publish(0, 2)
    schema = checked(schema_of(["offset"]).add("body", StructType().add("text", StringType())))
    (batch,) = read_piece(options(node), schema, part_of(0, 0, 2))
    assert batch.schema.equals(schema)
    assert batch.column("body").null_count == 2  # the payloads are numbers


@pytest.mark.timeout(300)
def test_spark_takes_bodies_as_columns(spark: "SparkSession", node: Any) -> None:
    node.publish(1, 3)
    reader = spark.read.format("sluice").options(endpoint=node.endpoint, parent="sensors")
    rows = reader.schema("`offset` bigint, body struct<`my name`:double,at:timestamp>, payload binary").load()
    found = rows.select("offset", "body.my name", "payload").where("body IS NULL OR body.`my name` > 0").collect()
    assert sorted((row.offset, row["my name"], bytes(row.payload)) for row in found) == [
        (n, None, b"%d" % n) for n in range(3)
    ]
