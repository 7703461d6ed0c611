"""A history folder: its data files, and the manifests that list the valid ones.

The folder may be anything that pyarrow or fsspec opens: a path, `s3://bucket/folder?endpoint_override=…`, `gs://…`, `memory://…`.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from streaming.history.commit import HistoryChanged, create_file, create_object
from streaming.history.manifest import HistoryError, HistoryManifest, from_json

_MANIFESTS: Final = "_manifests"
_KEPT: Final = 8  # manifests kept, so that a reader finds the one it has listed
_NAME: Final = re.compile(r"(\d{12})\.json")
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
_NAMELESS: Final = "%"  # the parent topic of `/a`, whose first level is empty
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TRIES: Final = 12  # attempts to commit
_PAUSE_S: Final = 0.05  # before the second attempt; doubles each time, with jitter
_LONGEST_PAUSE_S: Final = 5.0


class HistoryFolder:
    """The folder of the histories of parent topics. Raises `HistoryError` if it cannot be opened."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.files, self.root = _open(uri)

    def path(self, name: str) -> str:
        """Return the path of a file for `files`."""
        return f"{self.root}/{name}"

    def spark_path(self, name: str) -> str:
        """Return the path of a file for Spark, with the characters of Hadoop's patterns escaped."""
        path = _PATTERN.sub(r"\\\g<0>", self.path(name))
        if isinstance(self.files, fs.LocalFileSystem):
            return f"file://{path}"
        scheme = self.uri.partition("://")[0].lower()
        return f"{'s3a' if scheme == 's3' else scheme}://{path}"

    def parents(self) -> list[str]:
        """List the parent topics with a history."""
        names = [info.base_name for info in self._infos(self.root) if info.type == fs.FileType.Directory]
        return sorted(_parent_of(name) for name in names if name.startswith("parent="))

    def manifest(self, parent: str) -> HistoryManifest:
        """Return the newest manifest, or an empty one before the first export. Raises `HistoryError`."""
        numbers = self._numbers(parent)
        if not numbers:
            return HistoryManifest(parent)
        path = self._manifest_path(parent, numbers[-1])
        try:
            with self.files.open_input_stream(path) as file:
                found = from_json(file.read())
        except OSError as error:
            raise HistoryError(f"cannot read {path}: {error}") from error
        except HistoryError as error:
            raise HistoryError(f"{path}: {error}") from error
        if found.parent != parent or found.number != numbers[-1]:
            raise HistoryError(f"{path} is the state {found.number} of {found.parent!r}")
        return found

    def commit(self, manifest: HistoryManifest) -> None:
        """Make this the newest manifest, atomically. Raises `HistoryChanged` when another writer was faster, and
        `OSError`."""
        numbers = self._numbers(manifest.parent)
        if numbers and numbers[-1] >= manifest.number:
            raise self.changed(manifest.parent)
        path = self._manifest_path(manifest.parent, manifest.number)
        if isinstance(self.files, fs.LocalFileSystem):
            create_file(Path(path), manifest.to_json())
        else:
            create_object(self.files, path, manifest.to_json())
        for number in numbers[: -(_KEPT - 1)]:
            self.remove(f"{folder_of(manifest.parent)}/{_MANIFESTS}/{number:012d}.json")

    def remove(self, name: str) -> None:
        """Remove a file, which may be gone already. Raises `OSError`."""
        with suppress(FileNotFoundError):
            self.files.delete_file(self.path(name))

    def update(self, parent: str, change: Callable[[HistoryManifest], HistoryManifest]) -> HistoryManifest:
        """Apply `change` to the newest manifest, commit the result and return it.

        It is retried when another writer is faster, so that an export and a compaction at the same time both succeed.
        Raises what `change` raises, `HistoryChanged` after too many attempts, and `OSError`.
        """
        for again in range(_TRIES):
            known = self.manifest(parent)
            wanted = change(known)
            if wanted.number == known.number:
                return known
            try:
                self.commit(wanted)
            except HistoryChanged:
                time.sleep(min(_PAUSE_S * 2**again, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.5))
                continue
            return wanted
        raise self.changed(parent)

    def changed(self, parent: str) -> HistoryChanged:
        return HistoryChanged(f"another exporter is changing the history of {parent!r} in {self.uri}")

    def loose_files(self, parent: str) -> Iterator[tuple[str, float]]:
        """Yield every data file of a parent topic, whether a manifest names it or not: its name and the time of its
        last change in seconds since 1970, which is now if the file system does not know it."""
        for info in self._infos(self.path(folder_of(parent)), recursive=True):
            if info.type == fs.FileType.File and not _NAME.fullmatch(info.base_name):
                yield info.path.removeprefix(self.root).lstrip("/"), (info.mtime_ns or time.time_ns()) / 1e9

    def _numbers(self, parent: str) -> list[int]:
        infos = self._infos(self.path(f"{folder_of(parent)}/{_MANIFESTS}"))
        found = (_NAME.fullmatch(info.base_name) for info in infos)
        return sorted(int(name[1]) for name in found if name is not None)

    def _infos(self, path: str, recursive: bool = False) -> list[fs.FileInfo]:
        """List a folder; a missing one is empty."""
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            infos = self.files.get_file_info(selector)
        except FileNotFoundError:  # the folder was created while pyarrow listed it
            infos = self.files.get_file_info(selector)
        return list(infos)

    def _manifest_path(self, parent: str, number: int) -> str:
        return self.path(f"{folder_of(parent)}/{_MANIFESTS}/{number:012d}.json")


def folder_of(parent: str) -> str:
    """Return the name of the folder of a parent topic: a Hive partition with a percent-encoded value."""
    return f"parent={quote(parent, safe='').replace('.', '%2E') or _NAMELESS}"


def _parent_of(folder: str) -> str:
    name = folder.removeprefix("parent=")
    return "" if name == _NAMELESS else unquote(name)


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        if not _SCHEME.match(uri):
            return fs.LocalFileSystem(), str(Path(uri).absolute())
        if urlsplit(uri).password is not None:
            raise HistoryError(
                f"a URI must not contain a secret ({uri.partition('://')[0]}://…@…): use the "
                "environment or a profile (docs/history.md)"
            )
        try:
            files, path = fs.FileSystem.from_uri(uri)
        except pa.ArrowInvalid:
            files, path = _by_fsspec(uri)
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        raise HistoryError(f"cannot open {uri}: {error}") from error
    return files, path.rstrip("/")


def _by_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec  # noqa: PLC0415 - optional

    files, path = fsspec.core.url_to_fs(uri)
    return fs.PyFileSystem(fs.FSSpecHandler(files)), path
