"""An archive of the classes that Spark's JVM loads (Java's application class-data sharing), in the user's cache folder.

A JVM that maps the archive has to read and verify few classes, so that a short session costs less CPU time. The
archive is for one Java and one PySpark; a JVM that finds another of its parts changed goes on without it.
"""

import hashlib
import os
from pathlib import Path
from typing import Final, Self

import pyspark

from streaming.cache import cache_folder

_PATTERN: Final = "classes-*"


def archive_path(java_home: Path) -> Path:
    """Return where the archive for this Java and this PySpark is, or would be."""
    release = java_home / "release"
    version = release.read_bytes() if release.is_file() else b""
    parts = (str(java_home.resolve()).encode(), version, pyspark.__version__.encode(), pyspark.__file__.encode())
    return cache_folder() / f"classes-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.jsa"


def reading_option(archive: Path) -> str:
    """Return the JVM option to read the archive; an empty text if there is none."""
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:disable' if archive.is_file() else ""


class NewArchive:
    """An archive that a JVM writes when it ends: about 170 MB, and 20 s of CPU time."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._made = archive.with_suffix(f".{os.getpid()}")
        archive.parent.mkdir(parents=True, exist_ok=True)
        self.option: Final = f'"-XX:ArchiveClassesAtExit={self._made}" -Xlog:disable'

    @classmethod
    def unless_there(cls, archive: Path) -> Self | None:
        """Return None if there is an archive already: to write it costs more than a query."""
        return None if archive.is_file() else cls(archive)

    def keep(self) -> bool:
        """Put the archive in its place after the JVM has ended, and remove those for other versions and of killed
        processes. Return whether the JVM has written one."""
        if not self._made.is_file():
            return False
        self._made.replace(self._archive)
        for other in self._archive.parent.glob(_PATTERN):
            if other != self._archive:
                other.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Remove what a JVM that was killed has left."""
        self._made.unlink(missing_ok=True)
