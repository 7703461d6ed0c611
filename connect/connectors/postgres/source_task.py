"""A task of `postgres-source`: a snapshot, then changes from a replication slot."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from connect.api import ConnectError, Settings, SourceContext, SourceRecord, SourceTask
from connect.connectors.postgres.change_events import ChangeEvents, SourceTable
from connect.connectors.postgres.column_values import SESSION
from connect.connectors.postgres.connection import connect, translated
from connect.connectors.postgres.pgoutput import Begin, Change, Commit, Relation, Truncate, decode
from connect.connectors.postgres.replication import Keepalive, ReplicationStream, new_slot
from connect.connectors.postgres.snapshot import begin_snapshot, snapshot_rows
from connect.connectors.postgres.source_catalog import PublishedTable, SourceCatalog

_BATCH_BYTES: Final = 4 << 20
_TURN: Final = 1000  # messages without a record before others of the loop have a turn


class PostgresSourceTask(SourceTask):
    """Reads rows, then changes.

    The offset of a change is the LSN of its transaction's commit, and which change of the transaction it is. A task
    that begins there reads the transaction again, and passes over the changes up to that one. The server is told of a
    transaction when all its messages are stored.
    """

    def __init__(self) -> None:
        self._connection: AsyncConnection[Any] | None = None  # for SQL
        # Of a snapshot that is not read to its end.
        self._rows: AsyncGenerator[tuple[SourceRecord, int], None] | None = None
        self._stream: ReplicationStream | None = None
        self._reading: asyncio.Task[list[SourceRecord]] | None = None
        self._returned = 0  # records of `poll`
        self._read = 0  # these, and those of a batch that is not returned yet
        self._stored = 0
        # When so many records are stored, everything before an LSN is.
        self._marks: deque[tuple[int, int]] = deque()
        self._relations: dict[int, SourceTable | None] = {}
        self._begin = Begin(0, 0, 0)
        self._in_transaction = False
        self._number = 0  # of the last change of the transaction
        self._rows_lsn = 0  # where changes go on behind the snapshot
        self._resumed_at = self._resumed_change = 0  # the last change that is stored already

    async def start(self, settings: Settings, context: SourceContext) -> None:
        own = "sluice_" + re.sub("[^a-z0-9]", "_", context.connector.lower())[:56]
        names = {name: settings[name] or own for name in ("slot.name", "publication.name")}
        self._settings = {**settings, **names}
        self._context = context
        self._skipped = frozenset(settings["skipped.operations"])
        self._offset = await context.offset()  # of the last record that `poll` returned
        await self._open()

    async def poll(self) -> Sequence[SourceRecord]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._batch())
        try:
            records = await asyncio.shield(self._reading)  # a call that is cancelled leaves it to the next one
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._reading = None
            await self._close()
            raise
        self._reading = None
        self._returned += len(records)
        if records:
            self._offset = records[-1].offset
        return records

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        self._stored += len(records)
        self._confirm()

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # nobody else asks for it
        await self._close()

    async def _open(self) -> None:
        """Connect, and go on behind the last record."""
        self._read = self._returned
        while self._marks and self._marks[-1][0] > self._read:
            self._marks.pop()
        self._connection = await connect(self._settings, self._context)
        try:
            await self._connection.execute(SESSION)
            self._catalog = SourceCatalog(self._connection, self._settings)
            await self._catalog.check_wal_level()
            tables = await self._catalog.publish()
            lsn = await self._catalog.slot_lsn()
            database = self._connection.info.dbname
            self._events = ChangeEvents(
                self._settings["topic.prefix"], database, self._settings["unavailable.value.placeholder"]
            )
            offset = self._offset if self._offset is not None and "lsn" in self._offset else None
            if offset is not None:
                if lsn is None:
                    raise ConnectError(
                        f"the replication slot {self._settings['slot.name']} is gone, and changes with it: reset the "
                        "offsets of the connector for a new snapshot"
                    )
                await self._open_stream(offset, lsn)
            else:
                await self._begin_anew(tables, lsn)
        except psycopg.Error as error:
            raise translated(error) from None

    async def _begin_anew(self, tables: Sequence[PublishedTable], lsn: int | None) -> None:
        """Begin with a snapshot, if there should be one, and with a new slot, if there is none."""
        assert self._connection is not None
        wants_rows = self._settings["snapshot.mode"] == "initial"
        if lsn is None:
            async with new_slot(self._settings, self._context, self._settings["slot.name"]) as (begin, name):
                lsn = begin
                if wants_rows:
                    await begin_snapshot(self._connection, name)
        elif wants_rows:
            # Changes since the slot was made come behind rows that have them: nothing is lost, some are told twice.
            await begin_snapshot(self._connection, None)
        if wants_rows:
            self._rows = snapshot_rows(self._connection, tables, self._catalog, self._events, lsn)
            self._rows_lsn = lsn
        else:
            await self._open_stream({"lsn": lsn, "change": 0}, lsn)

    async def _open_stream(self, offset: Mapping[str, Any], slot_lsn: int) -> None:
        self._relations.clear()
        self._in_transaction = False
        self._resumed_at, self._resumed_change = offset["lsn"], offset["change"]
        self._stream = await ReplicationStream.open(
            self._settings,
            self._context,
            self._settings["slot.name"],
            self._settings["publication.name"],
            max(offset["lsn"], slot_lsn),
        )

    async def _batch(self) -> list[SourceRecord]:
        try:
            if self._connection is None:
                await self._open()
            if self._rows is not None:
                records = await self._read_rows(self._rows)
                if records:
                    return records
                self._rows = None
                await self._open_stream({"lsn": self._rows_lsn, "change": 0}, self._rows_lsn)
            assert self._stream is not None
            return await self._read_changes(self._stream)
        except psycopg.Error as error:
            raise translated(error) from None

    async def _read_rows(self, rows: AsyncIterator[tuple[SourceRecord, int]]) -> list[SourceRecord]:
        records: list[SourceRecord] = []
        size = 0
        async for record, record_size in rows:
            records.append(record)
            size += record_size
            if len(records) == self._settings["max.batch.size"] or size >= _BATCH_BYTES:
                break
        self._read += len(records)
        return records

    async def _read_changes(self, stream: ReplicationStream) -> list[SourceRecord]:
        records: list[SourceRecord] = []
        size = messages = 0
        while len(records) < self._settings["max.batch.size"] and size < _BATCH_BYTES:
            message = await stream.next(wait=not records)
            if message is None:
                break
            if isinstance(message, Keepalive):
                if not self._in_transaction:
                    self._mark(message.lsn)
                continue
            found = await self._handle(message)
            if found:
                records.extend(found)
                size += len(message)
                self._read += len(found)
            messages += 1
            if messages % _TURN == 0:
                await asyncio.sleep(0)
        return records

    async def _handle(self, data: bytes) -> list[SourceRecord]:
        """The records of one message of the output plug-in."""
        message = decode(data)
        match message:
            case Relation():
                included = self._catalog.includes(message.schema, message.name)
                self._relations[message.oid] = await self._catalog.relation(message) if included else None
            case Begin():
                self._begin, self._number, self._in_transaction = message, 0, True
            case Commit():
                self._in_transaction = False
                self._mark(message.end_lsn)
            case Change() | Truncate():
                self._number += 1
                if (self._begin.lsn, self._number) > (self._resumed_at, self._resumed_change):
                    return self._records(message)
            case None:
                pass
        return []

    def _records(self, message: Change | Truncate) -> list[SourceRecord]:
        if isinstance(message, Truncate):
            tables = [table for oid in message.relations if (table := self._relations.get(oid)) is not None]
            if "t" in self._skipped:
                return []
            return [self._events.truncated(table, self._begin, self._number) for table in tables]
        table = self._relations.get(message.relation)
        if table is None or message.op in self._skipped:
            return []
        return list(self._events.change(table, message, self._begin, self._number))

    def _mark(self, lsn: int) -> None:
        """Note that the records up to now are all of what is before an LSN."""
        if self._marks and self._marks[-1][0] == self._read:
            self._marks.pop()
        self._marks.append((self._read, lsn))
        self._confirm()

    def _confirm(self) -> None:
        lsn = 0
        while self._marks and self._marks[0][0] <= self._stored:
            lsn = self._marks.popleft()[1]
        if lsn and self._stream is not None:
            self._stream.confirm(lsn)

    async def _close(self) -> None:
        if self._rows is not None:
            with suppress(psycopg.Error):
                await self._rows.aclose()
            self._rows = None
        if self._stream is not None:
            await self._stream.close()
            self._stream = None
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
