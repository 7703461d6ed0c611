"""A history folder on a file system: its files, and the manifests that say which of them count.

Anything that pyarrow or fsspec can open: a path, `s3://bucket/folder?endpoint_override=…`, `gs://…`, `memory://…`.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from streaming.history.manifest import HistoryError, Manifest, from_json

_MANIFESTS: Final = "_manifests"
_KEPT: Final = 8  # states of a manifest, so that whoever reads one finds it for a while
_NAME: Final = re.compile(r"(\d{12})\.json")
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
_NAMELESS: Final = "%"  # the parent topic of `/a`, whose first level is empty
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class HistoryChanged(HistoryError):
    """Another exporter went on with the same history meanwhile."""


class HistoryFolder:
    """Where histories of parent topics lie. Raises `HistoryError` for a place that cannot be opened."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.files, self.root = _open(uri)

    def path(self, name: str) -> str:
        """The whole path of a file, for `files`."""
        return f"{self.root}/{name}"

    def spark_path(self, name: str) -> str:
        """The same as Hadoop names it for Spark: percent signs are themselves, and what would be a pattern is not."""
        path = _PATTERN.sub(r"\\\g<0>", self.path(name))
        if isinstance(self.files, fs.LocalFileSystem):
            return f"file://{path}"
        scheme = self.uri.partition("://")[0].lower()
        return f"{'s3a' if scheme == 's3' else scheme}://{path}"

    def parents(self) -> list[str]:
        """Parent topics with a history."""
        infos = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        names = [info.base_name for info in infos if info.type == fs.FileType.Directory]
        return sorted(_parent_of(name) for name in names if name.startswith("parent="))

    def manifest(self, parent: str) -> Manifest:
        """The newest; an empty one where nothing was exported yet. Raises `HistoryError` where it cannot be read."""
        numbers = self._numbers(parent)
        if not numbers:
            return Manifest(parent)
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

    def commit(self, manifest: Manifest) -> None:
        """Make this the newest state: at once and whole, or not at all. Raises `HistoryChanged` when another exporter
        was faster, and `OSError`."""
        numbers = self._numbers(manifest.parent)
        if numbers and numbers[-1] >= manifest.number:
            raise HistoryChanged(f"another exporter goes on with the history of {manifest.parent!r} in {self.uri}")
        path = self._manifest_path(manifest.parent, manifest.number)
        if isinstance(self.files, fs.LocalFileSystem):
            _create_whole(Path(path), manifest.to_json())
        else:  # an object is there when all of it is
            with self.files.open_output_stream(path) as file:
                file.write(manifest.to_json())
        for number in numbers[: -(_KEPT - 1)]:
            self.files.delete_file(self._manifest_path(manifest.parent, number))

    def data_files(self, parent: str) -> Iterator[tuple[str, float]]:
        """Every Parquet file below the folder of a parent topic, whether it counts or not: name and seconds since 1970
        of its last change; that is now where the file system does not know it."""
        folder = folder_of(parent)
        selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        for info in self.files.get_file_info(selector):
            if info.type == fs.FileType.File and info.extension == "parquet":
                yield info.path.removeprefix(self.root).lstrip("/"), (info.mtime_ns or time.time_ns()) / 1e9

    def _numbers(self, parent: str) -> list[int]:
        selector = fs.FileSelector(self.path(f"{folder_of(parent)}/{_MANIFESTS}"), allow_not_found=True)
        found = (_NAME.fullmatch(info.base_name) for info in self.files.get_file_info(selector))
        return sorted(int(name[1]) for name in found if name is not None)

    def _manifest_path(self, parent: str, number: int) -> str:
        return self.path(f"{folder_of(parent)}/{_MANIFESTS}/{number:012d}.json")


def folder_of(parent: str) -> str:
    """The folder of a parent topic: a Hive partition, its value with percent signs where a path has no such letters."""
    return f"parent={quote(parent, safe='').replace('.', '%2E') or _NAMELESS}"


def _parent_of(folder: str) -> str:
    name = folder.removeprefix("parent=")
    return "" if name == _NAMELESS else unquote(name)


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        if not _SCHEME.match(uri):
            return fs.LocalFileSystem(), str(Path(uri).absolute())
        try:
            files, path = fs.FileSystem.from_uri(uri)
        except pa.ArrowInvalid:
            files, path = _by_fsspec(uri)
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        raise HistoryError(f"cannot open {uri}: {error}") from error
    return files, path.rstrip("/")


def _by_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec  # noqa: PLC0415 - need not be installed

    files, path = fsspec.core.url_to_fs(uri)
    return fs.PyFileSystem(fs.FSSpecHandler(files)), path


def _create_whole(path: Path, data: bytes) -> None:
    """A file that is there with all its bytes, on the disk, and that nobody else made. Raises `HistoryChanged`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(path).hardlink_to(name)
        except FileExistsError:
            raise HistoryChanged(f"another exporter wrote {path}") from None
    finally:
        Path(name).unlink()
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """What was made in a local folder stays there over a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
