"""Tells the gateways of a node whom they may serve, whether the node leads or not."""

import asyncio

from store.remote.wire.calls import encode
from store.remote.wire.service_state import ServiceState


class ServiceStates:
    """The state of a node, for those who wait for changes. There is none until it is `set`."""

    def __init__(self) -> None:
        self._state: ServiceState | None = None
        self._changed = asyncio.Event()

    def set(self, state: ServiceState) -> None:
        if state != self._state:
            self._state = state
            self._changed.set()
            self._changed = asyncio.Event()

    async def next(self, known: bytes) -> bytes:
        """The state as bytes, as soon as it is another one than `known`."""
        while True:
            changed = self._changed
            found = b"" if self._state is None else encode(self._state)
            if found != known:
                return found
            await changed.wait()
