"""The values of metrics as JSON, by their data types."""

import math
import struct
from base64 import b64encode
from typing import Any, Final

from connect.api import DataError
from connect.connectors.sparkplug.proto import sparkplug_b_pb2 as pb

# The data types of the specification (6.4.16), by number.
# fmt: off
TYPES: Final = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)
# fmt: on
BOOLEAN: Final = TYPES.index("Boolean")
_SIGNED: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}  # bits
_ARRAYS: Final = dict(
    zip(
        [f"{each}Array" for each in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")]
        + ["FloatArray", "DoubleArray", "DateTimeArray"],
        "bhiqBHIQfdq",
        strict=True,
    )
)  # formats of `struct`
_MAX_DEPTH: Final = 8  # of templates


def type_name(number: int) -> str:
    """The name of a data type."""
    return TYPES[number] if number < len(TYPES) else "Unknown"


def value_of(metric: pb.Metric, kind: str, depth: int = 0) -> Any:
    """The value of a metric as JSON; None if it has none. Bytes are base64, times are ms since 1970. Raises
    `DataError`."""
    field = None if metric.is_null else metric.WhichOneof("value")
    if field is None:
        return None
    value = getattr(metric, field)
    if isinstance(value, pb.DataSet):
        return _table(value)
    if isinstance(value, pb.Template):
        return _members(value, depth)
    if isinstance(value, bytes):
        if not kind.endswith("Array"):
            return b64encode(value).decode()
        try:
            return _array(value, kind)
        except (struct.error, IndexError, UnicodeDecodeError):
            raise DataError(f"{len(value)} bytes are no {kind}") from None
    return _scalar(value, kind)


def _scalar(value: Any, kind: str) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity
    bits = _SIGNED.get(kind)
    if bits is None or not isinstance(value, int):
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _table(table: pb.DataSet) -> dict[str, Any]:
    kinds = [type_name(each) for each in table.types]
    rows = []
    for row in table.rows:
        if len(row.elements) != len(kinds):
            raise DataError(f"a row of a data set has {len(row.elements)} values, and there are {len(kinds)} types")
        fields = [(each, each.WhichOneof("value")) for each in row.elements]
        rows.append(
            [
                None if field is None else _scalar(getattr(each, field), kind)
                for (each, field), kind in zip(fields, kinds, strict=True)
            ]
        )
    return {"columns": list(table.columns), "types": kinds, "rows": rows}


def _members(template: pb.Template, depth: int) -> dict[str, Any]:
    if depth == _MAX_DEPTH:
        raise DataError(f"templates are within each other more than {_MAX_DEPTH} times")
    return {each.name: value_of(each, type_name(each.datatype), depth + 1) for each in template.metrics}


def _array(data: bytes, kind: str) -> list[Any]:
    if kind == "StringArray":
        return [each.decode() for each in data.split(b"\0")[:-1]]
    if kind == "BooleanArray":
        (count,) = struct.unpack_from("<I", data)
        if count > 8 * (len(data) - 4):
            raise struct.error
        return [bool(data[4 + at // 8] >> (7 - at % 8) & 1) for at in range(count)]
    letter = _ARRAYS[kind]
    return [_scalar(each, "") for each in struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)]
