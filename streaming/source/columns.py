"""The columns of the table as Spark types, and checks of the columns that a user selects."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from streaming.option_values import OptionError

if TYPE_CHECKING:
    from pyarrow import Schema

_TEXTS: Final = ArrayType(StringType(), containsNull=False)

# Must match `cloud_sdk.arrow.SCHEMA` in names, types and nullability, because Spark uses Arrow batches unchanged.
SCHEMA: Final = (
    StructType()
    .add("topic", StringType(), nullable=False)
    .add("levels", _TEXTS, nullable=False)
    .add("payload", BinaryType(), nullable=False)
    .add("key", StringType())
    .add("tags", _TEXTS, nullable=False)
    .add("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False)
    .add("client_id", StringType(), nullable=False)
    .add("qos", ByteType(), nullable=False)
    .add("content_type", StringType())
    .add("partition", IntegerType(), nullable=False)
    .add("offset", LongType(), nullable=False)
    .add("published_at", TimestampType(), nullable=False)
    .add("stored_at", TimestampType(), nullable=False)
    .add("position", LongType(), nullable=False)
)


def schema_of(names: Sequence[str]) -> StructType:
    """Return the schema of some columns, in this order."""
    return StructType([SCHEMA[name] for name in names])


def checked(schema: StructType) -> "Schema":
    """Return the Arrow schema of the selected columns (`.schema(…)`, or all). Raises `OptionError` for an unknown
    column or a wrong type. `body` is a struct of the user's."""
    # These import Arrow, which the schema alone does not need.
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    from streaming.source.body import BODY, BodyParser  # noqa: PLC0415

    arrow = to_arrow_schema(schema, timezone="UTC")
    for field in schema.fields:
        if field.name == BODY and isinstance(field.dataType, StructType) and field.nullable:
            BodyParser(arrow.field(BODY).type)
            continue
        if field.name not in SCHEMA.names:
            raise OptionError(f"there is no column {field.name!r}; the columns are {', '.join(SCHEMA.names)}")
        real = SCHEMA[field.name].dataType.simpleString()
        if field.dataType.simpleString() != real:
            raise OptionError(f"the column {field.name!r} is of type {real}, not {field.dataType.simpleString()}")
    return arrow
