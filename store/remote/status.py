"""What the node at an address says about itself. It says so whether it leads or not."""

import asyncio
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio

from store.errors import StoreClosed
from store.remote.wire import CHANNEL_OPTIONS, STATUS

_TIMEOUT_S: Final = 2.0


async def ask_status(address: str, credentials: Callable[[], grpc.ChannelCredentials] | None) -> bytes:
    """Ask the store at `host:port`, over TLS with `credentials`. Raises `StoreClosed` if it does not answer."""
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, credentials(), options=CHANNEL_OPTIONS)
    try:
        async with asyncio.timeout(_TIMEOUT_S), channel:
            answer: bytes = await channel.unary_unary(STATUS, None, None)(b"")
            return answer
    except TimeoutError:
        raise StoreClosed(f"the node at {address} does not answer") from None
    except grpc.aio.AioRpcError as error:
        raise StoreClosed(f"the node at {address} does not answer: {error.details()}") from None
