"""The rows of the state views: those changed since the checkpoint in memory, all others in RocksDB.

A row is addressed by a bucket and a name in it; its key is both, one behind the other. A bucket is what is
listed at once (the subscriptions of one client, all retained values): a view byte, and for rows of one owner
the owner with its length in front, so that no bucket is the beginning of another.
"""

from collections.abc import Iterator

from store.views.database import Database


class State:
    """Rows by bucket and name. Reads see every change at once; `drain` hands the changes to a checkpoint."""

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

    def scan(self, bucket: bytes, start: bytes = b"", after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """(name, value) from the name `start` on, or behind `after`, sorted. Change nothing while it runs."""
        if after is not None:
            start = after + b"\0"
        changed = self._buckets.get(bucket, {})
        names = sorted(name for name in changed if name >= start)
        at = 0
        skip = len(bucket)
        for key, value in self._database.scan(bucket, bucket + start):
            name = key[skip:]
            while at < len(names) and names[at] < name:
                own = changed[names[at]]
                if own is not None:
                    yield names[at], own
                at += 1
            if name not in changed:
                yield name, value
        for name in names[at:]:
            own = changed[name]
            if own is not None:
                yield name, own

    def drain(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """The changed rows, as (puts, deletes); they are expected to be in RocksDB when next asked for."""
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        for bucket, changed in self._buckets.items():
            for name, value in changed.items():
                if value is None:
                    deletes.append(bucket + name)
                else:
                    puts.append((bucket + name, value))
        self._buckets = {}
        self.count = 0
        return puts, deletes

    def _change(self, bucket: bytes, name: bytes, value: bytes | None) -> None:
        changed = self._buckets.get(bucket)
        if changed is None:
            changed = self._buckets[bucket] = {}
        if name not in changed:
            self.count += 1
        changed[name] = value


def owned(view: bytes, owner: bytes) -> bytes:
    """The bucket of one owner's rows in a view."""
    return view + len(owner).to_bytes(2, "big") + owner
