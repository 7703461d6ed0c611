"""Reads of a copy of the log, for the gateways of its node while another node leads.

A copy is a moment behind the log. So it gives only answers that do not depend on where the log ends: records that have
others of the same queue, or of the log, behind them. A gateway that gets no answer asks the store of the leader. So no
reader is told that there is nothing more where there is, and none gets other records than the leader has.

A gateway says what it knows of the log: its opening, and a position up to which it has heard of commits. A copy of
another log is not read, and neither is one that is far behind.
"""

import asyncio
from typing import Final

import msgspec

from store.api import Chunk, Fetched, Selected
from store.errors import StoreError
from store.local_store import LocalStore
from store.remote.config import RemoteConfig
from store.remote.wire.calls import FETCH, FETCH_SELECTED, METHODS, READ, encode
from store.remote.wire.copies import NO_ANSWER

_LASTING: Final = (b"p", b"t")  # kinds of queues that never end: an offset has one record at most, whenever it is read


class NotReadable(Exception):
    """The copy is of another log than the gateway's, or far behind."""


class CopyReads:
    """Answers reads of `store`, which follows a log."""

    def __init__(self, store: LocalStore, config: RemoteConfig) -> None:
        self._store = store
        self._room = asyncio.Semaphore(config.max_bulk_reads)
        self._max_lag = config.max_copy_lag

    async def read(self, body: bytes, opening: str, position: int) -> bytes:
        """The answer to a bulk read (`store.remote.client.bulk`) of a gateway that is attached to this opening of the
        log and knows it up to `position`; or `NO_ANSWER`. Raises `NotReadable`."""
        store = self._store
        if position - store.position > self._max_lag or not store.meta.has_log_up_to(opening, position):
            raise NotReadable("the copy of this node is of another log, or far behind")
        method = METHODS[body[0]] if body and body[0] < len(METHODS) else None
        found: Fetched | Selected | Chunk | None
        try:
            async with self._room:
                if method is FETCH:
                    queue, offset, *limits = FETCH.arguments.decode(body[1:])
                    if queue[:1] not in _LASTING:
                        return NO_ANSWER
                    found = await store.fetch(queue, offset, *limits)
                    is_final = found.offset == offset < found.next_offset < found.bounds.end
                elif method is FETCH_SELECTED:
                    queue, offset, *rest = FETCH_SELECTED.arguments.decode(body[1:])
                    found = await store.fetch_selected(queue, offset, *rest)
                    if found is None:
                        return NO_ANSWER
                    is_final = not found.gone and offset < found.next_offset < found.bounds.end
                elif method is READ:
                    offset, max_bytes = READ.arguments.decode(body[1:])
                    found = await store.read(offset, max_bytes)
                    is_final = found.position == offset < found.next_position < store.position
                else:
                    return NO_ANSWER
        except (StoreError, msgspec.MsgspecError):  # the store of the leader says whether it is one
            return NO_ANSWER
        return encode(found) if is_final else NO_ANSWER
