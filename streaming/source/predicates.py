"""Filters of a query as Arrow expressions. A task evaluates those that it can, with Spark's meaning: a row is kept if
the filter is true, not if it is null. Spark shows them as pushed, and does not evaluate them again."""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

if TYPE_CHECKING:
    from pyarrow import Schema

_MOST_VALUES: Final = 1_000  # of IN


def can_evaluate(each: Filter, schema: "Schema") -> bool:
    """Return whether a task can evaluate a filter."""
    return _expression(each, schema) is not None


def expression(filters: Sequence[Filter], schema: "Schema") -> pc.Expression | None:
    """Return the conjunction of filters that a task can evaluate; None if there is nothing to evaluate."""
    found = [_expression(each, schema) for each in filters if not _is_always_true(each, schema)]
    return reduce(lambda left, right: left & right, [each for each in found if each is not None]) if found else None


def _is_always_true(each: Filter, schema: "Schema") -> bool:
    return isinstance(each, IsNotNull) and len(each.attribute) == 1 and not schema.field(each.attribute[0]).nullable


def _expression(each: Filter, schema: "Schema") -> pc.Expression | None:
    """Return the expression of a filter; None if only Spark can evaluate it."""
    if isinstance(each, Not):
        child = _expression(each.child, schema)
        return None if child is None else ~child
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    column, kind = pc.field(attribute[0]), schema.field(attribute[0]).type
    if isinstance(each, IsNull | IsNotNull):
        return column.is_null() if isinstance(each, IsNull) else column.is_valid()
    if isinstance(each, In):
        values = [_scalar(value, kind) for value in each.value]
        if len(values) > _MOST_VALUES or not values or any(value is None for value in values):
            return None
        is_among = column.isin([value for value in values if value is not None])
        return pc.if_else(column.is_valid(), is_among, pa.scalar(None, pa.bool_()))
    scalar = _scalar(getattr(each, "value", None), kind)
    return None if scalar is None else _compared(each, column, scalar)


def _compared(each: Filter, column: pc.Expression, scalar: pa.Scalar) -> pc.Expression | None:
    match each:
        case EqualTo():
            return column == scalar
        case EqualNullSafe():
            return pc.coalesce(column == scalar, pa.scalar(False))
        case GreaterThan():
            return column > scalar
        case GreaterThanOrEqual():
            return column >= scalar
        case LessThan():
            return column < scalar
        case LessThanOrEqual():
            return column <= scalar
        case StringStartsWith():
            return pc.starts_with(column, scalar.as_py())
        case StringEndsWith():
            return pc.ends_with(column, scalar.as_py())
        case StringContains():
            return pc.match_substring(column, scalar.as_py())
    return None


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value of a filter as a value of the column's type; None if it is null or not of that type."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and pa.types.is_integer(kind)
    is_text = isinstance(value, str) and pa.types.is_string(kind)
    is_time = isinstance(value, datetime) and value.tzinfo is not None and pa.types.is_timestamp(kind)
    is_bytes = isinstance(value, bytes | bytearray) and pa.types.is_binary(kind)
    if not (is_number or is_text or is_time or is_bytes):
        return None
    try:
        return pa.scalar(value, pa.int64() if is_number else kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None
