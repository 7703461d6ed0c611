"""Commands that root runs on the folder of a node that is down leave what they make there to the folder's owner: the
node could not start with files that are root's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def left_to_owner(data: Path) -> Iterator[None]:
    """What is root's in the folder when the block ends becomes the owner's and its group's. If it is interrupted, the
    next such command mends that. Raises OSError."""
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
