"""HTTP requests of sinks and of event rules: bounded in time and size, without redirections, and to addresses that are
allowed alone.

The addresses that a host name has are checked when a connection is made. So a name that changes its addresses
meanwhile gains nothing.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from ipaddress import ip_address
from time import time
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from connect.api import ConnectError, RetriableError
from connect.net.sockets import Guard

_MAX_ERROR: Final = 200  # characters of an answer in an error
_LONGEST_WAIT_S: Final = 86_400.0  # that a server may ask for
_TRY_AGAIN: Final = (408, 425, 429)
_MAX_INTERIM: Final = 16  # answers with a status below 200, such as 100 and 103, before the one that counts


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
    """Sends requests. Create it in the loop, and close it."""

    def __init__(
        self,
        guard: Guard,
        *,
        connect_timeout_s: float,
        timeout_s: float,
        max_connections: int,
        max_answer: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """timeout_s: for a request, unless `send` is told another time. max_answer: bytes of a body that are read. tls:
        None for the certificates that the system trusts."""
        self._guard = guard
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._max_answer = max_answer
        connector = _Connector(
            limit=max_connections, resolver=_Resolver(guard), use_dns_cache=False, ssl=True if tls is None else tls
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "Sluice"},
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], method: str = "POST", timeout_s: float | None = None
    ) -> Answer:
        """Send a request. Raises `RetriableError` if there is no answer, or one that says to try again (408, 425, 429,
        5xx), and `ConnectError` if the address is not allowed."""
        name = "the URL"  # not all of it: other parts of a URL may have secrets
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_timeout_s)
        try:
            address = URL(url)
            host, port = address.host or "", address.port or 0
            name = f"{host}:{port}"
            if address.scheme not in ("http", "https") or address.raw_authority.count("@"):
                raise ValueError("this is not a URL of http or https without credentials")
            if _is_address(host):  # other hosts are checked when they are resolved
                await self._guard.require_allowed(host, port)
            async with self._session.request(
                method, address, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                status, text = answer.status, await _bounded(answer.content, self._max_answer)
                retry_after = answer.headers.get("Retry-After", "")
        except TimeoutError:
            raise RetriableError(f"{name} has not answered within {timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise ConnectError(f"the certificate of {name} is not valid: {error.certificate_error}") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _Refused):
                raise ConnectError(str(error.os_error.reason)) from None
            raise RetriableError(f"cannot connect to {name}: {error.os_error}") from None
        except ValueError:  # also of URLs that aiohttp does not take, such as http://127.1
            raise ConnectError(f"a request to {name} cannot be made of the settings") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RetriableError(f"the request to {name} failed: {type(error).__name__}") from None
        if status >= 500 or status in _TRY_AGAIN:
            raise RetriableError(_said(status, text), retry_after_s=seconds_to_wait(retry_after, time()))
        return Answer(status, text)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._factory = partial(_Connection, loop=self._loop)  # type: ignore[assignment]  # a subclass of what it makes


class _Connection(ResponseHandler):
    """aiohttp waits for the answer that counts however many interim ones come, and takes them in without a bound: one
    endpoint that sent them without end stopped the loop for seconds."""

    _interim = 0

    def feed_data(self, data: Any, size: int = 0) -> None:
        if self._interim <= _MAX_INTERIM:
            self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim <= _MAX_INTERIM:
            super().feed_data(data, size)
        elif self.transport is not None:
            self.set_exception(aiohttp.ServerDisconnectedError("too many interim answers"))
            self.transport.abort()


class _Refused(OSError):
    """An address is not allowed."""

    def __init__(self, reason: ConnectError) -> None:
        super().__init__(None, str(reason))
        self.reason = reason


class _Resolver(AbstractResolver):
    """Resolves names, and leaves out addresses that are not allowed."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        refused: ConnectError | None = None
        allowed = []
        for each in await self._inner.resolve(host, port, family):
            try:
                await self._guard.require_allowed(each["host"], port)
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


def _said(status: int, body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_ERROR].decode(errors="replace").split())
    return f"status {status}{': ' if text else ''}{text[:_MAX_ERROR]}"
