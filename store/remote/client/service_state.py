"""Whom this gateway may serve: its node's store is asked, whether it leads or not."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from store.remote.transport.connection import connect
from store.remote.transport.requests import Refused, Requests
from store.remote.wire.frames import FrameKind
from store.remote.wire.service_state import ServiceState

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5  # until a store that has gone is asked again
_decode: Final = msgspec.msgpack.Decoder(ServiceState).decode


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
