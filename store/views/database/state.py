"""The rows of the state views: rows changed since the checkpoint are in memory, all others in RocksDB.

A row is addressed by a table and a name. Its key is the table followed by the name. A table has rows that are
listed together, such as the subscriptions of one client, or all retained values. It is a view byte, followed for rows
of one owner by the owner's length and the owner. So no table is a prefix of another.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from rocksdict import WriteBatch

from store.views.database.database import Database


class Rows:
    """A cursor over the sorted rows of a table whose names begin with a prefix.

    It does not see changes that are made after it was created, so it must not be kept.
    """

    __slots__ = ("_at", "_changed", "_database", "_is_own", "_names", "_prefix", "_stored", "_table", "name")

    def __init__(
        self,
        database: Database,
        table: bytes,
        prefix: bytes,
        changed: Mapping[bytes, bytes | None],
        names: Iterable[bytes],
    ) -> None:
        self._database = database
        self._table = table
        self._prefix = table + prefix
        self._changed = changed
        self._names = sorted(names)  # the names of `changed` in the range
        self._at = 0  # in `_names`
        self._stored = database.cursor()
        self._is_own = False  # the row is one of `_changed`
        self.name = b""  # of the row

    @property
    def value(self) -> bytes:
        """The value of the row."""
        own = self._changed[self.name] if self._is_own else None
        value: bytes = self._stored.value() if own is None else own
        return value

    def seek(self, name: bytes) -> bool:
        """Move to the first row from `name` on. False if there is none."""
        self._stored.seek(max(self._table + name, self._prefix))
        self._at = bisect_left(self._names, name)
        return self._find()

    def next(self) -> bool:
        """Move to the next row. False if there is none."""
        if self._is_own:
            self._at += 1
        else:
            self._stored.next()
        return self._find()

    def _find(self) -> bool:
        """Move to the lower of the next rows in memory and in RocksDB. A row in memory replaces that in RocksDB."""
        while True:
            stored = self._stored_name()
            own = self._names[self._at] if self._at < len(self._names) else None
            if own is None or (stored is not None and stored < own):
                self._is_own = False
                self.name = stored or b""
                return stored is not None
            if stored == own:
                self._stored.next()
            if self._changed[own] is not None:
                self._is_own = True
                self.name = own
                return True
            self._at += 1

    def _stored_name(self) -> bytes | None:
        if not self._database.is_at_row(self._stored):
            return None
        key: bytes = self._stored.key()
        return key[len(self._table) :] if key.startswith(self._prefix) else None


class State:
    """Rows by table and name. Reads see each change at once.

    `drain` adds the changes to the batch of a checkpoint; call `forget` when that is written.
    """

    __slots__ = ("_database", "_tables", "count")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables: dict[bytes, dict[bytes, bytes | None]] = {}  # changed rows; None: deleted
        self.count = 0  # of changed rows

    def get(self, table: bytes, name: bytes) -> bytes | None:
        changed = self._tables.get(table)
        if changed is not None and name in changed:
            return changed[name]
        return self._database.get(table + name)

    def put(self, table: bytes, name: bytes, value: bytes) -> None:
        self._change(table, name, value)

    def delete(self, table: bytes, name: bytes) -> None:
        self._change(table, name, None)

    def rows(self, table: bytes, prefix: bytes = b"") -> Rows:
        """A cursor over the rows of a table whose names begin with `prefix`. Change nothing while it is in use."""
        changed = self._tables.get(table, {})
        return Rows(self._database, table, prefix, changed, (name for name in changed if name.startswith(prefix)))

    def scan(self, table: bytes, start: bytes = b"", after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, value) from the name `start` on, or from after `after`, sorted. Change nothing meanwhile."""
        if after is not None:
            start = after + b"\0"
        changed = self._tables.get(table, {})
        rows = Rows(self._database, table, b"", changed, (name for name in changed if name >= start))
        is_at_row = rows.seek(start)
        while is_at_row:
            yield rows.name, rows.value
            is_at_row = rows.next()

    def all(self, table: bytes) -> list[tuple[bytes, bytes]]:
        """(name, value) of all rows of a small table, sorted. Costs a third of a `scan`."""
        stored = self._database.rows_of(table)
        changed = self._tables.get(table)
        if not changed:
            return stored
        rows: dict[bytes, bytes | None] = {**dict(stored), **changed}
        return sorted((name, value) for name, value in rows.items() if value is not None)

    def drain(self, batch: WriteBatch) -> None:
        """Add the changed rows to the batch. They stay in memory until `forget`."""
        for table in sorted(self._tables):
            for name, value in sorted(self._tables[table].items(), key=itemgetter(0)):
                if value is None:
                    batch.delete(table + name)
                else:
                    batch.put(table + name, value)

    def forget(self) -> None:
        """Drop the changed rows from memory. They must be in RocksDB."""
        self._tables = {}
        self.count = 0

    def _change(self, table: bytes, name: bytes, value: bytes | None) -> None:
        changed = self._tables.get(table)
        if changed is None:
            changed = self._tables[table] = {}
        if name not in changed:
            self.count += 1
        changed[name] = value


def owned(view: bytes, owner: bytes) -> bytes:
    """The table of an owner's rows in a view."""
    return view + len(owner).to_bytes(2, "big") + owner
