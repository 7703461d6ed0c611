"""Producers that never said that they end: their rows in the views, which nobody else would take away.

A client of the SDK that crashed may have sent its last request again for as long as it tries, and not after that. One
that others carry on, such as a task of a Spark query, may come back when somebody starts that again, days later. A
gateway that was a process of its own cannot come back to a node that takes none.
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

KEPT_SECONDS: Final = 3600  # since what a client appended last; it tries again for half a minute, unless told otherwise
RETURNING_SECONDS: Final = 30 * 86_400  # the same of one that others carry on
CHECK_SECONDS: Final = 600.0  # between two looks
_PAGE: Final = 1000


class ExpiredProducers:
    """Ends them. takes_gateways: gateways may be attached; who serves those ends the absent (`store.remote`)."""

    def __init__(self, engine: Engine, takes_gateways: bool) -> None:
        self._engine = engine
        self._takes_gateways = takes_gateways

    async def run(self) -> None:
        """At once, and now and then."""
        while True:
            try:
                await self.end_expired()
            except StoreError as error:
                log.error("looking for producers that are gone failed: %s", error)
            await asyncio.sleep(CHECK_SECONDS)

    async def end_expired(self) -> None:
        """Once. Raises StoreError."""
        engine = self._engine
        horizon = await engine.position_at(int((time() - KEPT_SECONDS) * 1000))
        far = await engine.position_at(int((time() - RETURNING_SECONDS) * 1000))
        after: bytes | None = None
        while page := await engine.producers(after, _PAGE):
            # Of one that comes back just now nothing is said: its new record may be under way already.
            gone = [
                control.ProducerEnded(row.position).frame(row.producer)
                for row in page
                if (
                    not self._takes_gateways
                    if is_gateway(row.producer)
                    else row.position < (far if is_returning(row.producer) else horizon)
                )
            ]
            await append(engine, gone)
            after = page[-1].producer
            await asyncio.sleep(0)  # there may be many: others have their turn
