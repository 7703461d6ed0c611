"""An index of history files by offset, which a source uses while it plans."""

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.history.table import HistoryFile, HistoryState, Span

if TYPE_CHECKING:
    from streaming.history.delta_table import DeltaFolder

_BEGIN: Final = attrgetter("begin")


@dataclass(slots=True, frozen=True)
class _Files:
    """The files of a table by partition."""

    spans: dict[int, Span]
    files: dict[int, list[HistoryFile]]  # in the order of their first offsets

    @classmethod
    def of(cls, state: HistoryState) -> "_Files":
        files = dict[int, list[HistoryFile]]()
        for each in sorted(state.files, key=_BEGIN):
            files.setdefault(each.partition, []).append(each)
        return cls(state.spans(), files)


class HistoryIndex:
    """The histories of parent topics in a folder; empty without a folder.

    A table is read at its first use, and again by `spans` with `reload`. Records exported later are also in the log
    until retention removes them. Raises `HistoryError`.
    """

    def __init__(self, uri: str | None) -> None:
        self.uri = uri
        self._folder = None if uri is None else _opened(uri)
        self._known: dict[str, _Files] = {}

    def parents(self) -> list[str]:
        """List the parent topics with a history."""
        return [] if self._folder is None else self._folder.parents()

    def spans(self, parent: str, *, reload: bool = False) -> dict[int, Span]:
        """Return the offsets of each partition that are in files or known to be lost."""
        if reload:
            self._known.pop(parent, None)
        return self._of(parent).spans

    def span(self, parent: str, partition: int) -> Span | None:
        """Return the offsets of one partition that are in files or known to be lost."""
        return self.spans(parent).get(partition)

    def files(self, parent: str, partition: int, begin: int, end: int) -> list[HistoryFile]:
        """Return the files that may have offsets of [begin, end), in the order of their first offsets. Files that
        another program has compacted may overlap."""
        found = self._of(parent).files.get(partition, [])
        return [each for each in found if each.begin < end and each.end > begin]

    def offset_at(self, parent: str, partition: int, time_ms: int) -> int | None:
        """Return the offset of the first record stored at or after a time, None if no file has one."""
        span = self.span(parent, partition)
        if self._folder is None or span is None:
            return None
        for each in self.files(parent, partition, span.begin, span.end):
            if each.last_ms >= time_ms:
                with self._folder.files.open_input_file(self._folder.path(each.path)) as source:
                    rows = pq.read_table(source, columns=["stored_at", "offset"])
                stored = rows["stored_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                return int(pc.min(rows["offset"].filter(pc.greater_equal(stored, time_ms))).as_py())
        return None

    def record_size(self, parent: str, partition: int, offset: int) -> int | None:
        """Return the mean size of the records around an offset in bytes, None if no file has the offset."""
        if self._folder is not None:
            for each in self.files(parent, partition, offset, offset + 1):
                with self._folder.files.open_input_file(self._folder.path(each.path)) as source:
                    facts = pq.ParquetFile(source).metadata
                groups = (facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
                return int(max(1, sum(groups) // each.rows))
        return None

    def _of(self, parent: str) -> _Files:
        known = self._known.get(parent)
        if known is None:
            state = HistoryState() if self._folder is None else self._folder.table(parent).state()
            known = self._known[parent] = _Files.of(state)
        return known


def _opened(uri: str) -> "DeltaFolder":
    from streaming.history.delta_table import DeltaFolder  # noqa: PLC0415 - most queries have no history

    return DeltaFolder(uri)
