"""The view of buckets: their entries, in which order these were put, and what became of the latest changes.

A change that expects a revision is decided here, by the order of the log. So it does not matter which gateway appends
it, which node leads, or how often an append is repeated: a token is decided once.
"""

from itertools import islice
from struct import Struct
from typing import Final

from store.api import BucketChanges, BucketEntry, ChangeOutcome, EntryChange, EntryPage
from store.control import EntryPut, EntryRemoved
from store.views.database.count import Count
from store.views.database.state import State, owned

MAX_OUTCOMES: Final = 65_536  # that are kept; the oldest goes first. Part of the format: docs/format.md
_PAGE_BYTES: Final = 1 << 20  # of keys and values
_MAX_ROWS: Final = 1000  # of one page
_WORTH: Final = 16 << 10  # bytes of values in memory that count as one changed row

_ENTRIES: Final = b"K"  # of a bucket, by key
_ORDER: Final = b"X"  # of a bucket, by revision: the key
_HEADS: Final = b"M"  # by bucket
_OUTCOMES: Final = b"I"  # by token
_TOKENS: Final = b"Z"  # by the number of changes before it, modulo `MAX_OUTCOMES`

_SIZE: Final = b"v"  # under which the number of bytes of all entries is kept
_REVISION: Final = Struct(">Q")
_NUMBER: Final = Struct(">I")
_HEAD: Final = Struct(">QQQ")  # revision of the last change, that from which on nothing was removed, number of entries
_ENTRY: Final = Struct(">QQ")  # revision, put at (ms); the value follows
_OUTCOME: Final = Struct(">BQ")


class Buckets:
    """Entries by bucket and key."""

    __slots__ = ("_changes", "_state", "_waiting", "count", "size")

    def __init__(self, state: State) -> None:
        self._state = state
        self.count = Count(state, _ENTRIES)  # entries of all buckets
        self.size = Count(state, _SIZE)  # bytes of their keys and values
        self._changes = Count(state, _TOKENS)  # that had a token, ever
        self._waiting = 0  # bytes of values that changed since the checkpoint

    @property
    def changed(self) -> int:
        """How many changed rows the values that wait for the checkpoint are worth, beside those that `State` counts."""
        return self._waiting // _WORTH

    def checkpoint(self) -> None:
        """The changes are about to be written."""
        self._waiting = 0

    def put(self, bucket: bytes, key: bytes, event: EntryPut, end: int, time: int) -> None:
        """Apply ENTRY_PUT, which ends at the position `end`, its revision, and was stored at `time` (ms)."""
        if self._is_decided(event.token):
            return
        known = self.get(bucket, key)
        outcome, revision = _verdict(known, event.expected)
        size = len(bucket) + len(key) + len(event.value)
        more = size - (0 if known is None else _size(bucket, known))
        if outcome is ChangeOutcome.DONE and (
            (known is None and 0 < event.max_entries <= self.count.value)
            or (more > 0 and 0 < event.max_bytes < self.size.value + more)
        ):
            outcome = ChangeOutcome.FULL
        if outcome is ChangeOutcome.DONE:
            revision = end
            if known is None:
                self.count.change(1)
            else:
                self._state.delete(owned(_ORDER, bucket), _REVISION.pack(known.revision))
            self.size.change(more)
            self._waiting += len(event.value)
            self._state.put(owned(_ENTRIES, bucket), key, _ENTRY.pack(end, time) + event.value)
            self._state.put(owned(_ORDER, bucket), _REVISION.pack(end), key)
            _, whole_since, entries = self._head(bucket)
            head = (end, whole_since or end, entries + (known is None))
            self._state.put(_HEADS, bucket, _HEAD.pack(*head))
        self._decide(event.token, outcome, revision)

    def removed(self, bucket: bytes, key: bytes, event: EntryRemoved, end: int) -> None:
        """Apply ENTRY_REMOVED, which ends at the position `end`, its revision."""
        if self._is_decided(event.token):
            return
        known = self.get(bucket, key)
        outcome, revision = _verdict(known, event.expected)
        if outcome is ChangeOutcome.DONE and known is not None:
            revision = end
            self.count.change(-1)
            self.size.change(-_size(bucket, known))
            self._state.delete(owned(_ENTRIES, bucket), key)
            self._state.delete(owned(_ORDER, bucket), _REVISION.pack(known.revision))
            entries = self._head(bucket)[2] - 1
            if entries:
                self._state.put(_HEADS, bucket, _HEAD.pack(end, end, entries))
            else:
                self._state.delete(_HEADS, bucket)
        self._decide(event.token, outcome, revision)

    def get(self, bucket: bytes, key: bytes) -> BucketEntry | None:
        row = self._state.get(owned(_ENTRIES, bucket), key)
        return None if row is None else _entry(key, row)

    def page(self, bucket: bytes, prefix: bytes, after: bytes | None, limit: int) -> EntryPage:
        """See `store.api.BucketStore.entries`."""
        rows = self._state.rows(owned(_ENTRIES, bucket), prefix)
        is_at_row = rows.seek(prefix if after is None else max(prefix, after + b"\0"))
        found: list[BucketEntry] = []
        size = 0
        while is_at_row and len(found) < min(limit, _MAX_ROWS) and size < _PAGE_BYTES:
            found.append(_entry(rows.name, rows.value))
            size += _size(bucket, found[-1])
            is_at_row = rows.next()
        return EntryPage(found, is_at_row)

    def changes(self, bucket: bytes, revision: int, limit: int) -> BucketChanges:
        """See `store.api.BucketStore.bucket_changes`."""
        last, whole_since, _ = self._head(bucket)
        if revision == last:
            return BucketChanges([], last, False, False)
        if not whole_since <= revision < last:
            return BucketChanges([], last, False, True)
        scan = self._state.scan(owned(_ORDER, bucket), after=_REVISION.pack(revision))
        keys = [key for _, key in islice(scan, min(limit, _MAX_ROWS) + 1)]
        found: list[BucketEntry] = []
        size = 0
        for key in keys[: min(limit, _MAX_ROWS)]:
            entry = self.get(bucket, key)
            assert entry is not None
            found.append(entry)
            size += _size(bucket, entry)
            if size >= _PAGE_BYTES:
                break
        more = len(found) < len(keys)
        return BucketChanges(found, found[-1].revision if more else last, more, False)

    def outcome(self, token: bytes) -> EntryChange | None:
        """See `store.api.BucketStore.entry_change`."""
        row = self._state.get(_OUTCOMES, token)
        if row is None:
            return None
        outcome, revision = _OUTCOME.unpack(row)
        return EntryChange(ChangeOutcome(outcome), revision)

    def _head(self, bucket: bytes) -> tuple[int, int, int]:
        row = self._state.get(_HEADS, bucket)
        return (0, 0, 0) if row is None else _HEAD.unpack(row)

    def _is_decided(self, token: bytes) -> bool:
        return bool(token) and self._state.get(_OUTCOMES, token) is not None

    def _decide(self, token: bytes, outcome: ChangeOutcome, revision: int) -> None:
        """Keep what became of a change, in place of the oldest one that is kept."""
        if not token:
            return
        place = _NUMBER.pack(self._changes.value % MAX_OUTCOMES)
        oldest = self._state.get(_TOKENS, place)
        if oldest is not None:
            self._state.delete(_OUTCOMES, oldest)
        self._state.put(_TOKENS, place, token)
        self._state.put(_OUTCOMES, token, _OUTCOME.pack(outcome, revision))
        self._changes.change(1)


def _verdict(known: BucketEntry | None, expected: int | None) -> tuple[ChangeOutcome, int]:
    """Whether a key has the expected revision, and the one that it has."""
    revision = 0 if known is None else known.revision
    return ChangeOutcome.DONE if expected in (None, revision) else ChangeOutcome.CONFLICT, revision


def _size(bucket: bytes, entry: BucketEntry) -> int:
    return len(bucket) + len(entry.key) + len(entry.value)


def _entry(key: bytes, row: bytes) -> BucketEntry:
    revision, put_ms = _ENTRY.unpack_from(row)
    return BucketEntry(key, row[_ENTRY.size :], revision, put_ms)
