"""The part of the model that is about buckets: which entries there are, and what became of each change."""

from collections import defaultdict

from record.layout import Kind
from store import control
from store.api import BucketEntry, ChangeOutcome, EntryChange


class Buckets:
    """Entries by bucket and key."""

    def __init__(self) -> None:
        self.entries: defaultdict[bytes, dict[bytes, BucketEntry]] = defaultdict(dict)
        self.whole_since: dict[bytes, int] = {}  # by bucket: the revision from which on nothing was removed
        self.last: dict[bytes, int] = {}  # by bucket: the revision of the last change
        self.outcomes: dict[bytes, EntryChange] = {}  # by token, in the order of the changes
        self.were_any = False

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        rows = [(bucket, entry) for bucket, entries in self.entries.items() for entry in entries.values()]
        return sum(len(bucket) + len(entry.key) + len(entry.value) for bucket, entry in rows)

    def fold(self, kind: Kind, subject: bytes, payload: bytes, revision: int, time: int) -> None:
        """Take a record about an entry, which has this revision if it changes something."""
        bucket, _, key = subject.partition(b"/")
        event = (control.EntryPut if kind == Kind.ENTRY_PUT else control.EntryRemoved).parse(payload)
        if event.token in self.outcomes:
            return
        known = self.entries[bucket].get(key)
        found = known.revision if known is not None else 0
        if event.expected is not None and event.expected != found:
            change = EntryChange(ChangeOutcome.CONFLICT, found)
        elif isinstance(event, control.EntryRemoved):
            change = EntryChange(ChangeOutcome.DONE, revision if known is not None else 0)
            if self.entries[bucket].pop(key, None) is not None:
                self.whole_since[bucket] = self.last[bucket] = revision
        elif self._is_full(bucket, key, event):
            change = EntryChange(ChangeOutcome.FULL, found)
        else:
            change = EntryChange(ChangeOutcome.DONE, revision)
            if not self.entries[bucket]:
                self.whole_since[bucket] = revision
            self.entries[bucket][key] = BucketEntry(key, event.value, revision, time)
            self.last[bucket] = revision
            self.were_any = True
        if event.token:
            self.outcomes[event.token] = change

    def _is_full(self, bucket: bytes, key: bytes, event: control.EntryPut) -> bool:
        """Whether the change would exceed a limit that it names, and makes more of what is limited."""
        known = self.entries[bucket].get(key)
        more = len(event.value) - len(known.value) if known is not None else len(bucket + key + event.value)
        too_many = known is None and event.max_entries and self.count + 1 > event.max_entries
        return bool(too_many or (event.max_bytes and more > 0 and self.size + more > event.max_bytes))
