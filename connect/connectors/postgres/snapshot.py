"""The rows that tables have when a source begins."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from psycopg import AsyncConnection

from connect.api import SourceRecord
from connect.connectors.postgres.change_events import ChangeEvents
from connect.connectors.postgres.identifiers import quoted
from connect.connectors.postgres.source_catalog import PublishedTable, SourceCatalog

_UNFINISHED: Final = {"snapshot": True}  # the offset of a row: a task that begins here begins the snapshot again


async def begin_snapshot(connection: AsyncConnection[Any], name: str | None) -> None:
    """Begin a transaction that sees the present, or a snapshot that was exported under a name."""
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    if name is not None:
        await connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'")


async def snapshot_rows(
    connection: AsyncConnection[Any],
    tables: Sequence[PublishedTable],
    catalog: SourceCatalog,
    events: ChangeEvents,
    lsn: int,
) -> AsyncGenerator[tuple[SourceRecord, int], None]:
    """The rows that the transaction of `begin_snapshot` sees, as they are read, with their sizes in bytes.

    connection: which `catalog` uses, too. lsn: where changes go on afterwards.
    """
    last: tuple[SourceRecord, int] | None = None
    for published in tables:
        table = await catalog.snapshot_columns(published)
        columns = ", ".join(quoted(column) for column, _ in table.columns)
        condition = f" WHERE {published.filter}" if published.filter else ""
        query = f"COPY (SELECT {columns} FROM {published.name.sql}{condition}) TO STDOUT"
        async with connection.cursor().copy(query) as copy:
            async for cells in copy.rows():
                if last is not None:
                    yield last
                size = sum(len(cell) for cell in cells if cell is not None)
                last = events.snapshot(table, cells, lsn, _UNFINISHED), size
    await connection.execute("COMMIT")
    if last is not None:
        last[0].offset = {"lsn": lsn, "change": 0}
        yield last
