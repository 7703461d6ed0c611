"""Where a node listens for gateways: addresses that stay, and behind them the store that it has at the time, or none.

A node that does not lead has no store to serve. It says so to each gateway, and which node leads.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from store.api import Redelivery
from store.errors import StoreError
from store.local_store import LocalStore
from store.remote.config import RemoteConfig
from store.remote.server.copy_reads import CopyReads, NotReadable
from store.remote.server.service_states import ServiceStates
from store.remote.server.standby_reads import StandbyReads
from store.remote.transport.connection import HANDSHAKE_S, LINGER_S, Connection, Tls, host_and_port, place_of
from store.remote.transport.link import LinkBroken
from store.remote.transport.requests import Refused, serve_requests
from store.remote.wire.calls import encode
from store.remote.wire.frames import MAX_REQUEST, Frame, FrameKind, ProtocolViolated
from store.remote.wire.layout import LAYOUT, VERSION, Hello, Verdict, Welcome, refusal

log = logging.getLogger(__name__)

_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_decode_read: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode
_decode_copy_read: Final = msgspec.msgpack.Decoder(tuple[str, int, bytes]).decode
_MAX_OPENING: Final = 128  # connections to an address that have not said anything yet; others wait in the kernel
_MAX_CONNECTIONS: Final = 2048
_SHORTAGE_S: Final = 1.0  # without accepting when the system has no descriptor or memory
_QUIET_S: Final = 1.0  # between two warnings about peers
_SAME_S: Final = 600.0  # between two warnings that say the same of one host
_MAX_TOLD: Final = 128  # hosts and reasons that are remembered for that
_BACKLOG: Final = 1024  # connections that the kernel may queue
# An address of a host name that this machine does not have: `localhost` may be ::1 where IPv6 is switched off.
_MISSING: Final = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))

_NO_REDELIVERY: Final = Redelivery(1, [0])  # nothing reads it in a refusal

Leader = tuple[str, str]  # address of the store that leads, "" if it is not known, and a reason in words


class Server(Protocol):
    """Serves gateways; implemented by `store.remote.server.store_server`."""

    async def attach(self, hello: Hello, connection: Connection) -> None: ...

    async def read(self, producer: bytes, body: bytes) -> bytes: ...


async def _refuse_order(_: bytes) -> None:
    raise StoreError("this store is of no cluster")


async def _refuse_call(_: bytes) -> bytes:
    raise Refused("this store has no management surface")


class StoreListener:
    """Addresses for gateways. `leader` is asked what to say while no store is served, `status` for what other nodes ask
    of this one, and `drain` carries out their order. `manage` answers calls of the management surface. `states` says
    whom the gateways of this node serve."""

    def __init__(
        self,
        config: RemoteConfig,
        leader: Callable[[], Leader] = lambda: ("", "no store is open"),
        status: Callable[[], bytes] = bytes,
        drain: Callable[[bytes], Awaitable[None]] = _refuse_order,
        manage: Callable[[bytes], Awaitable[bytes]] = _refuse_call,
    ) -> None:
        self.states = ServiceStates()
        self._config = config
        self._leader = leader
        self._status = status
        self._drain = drain
        self._manage = manage
        self._server: Server | None = None
        self._copy: CopyReads | None = None
        self._standby: StandbyReads | None = None
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._quiet_until = 0.0  # no warning about another peer
        self._told: dict[tuple[str, str], float] = {}  # host and reason → when there was a warning, the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, address: str, tls: Tls | None = None) -> int:
        """Listen on `host:port` (port 0: any free port) or `unix:path`; with `tls` over TLS.

        Returns the port. Raises OSError when the address is in use.
        """
        try:
            sockets = await _bind(address)
        except OSError as error:
            text = error.strerror or str(error)
            raise OSError(error.errno or errno.EINVAL, f"cannot listen for gateways on {address}: {text}") from error
        self._sockets += sockets
        opening = asyncio.Semaphore(_MAX_OPENING)
        for listening in sockets:
            self._spawn(self._accept(listening, opening, tls))
        return 0 if address.startswith("unix:") else int(sockets[0].getsockname()[1])

    def serve(self, server: Server | None) -> None:
        """Hand all further greetings to `server`. None: this node does not lead."""
        self._server = server

    def serve_copy(self, store: LocalStore | None) -> None:
        """Answer reads of gateways from this copy of a log that another node leads. None: there is none."""
        self._copy = None if store is None else CopyReads(store, self._config)
        self._standby = None if store is None else StandbyReads(store, self._config)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            _release(listening)
        self._sockets = []

    # --- connections

    async def _accept(self, listening: socket.socket, opening: asyncio.Semaphore, tls: Tls | None) -> None:
        while True:
            await opening.acquire()
            try:
                client, place = await self._loop.sock_accept(listening)
            except ConnectionAbortedError:  # the peer has gone already
                opening.release()
            except OSError as error:
                opening.release()
                log.warning("cannot accept connections of gateways: %s", error)
                await asyncio.sleep(_SHORTAGE_S)
            else:
                self._spawn(self._serve(client, place_of(place), opening, tls))

    async def _serve(self, client: socket.socket, peer: str, opening: asyncio.Semaphore, tls: Tls | None) -> None:
        """Serve one connection until it ends."""
        connection: Connection | None = None
        try:
            try:
                if len(self._tasks) - len(self._sockets) > _MAX_CONNECTIONS:
                    raise ProtocolViolated(f"{_MAX_CONNECTIONS} others are open, which is the limit")
                connection = await self._connect(client, tls)
                first = await self._first_frame(connection)
            finally:
                opening.release()
            if first is not None and first[0] == FrameKind.MESSAGE:
                await self._greet(first[2], peer, connection)
            elif first is not None:
                await serve_requests(connection, first, self._carry_out)
        except (ProtocolViolated, LinkBroken) as error:
            self._warn("closing the connection of the peer at %s: %s", peer, error)
        except OSError as error:
            log.debug("the connection of the peer at %s broke: %s", peer, error)
        except Exception:
            log.exception("serving the peer at %s failed", peer)
        finally:
            if connection is not None:
                connection.close()
            else:
                client.close()

    async def _connect(self, client: socket.socket, tls: Tls | None) -> Connection:
        """Shake hands. Raises OSError."""
        connection = Connection(MAX_REQUEST)  # uvloop does not return it if there is TLS, but a protocol of its own
        if tls is None:
            await self._loop.connect_accepted_socket(lambda: connection, client)
            return connection
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=await asyncio.to_thread(tls),
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=LINGER_S,
                )
        except OSError as error:
            raise ProtocolViolated(f"no TLS: {str(error) or 'it broke off'}") from error
        return connection

    async def _first_frame(self, connection: Connection) -> Frame | None:
        """None if the peer closes the connection instead. Raises OSError."""
        try:
            async with asyncio.timeout(self._config.silence_s):
                return await connection.read()
        except TimeoutError as error:
            raise ProtocolViolated("it has said nothing") from error

    def _warn(self, text: str, peer: str, why: object) -> None:
        """Log what is wrong with a peer. One that tries again and again does not fill the log."""
        now, told = self._loop.time(), (peer.rpartition(":")[0], str(why))
        is_quiet = now < self._quiet_until or now < self._told.get(told, -_SAME_S) + _SAME_S
        if not is_quiet:
            self._quiet_until = now + _QUIET_S
            self._told.pop(told, None)
            self._told[told] = now
            if len(self._told) > _MAX_TOLD:
                del self._told[next(iter(self._told))]
        log.log(logging.DEBUG if is_quiet else logging.WARNING, text, peer, why)

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- requests

    async def _carry_out(self, kind: int, body: bytes) -> bytes:
        """The answer to a request. Raises `Refused`."""
        try:
            if kind == FrameKind.READ:
                if self._server is None:
                    raise Refused("no store is served here")
                return await self._server.read(*_decode_read(body))
            if kind == FrameKind.READ_COPY:
                return await self._read_copy(*_decode_copy_read(body))
        except msgspec.MsgspecError as error:
            raise Refused(f"a request that cannot be read: {error}") from error
        if kind == FrameKind.READ_STANDBY:
            if self._standby is None:
                raise Refused("this node has no copy to read at the moment")
            return await self._standby.answer(body)
        if kind == FrameKind.STATUS:
            return self._status()
        if kind == FrameKind.DRAIN:
            return await self._obey(body)
        if kind == FrameKind.MANAGE:
            return await self._manage(body)
        return await self.states.next(body)

    async def _obey(self, order: bytes) -> bytes:
        try:
            await self._drain(order)
        except StoreError as error:
            raise Refused(str(error)) from error
        return b""

    async def _read_copy(self, opening: str, position: int, body: bytes) -> bytes:
        if self._copy is None:
            raise Refused("this node follows nobody")
        try:
            return await self._copy.read(body, opening, position)
        except NotReadable as error:
            raise Refused(str(error)) from error

    # --- greetings

    async def _greet(self, first: bytes, peer: str, connection: Connection) -> None:
        try:
            wrong = refusal(first)
            hello = None if wrong else _decode_hello(first)
        except (msgspec.MsgspecError, TypeError) as error:
            hello, wrong = None, f"no greeting: {error}"
        if hello is None:
            self._warn("refusing the peer at %s: %s", peer, wrong)
            connection.post_message(encode(_refused(Verdict.REFUSED, wrong)))
        elif self._server is None:
            leader, reason = self._leader()
            connection.post_message(encode(_refused(Verdict.ELSEWHERE, reason, leader)))
        else:
            await self._server.attach(hello, connection)


def _refused(verdict: Verdict, reason: str, leader: str = "") -> Welcome:
    return Welcome(VERSION, LAYOUT, verdict, reason, "", 0, 0, 0, 0, {}, 0, 0, 0, _NO_REDELIVERY, leader)


async def _bind(address: str) -> list[socket.socket]:
    """Listen at an address; of a host name, at each of its addresses. Raises OSError."""
    if address.startswith("unix:"):
        return [_bind_unix(Path(address.removeprefix("unix:")))]
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, *_, place in dict.fromkeys(found):
            try:
                sockets.append(_bind_inet(family, (place[0], port, *place[2:])))
                port = sockets[0].getsockname()[1]
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                missing = error
        if missing is not None and not sockets:
            raise missing
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _bind_inet(family: int, place: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _bind_unix(path: Path) -> socket.socket:
    """Listen at a path. Raises OSError if another process does: its gateways would reconnect to this store."""
    if _is_left_over(path):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_left_over(path: Path) -> bool:
    """Whether the process that created a Unix socket is gone. Raises OSError if there is something else."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                return True
            raise OSError(errno.EADDRINUSE, "the path exists and is not a socket") from None
        except FileNotFoundError:
            return False
    raise OSError(errno.EADDRINUSE, "another process does")


def _release(listening: socket.socket) -> None:
    """Close a listening socket, and remove the path of a Unix socket unless another process listens there."""
    path = Path(listening.getsockname()) if listening.family == socket.AF_UNIX else None
    listening.close()
    with suppress(OSError):
        if path is not None and _is_left_over(path):
            path.unlink()
