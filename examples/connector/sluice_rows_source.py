"""A source for Sluice: the rows of a table in SQLite, in the order of their `rowid`, as messages."""

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any

from connect.api import Setting, Settings, SourceConnector, SourceContext, SourceRecord, SourceTask


class RowsSource(SourceConnector):
    name = "rows-source"
    description = "publishes the rows of a table in SQLite"
    settings = (
        Setting("file", "The database; the worker has to allow its folder.", required=True),
        Setting("table", "The table, to which rows are added.", required=True),
        Setting("topic", "The topic of the messages.", required=True),
    )

    def task(self) -> SourceTask:
        return RowsSourceTask()


class RowsSourceTask(SourceTask):
    async def start(self, settings: Settings, context: SourceContext) -> None:
        offset = await context.offset()
        self._after = offset["rowid"] if offset else 0
        self._topic = settings["topic"]
        self._database = sqlite3.connect(context.require_path(settings["file"]), check_same_thread=False)
        table = settings["table"].replace('"', '""')
        self._query = f'SELECT rowid AS "rowid", * FROM "{table}" WHERE rowid > ? ORDER BY rowid LIMIT 1000'  # noqa: S608

    async def poll(self) -> Sequence[SourceRecord]:
        while not (rows := await asyncio.to_thread(self._rows)):  # noqa: ASYNC110  SQLite tells nobody
            await asyncio.sleep(0.5)
        self._after = rows[-1]["rowid"]
        return [SourceRecord(self._topic, row, offset={"rowid": row["rowid"]}) for row in rows]

    async def stop(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()

    def _rows(self) -> list[dict[str, Any]]:
        found = self._database.execute(self._query, (self._after,))
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]
