"""Payloads as columns: JSON or CBOR, by a schema that is given, or found out from a sample."""

import json
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, StructType

from streaming.cbor import CborError, to_json

Format = Literal["json", "cbor"]
_SAMPLE: Final = 1_000


def with_json(records: DataFrame, schema: StructType | str, column: str = "body") -> DataFrame:
    """Add `column`, the payload parsed as JSON of `schema` (a DDL string will do).

    What is not JSON, or lacks a field, or has one of another type, gives nulls in its place. Nothing is
    dropped: filter on the fields that are needed.
    """
    return records.withColumn(column, F.from_json(F.col("payload").cast("string"), schema))


def with_cbor(records: DataFrame, schema: StructType | str, column: str = "body") -> DataFrame:
    """The same of CBOR (RFC 8949), which goes by way of JSON: `streaming.cbor` says what becomes of what JSON has not.
    Byte strings are base64url texts."""
    text = arrow_udf(_texts, "string")(F.col("payload"))  # type: ignore[call-overload]  # its kind is in the hints
    return records.withColumn(column, F.from_json(text, schema))


def inferred_schema(sample: DataFrame, payload_format: Format = "json", *, rows: int = _SAMPLE) -> StructType:
    """The schema of the payloads of up to `rows` records of a batch, for `with_json` or `with_cbor`: all fields that
    any of them has, of types that hold what all of them have there. Payloads that are no objects are passed over;
    raises `ValueError` when there are no others."""
    payloads = [bytes(row.payload) for row in sample.select("payload").limit(rows).collect()]
    read = _json_object if payload_format == "json" else _cbor_object
    objects = [text for payload in payloads if (text := read(payload)) is not None]
    if not objects:
        raise ValueError(f"none of {len(payloads)} payloads is an object in {payload_format.upper()}")
    of_all = F.schema_of_json(F.lit(f"[{','.join(objects)}]"))
    row = sample.sparkSession.range(1).select(of_all.alias("ddl")).first()
    assert row is not None
    found = DataType.fromDDL(row.ddl)
    assert isinstance(found, ArrayType)
    assert isinstance(found.elementType, StructType)
    return found.elementType


def _json_object(payload: bytes) -> str | None:
    try:
        return json.dumps(value) if isinstance(value := json.loads(payload), dict) else None
    except (ValueError, RecursionError):  # which is what nests too deep
        return None


def _cbor_object(payload: bytes) -> str | None:
    try:
        text = to_json(payload)
    except CborError:
        return None
    return text if text.startswith("{") else None


def _texts(payloads: pa.Array) -> pa.Array:
    """JSON of each payload; null where it is no CBOR."""
    texts: list[str | None] = []
    for payload in payloads.to_pylist():
        try:
            texts.append(None if payload is None else to_json(payload))
        except CborError:
            texts.append(None)
    return pa.array(texts, pa.string())
