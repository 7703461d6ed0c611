"""Payloads as columns."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StructType


def with_json(records: DataFrame, schema: StructType | str, column: str = "body") -> DataFrame:
    """Add `column`, the payload parsed as JSON of `schema` (a DDL string will do).

    What is not JSON, or lacks a field, or has one of another type, gives nulls in its place. Nothing is
    dropped: filter on the fields that are needed.
    """
    return records.withColumn(column, F.from_json(F.col("payload").cast("string"), schema))
