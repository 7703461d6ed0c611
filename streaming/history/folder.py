"""The folder of the files of a history. It may be a path, `s3://bucket/folder?endpoint_override=…` or
`gs://bucket/folder`."""

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from pyarrow import fs

from streaming.history.errors import HistoryError

_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEMES: Final = ("gs", "s3")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(r"~([0-9A-F]+)\.")
_NAMELESS: Final = "~."  # the parent topic of `/a`, whose first level is empty


class HistoryFolder:
    """The folder of the tables of parent topics. Raises `HistoryError` if it cannot be opened."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.scheme = uri.partition("://")[0].lower() if _SCHEME.match(uri) else ""
        self.files, self.root = _open(uri, self.scheme)
        self.s3 = _s3_options(uri) if self.scheme == "s3" else {}

    def path(self, name: str) -> str:
        """Return the path of a file for `files`."""
        return f"{self.root}/{name}"

    def location(self, name: str) -> str:
        """Return the path or URI of a file or a table for the libraries of table formats."""
        return f"{self.scheme}://{self.path(name)}" if self.scheme else self.path(name)

    def spark_path(self, name: str) -> str:
        """Return the path of a file for Spark."""
        return f"{'s3a' if self.scheme == 's3' else self.scheme or 'file'}://{self.path(name)}"

    def spark_pattern(self, name: str) -> str:
        """Return the path of a file for Spark, with the characters of Hadoop's patterns escaped."""
        return _PATTERN.sub(r"\\\g<0>", self.spark_path(name))

    def infos(self, name: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        """List a folder; a missing one is empty."""
        selector = fs.FileSelector(self.path(name).rstrip("/"), allow_not_found=True, recursive=recursive)
        try:
            infos = self.files.get_file_info(selector)
        except FileNotFoundError:  # the folder was created while pyarrow listed it
            infos = self.files.get_file_info(selector)
        return list(infos)


def name_of(parent: str) -> str:
    """Return the name of the table of a parent topic: other characters than letters, digits, `_` and `-` become `~`,
    their hexadecimal code points and a dot. A percent sign would be decoded by some readers."""
    return _UNSAFE.sub(lambda found: f"~{ord(found[0]):X}.", parent) or _NAMELESS


def parent_of(name: str) -> str:
    """Return the parent topic of the table with this name."""
    return "" if name == _NAMELESS else _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def _open(uri: str, scheme: str) -> tuple[fs.FileSystem, str]:
    if not scheme:
        if "%" in uri:
            raise HistoryError(f"cannot open {uri}: libraries of table formats decode percent signs in paths")
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    if scheme not in _SCHEMES:
        raise HistoryError(f"cannot open {uri}: it is neither a path nor one of {', '.join(_SCHEMES)}://")
    if urlsplit(uri).password is not None:
        raise HistoryError(
            f"a URI must not contain a secret ({scheme}://…@…): use the environment or a profile (docs/history.md)"
        )
    try:
        files, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HistoryError(f"cannot open {uri}: {error}") from error
    return files, path.rstrip("/")


def _s3_options(uri: str) -> dict[str, str]:
    """Return the endpoint and the region of pyarrow's URI, as the environment variables of other libraries."""
    given = {name: values[-1] for name, values in parse_qs(urlsplit(uri).query).items()}
    options = {}
    if endpoint := given.get("endpoint_override"):
        options["AWS_ENDPOINT_URL"] = f"{given.get('scheme', 'https')}://{endpoint}"
        options["AWS_ALLOW_HTTP"] = str(given.get("scheme") == "http").lower()
    if region := given.get("region", os.environ.get("AWS_DEFAULT_REGION")):
        options["AWS_REGION"] = region
    return options
