"""What a history folder holds of one parent topic: pure, no file system (docs/history.md, "The manifest").

The files and losses of a partition are consecutive, without a gap. So one number per partition says how far it is
exported, and every offset below it is in exactly one file or known to be lost.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

FORMAT: Final = 1


class HistoryError(RuntimeError):
    """A history cannot be read or continued. The message names the part and the problem."""


@dataclass(slots=True, frozen=True)
class HistoryFile:
    """One Parquet file: the records of offsets [begin, end) of a partition, in order, that entered it on one date."""

    path: str  # below the history's folder
    partition: int
    begin: int
    end: int
    rows: int  # fewer than offsets if records were gone from the log
    size: int  # bytes
    uncompressed: int  # bytes of its columns in memory
    first_ms: int  # the least and the greatest `stored_at` in it, ms since 1970-01-01 UTC
    last_ms: int
    first_position: int  # of its first and last record
    last_position: int

    @property
    def date(self) -> str:
        """The date at which its records entered the partition, as 2026-01-31 (UTC)."""
        return self.path.split("/")[-2].removeprefix("date=")


@dataclass(slots=True, frozen=True)
class Replaced:
    """A file whose records are in another file now. A reader of an older manifest may still need it."""

    path: str
    at_ms: int  # when it was replaced, ms since 1970-01-01 UTC


@dataclass(slots=True, frozen=True)
class Loss:
    """Offsets [begin, end) of a partition that the log no longer held when they were to be exported."""

    partition: int
    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class Span:
    """Offsets [begin, end) of a partition are in the history, or known to be lost."""

    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class HistoryManifest:
    """One state of the history of a parent topic. Immutable: exporting, compacting and cleaning make the next one."""

    parent: str
    number: int = 0  # counts the states; 0: nothing was exported yet
    files: tuple[HistoryFile, ...] = ()
    losses: tuple[Loss, ...] = ()
    replaced: tuple[Replaced, ...] = ()  # files that still exist but were compacted
    format: int = field(default=FORMAT)

    def spans(self) -> dict[int, Span]:
        """Return the covered offsets by partition."""
        found: dict[int, Span] = {}
        for part in _ordered(self.files, self.losses):
            known = found.get(part.partition)
            found[part.partition] = Span(part.begin if known is None else known.begin, part.end)
        return found

    def last_file(self, partition: int) -> HistoryFile | None:
        """Return the file of a partition with the greatest offsets."""
        return max((each for each in self.files if each.partition == partition), key=_end, default=None)

    def grown(self, files: Sequence[HistoryFile], losses: Sequence[Loss]) -> "HistoryManifest":
        """Return the next state with more files and losses. Raises `HistoryError` for a gap or an overlap."""
        return self._next(files=(*self.files, *files), losses=(*self.losses, *losses))

    def compacted(self, old: Collection[HistoryFile], new: Sequence[HistoryFile], at_ms: int) -> "HistoryManifest":
        """Return the next state, with the files `new` in place of `old`. Raises `HistoryError` if they differ in
        records."""
        gone = set(old)
        kept = [each for each in self.files if each not in gone]
        if len(kept) + len(gone) != len(self.files):
            raise HistoryError(f"files of {self.parent!r} that were to be replaced are not in its history any more")
        if sum(each.rows for each in gone) != sum(each.rows for each in new):
            raise HistoryError(f"files of {self.parent!r} would be replaced by files with another number of records")
        left = tuple(Replaced(each.path, at_ms) for each in sorted(gone, key=_place))
        made = self._next(files=(*kept, *new), replaced=(*self.replaced, *left))
        if made.spans() != self.spans():
            raise HistoryError(f"files of {self.parent!r} would be replaced by files with other offsets")
        return made

    def cleaned(self, paths: Collection[str]) -> "HistoryManifest":
        """Return the next state without these replaced files, or itself if it has none of them."""
        kept = tuple(each for each in self.replaced if each.path not in paths)
        return self if len(kept) == len(self.replaced) else self._next(replaced=kept)

    def within(self, since_ms: int | None, until_ms: int | None) -> Iterator[HistoryFile]:
        """Yield the files that may have records stored in [since, until)."""
        for each in self.files:
            if (since_ms is None or each.last_ms >= since_ms) and (until_ms is None or each.first_ms < until_ms):
                yield each

    def checked(self) -> "HistoryManifest":
        """Check the manifest and return it. Raises `HistoryError` for a state that no exporter writes."""
        if self.format != FORMAT:
            raise HistoryError(f"the history of {self.parent!r} has format {self.format}; this version reads {FORMAT}")
        ends: dict[int, int] = {}
        for part in _ordered(self.files, self.losses):
            expected = ends.get(part.partition, part.begin)
            if part.begin != expected or part.end <= part.begin:
                raise HistoryError(
                    f"the history of {self.parent!r} is inconsistent: partition {part.partition} continues at "
                    f"[{part.begin}, {part.end}) after {expected}"
                )
            ends[part.partition] = part.end
        for each in self.files:
            if not 0 < each.rows <= each.end - each.begin:
                raise HistoryError(f"{each.path}: {each.rows} rows of offsets [{each.begin}, {each.end})")
        return self

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    def _next(self, **changes: Any) -> "HistoryManifest":
        return replace(self, number=self.number + 1, **changes).checked()


def from_json(data: bytes) -> HistoryManifest:
    """Parse a manifest. Raises `HistoryError`."""
    try:
        return msgspec.json.decode(data, type=HistoryManifest).checked()
    except msgspec.DecodeError as error:
        raise HistoryError(f"not a manifest: {error}") from error


def _ordered(files: Iterable[HistoryFile], losses: Iterable[Loss]) -> list[HistoryFile | Loss]:
    return sorted((*files, *losses), key=_place)


def _place(each: HistoryFile | Loss) -> tuple[int, int]:
    return each.partition, each.begin


def _end(each: HistoryFile) -> int:
    return each.end
