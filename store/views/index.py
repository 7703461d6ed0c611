"""Reads the queue index in RocksDB: where a queue ends, and its references from an offset on.

Key: `q`, generation (u32), digest of the queue's name (16 bytes), first offset (u64), big-endian; value: packed
references of consecutive offsets. A generation is a range of the log, so the entries of a queue lie in order
within one, and the generations in order of offsets: the entry that holds an offset is the one before it in the
newest generation that has one.
"""

from struct import Struct
from typing import Final

from store.views.database import Database

REFERENCE: Final = 24  # bytes
_KEY: Final = Struct(">cI16sQ")
_PREFIX: Final = 21
_LAST: Final = 0xFFFF_FFFF_FFFF_FFFF


def index_key(generation: int, digest: bytes, first: int) -> bytes:
    """Key of the index entry whose first reference is offset `first`."""
    return _KEY.pack(b"q", generation, digest, first)


class Index:
    """The index as of the last checkpoint. `oldest` and `newest` bound the generations that can have entries."""

    __slots__ = ("_database", "newest", "oldest")

    def __init__(self, database: Database, oldest: int, newest: int) -> None:
        self._database = database
        self.oldest = oldest
        self.newest = newest

    def end(self, digest: bytes) -> int:
        """The offset behind the queue's last reference; 0 when it has none."""
        found = self._entry(digest, _LAST)
        if found is None:
            return 0
        _, first, refs = found
        return first + len(refs) // REFERENCE

    def references(self, digest: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` packed references from `offset` on; fewer at the end of what is in RocksDB."""
        found = self._entry(digest, offset)
        if found is None:
            return b""
        generation, first, refs = found
        pieces = [refs[(offset - first) * REFERENCE : (offset - first + limit) * REFERENCE]]
        count = len(pieces[0]) // REFERENCE
        following = offset + count
        rows = self._database.cursor()
        while count and count < limit and generation <= self.newest:
            rows.seek(index_key(generation, digest, following))
            while count < limit and self._database.is_at_row(rows):
                key = rows.key()
                if key[:_PREFIX] != index_key(generation, digest, 0)[:_PREFIX]:
                    break
                assert key == index_key(generation, digest, following)
                refs = rows.value()[: (limit - count) * REFERENCE]
                pieces.append(refs)
                count += len(refs) // REFERENCE
                following += len(refs) // REFERENCE
                rows.next()
            generation += 1
        return b"".join(pieces)

    def _entry(self, digest: bytes, offset: int) -> tuple[int, int, bytes] | None:
        """(generation, first offset, references) of the last entry that begins at or before `offset`."""
        rows = self._database.cursor()
        for generation in range(self.newest, self.oldest - 1, -1):
            rows.seek_for_prev(index_key(generation, digest, offset))
            if self._database.is_at_row(rows):
                key = rows.key()
                if key[:_PREFIX] == index_key(generation, digest, 0)[:_PREFIX]:
                    return generation, _KEY.unpack(key)[3], rows.value()
        return None
