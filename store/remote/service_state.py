"""Whom the gateways of a node of a cluster may serve. The node's own store says so, whether it leads or not.

A request is the state that the gateway knows, or nothing. It is answered as soon as there is another one.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from store.remote.calls import encode
from store.remote.connection import connect
from store.remote.frames import FrameKind
from store.remote.requests import Refused, Requests

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5  # until a store that has gone is asked again


class ServiceState(msgspec.Struct, frozen=True, array_like=True):
    """Whom gateways serve: all, unless one of these says otherwise."""

    standby: str = ""  # why they serve no devices, and only reads: another site has the log; "": they may serve all
    drain_rate: int = 0  # connections a second that each gateway closes, to send clients to other nodes; 0: none
    services_s: int = 0  # after which a drained node serves no cloud services either


_decode: Final = msgspec.msgpack.Decoder(ServiceState).decode


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


async def first_service_state(address: str) -> ServiceState:
    """The state that the store at this address tells, as soon as it knows one."""
    found: asyncio.Future[ServiceState] = asyncio.get_running_loop().create_future()

    def note(state: ServiceState) -> None:
        if not found.done():
            found.set_result(state)

    following = asyncio.ensure_future(follow_service_state(address, note))
    try:
        return await found
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def follow_service_state(address: str, listener: Callable[[ServiceState], None]) -> None:
    """Call `listener` with the state that the store at this address tells, and with each change, until cancelled. While
    the store is away, the last state holds."""
    while True:
        try:
            with closing(Requests(await connect(address))) as requests:
                known = b""
                while True:
                    known = await requests.ask(FrameKind.SERVICE_STATE, known)
                    listener(_decode(known))
        except (OSError, Refused, msgspec.MsgspecError) as error:
            log.debug("the store does not say whom this gateway may serve: %s", error)
        await asyncio.sleep(_RETRY_S)
