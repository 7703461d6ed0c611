"""A column of structs that a function of Python decodes from payloads, for formats that Spark alone does not read."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

Decoder = Callable[[bytes], Mapping[str, Any] | None]
_HEADER: Final = 5  # bytes: zero, and the id of a schema


def with_decoded(
    records: DataFrame, column: str, kind: StructType, decoder: Callable[[], Decoder], schema_id: int | None
) -> DataFrame:
    """Add `column` of type `kind`. `decoder` returns, in a worker, the function that decodes a payload, or returns None
    for a payload that is not of its format. `schema_id`: of the header that is cut off; others become null."""
    arrow = to_arrow_type(kind, timezone="UTC")

    def decoded(payloads: pa.Array) -> pa.Array:
        decode = decoder()
        bodies = (_without_header(payload, schema_id) for payload in payloads.to_pylist())
        return _array([None if body is None else _plain(decode(body), arrow) for body in bodies], arrow)

    return records.withColumn(column, arrow_udf(decoded, kind)(F.col("payload")))  # type: ignore[call-overload]


def _without_header(payload: bytes | None, schema_id: int | None) -> bytes | None:
    if payload is None or schema_id is None:
        return payload
    return payload[_HEADER:] if payload[:_HEADER] == b"\0" + schema_id.to_bytes(4) else None


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as Arrow takes it: a map as its pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _plain(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    return value


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.array([each if _fits(each, kind) else None for each in values], kind)


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value is in the range of its type. The formats allow larger numbers."""
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return False
    return True
