"""What a history is, whatever its table format: its files, its progress, and how it grows.

A history is one table for each parent topic, with the columns of `format("sluice")` and the date. Its progress says how
far each partition is exported. It is part of the table, and changes in the transaction that adds the records.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from cloud_sdk.arrow import SCHEMA as RECORD_SCHEMA
from streaming.history.folder import HistoryFolder

SCHEMA: Final = RECORD_SCHEMA.append(pa.field("date", pa.date32(), nullable=False))
PARTITIONED_BY: Final = ("date", "partition")
STATISTICS: Final = ("offset", "stored_at", "position")  # the columns whose bounds are kept for each file


@dataclass(slots=True, frozen=True)
class HistoryFile:
    """A Parquet file of a table: records of one partition that entered it on one date."""

    path: str  # below the history's folder
    partition: int
    begin: int  # its offsets are in [begin, end)
    end: int
    rows: int
    size: int  # bytes
    first_ms: int  # the least and the greatest `stored_at`, ms since 1970-01-01 UTC
    last_ms: int
    first_position: int  # the least and the greatest position in the log
    last_position: int

    @property
    def date(self) -> str:
        """The date at which its records entered the partition, as 2026-01-31 (UTC)."""
        return next(part for part in self.path.split("/") if part.startswith("date=")).removeprefix("date=")


@dataclass(slots=True, frozen=True)
class Span:
    """Offsets [begin, end) of a partition are in the history, or known to be lost."""

    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a partition is exported, and the last exported record. It has the offset and the position -1 if the table
    has no record of the partition."""

    end: int  # all offsets before it are in the table, or lost
    last_offset: int = -1
    last_position: int = -1


@dataclass(slots=True, frozen=True)
class HistoryState:
    """One version of a table. Without a table, it is empty."""

    files: Sequence[HistoryFile] = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)

    def spans(self) -> dict[int, Span]:
        """Return the offsets that the history covers, by partition."""
        begins = {number: each.end for number, each in self.progress.items()}
        for each in self.files:
            begins[each.partition] = min(begins.get(each.partition, each.begin), each.begin)
        return {number: Span(begins[number], each.end) for number, each in self.progress.items()}

    def within(self, since_ms: int | None, until_ms: int | None) -> list[HistoryFile]:
        """List the files that may have records stored in [since, until)."""
        return [
            each
            for each in self.files
            if (since_ms is None or each.last_ms >= since_ms) and (until_ms is None or each.first_ms < until_ms)
        ]


class HistoryTable(Protocol):
    """The table of a parent topic, which may not exist yet. Raises `HistoryError` and `OSError`."""

    parent: str
    folder: HistoryFolder
    data: str  # the folder of the data files, below the history's folder

    def progress(self) -> dict[int, Progress]:
        """Return the progress by partition in the newest version of the table."""

    def state(self) -> HistoryState:
        """Return the files and the progress of the newest version of the table."""

    def append(
        self, made: Sequence[HistoryFile], before: Mapping[int, Progress], after: Mapping[int, Progress]
    ) -> None:
        """Add files and set the progress, in one transaction. Raises `HistoryChanged` if the progress is not `before`
        any more."""

    def compact(self, file_bytes: int, before: str | None, stopping: threading.Event) -> "Compacted":
        """Merge the files of a partition and date into sorted files of about `file_bytes`. With `before` (2026-01-31),
        only files of earlier dates. Setting `stopping` ends it after the current partition and date."""

    def vacuum(self, older_than_h: int) -> list[str]:
        """Remove files that no version of the last `older_than_h` hours needs, and those of killed writers. Return
        their names."""


@dataclass(slots=True)
class Compacted:
    """The result of a compaction."""

    parent: str
    old_files: int = 0
    new_files: int = 0


def fragments(files: Iterable[HistoryFile], file_bytes: int, before: str | None) -> Iterator[list[HistoryFile]]:
    """Yield the files of each partition and date that are more than files of `file_bytes` would be, in the order of
    their offsets."""
    groups: dict[tuple[str, int], list[HistoryFile]] = {}
    for each in sorted(files, key=lambda file: file.begin):
        if before is None or each.date < before:
            groups.setdefault((each.date, each.partition), []).append(each)
    for _, group in sorted(groups.items()):
        if len(group) > 1 and len(group) > -(-sum(each.size for each in group) // file_bytes):
            yield group
