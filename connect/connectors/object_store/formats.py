"""Formats of the files: JSON lines and Parquet. The same messages make the same file."""

import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from connect.api import Settings, SinkRecord
from connect.connectors.common.typed_fields import parse_fields
from connect.connectors.common.values import parsed, row, to_json


class Format(Protocol):
    """How messages become a file."""

    suffix: str  # of the names of files

    def row(self, record: SinkRecord) -> tuple[Any, int]:
        """A message as `file` takes it, and how many bytes of memory it has, about. Raises `DataError`."""

    def file(self, rows: Sequence[Any]) -> bytes:
        """The file of messages. It may be called in a thread."""


def format_of(settings: Settings) -> Format:
    """The format of the settings of the sink."""
    return _Parquet(settings) if settings["format"] == "parquet" else _JsonLines(settings)


class _JsonLines:
    def __init__(self, settings: Settings) -> None:
        kind = settings["compression.type"]
        self.suffix = ".jsonl" + {"none": "", "gzip": ".gz", "zstd": ".zst"}[kind]
        self._is_value = settings["content"] == "value"
        self._compress = _COMPRESS[kind]

    def row(self, record: SinkRecord) -> tuple[bytes, int]:
        line = to_json(parsed(record.value)) if self._is_value else to_json(row(record))
        return line, len(line) + 64

    def file(self, rows: Sequence[bytes]) -> bytes:
        return self._compress(b"".join(line + b"\n" for line in rows))


class _Parquet:
    def __init__(self, settings: Settings) -> None:
        from connect.connectors.common import columns  # noqa: PLC0415 (it imports PyArrow)

        self.suffix = ".parquet"
        self._codec = settings["parquet.codec"]
        self._fields = parse_fields(settings["fields"])
        self._columns = columns
        self._schema = columns.schema_of(self._fields)

    def row(self, record: SinkRecord) -> tuple[Any, int]:
        return self._columns.row_of(record, self._fields), len(record.payload) + 1024

    def file(self, rows: Sequence[Any]) -> bytes:
        import pyarrow.parquet as pq  # noqa: PLC0415 (for this format only)

        out = io.BytesIO()
        pq.write_table(self._columns.table_of(rows, self._schema), out, compression=self._codec)
        return out.getvalue()


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def _zstd(data: bytes) -> bytes:
    import zstandard  # noqa: PLC0415 (for this format only)

    return zstandard.ZstdCompressor().compress(data)


_COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"none": lambda data: data, "gzip": _gzip, "zstd": _zstd}
