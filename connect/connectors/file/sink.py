"""`file-sink`: appends records to files, a line for each."""

import asyncio
import csv
import io
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
)

_SUFFIXES: Final = {"json": "jsonl", "csv": "csv", "text": "txt"}
_TAIL: Final = 64 << 10  # bytes that are read at once to find the last whole line


class FileSink(SinkConnector):
    """Appends records to files. A file is synced before messages are acknowledged."""

    name = "file-sink"
    description = "appends records to files: JSON lines, CSV or text"
    settings = (
        Setting("directory", "The folder; the worker has to allow it.", required=True, importance=Importance.HIGH),
        Setting("format", "How a record is written.", default="json", choices=tuple(_SUFFIXES)),
        Setting(
            "content",
            "Of JSON lines: `record` writes topic, key, time, headers and value; `value` writes the value alone.",
            default="record",
            choices=("record", "value"),
        ),
        Setting("columns", "Of CSV: the fields of the value, in order.", SettingType.LIST, ()),
        Setting(
            "file.max.bytes", "A larger file is followed by a new one.", SettingType.INT, 64 << 20, least=1024
        ),
    )  # fmt: skip

    def check(self, settings: Settings) -> Mapping[str, str]:
        if settings["format"] == "csv" and not settings["columns"]:
            return {"columns": "CSV needs the columns"}
        return {}

    def task(self) -> SinkTask:
        return FileSinkTask()


class FileSinkTask(SinkTask):
    """Owns the files CONNECTOR-TASK-NUMBER of its folder."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._context = context
        self._settings = settings
        self._folder = context.require_path(settings["directory"])
        self._prefix = f"{context.connector}-{context.task}-"
        self._number = 1
        try:
            await asyncio.to_thread(self._prepare)
        except OSError as error:
            raise ConnectError(f"cannot write to {self._folder}: {error.strerror}") from error

    async def put(self, records: Sequence[SinkRecord]) -> None:
        lines = []
        for record in records:
            try:
                lines.append(self._line(record))
            except DataError as error:
                self._context.reject(record, error)
        try:
            await asyncio.to_thread(self._append, "".join(lines).encode())
        except OSError as error:
            raise ConnectError(f"cannot write to {self._path}: {error.strerror}") from error

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._prefix}{self._number:06}.{_SUFFIXES[self._settings['format']]}"

    def _prepare(self) -> None:
        """Go on in the newest file, without a line that a crash has cut."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while self._path.exists():
            self._number += 1
        self._number = max(1, self._number - 1)
        if not self._path.exists():
            return
        with self._path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                begin = max(0, end - _TAIL)
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                end = begin + newline + 1 if newline >= 0 else begin
                if newline >= 0:
                    break
            file.truncate(end)

    def _append(self, lines: bytes) -> None:
        if not lines:
            return
        if self._path.exists() and self._path.stat().st_size >= self._settings["file.max.bytes"]:
            self._number += 1
        with self._path.open("ab") as file:
            if not file.tell() and self._settings["format"] == "csv":
                file.write(_csv_line(self._settings["columns"]).encode())
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def _line(self, record: SinkRecord) -> str:
        form = self._settings["format"]
        if form == "text":
            text = record.value.decode(errors="replace") if isinstance(record.value, bytes) else str(record.value)
            return text.replace("\r", " ").replace("\n", " ") + "\n"
        if form == "csv":
            if not isinstance(record.value, dict):
                raise DataError(f"CSV needs an object as value, not {type(record.value).__name__}")
            return _csv_line([record.value.get(name) for name in self._settings["columns"]])
        value = record.value.decode(errors="replace") if isinstance(record.value, bytes) else record.value
        try:
            return (
                orjson.dumps(_fields(record, value) if self._settings["content"] == "record" else value).decode() + "\n"
            )
        except orjson.JSONEncodeError as error:
            raise DataError(f"the value cannot be written as JSON: {error}") from error


def _fields(record: SinkRecord, value: Any) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"topic": record.topic, "key": record.key, "time": time, "headers": record.headers, "value": value}


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(
        [orjson.dumps(each).decode() if isinstance(each, (dict, list)) else each for each in values]
    )
    return line.getvalue()
