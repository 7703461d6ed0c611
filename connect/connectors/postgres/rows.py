"""From messages to rows of tables."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from connect.api import DataError, Settings, SinkRecord
from connect.connectors.postgres.copy_text import NULL, Encoder, column_type, escaped, json_cell
from connect.connectors.postgres.identifiers import TableName, TableNameFormat, column_problem
from connect.connectors.postgres.message_columns import MESSAGE_COLUMNS
from connect.connectors.postgres.tables import MAX_COLUMNS, Shape, Table, Tables

_NO_FIELDS: Final[Mapping[str, Any]] = {}
_TURN: Final = 500  # rows, before others of the loop have a turn
_MOST_PLANS: Final = 10_000
# What of a record is in a column, if that is not its name.
_ATTRIBUTES: Final = {"stored_at": "timestamp_ms"}


@dataclass(slots=True)
class Row:
    """A row on its way: its cells, and the messages that it comes from, more than one only in an upsert."""

    shape: Shape
    cells: list[str]
    records: list[SinkRecord]


@dataclass(slots=True, frozen=True)
class _Plan:
    """How messages of one table become rows, if their values have the same fields."""

    shape: Shape
    message: tuple[Encoder, ...]  # of the columns that tell of the message
    fields: tuple[tuple[str, Encoder], ...]
    left_out: tuple[str, ...]  # fields that have no column, since they were null so far


class RowBuilder:
    """Makes rows, and the tables and columns for them."""

    def __init__(self, settings: Settings, tables: Tables) -> None:
        self._tables = tables
        self._format = TableNameFormat(settings["table.name.format"])
        self._has_fields = settings["table.columns"] == "fields"
        self._whitelist = settings["fields.whitelist"]
        self._key_mode, self.key = primary_key(settings)
        self._message = self._message_columns(settings["message.columns"])
        self._parts = [_ATTRIBUTES.get(source, source) for source in self._message.values()]
        self._second = (0, "1970-01-01T00:00:00")  # many messages are stored in the same one
        self._plans: dict[tuple[TableName, tuple[str, ...]], _Plan] = {}

    def _message_columns(self, chosen: list[str] | None) -> dict[str, str]:
        """What of a message is stored, by the column."""
        if not chosen:
            chosen = [] if self._has_fields else [name for name in MESSAGE_COLUMNS if name != "publisher"]
        columns = {name: name for name in chosen}
        if self._key_mode in ("record_key", "record_topic"):
            columns[self.key[0]] = self._key_mode.removeprefix("record_")
        return columns

    async def rows(self, records: Iterable[SinkRecord]) -> tuple[list[Row], list[tuple[SinkRecord, str]]]:
        """The rows of messages; and those messages that cannot be rows, with the reason."""
        rows: list[Row] = []
        unfit: list[tuple[SinkRecord, str]] = []
        parts, plans, table = self._parts, self._plans, self._format.table
        for number, record in enumerate(records):
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            try:
                name = table(record)
                fields = self._fields(record) if self._has_fields else _NO_FIELDS
                plan = plans.get((name, tuple(fields)))
                if plan is None or (plan.left_out and any(fields[each] is not None for each in plan.left_out)):
                    plan = await self._plan(name, fields)
                cells = [
                    NULL if (value := getattr(record, part)) is None else encode(value)
                    for part, encode in zip(parts, plan.message, strict=True)
                ]
                if fields:
                    self._add_fields(cells, plan, fields)
                row = Row(plan.shape, cells, [record])
                if self.key:
                    self.key_cells(row)
                rows.append(row)
            except (DataError, ValueError) as error:
                unfit.append((record, str(error)))
        return rows, unfit

    @staticmethod
    def _add_fields(cells: list[str], plan: _Plan, fields: Mapping[str, Any]) -> None:
        for field, encode in plan.fields:
            value = fields[field]
            try:
                cells.append(NULL if value is None else encode(value))
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None

    def key_cells(self, row: Row) -> tuple[str, ...]:
        """The cells of the primary key. Raises ValueError if one is missing."""
        columns = row.shape.columns
        cells = tuple(row.cells[columns.index(name)] if name in columns else NULL for name in self.key)
        if NULL in cells:
            raise ValueError(f"there is no value for the primary key, {', '.join(self.key)}")
        return cells

    def merged(self, rows: Iterable[Row]) -> list[Row]:
        """One row for each primary key: later ones change the columns that they have."""
        found: dict[tuple[TableName, tuple[str, ...]], Row] = {}
        for row in rows:
            table = row.shape.table
            key = (table.name, self.key_cells(row))
            earlier = found.get(key)
            if earlier is None:
                found[key] = row
                continue
            records = earlier.records
            records.extend(row.records)
            if earlier.shape is row.shape:
                found[key] = Row(row.shape, row.cells, records)
            else:
                cells = dict(zip(earlier.shape.columns, earlier.cells, strict=True))
                cells.update(zip(row.shape.columns, row.cells, strict=True))
                found[key] = Row(table.shape(tuple(cells)), list(cells.values()), records)
        return list(found.values())

    def _message_encoder(self, table: Table, column: str) -> Encoder:
        """PostgreSQL reads all but the value from text, whatever the type of the column is."""
        source = self._message[column]
        if source == "value":
            return table.encoders[column]
        encoders: dict[str, Encoder] = {"headers": _headers, "stored_at": self._time, "position": str}
        return encoders.get(source, escaped)

    def _time(self, ms: int) -> str:
        second, rest = divmod(ms, 1000)
        if second != self._second[0]:
            self._second = (second, datetime.fromtimestamp(second, UTC).isoformat()[:19])
        return f"{self._second[1]}.{rest:03d}Z"

    def _fields(self, record: SinkRecord) -> Mapping[str, Any]:
        value = record.value
        if not isinstance(value, dict):
            raise ValueError("the value is no JSON object, so it has no fields")
        if self._whitelist:
            return {name: value[name] for name in self._whitelist if name in value}
        if len(value) > MAX_COLUMNS:
            raise ValueError(f"the value has {len(value)} fields: at most {MAX_COLUMNS} are stored")
        return value

    async def _plan(self, name: TableName, fields: Mapping[str, Any]) -> _Plan:
        for field in fields:
            problem = f"it is a column of the message, {field}" if field in self._message else column_problem(field)
            if problem:
                raise ValueError(f"the value has a field that cannot be a column: {problem}")
        wanted = {column: MESSAGE_COLUMNS[source] for column, source in self._message.items()}
        wanted.update({field: column_type(value) for field, value in fields.items() if value is not None})
        if not wanted:
            raise ValueError("the value has no field to store")
        table = await self._tables.find(name, wanted)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        known = tuple(field for field in fields if field in table.encoders)
        shape = table.shape((*self._message, *known))
        plan = self._plans[name, tuple(fields)] = _Plan(
            shape,
            tuple(self._message_encoder(table, column) for column in self._message),
            tuple((field, table.encoders[field]) for field in known),
            tuple(field for field in fields if field not in table.encoders),
        )
        return plan


def _headers(headers: list[tuple[str, str]]) -> str:
    return json_cell(headers) if headers else "[]"


def primary_key(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """The value of `pk.mode` and the columns of the primary key."""
    mode = settings["pk.mode"]
    fields = tuple(settings["pk.fields"] or ())
    if mode in ("record_key", "record_topic") and not fields:
        fields = (mode.removeprefix("record_"),)
    return mode, fields if mode != "none" else ()
