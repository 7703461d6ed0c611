"""Connections to hosts that are allowed."""

import asyncio
import socket
from typing import Final, Protocol

from connect.api import ConnectError, RetriableError

_NEXT_S: Final = 2.0  # for an address until the next one is tried: a network may swallow IPv6


class Guard(Protocol):
    """Knows which addresses are allowed."""

    async def require_allowed(self, host: str, port: int) -> None:
        """Raise `ConnectError` if nothing may be sent to an address."""


async def connected_socket(guard: Guard, host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of a host that answers, if it is allowed. Raises `RetriableError` if none answers,
    and `ConnectError` if none is allowed.

    The addresses are those that are connected to: a name that changes its addresses meanwhile gains nothing."""
    loop = asyncio.get_running_loop()
    refused: ConnectError | None = None
    failed = "it has no address"
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for number, (family, kind, protocol, _, address) in enumerate(found, 1):
                try:
                    await guard.require_allowed(str(address[0]), port)
                except ConnectError as error:
                    refused = error
                    continue
                made = socket.socket(family, kind, protocol)
                made.setblocking(False)
                try:
                    async with asyncio.timeout(_NEXT_S if number < len(found) else None):
                        await loop.sock_connect(made, address)
                except BaseException as error:
                    made.close()
                    if not isinstance(error, OSError):
                        raise
                    failed = str(error.strerror or type(error).__name__)
                else:
                    return made
    except TimeoutError:
        failed = f"no answer within {timeout_s:g} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: what is no name of a host
        failed = str(getattr(error, "strerror", "") or type(error).__name__)
    if refused is not None:
        raise refused
    raise RetriableError(f"cannot connect to {host}:{port}: {failed}")
