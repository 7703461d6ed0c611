"""Whether a history is whole: every file that a manifest names is read again."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_sdk.arrow import SCHEMA
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryFile, Manifest

_ROWS: Final = 1 << 16  # in memory at a time
ABANDONED_S: Final = 24 * 3600  # an exporter commits much sooner what it has written


@dataclass(slots=True, frozen=True)
class Fault:
    """What is wrong with one file."""

    path: str
    said: str


def faults(folder: HistoryFolder, manifest: Manifest) -> Iterator[Fault]:
    """Each file that is not there, cannot be read, or does not hold what the manifest says."""
    for each in manifest.files:
        said = _fault(folder, each)
        if said is not None:
            yield Fault(each.path, said)


def orphans(folder: HistoryFolder, manifest: Manifest, older_than_s: float = ABANDONED_S) -> list[str]:
    """Files that no manifest names and nobody is likely to be writing: exporters that ended left them."""
    named = {each.path for each in manifest.files}
    found = list(folder.data_files(manifest.parent))
    before = time.time() - older_than_s
    return [name for name, changed in found if name not in named and changed <= before]


def _fault(folder: HistoryFolder, each: HistoryFile) -> str | None:
    try:
        with folder.files.open_input_file(folder.path(each.path)) as source:
            size = source.size()
            if size != each.size:
                return f"{size} bytes, not {each.size}"
            file = pq.ParquetFile(source, page_checksum_verification=True)
            if file.schema_arrow.names != SCHEMA.names:
                return f"its columns are {', '.join(file.schema_arrow.names)}"
            return _fault_of_rows(file.iter_batches(_ROWS), each)
    except (OSError, pa.ArrowException) as error:
        return str(error)


def _fault_of_rows(batches: Iterable[pa.RecordBatch], each: HistoryFile) -> str | None:
    rows, last = 0, each.begin - 1
    for batch in batches:
        offsets = batch.column("offset")
        if pc.min_max(batch.column("partition")).as_py() != {"min": each.partition, "max": each.partition}:
            return f"it has records of other partitions than {each.partition}"
        if offsets[0].as_py() <= last or not pc.all(pc.greater(offsets[1:], offsets[:-1]), min_count=0).as_py():
            return "its offsets do not ascend"
        rows, last = rows + batch.num_rows, offsets[-1].as_py()
    if rows != each.rows:
        return f"{rows} records, not {each.rows}"
    return None if last < each.end else f"its offsets are not within [{each.begin}, {each.end})"
