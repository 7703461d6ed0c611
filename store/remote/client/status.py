"""What the node at an address says about itself, and the order to drain it. It answers whether it leads or not."""

import asyncio
from contextlib import closing
from typing import Final

from store.errors import StoreClosed
from store.remote.transport.connection import Tls, connect
from store.remote.transport.requests import Refused, Requests
from store.remote.wire.frames import FrameKind

_TIMEOUT_S: Final = 2.0
_DRAIN_S: Final = 30.0  # another node has to lead first


async def ask_status(address: str, tls: Tls | None) -> bytes:
    """Ask the store at `host:port`, over TLS with `tls`. Raises `StoreClosed` if it does not answer."""
    return await _ask(address, tls, FrameKind.STATUS, b"", _TIMEOUT_S)


async def ask_to_drain(address: str, tls: Tls | None, order: bytes) -> None:
    """Have the node at `host:port` drained or not. Raises `StoreClosed` with the reason if it is not carried out."""
    await _ask(address, tls, FrameKind.DRAIN, order, _DRAIN_S)


async def _ask(address: str, tls: Tls | None, kind: FrameKind, body: bytes, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            with closing(Requests(await connect(address, tls))) as requests:
                return await requests.ask(kind, body)
    except TimeoutError:
        raise StoreClosed(f"the node at {address} does not answer") from None
    except Refused as refused:
        raise StoreClosed(str(refused)) from None
    except OSError as error:
        raise StoreClosed(f"the node at {address} does not answer: {error}") from None
