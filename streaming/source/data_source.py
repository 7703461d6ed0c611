"""The data source `format("sluice")`, which creates the readers and writers."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from streaming.sink.columns import sink_options
from streaming.sink.writers import BatchWriter, StreamWriter
from streaming.source.batch import BatchReader
from streaming.source.columns import checked, schema_of
from streaming.source.options import SourceOptions
from streaming.source.stream import StreamReader


class SluiceDataSource(DataSource):
    """The data source `format("sluice")`. `docs/streaming.md` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "sluice"

    def schema(self) -> StructType:
        return schema_of(SourceOptions.parse(_given(self)).columns)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(SourceOptions.parse(_given(self)), checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark names it
        return StreamReader(SourceOptions.parse(_given(self)), checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(sink_options(_given(self), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(sink_options(_given(self), schema, overwrite=overwrite))


def _given(source: DataSource) -> Mapping[str, str]:
    options: Mapping[str, str] = source.options
    return options
