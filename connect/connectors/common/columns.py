"""Messages as Arrow tables, for Parquet files and tables of data lakes. It imports PyArrow: import it where needed."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from connect.api import SinkRecord
from connect.connectors.common.typed_fields import TypedField
from connect.connectors.common.values import parsed, texts

_TYPES: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_HEADER: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])
# The types of `COLUMNS`. Iceberg has no milliseconds.
_MESSAGE: Final = (
    pa.field("topic", pa.string()),
    pa.field("levels", pa.list_(pa.string())),
    pa.field("key", pa.string()),
    pa.field("value", pa.string()),
    pa.field("value_base64", pa.string()),
    pa.field("headers", pa.list_(_HEADER)),
    pa.field("stored_at", pa.timestamp("us", "UTC")),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("position", pa.int64()),
)

Row = tuple[Any, ...]  # a message, with a value for each column of a schema


def schema_of(fields: Sequence[TypedField]) -> pa.Schema:
    """The columns of messages, and those of fields behind them."""
    return pa.schema([*_MESSAGE, *(pa.field(each.column, _TYPES[each.type]) for each in fields)])


def with_date(table: pa.Table) -> pa.Table:
    """A table with the column `date` behind the others: the date on which a message was stored, UTC."""
    return table.append_column("date", table["stored_at"].cast(pa.date32()))


def row_of(record: SinkRecord, fields: Sequence[TypedField]) -> Row:
    """A message for `table_of`. Raises `DataError`."""
    text, encoded = texts(record.value)
    value = parsed(record.value) if fields else None
    return (
        record.topic,
        record.topic.split("/"),
        record.key,
        text,
        encoded,
        [{"name": name, "value": each} for name, each in record.headers],
        record.timestamp_ms * 1000,
        record.partition.number,
        record.offset,
        record.position,
        *(each.of(value) for each in fields),
    )


def table_of(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """A table of rows."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
