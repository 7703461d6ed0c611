"""Removes producers that never ended themselves from the views.

A client of the SDK that crashed could repeat its last request only as long as its retries last. A producer that others
resume, such as a task of a Spark query, may come back days later. A gateway process cannot come back to a node that
accepts no gateways.
"""

import asyncio
import logging
from time import time
from typing import Final

from gateway.broker.append import append
from store import control
from store.engine import Engine
from store.errors import StoreError
from store.producer_progress import is_gateway, is_returning

log = logging.getLogger(__name__)

KEPT_SECONDS: Final = 3600  # since the last append of a client, which retries for half a minute by default
RETURNING_SECONDS: Final = 30 * 86_400  # since the last append of a producer that others resume
CHECK_SECONDS: Final = 600.0  # between two checks
_PAGE: Final = 1000


class ExpiredProducers:
    """Ends expired producers. accepts_gateways: gateways may be attached, whose producers `store.remote` ends."""

    def __init__(self, engine: Engine, accepts_gateways: bool) -> None:
        self._engine = engine
        self._accepts_gateways = accepts_gateways

    async def run(self) -> None:
        """End expired producers now and periodically."""
        while True:
            try:
                await self.end_expired()
            except StoreError as error:
                log.error("ending expired producers failed: %s", error)
            await asyncio.sleep(CHECK_SECONDS)

    async def end_expired(self) -> None:
        """End the producers that are expired now. Raises StoreError."""
        engine = self._engine
        horizon = await engine.position_at(int((time() - KEPT_SECONDS) * 1000))
        far = await engine.position_at(int((time() - RETURNING_SECONDS) * 1000))
        after: bytes | None = None
        while page := await engine.producers(after, _PAGE):
            # The record ends only what it names: a producer that comes back just now is not affected.
            gone = [
                control.ProducerEnded(row.position).frame(row.producer)
                for row in page
                if (
                    not self._accepts_gateways
                    if is_gateway(row.producer)
                    else row.position < (far if is_returning(row.producer) else horizon)
                )
            ]
            await append(engine, gone)
            after = page[-1].producer
            await asyncio.sleep(0)  # there may be many: let other tasks run
