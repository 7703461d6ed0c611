"""Buckets: named sets of key-value entries in the log of a node, for small state of services.

Each change gets a revision, which rises with every change of any bucket. A change may name the revision that it expects
the key to have. The order of the log decides who was first, so one of two that expect the same revision wins, whichever
nodes they use.
"""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cloud_sdk.errors import RevisionConflict, as_invalid_argument, require_positive
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection

_TOKEN_BYTES: Final = 16


@dataclass(slots=True, frozen=True)
class Entry:
    """The value of a key."""

    key: str
    value: bytes
    revision: int
    put_ms: int  # when the node stored it, ms since 1970-01-01 UTC


@dataclass(slots=True, frozen=True)
class BucketChanges:
    """What has changed in a bucket. See `Bucket.changes`."""

    entries: Sequence[Entry]  # in the order of their revisions
    revision: int  # where to go on
    more: bool  # there may be more changes already
    # Entries were removed, or the bucket was not read before, and `entries` is empty: read all of them with
    # `Bucket.entries`, then go on at `revision`.
    is_reset: bool


class Bucket:
    """A bucket of a node; create it with `Client.bucket`. It is there as long as it has entries.

    Names of buckets and keys have up to 255 bytes, and a value has up to 1,032,192 bytes. Any call raises `NotAllowed`
    unless a rule allows the user `$kv/BUCKET/KEY`, and `InvalidArgument` for a name or a value that cannot be.
    """

    def __init__(self, connection: NodeConnection, name: str) -> None:
        self.name = name
        self._connection = connection

    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key; None if there is none."""
        with as_invalid_argument():
            request = pb.GetEntryRequest(bucket=self.name, key=key)
        reply = await self._connection.call(lambda stub: stub.GetEntry, request)
        return _entry_of(reply.entry) if reply.HasField("entry") else None

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store the value of a key. Returns its revision when it is committed.

        `revision`: the one that the key must have, 0 if it must not be there. Otherwise nothing is changed, and this
        raises `RevisionConflict`. If the node goes away before it answers, the call is repeated; the value is stored
        once all the same. Raises `NodeError` if buckets have as many entries as they may.
        """
        with as_invalid_argument():
            token = secrets.token_bytes(_TOKEN_BYTES)
            request = pb.PutEntryRequest(bucket=self.name, key=key, value=value, expected=revision, token=token)
        reply = await self._connection.call(lambda stub: stub.PutEntry, request)
        return self._decided(key, revision, reply)

    async def remove(self, key: str, *, revision: int | None = None) -> None:
        """Remove a key, if it is there. `revision` and errors: see `put`."""
        with as_invalid_argument():
            token = secrets.token_bytes(_TOKEN_BYTES)
            request = pb.RemoveEntryRequest(bucket=self.name, key=key, expected=revision, token=token)
        self._decided(key, revision, await self._connection.call(lambda stub: stub.RemoveEntry, request))

    async def entries(self, prefix: str = "") -> AsyncIterator[Entry]:
        """Iterate over the entries whose keys begin with `prefix`, in the order of their keys. They are read page by
        page: a change meanwhile may be among them or not."""
        after: str | None = None
        while True:
            page, after = await self.page(prefix, after=after)
            for entry in page:
                yield entry
            if after is None:
                return

    async def page(
        self, prefix: str = "", *, after: str | None = None, limit: int = 1000
    ) -> tuple[list[Entry], str | None]:
        """Return up to `limit` entries whose keys begin with `prefix`, from after the key `after` on, or fewer with a
        megabyte of values; and the `after` of the next page, None behind the last one."""
        require_positive(limit)
        with as_invalid_argument():
            request = pb.EntriesRequest(bucket=self.name, prefix=prefix, after=after, limit=limit)
        reply = await self._connection.call(lambda stub: stub.Entries, request)
        return _entries_of(reply.entries), reply.after if reply.HasField("after") else None

    async def changes(self, revision: int = 0, *, prefix: str = "", limit: int = 1000) -> BucketChanges:
        """Return the entries that were put behind a revision, up to `limit`, whose keys begin with `prefix`. To ask
        again and again costs little while nothing changes:

            seen = await bucket.changes()
            while True:
                if seen.is_reset:
                    state = {entry.key: entry.value async for entry in bucket.entries()}
                state |= {entry.key: entry.value for entry in seen.entries}
                if not seen.more:
                    await asyncio.sleep(1)
                seen = await bucket.changes(seen.revision)
        """
        require_positive(limit)
        with as_invalid_argument():
            request = pb.BucketChangesRequest(bucket=self.name, prefix=prefix, revision=revision, limit=limit)
        reply = await self._connection.call(lambda stub: stub.BucketChanges, request)
        return BucketChanges(_entries_of(reply.entries), reply.revision, reply.more, reply.is_reset)

    def _decided(self, key: str, expected: int | None, reply: pb.ChangeEntryReply) -> int:
        if reply.conflicts:
            raise RevisionConflict(self.name, key, expected or 0, reply.revision)
        return reply.revision


def _entry_of(entry: pb.Entry) -> Entry:
    return Entry(entry.key, entry.value, entry.revision, entry.put_ms)


def _entries_of(entries: Iterable[pb.Entry]) -> list[Entry]:
    return list(map(_entry_of, entries))
