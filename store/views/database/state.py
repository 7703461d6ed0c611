"""The rows of the state views: rows changed since the checkpoint are in memory, all others in RocksDB.

A row is addressed by a bucket and a name. Its key is the bucket followed by the name. A bucket has rows that are
listed together, such as the subscriptions of one client, or all retained values. It is a view byte, followed for rows
of one owner by the owner's length and the owner. So no bucket is a prefix of another.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from rocksdict import WriteBatch

from store.views.database.database import Database


class Rows:
    """A cursor over the sorted rows of a bucket whose names begin with a prefix.

    It does not see changes that are made after it was created, so it must not be kept.
    """

    __slots__ = ("_at", "_bucket", "_changed", "_database", "_is_own", "_names", "_prefix", "_stored", "name")

    def __init__(
        self,
        database: Database,
        bucket: bytes,
        prefix: bytes,
        changed: Mapping[bytes, bytes | None],
        names: Iterable[bytes],
    ) -> None:
        self._database = database
        self._bucket = bucket
        self._prefix = bucket + prefix
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
        self._stored.seek(max(self._bucket + name, self._prefix))
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
        return key[len(self._bucket) :] if key.startswith(self._prefix) else None


class State:
    """Rows by bucket and name. Reads see each change at once.

    `drain` adds the changes to the batch of a checkpoint; call `forget` when that is written.
    """

    __slots__ = ("_buckets", "_database", "count")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._buckets: dict[bytes, dict[bytes, bytes | None]] = {}  # changed rows; None: deleted
        self.count = 0  # of changed rows

    def get(self, bucket: bytes, name: bytes) -> bytes | None:
        changed = self._buckets.get(bucket)
        if changed is not None and name in changed:
            return changed[name]
        return self._database.get(bucket + name)

    def put(self, bucket: bytes, name: bytes, value: bytes) -> None:
        self._change(bucket, name, value)

    def delete(self, bucket: bytes, name: bytes) -> None:
        self._change(bucket, name, None)

    def rows(self, bucket: bytes, prefix: bytes = b"") -> Rows:
        """A cursor over the rows of a bucket whose names begin with `prefix`. Change nothing while it is in use."""
        changed = self._buckets.get(bucket, {})
        return Rows(self._database, bucket, prefix, changed, (name for name in changed if name.startswith(prefix)))

    def scan(self, bucket: bytes, start: bytes = b"", after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, value) from the name `start` on, or from after `after`, sorted. Change nothing meanwhile."""
        if after is not None:
            start = after + b"\0"
        changed = self._buckets.get(bucket, {})
        rows = Rows(self._database, bucket, b"", changed, (name for name in changed if name >= start))
        is_at_row = rows.seek(start)
        while is_at_row:
            yield rows.name, rows.value
            is_at_row = rows.next()

    def all(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        """(name, value) of all rows of a small bucket, sorted. Costs a third of a `scan`."""
        stored = self._database.rows_of(bucket)
        changed = self._buckets.get(bucket)
        if not changed:
            return stored
        rows: dict[bytes, bytes | None] = {**dict(stored), **changed}
        return sorted((name, value) for name, value in rows.items() if value is not None)

    def drain(self, batch: WriteBatch) -> None:
        """Add the changed rows to the batch. They stay in memory until `forget`."""
        for bucket in sorted(self._buckets):
            for name, value in sorted(self._buckets[bucket].items(), key=itemgetter(0)):
                if value is None:
                    batch.delete(bucket + name)
                else:
                    batch.put(bucket + name, value)

    def forget(self) -> None:
        """Drop the changed rows from memory. They must be in RocksDB."""
        self._buckets = {}
        self.count = 0

    def _change(self, bucket: bytes, name: bytes, value: bytes | None) -> None:
        changed = self._buckets.get(bucket)
        if changed is None:
            changed = self._buckets[bucket] = {}
        if name not in changed:
            self.count += 1
        changed[name] = value


def owned(view: bytes, owner: bytes) -> bytes:
    """The bucket of an owner's rows in a view."""
    return view + len(owner).to_bytes(2, "big") + owner
