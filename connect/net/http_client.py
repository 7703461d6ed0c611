"""HTTP requests of sinks and of event rules: bounded in time and size, without redirections, and to addresses that are
allowed alone.

Connections are kept for the next requests. aiohttp's client does the same, and much that is not needed here: a small
request costs it two to three times the CPU.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import time
from typing import Final
from urllib.parse import quote, urlsplit

from connect.api import ConnectError, RetriableError
from connect.net.http_answer import AnswerReader, InvalidAnswer
from connect.net.sockets import Guard, connected_socket

_MAX_ERROR: Final = 200  # characters of an answer in an error
_LONGEST_WAIT_S: Final = 86_400.0  # that a server may ask for
_TRY_AGAIN: Final = (408, 425, 429)
_IDLE_S: Final = 15.0  # that a connection is kept without requests
_AT_ONCE: Final = 64 << 10  # bytes of a body that are copied, to send them along with the head
_KEPT: Final = "/%:@!$&'()*+,;=?-._~[]"  # what a path and a query may have; all else is escaped
_DEFAULTS: Final = {"user-agent": "User-Agent: Sluice\r\n", "accept": "Accept: */*\r\n"}


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


@dataclass(slots=True, frozen=True)
class _Place:
    """What a URL says."""

    host: str
    port: int
    is_tls: bool
    target: str  # path and query
    header: str  # Host

    @property
    def name(self) -> str:
        """Host and port: other parts of a URL may have secrets."""
        return f"{self.host}:{self.port}"


class HttpClient:
    """Sends requests. Create it in the loop, and close it when no request is on its way."""

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
        self._max_idle = max_connections
        self._max_answer = max_answer
        self._tls = tls
        self._tls_lock = asyncio.Lock()  # reading the certificates that the system trusts takes 25 ms of CPU
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(max_connections)
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}  # the one that was used last is the last
        self._open: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None  # closes connections that are idle for long

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._idle.clear()
        lost = [connection.lost for connection in self._open]
        for connection in list(self._open):
            connection.abort()
        if lost:
            await asyncio.wait(lost)

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], method: str = "POST", timeout_s: float | None = None
    ) -> Answer:
        """Send a request. Raises `RetriableError` if there is no answer, or one that says to try again (408, 425, 429,
        5xx), and `ConnectError` if the address is not allowed."""
        place = None
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            place = _place_of(url)
            head = _head(method, place, headers, len(body))
            async with asyncio.timeout(timeout_s), self._room:
                answer = await self._exchange(place, head, body)
        except TimeoutError:
            raise RetriableError(f"{_name(place)} has not answered within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(f"the certificate of {_name(place)} is not valid: {error.verify_message}") from None
        except InvalidAnswer as error:
            raise RetriableError(f"the request to {_name(place)} failed: {error}") from None
        except OSError as error:
            raise RetriableError(f"the request to {_name(place)} failed: {type(error).__name__}") from None
        except ValueError:
            raise ConnectError(f"a request to {_name(place)} cannot be made of the settings") from None
        if answer.status >= 500 or answer.status in _TRY_AGAIN:
            wait_s = seconds_to_wait(answer.retry_after, time())
            raise RetriableError(_said(answer.status, answer.body), retry_after_s=wait_s)
        return Answer(answer.status, answer.body)

    async def _exchange(self, place: _Place, head: bytes, body: bytes) -> AnswerReader:
        key = (place.host, place.port, place.is_tls)
        connection = self._idle_connection(key) or await self._connect(place)
        try:
            answer = await connection.exchange(head, body, self._max_answer)
        except BaseException:
            connection.abort()
            raise
        if answer.is_last or not connection.is_ready or sum(map(len, self._idle.values())) >= self._max_idle:
            connection.abort()
        else:
            connection.idle_since = self._loop.time()
            self._idle.setdefault(key, []).append(connection)
            if self._timer is None:
                self._timer = self._loop.call_later(_IDLE_S, self._close_idle)
        return answer

    def _idle_connection(self, key: tuple[str, int, bool]) -> "_Connection | None":
        connections = self._idle.get(key)
        while connections:
            connection = connections.pop()
            if connection.is_ready and self._loop.time() - connection.idle_since < _IDLE_S:
                return connection
            connection.abort()
        return None

    def _close_idle(self) -> None:
        """Close the connections that were not used for long."""
        self._timer = None
        until = self._loop.time() - _IDLE_S
        for key, connections in list(self._idle.items()):
            old = [each for each in connections if each.idle_since <= until or not each.is_ready]
            for each in old:
                each.abort()
            left = [each for each in connections if each not in old]
            if left:
                self._idle[key] = left
            else:
                del self._idle[key]
        if self._idle:
            self._timer = self._loop.call_later(_IDLE_S, self._close_idle)

    async def _connect(self, place: _Place) -> "_Connection":
        tls = await self._tls_context() if place.is_tls else None
        _, connection = await self._loop.create_connection(
            lambda: _Connection(self._loop, self._open),
            sock=await connected_socket(self._guard, place.host, place.port, self._connect_timeout_s),
            ssl=tls,
            server_hostname=place.host.rstrip(".") if place.is_tls else None,
        )
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        async with self._tls_lock:
            if self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            return self._tls


class _Connection(asyncio.Protocol):
    """A connection, on which one request after the other is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_: "set[_Connection]") -> None:
        """open_: has the connections that are not closed."""
        self._loop = loop
        self._open = open_
        self._transport: asyncio.Transport | None = None
        self._answer = AnswerReader(0)
        self._waiter: asyncio.Future[None] | None = None  # for the answer
        self.lost: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0  # loop time

    @property
    def is_ready(self) -> bool:
        """Whether a request can be sent: the connection is open, and the last one was sent as a whole."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    async def exchange(self, head: bytes, body: bytes, max_answer: int) -> AnswerReader:
        """Send a request, and wait for its answer. Raises `OSError`."""
        if self._transport is None:
            raise ConnectionResetError
        self._answer = AnswerReader(max_answer)
        self._waiter = self._loop.create_future()
        if len(body) <= _AT_ONCE:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        await self._waiter
        return self._answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio.Transport
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            if self._waiter is None:
                raise InvalidAnswer("an answer came without a request")
            if self._answer.feed(data):
                self._done(None)
        except InvalidAnswer as error:
            self._done(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        self.lost.set_result(None)
        is_complete = self._answer.end() and exc is None
        self._done(None if is_complete else exc or ConnectionResetError())

    def _done(self, error: Exception | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


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


@lru_cache(maxsize=256)
def _place_of(url: str) -> _Place:
    """Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("this is not a URL of http or https without credentials")
    is_tls = parts.scheme == "https"
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    usual = 443 if is_tls else 80
    port = usual if parts.port is None else parts.port
    header = f"[{host.partition('%')[0]}]" if ":" in host else host
    target = quote(parts.path or "/", _KEPT) + (f"?{quote(parts.query, _KEPT)}" if parts.query else "")
    return _Place(host, port, is_tls, target, header if port == usual else f"{header}:{port}")


def _head(method: str, place: _Place, headers: Mapping[str, str], size: int) -> bytes:
    """The bytes of a request before its body. Raises ValueError."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers) or "\0" in lines:
        raise ValueError("a header has several lines")
    given = {name.lower() for name in headers}
    defaults = "".join([line for name, line in _DEFAULTS.items() if name not in given])
    first = f"{method} {place.target} HTTP/1.1\r\nHost: {place.header}\r\n"
    return f"{first}{defaults}{lines}Content-Length: {size}\r\n\r\n".encode()


def _name(place: _Place | None) -> str:
    return "the URL" if place is None else place.name


def _said(status: int, body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_ERROR].decode(errors="replace").split())
    return f"status {status}{': ' if text else ''}{text[:_MAX_ERROR]}"
