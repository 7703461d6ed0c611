"""Rows on their way into tables, in a transaction of the caller."""

import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from connect.api import SinkRecord
from connect.connectors.postgres.connection import is_data_error, primary
from connect.connectors.postgres.rows import Row, RowBuilder
from connect.connectors.postgres.tables import Shape

_LINE: Final = re.compile(r"^COPY .*?, \w+ (\d+)")  # where COPY stopped, in the language of the server

Refused = list[tuple[SinkRecord, str]]  # messages, and why


class RowWriter:
    """Writes by COPY: into the table, or for upserts into a temporary table and from there."""

    def __init__(self, connection: AsyncConnection[Any], rows: RowBuilder, *, upserts: bool) -> None:
        self._connection = connection
        self._rows = rows
        self._upserts = upserts
        self._used: set[str] = set()  # temporary tables that may have rows

    async def write(self, rows: Sequence[Row]) -> Refused:
        """Write all rows. Raises the error of PostgreSQL if it refuses any."""
        for shape, part in _by_shape(rows):
            await self._copy(shape, part)
        return []

    async def write_carefully(self, rows: Sequence[Row]) -> Refused:
        """Write all rows that PostgreSQL takes. Of n rows, none is sent more often than about log2 n times."""
        refused: Refused = []
        # Otherwise COMMIT would refuse a row, and nobody knew which.
        await self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        waiting = [part for _, part in reversed(_by_shape(rows))]
        while waiting:
            part = waiting.pop()
            try:
                async with self._connection.transaction():  # a savepoint
                    await self._copy(part[0].shape, part)
            except psycopg.Error as error:
                if not is_data_error(error):
                    raise
                if len(part) > 1:
                    waiting.extend(reversed(_divided(part, error)))
                elif len(part[0].records) > 1:  # of an upsert: messages with the same key, one by one
                    rows, _ = await self._rows.rows(part[0].records)
                    waiting.extend([row] for row in reversed(rows))
                else:
                    refused.append((part[0].records[0], primary(error)))
        return refused

    async def _copy(self, shape: Shape, rows: Sequence[Row]) -> None:
        table = shape.table
        data = "".join(["\t".join(row.cells) + "\n" for row in rows]).encode()
        if not self._upserts:
            await self._send(shape.copy_sql(table.name.sql), data)
            return
        if table.stage in self._used:
            await self._connection.execute(f"DELETE FROM pg_temp.{table.stage}")
        self._used.add(table.stage)
        await self._send(shape.copy_sql(f"pg_temp.{table.stage}"), data)
        await self._connection.execute(shape.upsert_sql(self._rows.key))

    async def _send(self, statement: str, data: bytes) -> None:
        async with self._connection.cursor().copy(statement) as copy:
            await copy.write(data)


def _by_shape(rows: Sequence[Row]) -> list[tuple[Shape, list[Row]]]:
    found: dict[Shape, list[Row]] = {}
    for row in rows:
        found.setdefault(row.shape, []).append(row)
    return list(found.items())


def _divided(rows: list[Row], error: psycopg.Error) -> list[list[Row]]:
    """Parts of rows of which PostgreSQL refused one: the one that its error names is alone."""
    found = _LINE.match(error.diag.context or "")
    at = int(found[1]) - 1 if found else -1
    if not 0 <= at < len(rows):
        parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    else:
        middle = (at + 1 + len(rows)) // 2
        parts = [rows[:at], rows[at : at + 1], rows[at + 1 : middle], rows[middle:]]
    return [part for part in parts if part]
