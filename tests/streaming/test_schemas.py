"""Spark's types for payloads whose schema is in the registry."""

import asyncio
import json

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from streaming.option_values import OptionError
from streaming.schemas import payload_type, registered_schema, type_of
from tests.gateway.conftest import make_node, node  # noqa: F401  fixtures
from tests.gateway.people import set_rules
from tests.gateway.registry.schemas import MORE, NUMBER, register, service

DOCUMENT = {
    "type": "object",
    "properties": {
        "t": {"type": ["number", "null"]},
        "n": {"type": "integer"},
        "on": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
        "either": {"type": ["string", "number"]},
        "tree": {"$ref": "#"},
        "any": True,
    },
    "$defs": {"tag": {"type": "string"}},
}


def test_types_of_a_json_schema() -> None:
    found = type_of({**DOCUMENT, "properties": {k: v for k, v in DOCUMENT["properties"].items() if k != "tree"}})  # type: ignore[attr-defined]
    expected: dict[str, DataType] = {
        "t": DoubleType(),
        "n": LongType(),
        "on": BooleanType(),
        "at": TimestampType(),
        "tags": ArrayType(StringType()),
        "by_name": MapType(StringType(), DoubleType()),
        "either": StringType(),
        "any": StringType(),
    }
    assert found == StructType([StructField(name, kind) for name, kind in expected.items()])


def test_a_schema_within_itself_ends() -> None:
    found = type_of({"type": "array", "items": {"$ref": "#"}})
    for _ in range(33):
        assert isinstance(found, ArrayType)
        found = found.elementType
    assert found == StringType()
    assert type_of({"$ref": "#"}) == type_of(True) == type_of({"$ref": "#/no"}) == StringType()


async def test_schemas_are_read_from_the_registry(node: Node) -> None:  # noqa: F811
    await set_rules(node, "", "allow subscribe $kv/schemas/#")
    await register(node, "reading")
    await register(node, "reading", MORE)
    await register(node, "avro", '"double"', "AVRO")
    endpoint = f"127.0.0.1:{node.ports.grpc}"
    newest = await asyncio.to_thread(registered_schema, "reading", endpoint=endpoint)
    assert (newest.kind, newest.text) == ("JSON", MORE)
    assert await asyncio.to_thread(payload_type, "reading", endpoint=endpoint) == type_of(json.loads(MORE))
    assert await asyncio.to_thread(payload_type, "reading", 1, endpoint=endpoint) == type_of(json.loads(NUMBER))
    await service(node).delete_subject(pb.DeleteSubjectRequest(name="reading", version=1), NODE_USER)
    for subject, version, why in (
        ("none", None, "there is no subject 'none'"),
        ("reading", 1, "has no version 1"),
        ("avro", None, "has AVRO"),
    ):
        with pytest.raises(OptionError, match=why):
            await asyncio.to_thread(payload_type, subject, version, endpoint=endpoint)
