"""Verifying a history: every file that the manifest names is read and checked."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_sdk.arrow import SCHEMA
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest

_ROWS: Final = 1 << 16  # read at a time
ABANDONED_S: Final = 24 * 3600  # seconds; an exporter commits its files much sooner


class DamagedFile(HistoryError):
    """A file differs from the manifest. The message describes the problem without the name of the file."""


@dataclass(slots=True, frozen=True)
class FileFault:
    """A file and the problem with it."""

    path: str
    problem: str


def faults(folder: HistoryFolder, manifest: HistoryManifest) -> Iterator[FileFault]:
    """Yield each file that is missing, cannot be read or differs from the manifest."""
    for each in manifest.files:
        try:
            for _ in checked_batches(folder, each):
                pass
        except (DamagedFile, OSError) as error:
            yield FileFault(each.path, str(error))


def checked_batches(folder: HistoryFolder, each: HistoryFile) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file, and check its checksums and the number and order of its records against the
    manifest. The file is intact if the last batch has been read. Raises `DamagedFile` and `OSError`."""
    try:
        with folder.files.open_input_file(folder.path(each.path)) as source:
            size = source.size()
            if size != each.size:
                raise DamagedFile(f"{size} bytes, not {each.size}")
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            if file.schema_arrow.names != SCHEMA.names:
                raise DamagedFile(f"its columns are {', '.join(file.schema_arrow.names)}")
            yield from _ascending(file.iter_batches(_ROWS), each)
    except pa.ArrowException as error:
        raise DamagedFile(str(error)) from error


def orphans(folder: HistoryFolder, manifest: HistoryManifest, older_than_s: float = ABANDONED_S) -> list[str]:
    """List the files that the newest manifest does not name and that are too old to be still written. They are left by
    exporters that were killed."""
    named = {each.path for each in manifest.files} | {each.path for each in manifest.replaced}
    found = sorted(folder.loose_files(manifest.parent))
    before = time.time() - older_than_s
    return [name for name, changed in found if name not in named and changed <= before]


def _ascending(batches: Iterator[pa.RecordBatch], each: HistoryFile) -> Iterator[pa.RecordBatch]:
    rows, last = 0, each.begin - 1
    for batch in batches:
        offsets = batch.column("offset")
        if pc.min_max(batch.column("partition")).as_py() != {"min": each.partition, "max": each.partition}:
            raise DamagedFile(f"it has records of other partitions than {each.partition}")
        if offsets[0].as_py() <= last or not pc.all(pc.greater(offsets[1:], offsets[:-1]), min_count=0).as_py():
            raise DamagedFile("its offsets do not ascend")
        rows, last = rows + batch.num_rows, offsets[-1].as_py()
        yield batch
    if rows != each.rows:
        raise DamagedFile(f"{rows} records, not {each.rows}")
    if last >= each.end:
        raise DamagedFile(f"its offsets are not within [{each.begin}, {each.end})")
