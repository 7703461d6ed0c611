"""Avro and Protobuf payloads as columns, with a schema file and the header of a schema registry."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc  # type: ignore[import-untyped]

from streaming.pipelines.avro import struct_of, with_avro
from streaming.pipelines.protobuf import with_protobuf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "com.example",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": ["null", "double"]},
        {"name": "count", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "State"}}},
    ],
}
VALUES: dict[str, Any] = {
    "device": "d",
    "time": NOW,
    "value": None,
    "count": 3,
    "price": Decimal("1.50"),
    "state": "OFF",
    "tags": {"a": ["ON"]},
}
PROTO = """
syntax = "proto3";
package example;
import "google/protobuf/timestamp.proto";
enum State { OFF = 0; ON = 1; }
message Other { string text = 1; }
message Reading {
  string device = 1;
  google.protobuf.Timestamp time = 2;
  optional double value = 3;
  uint64 count = 4;
  State state = 5;
  repeated Other others = 6;
  map<string, Other> named = 7;
  bytes raw = 8;
}
message Tree { repeated Tree children = 1; }
"""


def avro(values: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(READING), values)
    return data.getvalue()


def records(spark: "SparkSession", *payloads: bytes) -> "DataFrame":
    rows = [(number, bytearray(payload)) for number, payload in enumerate(payloads)]
    return spark.createDataFrame(rows, "offset long, payload binary").coalesce(1)


def bodies(rows: "DataFrame") -> list[Any]:
    return [None if row.body is None else row.body.asDict(True) for row in rows.orderBy("offset").collect()]


def test_avro_payloads_become_structs(spark: "SparkSession") -> None:
    good = avro(VALUES)
    count = good.index(b"\x06", 1 + len("d") + 6)
    too_large = good[:count] + b"\xfe\xff\xff\xff\xff\x01" + good[count + 1 :]  # of an int
    rows = records(spark, good, good + b"\0", good[:-3], b"", b"\xff" * 40, too_large)
    (first, *others) = bodies(with_avro(rows, json.dumps(READING)))
    assert first == {**VALUES, "time": first["time"]}
    assert first["time"].timestamp() == NOW.timestamp()
    assert others == [None] * 5


def test_avro_with_the_header_of_a_registry(spark: "SparkSession") -> None:
    good = avro(VALUES)
    rows = records(spark, b"\0\0\0\0\x07" + good, b"\0\0\0\0\x08" + good, good)
    found = bodies(with_avro(rows, json.dumps(READING), schema_id=7))
    assert [each and each["device"] for each in found] == ["d", None, None]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("string", "not one of a record"),
        ({"type": "record", "name": "R", "fields": []}, "no fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "contains itself"),
        ({"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]}, "beside null"),
        ({"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]}, "has no bytes"),
    ],
)
def test_avro_schemas_without_a_type_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        struct_of(json.dumps(schema))


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("proto")
    (folder / "reading.proto").write_text(PROTO)
    wanted = f"--descriptor_set_out={folder}/reading.desc"
    included = str(Path(protoc.__file__).parent / "_proto")
    assert protoc.main(["protoc", f"-I{folder}", f"-I{included}", "--include_imports", wanted, "reading.proto"]) == 0
    return (folder / "reading.desc").read_bytes()


def test_protobuf_payloads_become_structs(spark: "SparkSession", descriptors: bytes) -> None:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName("example.Reading"))
    reading = kind(
        device="d", count=2**64 - 1, state=1, others=[{"text": "o"}], named={"k": {"text": "n"}}, raw=b"\xff"
    )
    reading.time.FromDatetime(NOW)
    good = reading.SerializeToString()
    first, empty, bad = bodies(with_protobuf(records(spark, good, b"", b"\xff"), descriptors, "example.Reading"))
    assert first.pop("time").timestamp() == NOW.timestamp()
    assert first == {
        "device": "d",
        "value": None,
        "count": Decimal(2**64 - 1),
        "state": "ON",
        "others": [{"text": "o"}],
        "named": {"k": {"text": "n"}},
        "raw": b"\xff",
    }
    assert (empty["device"], empty["value"], empty["time"], empty["state"]) == ("", None, None, "OFF")
    assert bad is None
    framed = (b"\0\0\0\0\x07\0" + good, b"\0\0\0\0\x07\x02\x02" + good, b"\0\0\0\0\x07\x80" + good[:1], good)
    rows = with_protobuf(records(spark, *framed), descriptors, "example.Reading", schema_id=7)
    assert [each and each["device"] for each in bodies(rows)] == ["d", "d", None, None]


def test_messages_without_a_type_are_refused(spark: "SparkSession", descriptors: bytes) -> None:
    rows = records(spark, b"")
    with pytest.raises(ValueError, match=r"no message 'example\.Nothing'"):
        with_protobuf(rows, descriptors, "example.Nothing")
    with pytest.raises(ValueError, match="contains itself"):
        with_protobuf(rows, descriptors, "example.Tree")
    with pytest.raises(ValueError, match="not the descriptors"):
        with_protobuf(rows, b"\xff", "example.Reading")
