"""HTTP requests of sinks: bounded in time and size, without redirections, and to addresses that are allowed alone.

The addresses that a host name has are checked when the connection is made. So a name that changes its addresses
meanwhile gains nothing.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from ipaddress import ip_address
from time import time
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from connect.api import ConnectError, RetriableError, TaskContext

_MAX_ERROR: Final = 200  # characters of an answer in an error
_LONGEST_WAIT_S: Final = 3600.0  # that a server may ask for
_TRY_AGAIN: Final = (408, 425, 429)


@dataclass(slots=True, frozen=True)
class Answer:
    """The answer to a request, with any status that is not one to try again after."""

    status: int
    body: bytes  # cut at the limit of the client

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> ConnectError:
        """The answer as an error."""
        return ConnectError(_said(self.status, self.body))


class HttpClient:
    """Sends the requests of one task. Create it in the loop, and close it."""

    def __init__(
        self,
        context: TaskContext,
        *,
        connect_timeout_s: float,
        timeout_s: float,
        max_connections: int,
        max_answer: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """max_answer: bytes of a body that are read."""
        self._context = context
        self._max_answer = max_answer
        self._timeout_s = timeout_s
        connector = aiohttp.TCPConnector(
            limit=max_connections, resolver=_Resolver(context), use_dns_cache=False, ssl=True if tls is None else tls
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "Sluice"},
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s),
        )

    async def close(self) -> None:
        await self._session.close()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str], method: str = "POST") -> Answer:
        """Send a request. Raises `RetriableError` if there is no answer, or one that says to try again (408, 425, 429,
        5xx), and `ConnectError` if the address is not allowed."""
        address = URL(url)
        try:
            if _is_address(address.host or ""):  # other hosts are checked when they are resolved
                await self._context.require_allowed(address.host or "", address.port or 0)
            async with self._session.request(
                method, address, data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = await _bounded(answer.content, self._max_answer)
                if answer.status >= 500 or answer.status in _TRY_AGAIN:
                    wait_s = seconds_to_wait(answer.headers.get("Retry-After", ""), time())
                    raise RetriableError(_said(answer.status, text), retry_after_s=wait_s)
                return Answer(answer.status, text)
        except TimeoutError:
            raise RetriableError(f"{_host(address)} has not answered within {self._timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise ConnectError(f"the certificate of {_host(address)} is not valid: {error.certificate_error}") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _Refused):
                raise ConnectError(str(error.os_error.reason)) from None
            raise RetriableError(f"cannot connect to {_host(address)}: {error.os_error}") from None
        except ValueError:  # also of URLs that aiohttp does not take, such as http://127.1
            raise ConnectError(f"a request to {_host(address)} cannot be made of the settings") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RetriableError(f"the request to {_host(address)} failed: {type(error).__name__}") from None


def seconds_to_wait(text: str, now: float) -> float | None:
    """What a header Retry-After asks for: a number of seconds, or a date of HTTP. None: nothing.

    now: seconds since 1970."""
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_WAIT_S) if len(text) < 10 else None
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(seconds, _LONGEST_WAIT_S) if seconds > 0 else None


class _Refused(OSError):
    """An address is not allowed."""

    def __init__(self, reason: ConnectError) -> None:
        super().__init__(None, str(reason))
        self.reason = reason


class _Resolver(AbstractResolver):
    """Resolves names, and leaves out addresses that are not allowed."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        refused: ConnectError | None = None
        allowed = []
        for each in await self._inner.resolve(host, port, family):
            try:
                await self._context.require_allowed(each["host"], port)
            except ConnectError as error:
                refused = error
            else:
                allowed.append(each)
        if not allowed:
            raise _Refused(refused or ConnectError(f"{host} has no address"))
        return allowed

    async def close(self) -> None:
        await self._inner.close()


async def _bounded(content: aiohttp.StreamReader, most: int) -> bytes:
    """A body, or its first bytes."""
    parts: list[bytes] = []
    size = 0
    while size < most and (part := await content.read(most - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _host(url: URL) -> str:
    """Host and port: other parts of a URL may have secrets."""
    return f"{url.host}:{url.port}"


def _said(status: int, body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_ERROR].decode(errors="replace").split())
    return f"status {status}{': ' if text else ''}{text[:_MAX_ERROR]}"
