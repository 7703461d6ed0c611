"""Spark's types for payloads whose schema is in the registry of a node (docs/schemas.md).

typed = readings.select(from_json(col("payload").cast("string"), payload_type("reading", endpoint=…)).alias("reading"))
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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

from cloud_sdk.blocking import Client
from streaming.connection import CONNECTION_OPTIONS, ConnectionOptions
from streaming.option_values import OptionError, known_options

_BUCKET: Final = "schemas"
_MAX_LEVELS: Final = 32
_SIMPLE: Final[Mapping[str, type[DataType]]] = {
    "boolean": BooleanType,
    "integer": LongType,
    "number": DoubleType,
    "string": StringType,
}


@dataclass(slots=True, frozen=True)
class RegisteredSchema:
    """A version of a subject."""

    kind: str  # AVRO, JSON or PROTOBUF
    text: str


def registered_schema(subject: str, version: int | None = None, **options: str) -> RegisteredSchema:
    """Read a schema of the registry. The caller needs the right to subscribe to `$kv/schemas/#`.

    version: None: the newest one. options: `endpoint` and the other options for the connection of the data source.
    Raises `OptionError` if there is none, and the errors of `cloud_sdk`.
    """
    connection = ConnectionOptions.parse(known_options(options, CONNECTION_OPTIONS))
    with connection.client() as client:
        found = _entry(client, f"subject/{subject}", f"there is no subject {subject!r}")
        versions = [each for each in found["versions"] if not each.get("is_deleted")]
        chosen = next((each for each in reversed(versions) if version in (None, each["number"])), None)
        if chosen is None:
            raise OptionError(f"the subject {subject!r} has no version {version}")
        schema = _entry(client, f"id/{chosen['id']}", f"there is no schema {chosen['id']}")
        return RegisteredSchema(schema["kind"], schema["text"])


def payload_type(subject: str, version: int | None = None, **options: str) -> DataType:
    """Spark's type for payloads of a subject with a JSON Schema, for `from_json`. See `registered_schema`, which raises
    the same. What has no type of Spark's, such as a value of several types, is a text."""
    schema = registered_schema(subject, version, **options)
    if schema.kind != "JSON":
        raise OptionError(f"the subject {subject!r} has {schema.kind}, and from_json reads JSON alone")
    return type_of(json.loads(schema.text))


def type_of(document: Any) -> DataType:
    """Spark's type for the values of a JSON Schema."""
    return _type_of(document, document, 0)


def _type_of(schema: Any, document: Any, level: int) -> DataType:
    schema = _resolved(schema, document)
    if schema is None or level > _MAX_LEVELS:
        return StringType()
    types = schema.get("type", [])
    named = {types} if isinstance(types, str) else set(types)
    named.discard("null")
    if named == {"integer", "number"}:
        named = {"number"}
    if len(named) != 1:
        return StringType()
    (name,) = named
    if name == "object":
        properties = schema.get("properties")
        if not properties:
            return MapType(StringType(), _type_of(schema.get("additionalProperties"), document, level + 1))
        fields = [StructField(key, _type_of(value, document, level + 1)) for key, value in properties.items()]
        return StructType(fields)
    if name == "array":
        return ArrayType(_type_of(schema.get("items"), document, level + 1))
    if name == "string" and schema.get("format") == "date-time":
        return TimestampType()
    return _SIMPLE[name]() if name in _SIMPLE else StringType()


def _resolved(schema: Any, document: Any) -> dict[str, Any] | None:
    """A schema without references, and without the alternative that is null; None: it says nothing about types."""
    for _ in range(_MAX_LEVELS):
        if not isinstance(schema, dict):
            return None
        branches = schema.get("anyOf") or schema.get("oneOf") or ()
        alternatives = [each for each in branches if each != {"type": "null"}]
        if "$ref" in schema:
            schema = _pointed(document, schema["$ref"])
        elif "type" not in schema and len(alternatives) == 1:
            schema = alternatives[0]
        else:
            return schema
    return None


def _pointed(document: Any, reference: str) -> Any:
    found = document
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _entry(client: Client, key: str, missing: str) -> dict[str, Any]:
    entry = client.bucket(_BUCKET).get(key)
    if entry is None:
        raise OptionError(missing)
    value: dict[str, Any] = json.loads(entry.value)
    return value
