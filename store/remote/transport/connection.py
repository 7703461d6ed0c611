"""A connection between a store and a gateway: frames over TCP, TLS or a Unix socket.

Every buffer has a bound. Who reads slowly is not read from, and its writers wait.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, cast

from store.remote.wire.frames import MAX_FRAME, PREFACE, Frame, FrameKind, FrameReader, ProtocolViolated, head_of

# Makes the context of the next TLS handshake from the files of the certificates. It is called in a thread.
Tls = Callable[[], ssl.SSLContext]

HANDSHAKE_S: Final = 10.0
LINGER_S: Final = 2.0  # for the other side to read the rest before the connection is broken
_ADDRESS_S: Final = 1.0  # for one of several addresses of a host name to answer
_MAX_HELD: Final = 1 << 20  # bytes of frames that wait to be read; beyond them, no more are received
_FRAME_BYTES: Final = 128  # of memory that a frame takes besides its body
_MAX_UNSENT: Final = 1 << 18  # bytes that wait to be sent; beyond them, writers wait
_JOINED: Final = 1 << 12  # a body of fewer bytes is copied behind its head
_KEEPALIVE: Final = (  # the end of a peer that is gone without a word
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Connection(asyncio.Protocol):
    """One side of a connection. Read and write it only on its loop."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of the body of a frame that may arrive."""
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(limit)
        self._transport: asyncio.Transport
        self._frames: deque[Frame] = deque()
        self._held = 0  # bytes that `_frames` take
        self.received = 0  # bytes that have arrived, also those of a frame that is not complete yet
        self._is_paused = False  # nothing is received
        self._waiter: asyncio.Future[None] | None = None  # of the one who reads
        self.ended: asyncio.Future[None] = self._loop.create_future()  # done when the connection is lost
        self._room = asyncio.Event()  # writers need not wait
        self._room.set()
        self._fault: Exception | None = None  # that ended the connection
        self._linger: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self.ended.done()

    @property
    def is_closing(self) -> bool:
        """Nothing can be sent any more."""
        return self.ended.done() or self._transport.is_closing()

    def admit(self, limit: int) -> None:
        """Allow larger frames from now on."""
        self._reader.limit = limit

    async def read(self) -> Frame | None:
        """The next frame; None if the other side has closed the connection. Raises OSError. One task may read."""
        while not self._frames:
            if self.is_lost:
                if self._fault is not None:
                    raise self._fault
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        self._held -= len(frame[2]) + _FRAME_BYTES
        if self._is_paused and self._held <= _MAX_HELD // 2:
            self._is_paused = False
            if not self.is_lost:
                self._transport.resume_reading()
        return frame

    async def write(self, kind: int, number: int, body: bytes) -> None:
        """Send a frame. Waits while too much waits to be sent. Raises OSError."""
        self.post(kind, number, body)
        if not self._room.is_set():
            await self._room.wait()
            self._check()

    def post(self, kind: int, number: int, body: bytes) -> None:
        """Send a frame without waiting, however much waits to be sent. Raises OSError."""
        self._check()
        head = head_of(kind, number, len(body))
        if len(body) < _JOINED:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def _check(self) -> None:
        if self.is_closing:
            raise self._fault or ConnectionResetError("the connection is closed")

    async def read_message(self) -> bytes | None:
        """The next message of a link; None if the other side has closed the connection. Raises OSError."""
        frame = await self.read()
        if frame is None:
            return None
        if frame[0] != FrameKind.MESSAGE:
            raise ProtocolViolated(f"it sent a frame of kind {frame[0]} on a link")
        return frame[2]

    async def write_message(self, message: bytes) -> None:
        """Send a message of a link. Waits while too much waits to be sent. Raises OSError."""
        await self.write(FrameKind.MESSAGE, 0, message)

    def post_message(self, message: bytes) -> None:
        """Send a message of a link without waiting, however much waits to be sent. Raises OSError."""
        self.post(FrameKind.MESSAGE, 0, message)

    def close(self) -> None:
        """Close the connection when the rest is sent, or after a while."""
        if not self.is_lost and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        if not self.is_lost:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_MAX_UNSENT)
        own = transport.get_extra_info("socket")
        if own is not None and own.family != socket.AF_UNIX:
            for option in _KEEPALIVE:
                own.setsockopt(*option)
        self._transport.write(PREFACE)

    def data_received(self, data: bytes) -> None:
        if self._fault is not None:
            return
        self.received += len(data)
        try:
            frames = self._reader.feed(data)
        except ProtocolViolated as violated:
            self._fault = violated
            self._transport.abort()
            return
        if not frames:
            return
        self._frames += frames
        for frame in frames:
            self._held += len(frame[2]) + _FRAME_BYTES
        if self._held > _MAX_HELD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):
            error = ConnectionResetError(repr(error))
        self._fault = self._fault or error
        if self._linger is not None:
            self._linger.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        self._room.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(address: str, tls: Tls | None = None) -> Connection:
    """Connect to a store at `host:port`, over TLS with `tls`, or at `unix:path`. Raises OSError."""
    async with asyncio.timeout(HANDSHAKE_S):
        return await _connect(address, tls)


async def _connect(address: str, tls: Tls | None) -> Connection:
    loop, connection = asyncio.get_running_loop(), Connection(MAX_FRAME)
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        await loop.create_unix_connection(lambda: connection, path)
        return connection
    context = None if tls is None else await asyncio.to_thread(tls)
    host, port = host_and_port(address)
    own = await _reach(host, port)
    if context is None:
        await loop.create_connection(lambda: connection, sock=own)
    else:
        await loop.create_connection(
            lambda: connection,
            sock=own,
            ssl=context,
            server_hostname=host,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=LINGER_S,
        )
    return connection


async def _reach(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for others, (family, *_, place) in zip(reversed(range(len(found))), found, strict=True):
        with ExitStack() as stack:
            try:
                own = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                own.setblocking(False)
                async with asyncio.timeout(_ADDRESS_S if others else None):
                    await loop.sock_connect(own, place)
            except OSError:
                if not others:
                    raise
            else:
                stack.pop_all()
                return own
    raise OSError(f"{host} has no address")


def place_of(peer: object) -> str:
    """Where a peer is, for logs, given the address of its socket."""
    if not isinstance(peer, tuple):
        return "a Unix socket"
    return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port`; an IPv6 address is in brackets. Raises OSError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise OSError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
