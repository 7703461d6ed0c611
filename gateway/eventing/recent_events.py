"""Events that were published lately, so that one that is sent again is stored once.

An event is known by its source and its id, within its parent topic, and by who published it: so nobody keeps out the
events of others. A bounded number is remembered here; others, and
those from before a restart, are found in the store by their key, which is the id.
"""

import asyncio
import time
from collections import OrderedDict
from typing import Final

import record
from gateway.mqtt.properties import read_message_block
from matcher.names import parent_of
from record.layout import MAX_KEY
from store.api import QueueStore

WINDOW_S: Final = 600  # that an event is known
_MAX_KNOWN: Final = 65_536
_LOOKED_AT: Final = 16  # messages with the same key
_LOOKED_AT_BYTES: Final = 1 << 20

Identity = tuple[bytes, bytes, str, str]  # parent topic, publisher, source and id


def identity_of(topic: bytes, publisher: bytes, source: str, event_id: str) -> Identity:
    """What an event is known by."""
    return parent_of(topic), publisher, source, event_id


class RecentEvents:
    """The events of one store."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._known: OrderedDict[Identity, tuple[float, asyncio.Future[int]]] = OrderedDict()

    async def begin(self, identity: Identity) -> tuple[bool, "asyncio.Future[int]"]:
        """Say that an event is about to be published. Returns whether the caller has to do so, and its position, which
        is known then or later. Raises `StoreError`."""
        now = time.monotonic()
        known = self._known.get(identity)
        if known is not None and now - known[0] < WINDOW_S and not _has_failed(known[1]):
            return False, known[1]
        position: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._remember(identity, position, now)
        try:
            found = await self._find(identity)
        except BaseException:
            self.forget(identity, position)
            raise
        if found is None:
            return True, position
        position.set_result(found)
        return False, position

    def forget(self, identity: Identity, position: "asyncio.Future[int]") -> None:
        """The event was not published. Those who wait for its position hear so."""
        known = self._known.get(identity)
        if known is not None and known[1] is position:
            del self._known[identity]
        if not position.done():
            position.cancel()

    def _remember(self, identity: Identity, position: "asyncio.Future[int]", now: float) -> None:
        self._known[identity] = now, position
        self._known.move_to_end(identity)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    async def _find(self, identity: Identity) -> int | None:
        """The position of such an event in the store."""
        parent, publisher, source, event_id = identity
        key = event_id.encode()
        if not 0 < len(key) <= MAX_KEY:
            return None
        after: int | None = None
        since = int((time.time() - WINDOW_S) * 1000)
        found = await self._store.by_key(parent, key, after, _LOOKED_AT, _LOOKED_AT_BYTES)
        for start in record.split(found.data):
            if record.store_time_of(found.data, start) < since:
                continue
            _, _, _, _, by, block, _ = record.decode(found.data, start)
            user = dict(read_message_block(block).user)
            if by == publisher and user.get("id") == event_id and user.get("source") == source:
                return record.position_of(found.data, start)
        return None


def _has_failed(position: "asyncio.Future[int]") -> bool:
    return position.done() and position.cancelled()
