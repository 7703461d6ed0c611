"""What a source asks of a database with SQL: publications, slots, tables and their types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from connect.api import ConnectError, Settings
from connect.connectors.postgres.change_events import SourceTable
from connect.connectors.postgres.column_values import decoder
from connect.connectors.postgres.identifiers import TableName, quoted
from connect.connectors.postgres.pgoutput import Relation
from connect.regular_expressions import RegularExpression

_TABLES: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2
"""
# Before PostgreSQL 15, publications have neither lists of columns nor filters of rows.
_PUBLISHED: Final = """
SELECT p.schemaname, p.tablename, to_jsonb(p) -> 'attnames', to_jsonb(p) ->> 'rowfilter'
FROM pg_publication_tables p WHERE p.pubname = %s ORDER BY 1, 2
"""
_OPTIONS: Final = "WITH (publish_via_partition_root = true)"
_COLUMNS: Final = """
SELECT a.attname, a.atttypid::integer FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_KEY: Final = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY array_position(i.indkey::smallint[], a.attnum)
"""
_TYPES: Final = """
SELECT t.oid::integer, coalesce(nullif(t.typbasetype, 0), t.oid)::integer,
CASE t.typcategory WHEN 'A' THEN t.typelem ELSE 0 END::integer FROM pg_type t WHERE t.oid = ANY (%s::oid[])
"""


@dataclass(slots=True, frozen=True)
class PublishedTable:
    """A table of a publication, with what the publication has of it."""

    name: TableName
    columns: Sequence[str] | None  # None: all
    filter: str | None  # a condition of SQL


class SourceCatalog:
    """The catalog of a database, for one source."""

    def __init__(self, connection: AsyncConnection[Any], settings: Settings) -> None:
        self._connection = connection
        self._slot = settings["slot.name"]
        self._publication = settings["publication.name"]
        self._autocreate = settings["publication.autocreate.mode"]
        self._patterns = [RegularExpression(each) for each in settings["table.include.list"] or ()]

    def includes(self, schema: str, table: str) -> bool:
        """Whether the settings include a table."""
        return not self._patterns or any(each.matches(f"{schema}.{table}") for each in self._patterns)

    async def check_wal_level(self) -> None:
        """Raises `ConnectError` if the server has no logical decoding."""
        if await self._rows("SHOW wal_level") != [("logical",)]:
            raise ConnectError("PostgreSQL: wal_level has to be logical in postgresql.conf")

    async def publish(self) -> list[PublishedTable]:
        """Make or change the publication, if the settings say so. Returns its tables that are included.

        Raises `ConnectError` if there is none.
        """
        found = await self._rows("SELECT puballtables FROM pg_publication WHERE pubname = %s", (self._publication,))
        name = quoted(self._publication)
        if self._autocreate == "filtered" and found != [(True,)]:
            tables = [row for row in await self._rows(_TABLES) if self.includes(*row)]
            listed = ", ".join(TableName(*row).sql for row in tables)
            if not tables:
                raise ConnectError("no table of the database matches table.include.list")
            if not found:
                await self._rows(f"CREATE PUBLICATION {name} FOR TABLE {listed} {_OPTIONS}")
            elif tables != [row[:2] for row in await self._rows(_PUBLISHED, (self._publication,))]:
                await self._rows(f"ALTER PUBLICATION {name} SET TABLE {listed}")
        elif self._autocreate == "all_tables" and not found:
            await self._rows(f"CREATE PUBLICATION {name} FOR ALL TABLES {_OPTIONS}")
        published = [
            PublishedTable(TableName(schema, table), columns, condition)
            for schema, table, columns, condition in await self._rows(_PUBLISHED, (self._publication,))
            if self.includes(schema, table)
        ]
        if not published:
            raise ConnectError(f"the publication {self._publication} is missing, or has no table that is included")
        return published

    async def slot_lsn(self) -> int | None:
        """Up to where the slot was told that its reader is; None if there is no slot. Raises `ConnectError`."""
        found = await self._rows(
            "SELECT plugin, database = current_database(), wal_status, confirmed_flush_lsn - '0/0'::pg_lsn "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        )
        if not found:
            return None
        plugin, is_here, status, lsn = found[0]
        if plugin != "pgoutput" or not is_here:
            raise ConnectError(f"the replication slot {self._slot} is of another plug-in, or of another database")
        if status == "lost":
            raise ConnectError(
                f"the replication slot {self._slot} has lost changes (max_slot_wal_keep_size): drop it, and reset the "
                "offsets of the connector for a new snapshot"
            )
        return int(lsn)

    async def snapshot_columns(self, published: PublishedTable) -> SourceTable:
        """A table with the columns that a snapshot has of it."""
        found = await self._rows(_COLUMNS, (published.name.sql,))
        columns = [(name, oid) for name, oid in found if published.columns is None or name in published.columns]
        key = await self._key(published.name, [name for name, _ in columns])
        return await self._table(published.name, columns, key, key)

    async def relation(self, relation: Relation) -> SourceTable:
        """A table with the columns that changes have of it."""
        name = TableName(relation.schema, relation.name)
        identity = [each.name for each in relation.columns if each.is_key]
        key = identity
        if relation.identity == "f":  # all columns are marked then
            key = await self._key(name, identity)
        return await self._table(name, [(each.name, each.type) for each in relation.columns], key, identity)

    async def _key(self, name: TableName, columns: Sequence[str]) -> list[str]:
        found = [column for (column,) in await self._rows(_KEY, (name.sql,))]
        return found if set(found) <= set(columns) else []

    async def _table(
        self, name: TableName, columns: Sequence[tuple[str, int]], key: Sequence[str], identity: Sequence[str]
    ) -> SourceTable:
        oids = [oid for _, oid in columns]
        types = {oid: (base, element) for oid, base, element in await self._rows(_TYPES, (oids,))}
        decoders = [(column, decoder(*types.get(oid, (oid, 0)))) for column, oid in columns]
        return SourceTable(name.schema, name.name, decoders, key, identity)

    async def _rows(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(query, values)
        return await cursor.fetchall() if cursor.description else []
