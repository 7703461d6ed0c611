"""A task of `postgres-sink`: rows by COPY, and offsets with them in one transaction."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from connect.api import (
    ConnectError,
    DataError,
    Partition,
    RetriableError,
    Settings,
    SinkContext,
    SinkRecord,
    TransactionalSinkTask,
)
from connect.connectors.postgres.connection import connect, is_data_error, primary, translated
from connect.connectors.postgres.row_writer import RowWriter
from connect.connectors.postgres.rows import Row, RowBuilder, primary_key
from connect.connectors.postgres.sink_offsets import SinkOffsets
from connect.connectors.postgres.tables import Tables

_WAITING_BYTES: Final = 8 << 20  # payloads that wait for a transaction; a put may bring more at once
_NO_UNIQUE_INDEX: Final = "42P10"
_CHANGED: Final = ("42P01", "42703", "42804")  # a table or a column that was there is gone, or another


class PostgresSinkTask(TransactionalSinkTask):
    """Writes messages to tables.

    A transaction takes all messages that came during the one before, so their number follows the load. A row that
    PostgreSQL refuses fails its whole transaction, which is done again more slowly, without that row.
    """

    _settings: Settings
    _context: SinkContext
    _offsets: SinkOffsets
    _tables: Tables
    _rows: RowBuilder
    _connection: AsyncConnection[Any] | None = None

    def __init__(self) -> None:
        self._waiting: list[SinkRecord] = []
        self._waiting_bytes = 0
        self._taken = asyncio.Event()  # set when those that waited are in a transaction
        self._writing: asyncio.Task[None] | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._upserts = settings["insert.mode"] == "upsert"
        self._offsets = SinkOffsets(settings["offsets.table"], context.connector)
        await self._connect()

    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        await self._end_writing()
        try:
            connection = self._connection
            if connection is None or connection.info.transaction_status is not TransactionStatus.IDLE:
                await self._connect()  # a write that was cancelled may have left a command under way
            else:
                self._forget_tables(connection)
                await connection.execute("DISCARD TEMPORARY")
            assert self._connection is not None
            known = await self._offsets.read(self._connection)
        except psycopg.Error as error:
            raise translated(error) from None
        return {each: known[each] for each in partitions if each in known}

    async def put(self, records: Sequence[SinkRecord]) -> None:
        """Keep records for the next transaction. Raises what an earlier one has failed of."""
        self._waiting.extend(records)
        self._waiting_bytes += sum(len(each.payload) for each in records)
        while True:
            if self._writing is not None and self._writing.done():
                writing, self._writing = self._writing, None
                writing.result()
            if self._writing is None and self._waiting:
                self._writing = asyncio.create_task(self._write())
            if len(self._waiting) < self._settings["batch.size"] and self._waiting_bytes < _WAITING_BYTES:
                return
            assert self._writing is not None
            self._taken.clear()
            taken = asyncio.create_task(self._taken.wait())
            await asyncio.wait((taken, self._writing), return_when=asyncio.FIRST_COMPLETED)
            taken.cancel()

    def committed(self) -> Mapping[Partition, int]:
        return self._offsets.known

    async def stop(self) -> None:
        await self._end_writing()
        if self._connection is not None:
            await self._connection.close()

    async def _end_writing(self) -> None:
        """Drop what waits, and roll back what is being written."""
        self._waiting, self._waiting_bytes = [], 0
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
            if not self._writing.cancelled():
                self._writing.exception()  # nobody else asks for it
            self._writing = None

    async def _write(self) -> None:
        """Write all that waits."""
        most = self._settings["batch.size"]
        try:
            while self._waiting:
                records, self._waiting = self._waiting[:most], self._waiting[most:]
                self._waiting_bytes = sum(len(each.payload) for each in self._waiting)
                self._taken.set()
                await self._store(records)
        except psycopg.Error as error:
            if error.sqlstate == _NO_UNIQUE_INDEX:
                raise ConnectError(f"a table has no unique index on the columns {', '.join(self._rows.key)}") from None
            if error.sqlstate in _CHANGED:
                raise RetriableError(f"a table was changed: {primary(error)}") from None
            raise translated(error) from None

    async def _connect(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._connection = await connect(self._settings, self._context)
        try:
            await self._offsets.create(self._connection)
        except psycopg.Error as error:
            raise translated(error) from None
        self._forget_tables(self._connection)

    def _forget_tables(self, connection: AsyncConnection[Any]) -> None:
        self._tables = Tables(
            connection,
            create=self._settings["auto.create"],
            evolve=self._settings["auto.evolve"],
            key=primary_key(self._settings)[1],
        )
        self._rows = RowBuilder(self._settings, self._tables)

    async def _store(self, records: Sequence[SinkRecord]) -> None:
        """Store messages in one transaction."""
        assert self._connection is not None
        records = [each for each in records if each.offset >= self._offsets.next(each.partition)]
        if not records:
            return
        rows, unfit = await self._rows.rows(records)
        if self._upserts:
            rows = self._rows.merged(rows)
            for table in {id(row.shape.table): row.shape.table for row in rows}.values():
                await self._tables.stage(table)
        following = {each.partition: each.offset + 1 for each in records}
        try:
            await self._commit(rows, unfit, following, carefully=False)
        except psycopg.Error as error:
            if not is_data_error(error):
                raise
            await self._commit(rows, unfit, following, carefully=True)
        self._offsets.advanced(following)
        await self._tables.drop_stages()

    async def _commit(
        self,
        rows: Sequence[Row],
        unfit: Sequence[tuple[SinkRecord, str]],
        following: Mapping[Partition, int],
        *,
        carefully: bool,
    ) -> None:
        assert self._connection is not None
        writer = RowWriter(self._connection, self._rows, upserts=self._upserts)
        async with self._connection.transaction():
            await self._offsets.advance(self._connection, following)  # first, so that another task waits here
            refused = [*unfit, *(await writer.write_carefully(rows) if carefully else await writer.write(rows))]
            for record, reason in refused:
                self._context.reject(record, DataError(reason))
            if refused:
                await self._context.store_rejected()
