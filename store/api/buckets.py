"""Buckets of key-value entries: small state of services, each value with the revision of its last change.

The terms are those of NATS: bucket, key, value, revision. A change names a token, so that whoever made it learns its
outcome even if the answer to its append was lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

MAX_ENTRY_NAME: Final = 255  # bytes of a bucket's name, and of a key
MAX_ENTRY_VALUE: Final = (1 << 20) - (16 << 10)  # bytes
MAX_TOKEN: Final = 64  # bytes


@dataclass(slots=True, frozen=True)
class BucketEntry:
    """The value of a key."""

    key: bytes
    value: bytes
    revision: int  # position in the log behind the record that put it; never 0
    put_ms: int  # store time of that record


@dataclass(slots=True, frozen=True)
class EntryPage:
    """Entries of a bucket."""

    entries: Sequence[BucketEntry]
    more: bool  # there are more entries


class ChangeOutcome(IntEnum):
    """What became of a change."""

    DONE = 0
    CONFLICT = 1  # the key had another revision than the change expected
    FULL = 2  # there were as many entries, or as many bytes in them, as the change allowed


@dataclass(slots=True, frozen=True)
class EntryChange:
    """A change of an entry, as the log decided it."""

    outcome: ChangeOutcome
    # DONE: the revision of the change; 0 if it removed a key that was not there. Otherwise the revision that the key
    # had; 0: it was not there.
    revision: int


@dataclass(slots=True, frozen=True)
class BucketChanges:
    """The entries of a bucket that were put behind a revision, in the order of their revisions."""

    entries: Sequence[BucketEntry]
    # Where to go on. With `more` it is that of the last entry, otherwise that of the bucket's last change of any kind;
    # 0: the bucket has no entries.
    revision: int
    more: bool
    # Entries were removed behind that revision, so there are no `entries` here: read all of the bucket, then go on.
    is_reset: bool


class BucketStore(Protocol):
    """Reads of buckets. Changes are appended: `store.control.EntryPut` and `EntryRemoved`."""

    async def entry(self, bucket: bytes, key: bytes) -> BucketEntry | None: ...

    async def entries(self, bucket: bytes, prefix: bytes, after: bytes | None, limit: int) -> EntryPage:
        """Up to `limit` entries whose keys begin with `prefix`, sorted by key, from after the key `after` on. A page
        also ends after about a megabyte."""

    async def bucket_changes(self, bucket: bytes, revision: int, limit: int) -> BucketChanges:
        """Up to `limit` changes of a bucket behind a revision, or fewer with about a megabyte. It costs one lookup if
        nothing has changed."""

    async def entry_change(self, token: bytes) -> EntryChange | None:
        """What became of the change with this token. None: the log has none, or it was longer ago than many others."""


def is_entry_name(text: str) -> bool:
    """Whether a bucket, whose name has no slash, or a key may have this name."""
    return 0 < len(text.encode()) <= MAX_ENTRY_NAME and text.isprintable() and "+" not in text and "#" not in text


def entry_subject(bucket: bytes, key: bytes) -> bytes:
    """The subject of the records of an entry."""
    return bucket + b"/" + key


def split_entry_subject(subject: bytes) -> tuple[bytes, bytes]:
    """The bucket and the key of a subject. Raises ValueError."""
    bucket, slash, key = subject.partition(b"/")
    if not bucket or not slash or not key:
        raise ValueError(f"{subject[:100]!r} is not a bucket and a key")
    return bucket, key
