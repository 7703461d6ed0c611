"""The file with the damaged ranges of a log, which readers skip once an operator has accepted them.

Whoever opens a log reads it, and `store.repair.salvage` writes it.
"""

from pathlib import Path
from typing import Final

import orjson

from store.errors import StoreError
from store.log.disk import Disk, replace_file
from store.log.ranges import Ranges

FORMAT: Final = 1
FILE: Final = "damaged.json"


def read_damaged(folder: Path) -> Ranges:
    """Read the damaged ranges of the log in the folder. Raises `StoreError` for a damaged file or another version."""
    path = folder / FILE
    try:
        known = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return Ranges()
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
    try:
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, but this version reads only {FORMAT}")
        return Ranges((int(begin), int(end)) for begin, end in known["ranges"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error


def write_damaged(folder: Path, damaged: Ranges, disk: Disk) -> None:
    """Replace the damaged ranges of the log in the folder, durably. Raises OSError."""
    if not damaged and not (folder / FILE).exists():
        return
    rows = {"format": FORMAT, "ranges": list(damaged)}
    replace_file(folder / FILE, orjson.dumps(rows, option=orjson.OPT_INDENT_2), disk)
