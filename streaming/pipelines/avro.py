"""Parsing Avro payloads into columns, by fastavro in Spark's Python workers: no package for the JVM is needed."""

import io
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - Spark's own custom

from streaming.pipelines.decoded import Decoder, with_decoded

_SIMPLE: Final[Mapping[str, type[T.DataType]]] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "bytes": T.BinaryType,
    "string": T.StringType,
}
_LOGICAL: Final[Mapping[str, type[T.DataType]]] = {
    "date": T.DateType,
    "timestamp-millis": T.TimestampType,
    "timestamp-micros": T.TimestampType,
}
_NOT_THIS: Final = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)


def with_avro(records: DataFrame, schema: str, column: str = "body", *, schema_id: int | None = None) -> DataFrame:
    """Add `column`, the payload as a struct of the fields of `schema`, the JSON text of an Avro record.

    schema_id: payloads begin with the header of a schema registry, a zero byte and this id in four bytes. A payload
    with another header, or that is not of the schema, becomes null. Raises `ValueError` for a schema that Spark has no
    type for: a record that contains itself, a union of several types beside null, or values of no bytes.
    """
    kind = struct_of(schema)
    return with_decoded(records, column, kind, lambda: _decoder(schema), schema_id)


def struct_of(schema: str) -> T.StructType:
    """Return Spark's type for an Avro record. Raises `ValueError`."""
    kind = _type_of(json.loads(schema), {}, ())
    if not isinstance(kind, T.StructType):
        raise ValueError("the Avro schema is not one of a record")
    return kind


@lru_cache(maxsize=64)
def _decoder(text: str) -> Decoder:
    """Return the function that decodes a payload without a header."""
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - only workers need it

    schema = parse_schema(_known(json.loads(text)))

    def decode(payload: bytes) -> dict[str, Any] | None:
        data = io.BytesIO(payload)
        try:
            value = schemaless_reader(data, schema, None)
        except _NOT_THIS:
            return None
        return value if isinstance(value, dict) and data.tell() == len(payload) else None

    return decode


def _type_of(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> T.DataType:
    """Return Spark's type. `named` has the records, enums and fixed that were met, and `inside` the records around."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ValueError("a union of an Avro schema may have one type beside null")
        return _type_of(others[0], named, inside)
    if isinstance(schema, str):
        return _SIMPLE[schema]() if schema in _SIMPLE else _of_name(schema, named, inside)
    if not isinstance(schema, dict) or "type" not in schema:
        raise ValueError("not an Avro schema")
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("record", "enum", "fixed"):
        named[str(schema["name"])] = schema
    if kind == "record":
        within = (*inside, str(schema["name"]))
        fields = [T.StructField(each["name"], _type_of(each["type"], named, within)) for each in schema["fields"]]
        if not fields:
            raise ValueError(f"the Avro record {schema['name']!r} has no fields")
        return T.StructType(fields)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical is not None and logical in _LOGICAL and kind in ("int", "long"):
        return _LOGICAL[logical]()
    if kind == "array":
        return T.ArrayType(_type_of(schema["items"], named, inside))
    if kind == "map":
        return T.MapType(T.StringType(), _type_of(schema["values"], named, inside))
    if kind == "fixed" and schema["size"] < 1:
        raise ValueError(f"the Avro type {schema['name']!r} has no bytes")
    return {"enum": T.StringType(), "fixed": T.BinaryType()}.get(kind) or _type_of(kind, named, inside)


def _of_name(name: str, named: dict[str, Any], inside: tuple[str, ...]) -> T.DataType:
    if name in inside:
        raise ValueError(f"the Avro record {name!r} contains itself")
    if name not in named:
        raise ValueError(f"the Avro type {name!r} is unknown, or has no bytes")
    return _type_of(named[name], named, inside)


def _known(schema: Any) -> Any:
    """Return a schema without the logical types that are none of Spark's here: their values are the plain ones."""
    if isinstance(schema, list):
        return [_known(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType")
    is_known = logical == "decimal" or logical in _LOGICAL
    return {name: _known(each) for name, each in schema.items() if name != "logicalType" or is_known}
