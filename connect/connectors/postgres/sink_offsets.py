"""The offsets of a sink, in a table of its target: what makes it exactly once.

Each transaction moves the offsets of its messages on, from the ones that the task knows. If another task has moved them
meanwhile, no row matches, and the transaction fails.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection

from connect.api import Partition, RetriableError

_ANOTHER_TASK = "another task has written these messages meanwhile"


class SinkOffsets:
    """The next offset of each partition of a connector."""

    def __init__(self, table: str, connector: str) -> None:
        self._table = table  # a name that needs no quotes
        self._connector = connector
        self._next: dict[Partition, int] = {}

    async def create(self, connection: AsyncConnection[Any]) -> None:
        """Create the table if it is missing."""
        found = await connection.execute("SELECT to_regclass(%s)", (self._table,))
        if await found.fetchone() != (None,):
            return  # a role without the right to create it may use it
        with suppress(psycopg.errors.UniqueViolation):  # another task creates it at the same time
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (connector text, parent text, partition integer, "
                "next_offset bigint NOT NULL, updated timestamptz NOT NULL DEFAULT now(), "
                "PRIMARY KEY (connector, parent, partition))"
            )

    async def read(self, connection: AsyncConnection[Any]) -> Mapping[Partition, int]:
        """All that the database has for the connector."""
        cursor = await connection.execute(
            f"SELECT parent, partition, next_offset FROM {self._table} WHERE connector = %s", (self._connector,)
        )
        self._next = {Partition(parent, number): offset for parent, number, offset in await cursor.fetchall()}
        return self.known

    @property
    def known(self) -> Mapping[Partition, int]:
        """What the database has, as far as this task knows."""
        return dict(self._next)

    def next(self, partition: Partition) -> int:
        """Messages before this offset are in the database."""
        return self._next.get(partition, 0)

    async def advance(self, connection: AsyncConnection[Any], new: Mapping[Partition, int]) -> None:
        """Move offsets on, in a transaction. Raises `RetriableError` if another task has done so."""
        rows = [(self._connector, *each, self._next.get(each), offset) for each, offset in sorted(new.items())]
        moved = [row for row in rows if row[3] is not None]
        if moved:
            names, parents, numbers, expected, offsets = map(list, zip(*moved, strict=True))
            cursor = await connection.execute(
                f"UPDATE {self._table} AS o SET next_offset = n.next, updated = now() FROM unnest(%s::text[], "
                "%s::text[], %s::integer[], %s::bigint[], %s::bigint[]) AS n (connector, parent, partition, expected, "
                "next) WHERE o.connector = n.connector AND o.parent = n.parent AND o.partition = n.partition "
                "AND o.next_offset = n.expected",
                (names, parents, numbers, expected, offsets),
            )
            if cursor.rowcount != len(moved):
                raise RetriableError(_ANOTHER_TASK)
        added = [(*row[:3], row[4]) for row in rows if row[3] is None]
        if added:
            names, parents, numbers, offsets = map(list, zip(*added, strict=True))
            cursor = await connection.execute(
                f"INSERT INTO {self._table} (connector, parent, partition, next_offset) SELECT * FROM "
                "unnest(%s::text[], %s::text[], %s::integer[], %s::bigint[]) ON CONFLICT DO NOTHING",
                (names, parents, numbers, offsets),
            )
            if cursor.rowcount != len(added):
                raise RetriableError(_ANOTHER_TASK)

    def advanced(self, new: Mapping[Partition, int]) -> None:
        """Note that the transaction of `advance` is committed."""
        self._next.update(new)
