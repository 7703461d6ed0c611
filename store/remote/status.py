"""What the node at an address says about itself, and the order to drain it. It answers whether it leads or not."""

import asyncio
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio

from store.errors import StoreClosed
from store.remote.wire import CHANNEL_OPTIONS, DRAIN, STATUS

_TIMEOUT_S: Final = 2.0
_DRAIN_S: Final = 30.0  # another node has to lead first

Credentials = Callable[[], grpc.ChannelCredentials]


async def ask_status(address: str, credentials: Credentials | None) -> bytes:
    """Ask the store at `host:port`, over TLS with `credentials`. Raises `StoreClosed` if it does not answer."""
    return await _ask(address, credentials, STATUS, b"", _TIMEOUT_S)


async def ask_to_drain(address: str, credentials: Credentials | None, order: bytes) -> None:
    """Have the node at `host:port` drained or not. Raises `StoreClosed` with the reason if it is not carried out."""
    await _ask(address, credentials, DRAIN, order, _DRAIN_S)


async def _ask(address: str, credentials: Credentials | None, method: str, body: bytes, seconds: float) -> bytes:
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, credentials(), options=CHANNEL_OPTIONS)
    try:
        async with asyncio.timeout(seconds), channel:
            answer: bytes = await channel.unary_unary(method, None, None)(body)
            return answer
    except TimeoutError:
        raise StoreClosed(f"the node at {address} does not answer") from None
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise StoreClosed(str(error.details())) from None
        raise StoreClosed(f"the node at {address} does not answer: {error.details()}") from None
