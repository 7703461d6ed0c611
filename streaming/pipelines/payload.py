"""Parsing JSON and CBOR payloads into columns, by a given schema or one inferred from a sample."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, StructField, StructType, TimestampType

from streaming.cbor import CborError, to_json

Format = Literal["json", "cbor"]
_SAMPLE: Final = 1_000
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")  # `20260101` may be a serial number


def with_json(records: DataFrame, schema: StructType | str, column: str = "body") -> DataFrame:
    """Add `column`, the payload parsed as JSON of `schema` (a DDL string will do).

    A payload that is not JSON, a missing field and a field of another type become null. No row is dropped: filter on
    the fields that are needed.
    """
    return records.withColumn(column, F.from_json(F.col("payload").cast("string"), schema))


def with_cbor(records: DataFrame, schema: StructType | str, column: str = "body") -> DataFrame:
    """Add `column`, the payload parsed as CBOR (RFC 8949) of `schema`. `streaming.cbor` converts it to JSON first, so
    byte strings become base64url texts. Errors become null, as in `with_json`."""
    text = arrow_udf(_texts, "string")(F.col("payload"))  # type: ignore[call-overload]  # the kind is in the type hints
    return records.withColumn(column, F.from_json(text, schema))


def inferred_schema(sample: DataFrame, payload_format: Format = "json", *, rows: int = _SAMPLE) -> StructType:
    """Infer the schema of the payloads of up to `rows` records of a batch, for `with_json` or `with_cbor`. It has every
    field of any payload, with a type that fits all of its values. Payloads that are not objects are skipped.

    Names that differ in case only are one field, with the first spelling, because Spark compares names so. A field of
    the outermost object is a timestamp if all of its values are ISO 8601 with a date. Raises `ValueError` when no
    payload is an object.
    """
    payloads = [bytes(row.payload) for row in sample.select("payload").limit(rows).collect()]
    read = _json_object if payload_format == "json" else _cbor_object
    spellings: dict[str, str] = {}
    objects = [_spelled(value, spellings) for payload in payloads if (value := read(payload)) is not None]
    if not objects:
        raise ValueError(f"none of {len(payloads)} payloads is an object in {payload_format.upper()}")
    of_all = F.schema_of_json(F.lit(json.dumps(objects)))
    row = sample.sparkSession.range(1).select(of_all.alias("ddl")).first()
    assert row is not None
    found = DataType.fromDDL(row.ddl)
    assert isinstance(found, ArrayType)
    assert isinstance(found.elementType, StructType)
    times = {name for name in found.elementType.names if _are_times(each.get(name) for each in objects)}
    fields = (
        StructField(each.name, TimestampType() if each.name in times else each.dataType) for each in found.elementType
    )
    return StructType(list(fields))


def _json_object(payload: bytes) -> dict[str, Any] | None:
    try:
        return value if isinstance(value := json.loads(payload), dict) else None
    except (ValueError, RecursionError):  # RecursionError: it nests too deep
        return None


def _cbor_object(payload: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(to_json(payload))
    except CborError:
        return None
    return value if isinstance(value, dict) else None


def _spelled(value: Any, spellings: dict[str, str]) -> Any:
    """Return a value in which a name of an object is spelled as it was the first time."""
    if isinstance(value, dict):
        return {spellings.setdefault(name.lower(), name): _spelled(each, spellings) for name, each in value.items()}
    return [_spelled(each, spellings) for each in value] if isinstance(value, list) else value


def _are_times(values: Iterable[object]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(isinstance(value, str) and _is_time(value) for value in there)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return _DATE.match(text) is not None


def _texts(payloads: pa.Array) -> pa.Array:
    """Convert each payload to JSON text, or to null if it is not CBOR."""
    texts: list[str | None] = []
    for payload in payloads.to_pylist():
        try:
            texts.append(None if payload is None else to_json(payload))
        except CborError:
            texts.append(None)
    return pa.array(texts, pa.string())
