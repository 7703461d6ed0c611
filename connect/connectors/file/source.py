"""`file-source`: follows the files of a folder, line by line."""

import asyncio
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from connect.api import (
    ConnectError,
    Importance,
    Setting,
    Settings,
    SettingType,
    SourceConnector,
    SourceContext,
    SourceRecord,
    SourceTask,
)

_MAX_RECORDS: Final = 1_000  # of one poll
_MAX_READ: Final = 1 << 20  # bytes of one poll, and of a line
_MAX_FILES: Final = 10_000


class FileSource(SourceConnector):
    """Publishes the lines of files, also those that are added later. A line counts when its line end is there."""

    name = "file-source"
    description = "publishes the lines of files: JSON lines, CSV or text"
    settings = (
        Setting("directory", "The folder; the worker has to allow it.", required=True, importance=Importance.HIGH),
        Setting("files", "Which files of it: a pattern with * and ?.", default="*"),
        Setting("format", "How a line is read; CSV has a line of names first.", default="json",
                choices=("json", "csv", "text")),
        Setting("topic", "The topic of the messages; `{file}` is the name of the file without its ending.",
                required=True, importance=Importance.HIGH),
        Setting("malformed", "What a line does that is not JSON: `fail` the task, or be left out (`skip`).",
                default="fail", choices=("fail", "skip")),
        Setting("poll.interval.ms", "The pause after nothing new was found.", SettingType.INT, 1_000, least=10),
    )  # fmt: skip

    def task(self) -> SourceTask:
        return FileSourceTask()


class _Line(NamedTuple):
    text: bytes
    end: int  # offset of the byte behind it


class FileSourceTask(SourceTask):
    """Reads whole lines behind the offset of each file."""

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._context = context
        self._settings = settings
        self._folder = context.require_path(settings["directory"])
        self._ends: dict[str, int] = {}  # by file: where its next line begins
        self._columns: dict[str, list[str]] = {}  # by CSV file

    async def poll(self) -> Sequence[SourceRecord]:
        while True:
            try:
                names = await asyncio.to_thread(self._names)
                for name in names:
                    records = await self._read(name)
                    if records:
                        return records
            except OSError as error:
                raise ConnectError(f"cannot read {error.filename}: {error.strerror}") from error
            await asyncio.sleep(self._settings["poll.interval.ms"] / 1000)

    def _names(self) -> list[str]:
        names = sorted(each.name for each in self._folder.glob(self._settings["files"]) if each.is_file())
        if len(names) > _MAX_FILES:
            raise ConnectError(f"{self._folder} has {len(names)} files, at most {_MAX_FILES} are read")
        return names

    async def _read(self, name: str) -> list[SourceRecord]:
        begin = self._ends.get(name)
        if begin is None:
            offset = await self._context.offset(name)
            begin = 0 if offset is None else int(offset["position"])
        lines = await asyncio.to_thread(_lines, self._folder / name, begin)
        if self._settings["format"] == "csv" and name not in self._columns:
            first = lines[0] if begin == 0 and lines else await asyncio.to_thread(_first_line, self._folder / name)
            if first is None:
                return []
            self._columns[name] = _cells(first.text)
        topic = self._settings["topic"].replace("{file}", Path(name).stem)
        records = []
        for line in lines:
            is_header = self._settings["format"] == "csv" and line.end == len(line.text) + 1
            if not line.text.strip() or is_header:
                continue
            value = self._value(name, line)
            if value is not None:
                records.append(SourceRecord(topic, value, source=name, offset={"position": line.end}))
        # A cancelled poll loses nothing: the place moves when the records are returned.
        self._ends[name] = lines[-1].end if lines else begin
        return records

    def _value(self, name: str, line: _Line) -> Any:
        text = line.text.decode(errors="replace").rstrip("\r")
        if self._settings["format"] == "text":
            return text
        if self._settings["format"] == "csv":
            return dict(zip(self._columns[name], _cells(line.text), strict=False))
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if self._settings["malformed"] == "skip":
                return None
            raise ConnectError(f"{name} has a line that is not JSON, which ends at byte {line.end}: {error}") from error


def _lines(path: Path, begin: int) -> list[_Line]:
    """Whole lines behind an offset. A file that has become shorter is read again."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < begin:
            begin = 0
        file.seek(begin)
        data = file.read(_MAX_READ)
    lines: list[_Line] = []
    at = 0
    while len(lines) < _MAX_RECORDS:
        newline = data.find(b"\n", at)
        if newline < 0:
            break
        lines.append(_Line(data[at:newline], begin + newline + 1))
        at = newline + 1
    if not lines and len(data) == _MAX_READ:
        raise ConnectError(f"{path.name} has a line of more than {_MAX_READ} bytes at byte {begin}")
    return lines


def _first_line(path: Path) -> _Line | None:
    lines = _lines(path, 0)
    return lines[0] if lines else None


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode(errors="replace").rstrip("\r")]), [])
