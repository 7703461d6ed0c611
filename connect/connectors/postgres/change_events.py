"""Changes of rows as messages: the envelope of Debezium, without its schema.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-change-events-value
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from connect.api import SourceRecord
from connect.connectors.postgres.column_values import Decoder
from connect.connectors.postgres.pgoutput import UNCHANGED, Begin, Cells, Change

_NOT_IN_LEVELS: Final = re.compile(r"[/+#\0]")


@dataclass(slots=True, frozen=True)
class SourceTable:
    """A table whose rows become messages."""

    schema: str
    name: str
    columns: Sequence[tuple[str, Decoder]]
    key: Sequence[str]  # the columns of the primary key, or of the replica identity
    identity: Sequence[str]  # the columns that an old row has if it is only a key


class ChangeEvents:
    """Makes messages of rows."""

    def __init__(self, prefix: str, database: str, placeholder: str) -> None:
        """prefix: of the topics. placeholder: what stands for a value that is not in the WAL."""
        self._prefix = prefix
        self._database = database
        self._placeholder = placeholder

    def topic(self, table: SourceTable) -> str:
        """A character that a level of a topic cannot have becomes `_`."""
        return "/".join((self._prefix, *(_NOT_IN_LEVELS.sub("_", each) for each in (table.schema, table.name))))

    def snapshot(
        self, table: SourceTable, cells: Iterable[str | None], lsn: int, offset: Mapping[str, Any]
    ) -> SourceRecord:
        """A row as it was when the snapshot began."""
        now = _now_ms()
        after = {
            name: None if cell is None else decode(cell)
            for (name, decode), cell in zip(table.columns, cells, strict=True)
        }
        source = self._source(table, now, lsn, None, snapshot=True)
        return self._record(table, "r", None, after, source, now, offset)

    def change(self, table: SourceTable, change: Change, begin: Begin, number: int) -> Iterator[SourceRecord]:
        """A change of a transaction. number: which change of the transaction it is, from 1."""
        before = self._before(table, change)
        after = None if change.new is None else self._after(table, change.new, None if change.old_is_key else before)
        offset = {"lsn": begin.lsn, "change": number}
        source = self._source(table, begin.ts_ms, begin.lsn, begin.xid)
        if before is not None and after is not None and _key(table, before) != _key(table, after):
            # As Debezium does: who follows a key hears of its end. The first of the two comes again with the second.
            earlier = {"lsn": begin.lsn, "change": number - 1}
            yield self._record(table, "d", before, None, source, begin.ts_ms, earlier)
            yield self._record(table, "c", None, after, source, begin.ts_ms, offset)
        else:
            yield self._record(table, change.op, before, after, source, begin.ts_ms, offset)

    def truncated(self, table: SourceTable, begin: Begin, number: int) -> SourceRecord:
        """A table that was emptied."""
        source = self._source(table, begin.ts_ms, begin.lsn, begin.xid)
        offset = {"lsn": begin.lsn, "change": number}
        return self._record(table, "t", None, None, source, begin.ts_ms, offset)

    def _before(self, table: SourceTable, change: Change) -> dict[str, Any] | None:
        if change.old is None:
            return None
        row = self._after(table, change.old, None)
        return {name: row[name] for name in table.identity} if change.old_is_key else row

    def _after(self, table: SourceTable, cells: Cells, before: Mapping[str, Any] | None) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for (name, decode), cell in zip(table.columns, cells, strict=True):
            if cell is UNCHANGED:  # with REPLICA IDENTITY FULL, the old row has it
                row[name] = self._placeholder if before is None else before[name]
            else:
                row[name] = None if cell is None else decode(cell)
        return row

    def _record(
        self,
        table: SourceTable,
        op: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        source: Mapping[str, Any],
        ts_ms: int,
        offset: Mapping[str, Any],
    ) -> SourceRecord:
        return SourceRecord(
            self.topic(table),
            {"before": before, "after": after, "source": source, "op": op, "ts_ms": _now_ms()},
            key=_key(table, after if after is not None else before),
            timestamp_ms=ts_ms,
            offset=offset,
        )

    def _source(
        self, table: SourceTable, ts_ms: int, lsn: int, xid: int | None, *, snapshot: bool = False
    ) -> dict[str, Any]:
        return {
            "connector": "postgresql",
            "name": self._prefix,
            "ts_ms": ts_ms,
            "snapshot": str(snapshot).lower(),
            "db": self._database,
            "schema": table.schema,
            "table": table.name,
            "txId": xid,
            "lsn": lsn,
        }


def _key(table: SourceTable, row: Mapping[str, Any] | None) -> str | None:
    """The text of a key of one column, a JSON object of several."""
    if row is None or not table.key:
        return None
    if len(table.key) > 1:
        return orjson.dumps({name: row.get(name) for name in table.key}).decode()
    value = row.get(table.key[0])
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
