"""A sink for Sluice: messages as rows of a table in SQLite. A message that comes again replaces its row."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence

from connect.api import RetriableError, Setting, Settings, SinkConnector, SinkContext, SinkRecord, SinkTask

TABLE = "CREATE TABLE IF NOT EXISTS messages (position INTEGER PRIMARY KEY, topic TEXT, time_ms INTEGER, value TEXT)"


class RowsSink(SinkConnector):
    name = "rows-sink"
    description = "writes messages to a table in SQLite"
    settings = (Setting("file", "The database; the worker has to allow its folder.", required=True),)

    def task(self) -> SinkTask:
        return RowsSinkTask()


class RowsSinkTask(SinkTask):
    async def start(self, settings: Settings, context: SinkContext) -> None:
        path = context.require_path(settings["file"])
        self._database = await asyncio.to_thread(sqlite3.connect, path, check_same_thread=False)
        await asyncio.to_thread(self._database.execute, TABLE)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        await asyncio.to_thread(self._insert, records)  # the event loop must not wait for a disk

    async def stop(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()

    def _insert(self, records: Sequence[SinkRecord]) -> None:
        rows = [(each.position, each.topic, each.timestamp_ms, json.dumps(each.value)) for each in records]
        try:
            with self._database:  # a transaction
                self._database.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as error:  # locked, or the disk is full
            raise RetriableError(str(error)) from error
