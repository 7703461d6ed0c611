"""What a source knows of a history while it plans: which offsets are in files, and in which."""

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
    """A manifest by partition: a year of files is asked for many times."""

    spans: dict[int, Span]
    files: dict[int, list[HistoryFile]]  # in order

    @classmethod
    def of(cls, manifest: HistoryManifest) -> "_Files":
        files: dict[int, list[HistoryFile]] = {}
        for each in sorted(manifest.files, key=_BEGIN):
            files.setdefault(each.partition, []).append(each)
        return cls(manifest.spans(), files)


class HistoryIndex:
    """The histories of parent topics in a folder, each as its manifest was when it was first asked for, or `spans` was
    told to look again: what was exported since is in the log as well, until retention takes it. Without a folder,
    nothing is in files. Raises `HistoryError`."""

    def __init__(self, uri: str | None) -> None:
        self.uri = uri
        self._folder = None if uri is None else HistoryFolder(uri)
        self._known: dict[str, _Files] = {}

    def parents(self) -> list[str]:
        """Parent topics with a history."""
        return [] if self._folder is None else self._folder.parents()

    def spans(self, parent: str, *, anew: bool = False) -> dict[int, Span]:
        """What of each partition is in files or known to be lost."""
        if anew:
            self._known.pop(parent, None)
        return self._of(parent).spans

    def span(self, parent: str, partition: int) -> Span | None:
        """The same of one partition."""
        return self.spans(parent).get(partition)

    def files(self, parent: str, partition: int, begin: int, end: int) -> list[HistoryFile]:
        """Those with offsets of [begin, end), in order."""
        found = self._of(parent).files.get(partition, [])
        return found[bisect_right(found, begin, key=_END) : bisect_left(found, end, key=_BEGIN)]

    def offset_at(self, parent: str, partition: int, time_ms: int) -> int | None:
        """Of the first record that was stored at or after a time; None when no file has one."""
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
        """Mean size of the records around an offset, in bytes; None where that is not in a file."""
        for each in self.files(parent, partition, offset, offset + 1):
            return max(1, each.uncompressed // each.rows)
        return None

    def _of(self, parent: str) -> _Files:
        known = self._known.get(parent)
        if known is None:
            known = _Files.of(HistoryManifest(parent) if self._folder is None else self._folder.manifest(parent))
            self._known[parent] = known
        return known
