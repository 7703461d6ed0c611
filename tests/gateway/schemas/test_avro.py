"""Avro schemas: payloads, hostile ones, and whether a reader reads what a writer wrote, as fastavro does."""

import io
import json
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.schemas.avro import AvroSchema
from gateway.schemas.avro_compatibility import unreadable
from gateway.schemas.errors import InvalidPayload, InvalidSchema


def schema(document: object) -> AvroSchema:
    return AvroSchema(json.dumps(document))


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


def field(name: str, kind: object, **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def encoded(document: Any, value: object) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(document), value)
    return data.getvalue()


READING = record(field("t", "double"), field("unit", ["null", "string"], default=None))


def test_payloads_are_checked() -> None:
    reading = schema(READING)
    payload = encoded(READING, {"t": 21.5, "unit": "C"})
    reading.check(payload)
    for wrong, why in (
        (payload[:-1], "it ends within a value"),
        (payload + b"x", "1 bytes follow the value"),
        (b"", "it ends within a value"),
        (payload[:8] + b"\x0a", "a number of no branch"),
        (b'{"t": 21.5, "unit": "C"}', "it "),
        (bytes(262_145), "more than 262144 bytes"),
    ):
        with pytest.raises(InvalidPayload) as caught:
            reading.check(wrong)
        assert why in str(caught.value)


def test_logical_types_are_read_as_what_they_are_made_of() -> None:
    far = record(
        field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field("d", {"type": "bytes", "logicalType": "decimal", "precision": 4}),
    )
    schema(far).check(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x02\x01")  # a time that Python's datetime does not have


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("foo", "it is no Avro schema"),
        ({}, "it is no Avro schema"),
        (3, "it is no Avro schema"),
        ([], "a union has types"),
        (["null", ["int"]], "a union has types, and no unions"),
        ({"type": "record", "name": "R"}, "have no bytes"),
        ({"type": "fixed", "name": "F", "size": "a"}, "is a number of bytes"),
        ({"type": "fixed", "name": "F", "size": -1}, "is a number of bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "aliases": 5}, "names, aliases or defaults"),
        ("null", "have no bytes"),
        (record(field("r", ["null", "R"])), "R contains itself"),
        (record(field("n", "null")), "the field n has no bytes"),
        ({"type": "array", "items": "null"}, "the items of an array have bytes"),
        ({"type": "array", "items": record()}, "the items of an array have bytes"),
    ],
)
def test_schemas_that_are_refused(document: object, why: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema(document)
    assert why in str(caught.value)


def test_a_schema_whose_types_multiply_is_refused() -> None:
    document: dict[str, Any] = record(field("x", "int"), name="R0")
    for level in range(1, 20):
        document = record(field("a", document), field("b", f"R{level - 1}"), name=f"R{level}")
    with pytest.raises(InvalidSchema, match="at most 1000 types"):
        schema(document)


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        (READING, record(field("t", "double")), ""),
        (record(field("t", "double")), READING, ""),
        (
            record(field("t", "double"), field("h", "int")),
            record(field("t", "double")),
            "/h: the writer does not have it",
        ),
        (record(field("t", "double")), record(field("t", "int")), ""),
        (record(field("t", "int")), record(field("t", "double")), "/t/: the reader expects int"),
        (record(field("temp", "double", aliases=["t"])), record(field("t", "double")), ""),
        (record(field("a", "int"), name="A"), record(field("a", "int"), name="B"), "expects A, and the writer has B"),
        ({**record(field("t", "int"), name="A"), "aliases": ["B"]}, record(field("t", "int"), name="B"), ""),
        (["null", "int"], "int", ""),
        ("int", ["null", "int"], "the reader expects int, and the writer has null"),
        (["null", "string"], "int", "the union of the reader has no type for int"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, ""),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, "/values/: the reader expects int"),
        ("bytes", "string", ""),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "does not know the symbol B",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "",
        ),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "expects 4 bytes"),
    ],
)
def test_resolution(reader: object, writer: object, why: str) -> None:
    found = unreadable(schema(reader), schema(writer))
    assert (why in found[0] and len(found) == 1) if why else found == []


_leaves = st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string"])


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(inner, st.booleans()), min_size=1)
    return st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "map", "values": each}),
        fields.map(
            lambda found: record(
                *(
                    field(
                        name,
                        ["null", kind] if is_optional and isinstance(kind, str) else kind,
                        **({"default": None} if is_optional and isinstance(kind, str) else {}),
                    )
                    for name, (kind, is_optional) in found.items()
                )
            )
        ),
    )


_documents = st.recursive(_leaves, _composed, max_leaves=5)


@settings(max_examples=300, deadline=None)
@given(_documents, _documents)
def test_fastavro_reads_what_is_said_to_be_readable(one: Any, two: Any) -> None:
    try:
        reader, writer = schema(_named(one, [0])), schema(_named(two, [0]))
    except InvalidSchema:
        return
    if unreadable(reader, writer):
        return
    parsed = fastavro.parse_schema(json.loads(writer.text))
    for value in generate_many(parsed, 3):
        payload = io.BytesIO(encoded(json.loads(writer.text), value))
        with suppress(UnicodeDecodeError):  # bytes are read as a text, by the rules
            fastavro.schemaless_reader(payload, parsed, fastavro.parse_schema(json.loads(reader.text)))


def _named(document: Any, count: list[int]) -> Any:
    """The same schema, with the names of its records made unique, by their places."""
    if isinstance(document, list):
        return [_named(each, count) for each in document]
    if not isinstance(document, dict):
        return document
    if document["type"] == "record":
        count[0] += 1
        fields = [{**each, "type": _named(each["type"], count)} for each in document["fields"]]
        return {**document, "name": f"R{count[0]}", "fields": fields}
    inner = "items" if document["type"] == "array" else "values"
    return {**document, inner: _named(document[inner], count)}
