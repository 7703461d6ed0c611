"""Reads of a copy of the log, for the gateways of a site that stands by: another site has the log."""

import asyncio

from store.errors import StoreError
from store.local_store import LocalStore
from store.remote.config import RemoteConfig
from store.remote.wire.calls import METHODS, encode
from store.remote.wire.copies import ABOUT, CopyFacts
from store.remote.wire.faults import fault_of


class StandbyReads:
    """Answers everything that reads, from `store`."""

    def __init__(self, store: LocalStore, config: RemoteConfig) -> None:
        self._store = store
        self._room = asyncio.Semaphore(config.max_calls)

    async def answer(self, body: bytes) -> bytes:
        """The answer to a request of `StandbyStore`: 1 and the result, or 0 and the error."""
        store = self._store
        try:
            if body == ABOUT:
                partitions = store.partitions
                return b"\1" + encode(CopyFacts(store.stats(), partitions.default, partitions.counts))
            method = METHODS[body[0]]
            if not method.is_read:
                raise StoreError(f"{method.name} is no read")
            async with self._room:
                return b"\1" + encode(await getattr(store, method.name)(*method.arguments.decode(body[1:])))
        except Exception as error:  # noqa: BLE001  the gateway raises it
            return b"\0" + encode(fault_of(error))
