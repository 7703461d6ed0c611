"""The data source `format("sluice")`, which creates the readers and writers.

Spark asks for a schema, a plan and a writer in processes of their own, so each of them imports only its part.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from streaming.option_values import OptionError
from streaming.source.columns import SCHEMA, checked, schema_of
from streaming.source.options import SourceOptions

if TYPE_CHECKING:
    from streaming.sink.writers import BatchWriter, StreamWriter
    from streaming.source.batch import BatchReader
    from streaming.source.stream import StreamReader

# What Spark's catalog itself adds to the options of a table that it creates.
_CATALOG: Final = frozenset(("provider", "owner", "comment", "external", "location"))


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Let Spark report an `OptionError` as one line. The process that Spark has started for this call ends with the
    error, so nothing else of it is reported in this way."""
    try:
        yield
    except OptionError:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # as `spark.sql.execution.pyspark.udf.hideTraceback.enabled` does
        raise


class SluiceDataSource(DataSource):
    """The data source `format("sluice")`. `docs/streaming.md` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "sluice"

    @_without_traceback()
    def schema(self) -> StructType:
        if "provider" in _given(self):
            return _table_schema(_given(self))
        return schema_of(SourceOptions.parse(_given(self)).columns)

    @_without_traceback()
    def reader(self, schema: StructType) -> "BatchReader":
        from streaming.source.batch import BatchReader  # noqa: PLC0415

        return BatchReader(SourceOptions.parse(_given(self)), checked(schema))

    @_without_traceback()
    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark names it
        from streaming.source.stream import StreamReader  # noqa: PLC0415

        return StreamReader(SourceOptions.parse(_given(self)), checked(schema))

    @_without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from streaming.sink.columns import sink_options  # noqa: PLC0415
        from streaming.sink.writers import BatchWriter  # noqa: PLC0415

        return BatchWriter(sink_options(_given(self), schema, overwrite=overwrite))

    @_without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        from streaming.sink.columns import sink_options  # noqa: PLC0415
        from streaming.sink.writers import StreamWriter  # noqa: PLC0415

        return StreamWriter(sink_options(_given(self), schema, overwrite=overwrite))


def _given(source: DataSource) -> Mapping[str, str]:
    """Return the options. Raises `OptionError` if there are none: it is a table of Spark's catalog."""
    options: Mapping[str, str] = source.options
    if not options:
        raise OptionError(
            "there are no options. Spark gives those of a table to no Python data source: name them in the query, "
            "FROM t WITH (endpoint = '…', parent = '…') or INSERT INTO t WITH (endpoint = '…', topic = '…')"
        )
    return options


def _table_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that Spark's catalog creates. Raises `OptionError` if it has options, because reads
    would not get them."""
    names = sorted(name for name in options if name.lower() not in _CATALOG and not name.lower().startswith("option."))
    if names:
        raise OptionError(
            f"Spark would lose the options {', '.join(names)} of this table: it gives none to a Python data source. "
            "Create it without OPTIONS and name them in queries, FROM t WITH (endpoint = '…', parent = '…'), or in a "
            "view of such a query; or use CREATE TEMPORARY VIEW v USING sluice OPTIONS (…)"
        )
    return SCHEMA
