"""File ownership in a data folder. When root runs a command on the folder of a stopped node, the files that the command
creates go to the owner of the folder: the node could not open files that belong to root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def left_to_owner(data: Path) -> Iterator[None]:
    """Give every file in the folder that belongs to root to the folder's owner and group when the block ends. The next
    command of this kind completes an interrupted change. Raises OSError."""
    try:
        yield
    finally:
        if os.geteuid() == 0 and data.is_dir():
            _leave(data)


def _leave(data: Path) -> None:
    owner = data.stat()
    for path in data.rglob("*") if owner.st_uid != 0 else ():
        if path.lstat().st_uid == 0:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
