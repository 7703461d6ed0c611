"""The file with the segments of a log that an object store has: the *tier* (docs/decisions/0044-tiered-storage.md).

It is the node's copy of the newest manifest in the tier. A local segment may go only when this file names its object.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from store.errors import StoreError
from store.log.disk import Disk, replace_file

FORMAT: Final = 1
FILE: Final = "tiered.json"


class TieredSegment(NamedTuple):
    """A segment in the tier."""

    base: int  # position of its first byte
    name: str  # of the object, from the begin of the tier's address
    size: int  # bytes of the object
    end: int  # position behind its last record
    time_ms: int  # store time of its first record; 0: it has none, or it is damaged


@dataclass(slots=True, frozen=True)
class Tiered:
    """What is in the tier: one segment behind the other, the oldest first."""

    # Of this log in the tier. Nobody else writes there. "": it has none yet, as after the restore of a backup.
    folder: str = ""
    number: int = 0  # of the manifest in that folder; 0: there is none
    opening: str = ""  # of the data folder (`store.json`), in which the manifest was written
    segments: tuple[TieredSegment, ...] = ()

    def find(self, base: int) -> TieredSegment | None:
        """The segment that begins at `base`; None if the tier does not have it."""
        at = bisect_right(self.segments, base, key=_base) - 1
        return self.segments[at] if at >= 0 and self.segments[at].base == base else None

    @property
    def first(self) -> TieredSegment | None:
        """The oldest segment."""
        return self.segments[0] if self.segments else None

    @property
    def last(self) -> TieredSegment | None:
        """The newest segment."""
        return self.segments[-1] if self.segments else None

    def packed(self) -> bytes:
        """The content of the file, and of a manifest in the tier."""
        head = {"format": FORMAT, "folder": self.folder, "number": self.number, "opening": self.opening}
        return orjson.dumps(head | {"segments": [list(segment) for segment in self.segments]})

    def next(self, segments: Iterable[TieredSegment], opening: str) -> "Tiered":
        """The next manifest, which has these segments."""
        return Tiered(self.folder, self.number + 1, opening, tuple(segments))

    def moved(self, folder: str) -> "Tiered":
        """A list of the same segments for a new folder of the tier, which has no manifest yet."""
        return Tiered(folder, segments=self.segments)

    def with_segment(self, segment: TieredSegment) -> "Tiered":
        """The list with one segment more behind the others, or with another object of one that it has."""
        segments = self.segments
        if not segments or segment.base > segments[-1].base:
            return replace(self, segments=(*segments, segment))
        at = bisect_left(segments, segment.base, key=_base)
        if segments[at].base != segment.base or segments[at] == segment:
            return self
        return replace(self, segments=(*segments[:at], segment, *segments[at + 1 :]))

    def since(self, begin: int) -> "Tiered":
        """The list without the segments before `begin`."""
        if not self.segments or self.segments[0].base >= begin:
            return self
        return replace(self, segments=tuple(each for each in self.segments if each.base >= begin))

    def up_to(self, position: int, size: int) -> "Tiered":
        """What a copy of the log that ends at `position` has in the tier. It writes to a folder of its own.

        size: of a segment.
        """
        return Tiered(segments=tuple(each for each in self.segments if each.base + size <= position))


NOTHING_TIERED: Final = Tiered()


def _base(segment: TieredSegment) -> int:
    return segment.base


def unpack_tiered(data: bytes, where: str) -> Tiered:
    """Decode a manifest. Raises `StoreError`, which names `where`, if it is damaged or of another version."""
    try:
        known = orjson.loads(data)
        if known["format"] != FORMAT:
            raise StoreError(f"{where} has format {known['format']}, but this version reads only {FORMAT}")
        rows = (TieredSegment(int(base), str(name), *map(int, rest)) for base, name, *rest in known["segments"])
        return Tiered(str(known["folder"]), int(known["number"]), str(known["opening"]), tuple(rows))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{where} is damaged ({error}): restore it from a backup") from error


def read_tiered(folder: Path) -> Tiered:
    """Read what of the log in the folder is in the tier. Raises `StoreError` for a damaged file or another version."""
    path = folder / FILE
    try:
        return unpack_tiered(path.read_bytes(), str(path))
    except FileNotFoundError:
        return NOTHING_TIERED


def write_tiered(folder: Path, tiered: Tiered, disk: Disk) -> None:
    """Replace the file in the folder, durably. Raises OSError."""
    if tiered != NOTHING_TIERED:
        replace_file(folder / FILE, tiered.packed(), disk)
