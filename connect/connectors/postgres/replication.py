"""The streaming replication protocol, over psycopg's layer of libpq.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.errors import error_from_result

from connect.api import RetriableError, Settings, TaskContext
from connect.connectors.postgres.column_values import SESSION
from connect.connectors.postgres.connection import connect, translated

_REPORT_S: Final = 10.0  # a server gives up on a client that is silent for `wal_sender_timeout`, 60 s by default
_WAL_DATA: Final = struct.Struct("!cQQq")
_KEEPALIVE: Final = struct.Struct("!cQqB")
_STATUS: Final = struct.Struct("!cQQQqB")
_EPOCH_US: Final = 946_684_800_000_000


@dataclass(slots=True, frozen=True)
class Keepalive:
    """Word of a server: all changes before `lsn` have been sent."""

    lsn: int


@asynccontextmanager
async def new_slot(settings: Settings, context: TaskContext, slot: str) -> AsyncIterator[tuple[int, str]]:
    """Make a replication slot. Gives the LSN where its changes begin, and the name of a snapshot of the rows before.

    The snapshot can be imported until the context ends. Raises `ConnectError`.
    """
    async with await connect(settings, context, replication="database") as connection:
        cursor = await connection.execute(f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput EXPORT_SNAPSHOT")
        row = await cursor.fetchone()
        assert row is not None
        high, _, low = row[1].partition("/")
        yield (int(high, 16) << 32) + int(low, 16), row[2]


class ReplicationStream:
    """The changes of a replication slot. What is not read waits at the server."""

    def __init__(self, connection: AsyncConnection[Any], confirmed: int) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        self._confirmed = confirmed
        self._reports = asyncio.create_task(self._keep_reporting())

    @classmethod
    async def open(cls, settings: Settings, context: TaskContext, slot: str, publication: str, lsn: int) -> Self:
        """Begin with the transactions whose commit is at `lsn` or later, and not before what the slot was told."""
        connection = await connect(settings, context, replication="database")
        try:
            await connection.execute(SESSION)
            names = publication.replace('"', '""').replace("'", "''")
            connection.pgconn.send_query(
                f"START_REPLICATION SLOT {slot} LOGICAL {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X} "
                f"(proto_version '1', publication_names '\"{names}\"')".encode()
            )
            while connection.pgconn.flush():
                await _ready(connection.pgconn.socket, writing=True)
            while connection.pgconn.is_busy():
                await _ready(connection.pgconn.socket)
                connection.pgconn.consume_input()
            result = connection.pgconn.get_result()
            if result is None or result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.OperationalError("the replication ended") if result is None else error_from_result(result)
        except psycopg.Error as error:
            await connection.close()
            raise translated(error) from None
        except BaseException:
            await connection.close()
            raise
        return cls(connection, lsn)

    async def next(self, *, wait: bool) -> bytes | Keepalive | None:
        """A message of the output plug-in, or a keepalive; None if none has come and none is waited for.

        Raises `RetriableError` if the connection is lost.
        """
        try:
            while True:
                size, data = self._libpq.get_copy_data(1)
                if size > 0:
                    return self._message(bytes(data))
                if size < 0:
                    result = self._libpq.get_result()
                    failed = result is not None and result.status == pq.ExecStatus.FATAL_ERROR
                    raise error_from_result(result) if failed and result else RetriableError("the replication ended")
                if wait:
                    await _ready(self._libpq.socket)
                    self._libpq.consume_input()
                    continue
                self._libpq.consume_input()
                size, data = self._libpq.get_copy_data(1)
                return self._message(bytes(data)) if size > 0 else None
        except psycopg.Error as error:
            raise translated(error) from None

    def confirm(self, lsn: int) -> None:
        """Tell the server that changes before `lsn` need not come again. It may remove their WAL."""
        self._confirmed = max(self._confirmed, lsn)
        self._report()

    async def close(self) -> None:
        self._reports.cancel()
        with suppress(asyncio.CancelledError):
            await self._reports
        await self._connection.close()

    def _message(self, data: bytes) -> bytes | Keepalive:
        if data[:1] == b"w":
            return data[_WAL_DATA.size :]
        _, lsn, _, wants_answer = _KEEPALIVE.unpack(data)
        if wants_answer:
            self._report()
        return Keepalive(lsn)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            self._report()

    def _report(self) -> None:
        now = time.time_ns() // 1000 - _EPOCH_US
        status = _STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, now, 0)
        with suppress(psycopg.Error):  # `next` says so
            self._libpq.put_copy_data(status)
            self._libpq.flush()


async def _ready(descriptor: int, *, writing: bool = False) -> None:
    """Wait until a socket can be read, or written."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(descriptor, done.set)
    try:
        await done.wait()
    finally:
        remove(descriptor)
