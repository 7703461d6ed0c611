"""The file with the ranges of a log whose records retention has removed before those in front of them.

Readers skip these ranges, whatever their bytes are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from store.errors import StoreError
from store.log.disk import Disk, replace_file
from store.log.ranges import NO_RANGES, Ranges

FORMAT: Final = 1
FILE: Final = "removed.json"


@dataclass(slots=True, frozen=True)
class Removed:
    """What was removed in the middle of a log."""

    ranges: Ranges = NO_RANGES
    # By age in seconds: the position up to which segments were searched for records of this age.
    searched: Mapping[float, int] = field(default_factory=dict)

    def up_to(self, position: int) -> "Removed":
        """What was removed of a copy of the log that ends at `position`."""
        return Removed(self.ranges.up_to(position), self.searched)


NOTHING_REMOVED: Final = Removed()


def read_removed(folder: Path) -> Removed:
    """Read what was removed of the log in the folder. Raises `StoreError` for a damaged file or another version."""
    path = folder / FILE
    try:
        known = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return NOTHING_REMOVED
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
    try:
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, but this version reads only {FORMAT}")
        searched = {float(age_s): int(position) for age_s, position in known["searched"]}
        return Removed(Ranges((int(begin), int(end)) for begin, end in known["ranges"]), searched)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error


def write_removed(folder: Path, removed: Removed, disk: Disk) -> None:
    """Replace the file in the folder, durably. Raises OSError."""
    if not removed.ranges and not removed.searched:
        return
    rows = {"format": FORMAT, "ranges": list(removed.ranges), "searched": list(removed.searched.items())}
    replace_file(folder / FILE, orjson.dumps(rows, option=orjson.OPT_INDENT_2), disk)
