"""An index of history files by offset, which a source uses while it plans."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryFile, HistoryManifest, Span

_BEGIN: Final = attrgetter("begin")
_END: Final = attrgetter("end")


@dataclass(slots=True, frozen=True)
class _Files:
    """The files of a manifest by partition, so that a year of files is searched quickly."""

    spans: dict[int, Span]
    files: dict[int, list[HistoryFile]]  # in order

    @classmethod
    def of(cls, manifest: HistoryManifest) -> "_Files":
        files: dict[int, list[HistoryFile]] = {}
        for each in sorted(manifest.files, key=_BEGIN):
            files.setdefault(each.partition, []).append(each)
        return cls(manifest.spans(), files)


class HistoryIndex:
    """The histories of parent topics in a folder; empty without a folder.

    A manifest is read at its first use, and again by `spans` with `reload`. Records exported later are also in the log
    until retention removes them. Raises `HistoryError`.
    """

    def __init__(self, uri: str | None) -> None:
        self.uri = uri
        self._folder = None if uri is None else HistoryFolder(uri)
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
        """Return the files with offsets of [begin, end), in order."""
        found = self._of(parent).files.get(partition, [])
        return found[bisect_right(found, begin, key=_END) : bisect_left(found, end, key=_BEGIN)]

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
                return int(rows["offset"].filter(pc.greater_equal(stored, time_ms))[0].as_py())
        return None

    def record_size(self, parent: str, partition: int, offset: int) -> int | None:
        """Return the mean size of the records around an offset in bytes, None if no file has the offset."""
        for each in self.files(parent, partition, offset, offset + 1):
            return max(1, each.uncompressed // each.rows)
        return None

    def _of(self, parent: str) -> _Files:
        known = self._known.get(parent)
        if known is None:
            known = _Files.of(HistoryManifest(parent) if self._folder is None else self._folder.manifest(parent))
            self._known[parent] = known
        return known
