"""Copies of a store's folder as a kill would leave it."""

import shutil
from pathlib import Path

TRIES = 1000


def copy_image(folder: Path, copy: Path) -> None:
    """Copy the folder of an open store, from a moment in which RocksDB moves no file of it."""
    for _ in range(TRIES):
        names = _names(folder)
        try:
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("LOCK", "*.new"))
        except (shutil.Error, FileNotFoundError):
            pass  # a file went while it was to be copied
        else:
            if _names(folder) == names:
                return
        shutil.rmtree(copy, ignore_errors=True)
    raise AssertionError(f"the files of {folder} never stood still")


def _names(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix != ".new")
