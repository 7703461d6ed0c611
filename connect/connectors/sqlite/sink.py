"""`sqlite-sink`: messages in tables of a SQLite database."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    Partition,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
    TransactionalSinkTask,
)
from connect.connectors.common.batches import writable
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.typed_fields import FIELDS, TypedField, parse_fields
from connect.connectors.common.values import iso, parsed, texts, to_json

_OFFSETS: Final = "sluice_offsets"
_BUSY_S: Final = 30.0  # that another writer may hold the database
_MAX_TABLES: Final = 1000  # of a task
_TYPES: Final = {
    "string": "TEXT",
    "long": "INTEGER",
    "double": "REAL",
    "boolean": "INTEGER",
    "timestamp": "TEXT",
}
_MESSAGE: Final = {
    "topic": "TEXT",
    "levels": "TEXT",
    "key": "TEXT",
    "value": "TEXT",
    "value_base64": "TEXT",
    "headers": "TEXT",
    "stored_at": "TEXT",
    "partition": "INTEGER",
    "offset": "INTEGER",
    "position": "INTEGER",
}

Row = tuple[Any, ...]


class SqliteSink(SinkConnector):
    """Inserts a row for each message, exactly once. The offsets are in a table of the database."""

    name = "sqlite-sink"
    description = "inserts rows into tables of a SQLite database"
    value_converter = "raw"
    settings = (
        Setting(
            "connection.path",
            "File of the database; the worker has to allow it. It is created if it is missing.",
            required=True,
            importance=Importance.HIGH,
        ),
        Setting(
            "table.name.format",
            f"Table of a message, which is created if it is missing. It may have {KINDS}.",
            default="${level1}",
            importance=Importance.HIGH,
            check=problem_of,
        ),
        FIELDS,
        Setting("auto.evolve", "Add columns of `fields` that a table does not have.", SettingType.BOOLEAN, False),
    )

    def task(self) -> SinkTask:
        return SqliteSinkTask()


class SqliteSinkTask(TransactionalSinkTask):
    """Inserts the rows of each `put` and its offsets in one transaction."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._table = Name(settings["table.name.format"])
        self._fields: list[TypedField] = parse_fields(settings["fields"])
        self._columns = _MESSAGE | {each.column: _TYPES[each.type] for each in self._fields}
        self._path: Path = context.require_path(settings["connection.path"])
        self._tables: set[str] = set()  # that have all columns
        self._offsets: dict[Partition, int] = {}

    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self._offsets = await asyncio.to_thread(self._read_offsets, partitions)
        return dict(self._offsets)

    def committed(self) -> Mapping[Partition, int]:
        return self._offsets

    async def put(self, records: Sequence[SinkRecord]) -> None:
        if not records:
            return
        rows: dict[str, list[Row]] = {}
        for _, (table, row) in writable(records, self._row, self._context):
            rows.setdefault(table, []).append(row)
        after = {record.partition: record.offset + 1 for record in records}
        await self._context.store_rejected()
        await asyncio.to_thread(self._write, rows, after)
        self._offsets |= after

    def _row(self, record: SinkRecord) -> tuple[str, Row]:
        table = self._table.of(record)
        if not table or table.startswith("sqlite_") or table == _OFFSETS or "\0" in table:
            raise DataError(f"{table[:40]!r} cannot be the name of a table")
        text, encoded = texts(record.value)
        value = parsed(record.value) if self._fields else None
        typed = [each.of(value) for each in self._fields]
        return table, (
            record.topic,
            to_json(record.topic.split("/")).decode(),
            record.key,
            text,
            encoded,
            to_json(record.headers).decode(),
            iso(record.timestamp_ms),
            record.partition.number,
            record.offset,
            record.position,
            *(each.isoformat() if hasattr(each, "isoformat") else each for each in typed),
        )

    def _read_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        try:
            with closing(self._connected()) as database, database:
                database.execute(
                    f"CREATE TABLE IF NOT EXISTS {_OFFSETS} (connector TEXT, parent TEXT, partition INTEGER, "
                    "next_offset INTEGER, PRIMARY KEY (connector, parent, partition)) WITHOUT ROWID"
                )
                return self._known(database, partitions)
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _write(self, rows: Mapping[str, Sequence[Row]], after: Mapping[Partition, int]) -> None:
        try:
            with closing(self._connected()) as database:
                database.execute("BEGIN IMMEDIATE")
                with database:  # commits, or rolls back
                    if self._known(database, after) != {
                        each: self._offsets[each] for each in after if each in self._offsets
                    }:
                        raise RetriableError(f"another task writes to {self._path}")
                    for table, inserted in rows.items():
                        self._prepare(database, table)
                        places = ", ".join("?" * len(self._columns))
                        columns = ", ".join(map(_quoted, self._columns))
                        database.executemany(
                            f"INSERT INTO {_quoted(table)} ({columns}) VALUES ({places})",  # noqa: S608 (quoted)
                            inserted,
                        )
                    database.executemany(
                        f"INSERT OR REPLACE INTO {_OFFSETS} VALUES (?, ?, ?, ?)",  # noqa: S608 (a constant)
                        [(self._context.connector, *partition, offset) for partition, offset in after.items()],
                    )
                self._tables.update(rows)
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _prepare(self, database: sqlite3.Connection, table: str) -> None:
        """Create a table, and the columns that it does not have if that is allowed."""
        if table in self._tables:
            return
        if len(self._tables) >= _MAX_TABLES:
            raise ConnectError(f"table.name.format makes more than {_MAX_TABLES} tables")
        columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in self._columns.items())
        database.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(table)} ({columns})")
        known = {name for _, name, *_ in database.execute(f"PRAGMA table_info({_quoted(table)})")}
        for name, kind in self._columns.items():
            if name not in known:
                if not self._settings["auto.evolve"]:
                    raise ConnectError(f"the table {table} has no column {name!r}: auto.evolve=true would add it")
                database.execute(f"ALTER TABLE {_quoted(table)} ADD COLUMN {_quoted(name)} {kind}")

    def _known(
        self, database: sqlite3.Connection, partitions: Sequence[Partition] | Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """The offsets of partitions in the database."""
        found = database.execute(
            f"SELECT parent, partition, next_offset FROM {_OFFSETS} WHERE connector = ?",  # noqa: S608 (a constant)
            (self._context.connector,),
        )
        known = {Partition(parent, number): offset for parent, number, offset in found}
        return {partition: known[partition] for partition in partitions if partition in known}

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)

    def _error(self, error: sqlite3.Error) -> ConnectError:
        text = f"{self._path}: {error}"
        is_busy = isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))
        return RetriableError(text) if is_busy else ConnectError(text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
