"""Files of this machine that have to outlive its failure."""

import os
from collections.abc import Iterable
from pathlib import Path


def sync(files: Iterable[Path], root: Path) -> None:
    """Flush files, and the folders from `root` on that name them, to the disk."""
    folders: set[Path] = set()
    for file in files:
        _sync(file)
        folders.update(each for each in file.parents if each == root or root in each.parents)
    for folder in folders:
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
