"""Where a node listens for gateways: addresses that stay, and behind them the store that it has at the time, or none.

A node that does not lead has no store to serve. It says so to each gateway, and which node leads.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio
import msgspec

from store.api import Redelivery
from store.errors import StoreError
from store.local_store import LocalStore
from store.remote.calls import encode
from store.remote.config import RemoteConfig
from store.remote.copy_reads import CopyReads, NotReadable
from store.remote.own_copy import OPENING, POSITION
from store.remote.service_state import ServiceStates
from store.remote.standby import StandbyReads
from store.remote.wire import (
    CHANNEL_OPTIONS,
    DRAIN,
    METHOD,
    READ,
    READ_COPY,
    READ_STANDBY,
    SERVICE,
    SERVICE_STATE,
    STATUS,
    VERSION,
    Hello,
    Verdict,
    Welcome,
    refusal,
)

log = logging.getLogger(__name__)

_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
)

_NO_REDELIVERY: Final = Redelivery(1, [0])  # nothing reads it in a refusal

Context = grpc.aio.ServicerContext[bytes, bytes]
Leader = tuple[str, str]  # address of the store that leads, "" if it is not known, and a reason in words


class Server(Protocol):
    """Serves gateways; implemented by `store.remote.server`."""

    async def attach(self, hello: Hello, context: Context) -> None: ...

    async def read(self, body: bytes, context: Context) -> bytes: ...


async def _refuse_order(_: bytes) -> None:
    raise StoreError("this store is of no cluster")


class StoreListener:
    """Addresses for gateways. `leader` is asked what to say while no store is served, `status` for what other nodes ask
    of this one, and `drain` carries out their order. `states` says whom the gateways of this node serve."""

    def __init__(
        self,
        config: RemoteConfig,
        leader: Callable[[], Leader] = lambda: ("", "no store is open"),
        status: Callable[[], bytes] = bytes,
        drain: Callable[[bytes], Awaitable[None]] = _refuse_order,
    ) -> None:
        self.states = ServiceStates()
        self._config = config
        self._leader = leader
        self._status = status
        self._drain = drain
        self._server: Server | None = None
        self._copy: CopyReads | None = None
        self._standby: StandbyReads | None = None
        self._servers: list[grpc.aio.Server] = []

    async def open(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on `host:port` (port 0: any free port) or `unix:path`; with `credentials` over TLS.

        Returns the port. Raises OSError when the address is in use.
        """
        _check_free(address)
        server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            METHOD.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(self._greet),
            READ.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._read),
            READ_COPY.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._read_copy),
            READ_STANDBY.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._read_standby),
            STATUS.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._tell_status),
            DRAIN.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._carry_out),
            SERVICE_STATE.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(self._tell_states),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gateways on {address}: {error}") from error
        await server.start()
        self._servers.append(server)
        return port

    def serve(self, server: Server | None) -> None:
        """Hand all further greetings to `server`. None: this node does not lead."""
        self._server = server

    def serve_copy(self, store: LocalStore | None) -> None:
        """Answer reads of gateways from this copy of a log that another node leads. None: there is none."""
        self._copy = None if store is None else CopyReads(store, self._config)
        self._standby = None if store is None else StandbyReads(store, self._config)

    async def close(self) -> None:
        await asyncio.gather(*(server.stop(0) for server in self._servers))

    async def _tell_status(self, _request: bytes, _context: Context) -> bytes:
        return self._status()

    async def _carry_out(self, order: bytes, context: Context) -> bytes:
        try:
            await self._drain(order)
        except StoreError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return b""

    async def _tell_states(self, _request: bytes, _context: Context) -> AsyncIterator[bytes]:
        state = b""
        while True:
            state = await self.states.next(state)
            yield state

    async def _read(self, body: bytes, context: Context) -> bytes:
        if self._server is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no store is served here")
        return await self._server.read(body, context)

    async def _read_copy(self, body: bytes, context: Context) -> bytes:
        known = dict(context.invocation_metadata() or ())
        try:
            if self._copy is None:
                raise NotReadable("this node follows nobody")
            return await self._copy.read(body, str(known.get(OPENING)), int(known.get(POSITION, 0)))
        except (NotReadable, ValueError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def _read_standby(self, body: bytes, context: Context) -> bytes:
        if self._standby is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node has no copy to read at the moment")
        return await self._standby.answer(body)

    async def _greet(self, _requests: object, context: Context) -> None:
        try:
            async with asyncio.timeout(self._config.silence_s):
                first = await context.read()
        except TimeoutError:
            return
        try:
            wrong = refusal(first)
            hello = None if wrong else _decode_hello(first)
        except (msgspec.MsgspecError, TypeError) as error:
            hello, wrong = None, f"no greeting: {error}"
        if hello is None:
            log.warning("refusing the peer at %s: %s", context.peer(), wrong)
            await context.write(encode(_refused(Verdict.REFUSED, wrong)))
        elif self._server is None:
            leader, reason = self._leader()
            await context.write(encode(_refused(Verdict.ELSEWHERE, reason, leader)))
        else:
            await self._server.attach(hello, context)


def _refused(verdict: Verdict, reason: str, leader: str = "") -> Welcome:
    return Welcome(VERSION, verdict, reason, "", 0, 0, 0, 0, {}, 0, 0, 0, _NO_REDELIVERY, leader)


def _check_free(address: str) -> None:
    """Raise OSError if another process listens on the Unix socket.

    gRPC would replace the socket, and the gateways of that process would reconnect to this store.
    """
    if not address.startswith("unix:"):
        return
    path = Path(address.removeprefix("unix:"))
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                return  # the process that created it is gone
            text = f"cannot listen for gateways on {address}: the path exists and is not a socket"
            raise OSError(errno.EADDRINUSE, text) from None
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(error.errno, f"cannot listen for gateways on {address}: {error}") from error
    raise OSError(errno.EADDRINUSE, f"cannot listen for gateways on {address}: another process does")
