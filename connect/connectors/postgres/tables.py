"""The tables that a sink writes to, as the database's catalog has them; creating them, and adding columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from connect.connectors.postgres.connection import primary, translated
from connect.connectors.postgres.copy_text import Encoder, encoder
from connect.connectors.postgres.identifiers import TableName, quoted

MAX_COLUMNS: Final = 500  # that `auto.evolve` lets a table have
_MOST_TABLES: Final = 10_000  # that are remembered
_MOST_STAGES: Final = 32  # temporary tables of a connection
# What two tasks get that create the same thing at the same time.
_CREATED_BY_ANOTHER: Final = ("23505", "42P07", "42701", "42710")
# What a name or a field is to blame for: a schema that is not there, a type that cannot be in a key, too many columns.
_IMPOSSIBLE: Final = ("3F", "42", "54")
_FORBIDDEN: Final = "42501"
_CATALOG: Final = """
SELECT a.attname, coalesce(b.typname, t.typname)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
AND a.attgenerated = '' AND a.attidentity <> 'a'
"""


@dataclass(slots=True)
class Table:
    """A table: its columns, and a temporary table beside it through which upserts go."""

    name: TableName
    encoders: Mapping[str, Encoder]  # by column
    shapes: dict[tuple[str, ...], "Shape"] = field(default_factory=dict)
    stage: str = ""  # the name of the temporary table, if it is made

    def shape(self, columns: tuple[str, ...]) -> "Shape":
        """Rows of this table with these columns. Raises KeyError if there is no such column."""
        found = self.shapes.get(columns)
        if found is None:
            if len(self.shapes) >= MAX_COLUMNS:
                self.shapes.clear()
            found = self.shapes[columns] = Shape(self, columns, [self.encoders[name] for name in columns])
        return found


@dataclass(slots=True, eq=False)
class Shape:
    """Rows of a table that have values for the same columns."""

    table: Table
    columns: tuple[str, ...]
    encoders: Sequence[Encoder]

    def copy_sql(self, target: str) -> str:
        return f"COPY {target} ({self._names()}) FROM STDIN"

    def upsert_sql(self, key: Sequence[str]) -> str:
        """From the temporary table into the table."""
        names = self._names()
        changes = ", ".join(f"{quoted(n)} = EXCLUDED.{quoted(n)}" for n in self.columns if n not in key)
        action = f"UPDATE SET {changes}" if changes else "NOTHING"
        conflict = ", ".join(map(quoted, key))
        return (
            f"INSERT INTO {self.table.name.sql} ({names}) SELECT {names} FROM pg_temp.{self.table.stage} "
            f"ON CONFLICT ({conflict}) DO {action}"
        )

    def _names(self) -> str:
        return ", ".join(map(quoted, self.columns))


class Tables:
    """The tables of one connection."""

    def __init__(self, connection: AsyncConnection[Any], *, create: bool, evolve: bool, key: Sequence[str]) -> None:
        """key: the columns of the primary key of tables that are created."""
        self._connection = connection
        self._create = create
        self._evolve = evolve
        self._key = key
        self._known: dict[TableName, Table] = {}
        self._stages = 0

    async def find(self, name: TableName, wanted: Mapping[str, str]) -> Table:
        """A table that has the wanted columns, which may have to be created. wanted: their types by name.

        Raises ValueError if it has not.
        """
        table = self._known.get(name) or await self._read(name)
        if table is None:
            if not self._create:
                raise ValueError(f"there is no table {name.sql}, and auto.create is false")
            self._check_number(len(wanted))
            columns = ", ".join(f"{quoted(column)} {kind}" for column, kind in wanted.items())
            key = f", PRIMARY KEY ({', '.join(map(quoted, self._key))})" if self._key else ""
            table = await self._define(name, f"CREATE TABLE IF NOT EXISTS {name.sql} ({columns}{key})")
        missing = {column: kind for column, kind in wanted.items() if column not in table.encoders}
        if missing:
            if not self._evolve:
                shown = ", ".join(map(quoted, missing))
                raise ValueError(f"the table {name.sql} has no column {shown}, and auto.evolve is false")
            self._check_number(len(table.encoders) + len(missing))
            columns = ", ".join(f"ADD COLUMN IF NOT EXISTS {quoted(each)} {kind}" for each, kind in missing.items())
            table = await self._define(name, f"ALTER TABLE {name.sql} {columns}")
        return table

    async def stage(self, table: Table) -> None:
        """Make the temporary table for upserts."""
        if table.stage:
            return
        self._stages += 1
        stage = f"sluice_stage_{self._stages}"
        await self._connection.execute(
            f"CREATE TEMPORARY TABLE {stage} ON COMMIT DELETE ROWS AS SELECT * FROM {table.name.sql} WITH NO DATA"
        )
        table.stage = stage

    async def drop_stages(self) -> None:
        """Drop the temporary tables if there are many."""
        if self._stages > _MOST_STAGES:
            await self._connection.execute("DISCARD TEMPORARY")
            self._stages = 0
            for table in self._known.values():
                table.stage = ""

    async def _define(self, name: TableName, statement: str) -> Table:
        try:
            await self._connection.execute(statement)
        except psycopg.Error as error:
            state = error.sqlstate or ""
            if state.startswith(_IMPOSSIBLE) and state not in (*_CREATED_BY_ANOTHER, _FORBIDDEN):
                raise ValueError(f"{name.sql} cannot be made as this message needs it: {primary(error)}") from None
            if state not in _CREATED_BY_ANOTHER:
                raise translated(error) from None
        table = await self._read(name)
        if table is None:
            raise ValueError(f"the table {name.sql} is not there")
        return table

    async def _read(self, name: TableName) -> Table | None:
        cursor = await self._connection.execute(_CATALOG, (name.sql,))
        found = {column: encoder(kind) for column, kind in await cursor.fetchall()}
        if not found:
            return None
        table = self._known.get(name)
        if table is not None:  # the same object, so that upserts of old and new shapes are of one table
            table.encoders, table.stage = found, ""
            return table
        if len(self._known) >= _MOST_TABLES:
            self._known.clear()
        table = self._known[name] = Table(name, found)
        return table

    @staticmethod
    def _check_number(columns: int) -> None:
        if columns > MAX_COLUMNS:
            raise ValueError(f"it would be a table of {columns} columns: at most {MAX_COLUMNS} are made")
