"""Reads the queue index in RocksDB: where a queue ends, and its references from an offset on.

Key: `q`, generation (u32), digest of the queue's name (16 bytes), first offset (u64), big-endian. Value: packed
references of consecutive offsets. A generation is a range of the log. So the entries of a queue are in order within a
generation, and its generations are in order of offsets. The entry with an offset is the last one that begins at or
before it, in the newest generation that has such an entry.

A reference is in the generation in which it entered its queue. The record of a held message may be in an older one.
The store time of a reference is that of the record that entered it, so store times never run backwards along a queue.

When segments are removed, their entries stay until the whole generation is before the log's begin; they are not
returned meanwhile. Then the ends of the generation's queues are written down in slices (`e`, digest: end). One batch
with range deletes removes the entries, and the generation's rows in the key view, the view of moved messages and the
view of dead letters.
"""

from bisect import bisect_left
from struct import Struct
from typing import Final

from record.layout import REFERENCE
from store.views.database.database import QUEUE_PREFIX, Database

KEYS: Final = b"k"  # the key view (`store.views.queues.keys`)
MOVED: Final = b"w"  # messages that entered late (`store.views.queues.moved`)
DEAD_LETTERS: Final = b"D"  # where dead letters came from (`store.views.groups.dead_letters`)
QUEUES: Final = b"q"
VIEWS: Final = (QUEUES, KEYS, MOVED, DEAD_LETTERS)  # views whose rows are dropped by generation
_TIME: Final = 16  # where a reference has its store time
_KEY: Final = Struct(">cI16sQ")
_LAST: Final = 0xFFFF_FFFF_FFFF_FFFF
ENDS: Final = b"e"  # ends of queues, as of the newest generation that was dropped
_OLDEST_KEY: Final = b"moldest"
_NEAR: Final = 8  # entries of a queue that are read one by one before seeking the last
_KEPT: Final = 4 << 20  # bytes of entries that were read last, one for each queue
_Entry = tuple[int, int, bytes]  # generation, first offset, references


def index_key(generation: int, digest: bytes, first: int) -> bytes:
    """Key of the index entry whose first reference is offset `first`."""
    return _KEY.pack(QUEUES, generation, digest, first)


def index_prefix(generation: int) -> bytes:
    """The prefix of the keys of a generation's index entries."""
    return by_generation(QUEUES, generation)


def by_generation(view: bytes, generation: int) -> bytes:
    """The prefix of the keys of a generation's rows in one of the views that are dropped by generation."""
    return view + generation.to_bytes(4, "big")


def at_time(reference: bytes, store_time: int) -> bytes:
    """A copy of a reference for another queue, which it enters at `store_time` (ms)."""
    return reference[:_TIME] + store_time.to_bytes(8, "little")


class Index:
    """The index as of the last checkpoint. `oldest` and `newest` bound the generations that can have entries."""

    __slots__ = ("_database", "_generation_bytes", "_kept", "_kept_bytes", "begin", "newest", "oldest")

    def __init__(self, database: Database, begin: int, position: int, generation_bytes: int) -> None:
        self._database = database
        self._generation_bytes = generation_bytes
        # By digest. Readers go on where they were, mostly within one entry. An entry never changes.
        self._kept: dict[bytes, _Entry] = {}
        self._kept_bytes = 0
        self.begin = begin  # of the log
        self.newest = position // generation_bytes
        oldest = database.get(_OLDEST_KEY)
        self.oldest = 0 if oldest is None else int.from_bytes(oldest, "big")

    def end(self, digest: bytes) -> int:
        """The offset after the queue's last reference; 0 if it never had one."""
        found = self._entry(digest, _LAST)
        if found is None:
            row = self._database.get(ENDS + digest) if self.oldest else None
            return 0 if row is None else int.from_bytes(row, "big")
        _, first, refs = found
        return first + len(refs) // REFERENCE

    def references(self, digest: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` packed references from `offset` on; fewer at the end of what is in RocksDB."""
        found = self._kept.get(digest)
        if found is None or not found[1] <= offset < found[1] + len(found[2]) // REFERENCE:
            found = self._entry(digest, offset)
            if found is None:
                return b""
            self._keep(digest, found)
        generation, first, refs = found
        pieces = [refs[(offset - first) * REFERENCE : (offset - first + limit) * REFERENCE]]
        count = len(pieces[0]) // REFERENCE
        if count == limit:
            return pieces[0]
        following = offset + count
        rows = self._database.queue_cursor()
        while count and count < limit and generation <= self.newest:
            rows.seek(index_key(generation, digest, following))
            while count < limit and self._database.is_at_row(rows):
                key = rows.key()
                if key[:QUEUE_PREFIX] != index_key(generation, digest, 0)[:QUEUE_PREFIX]:
                    break
                assert key == index_key(generation, digest, following)
                refs = rows.value()[: (limit - count) * REFERENCE]
                pieces.append(refs)
                count += len(refs) // REFERENCE
                following += len(refs) // REFERENCE
                rows.next()
            generation += 1
        return b"".join(pieces)

    def first_since(self, digest: bytes, store_time: int, end: int) -> int:
        """The first offset that entered at `store_time` or later; `end`, which is after all entries, if there is none.

        Generations before that of the log's begin are not searched.
        """
        rows = self._database.queue_cursor()
        for generation in range(max(self.oldest, self.begin // self._generation_bytes), self.newest + 1):
            rows.seek(index_key(generation, digest, 0))
            if not self._database.is_at_row(rows):
                continue
            key = rows.key()
            if key[:QUEUE_PREFIX] != index_key(generation, digest, 0)[:QUEUE_PREFIX]:
                continue
            low = int.from_bytes(key[QUEUE_PREFIX:], "big")
            if _time(rows.value(), 0) >= store_time:
                return low
            rows.seek_for_prev(index_key(generation, digest, _LAST))
            refs = rows.value()
            if _time(refs, len(refs) - REFERENCE) < store_time:
                continue
            high = int.from_bytes(rows.key()[QUEUE_PREFIX:], "big") + len(refs) // REFERENCE
            offsets = range(low, high)
            return offsets[bisect_left(offsets, store_time, key=lambda at: _time(self.references(digest, at, 1), 0))]
        return end

    def fold_ends(self, generation: int, digest: bytes, limit: int) -> bytes | None:
        """Write down the ends of up to `limit` queues of a generation, from `digest` on.

        Returns the digest to continue from; None when all are done. Reads give the same results before and after.
        """
        prefix = index_prefix(generation)
        rows = self._database.cursor()
        rows.seek(prefix + digest)
        key: bytes
        ends: list[tuple[bytes, bytes]] = []
        own, end, steps = b"", 0, 0
        while self._database.is_at_row(rows):
            key = rows.key()
            if not key.startswith(prefix):
                break
            if key[5:QUEUE_PREFIX] != own:
                if own:
                    ends.append((ENDS + own, end.to_bytes(8, "big")))
                if len(ends) == limit:
                    self._database.put_all(ends)
                    return key[5:QUEUE_PREFIX]
                own, steps = key[5:QUEUE_PREFIX], 0
            elif steps == _NEAR:
                rows.seek_for_prev(index_key(generation, own, _LAST))
                key = rows.key()
            steps += 1
            end = int.from_bytes(key[QUEUE_PREFIX:], "big") + len(rows.value()) // REFERENCE
            rows.next()
        if own:
            ends.append((ENDS + own, end.to_bytes(8, "big")))
            self._database.put_all(ends)
        return None

    def drop(self, generation: int) -> None:
        """Delete the rows of the oldest generation. The ends of its queues must be written down."""
        ranges = [(by_generation(view, generation), by_generation(view, generation + 1)) for view in VIEWS]
        self._database.delete_ranges(ranges, _OLDEST_KEY, (generation + 1).to_bytes(4, "big"))
        self.oldest = generation + 1
        self._forget()

    def _keep(self, digest: bytes, entry: _Entry) -> None:
        """Keep the entry that was read last of a queue, in place of an older one."""
        old = self._kept.pop(digest, None)
        self._kept_bytes += len(entry[2]) - (0 if old is None else len(old[2]))
        if self._kept_bytes > _KEPT:
            self._forget()
            if len(entry[2]) > _KEPT:
                return
            self._kept_bytes = len(entry[2])
        self._kept[digest] = entry

    def _forget(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _entry(self, digest: bytes, offset: int) -> _Entry | None:
        """(generation, first offset, references) of the last entry that begins at or before `offset`."""
        for generation in range(self.newest, self.oldest - 1, -1):
            row = self._database.last_queue_row(index_key(generation, digest, offset))
            if row is not None:
                return generation, int.from_bytes(row[0][QUEUE_PREFIX:], "big"), row[1]
        return None


def _time(refs: bytes, at: int) -> int:
    """Store time of the packed reference at byte `at`."""
    return int.from_bytes(refs[at + 16 : at + 24], "little")
