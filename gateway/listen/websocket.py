"""MQTT over WebSocket: subprotocol `mqtt`, binary frames, any packet boundaries (MQTT-6.0.0-1 to -4)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from aiohttp import WSCloseCode, WSMsgType, web

from gateway.auth.attempts import source_of
from gateway.connection.connection import Connection
from gateway.listen.mqtt_front import MqttFront
from gateway.listen.websocket_masking import MaskedFrames
from gateway.mqtt.errors import ProtocolError
from gateway.net.admission import Admission, ConnectionInfo
from gateway.net.bounded_http import REQUESTS, RejectedConnection
from gateway.net.proxy_protocol import address_text

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 128  # connections that have not become WebSockets
_QUEUE_HIGH: Final = 256 * 1024  # bytes waiting before the client counts as congested
_QUEUE_LOW: Final = 64 * 1024
_MAX_IDLE_FRAMES: Final = 16  # pings, pongs and empty frames before CONNECT, then the connection is closed
# Bytes of messages decoded in one turn of the loop. That many small packets are a turn's work for the decoder.
_BYTES_PER_TURN: Final = 8192
_HANDSHAKE: Final = ("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol")


class WebSocketFront:
    """Upgrades connections at `/mqtt` and `/` to WebSockets, and feeds them to the MQTT front."""

    def __init__(self, front: MqttFront, max_packet_size: int) -> None:
        self._front = front
        self._max_message = max_packet_size + 64 * 1024
        self._loop = asyncio.get_running_loop()
        self._runner: web.AppRunner | None = None
        self.waiting: dict[_Handshake, None] = {}  # in the order they came

    async def start(self) -> None:
        """Prepare for `make`."""
        app = web.Application()
        app.router.add_get("/mqtt", self._serve)
        app.router.add_get("/", self._serve)
        app.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()

    def make(self, admission: Admission, info: ConnectionInfo | None) -> asyncio.BaseProtocol:
        """Make the protocol of an accepted connection. It has the time limit of CONNECT to become a WebSocket."""
        server = self._runner.server if self._runner is not None else None
        if server is None:
            admission.opening -= 1
            return RejectedConnection()
        return _Handshake(server, self._loop, admission, info, self.waiting, self.make_room)

    def make_room(self) -> None:
        """While too many connections wait, close the oldest one of the address that has most of them.

        A client that opens connections and sends nothing is in its own way, and not in that of others.
        """
        while len(self.waiting) > _MAX_WAITING:
            counts = Counter([each.source for each in self.waiting])
            most = max(counts.values())
            oldest = next(each for each in self.waiting if counts[each.source] == most)
            oldest.admission.refused_full += 1
            oldest.abort()

    def serve_plain(self, _client: int, _admission: Admission, _info: ConnectionInfo | None) -> bool:
        """Return False: aiohttp needs a transport of the loop."""
        return False

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            protocols=("mqtt",), max_msg_size=self._max_message, compress=False, autoping=False, timeout=2.0
        )
        # Checked here: for such headers aiohttp would log tracebacks and warnings.
        if not all(request.headers.get(name, "").isascii() for name in _HANDSHAKE):
            raise web.HTTPBadRequest(text="the headers of a WebSocket must be ASCII")
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        if "Upgrade" in request.headers and "mqtt" not in [protocol.strip() for protocol in offered]:
            raise web.HTTPBadRequest(text="the subprotocol must be mqtt")
        if not socket.can_prepare(request).ok:
            raise web.HTTPUpgradeRequired(
                text="MQTT over WebSocket is served here", headers={"Upgrade": "websocket", "Connection": "Upgrade"}
            )
        await socket.prepare(request)
        handshake = request.protocol
        if not isinstance(handshake, _Handshake) or handshake not in self.waiting:
            return socket  # the connection has ended already
        handshake.upgraded()
        transport = _WebSocketTransport(socket, request.transport)
        connection = self._front.accept(transport, handshake.admission, handshake.info)
        transport.connection = handshake.connection = connection
        writer = asyncio.create_task(transport.write_out())
        try:
            await _read(socket, transport, connection)
        finally:
            self._front.closed(connection)
            transport.close()
            await writer
        return socket


async def _read(socket: web.WebSocketResponse, transport: "_WebSocketTransport", connection: Connection) -> None:
    """Give the connection what comes, until it or the WebSocket ends."""
    idle = 0  # frames without MQTT before CONNECT
    decoded = 0  # bytes since the last turn of the loop that was given away
    async for message in socket:
        is_control = message.type in (WSMsgType.PING, WSMsgType.PONG)
        if (is_control or not message.data) and connection.awaits_connect:
            idle += 1
            if idle > _MAX_IDLE_FRAMES:
                connection.fail(ProtocolError("pings or empty frames in place of CONNECT"))
                await socket.close(code=WSCloseCode.POLICY_VIOLATION)
                return
        if is_control:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            continue
        await transport.readable.wait()
        if message.type is not WSMsgType.BINARY:
            # MQTT-6.0.0-1: data frames are binary.
            await socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
            return
        connection.receive(message.data)
        decoded += len(message.data)
        if decoded >= _BYTES_PER_TURN:
            decoded = 0
            await asyncio.sleep(0)


class _Handshake(web.RequestHandler):
    """A connection that must become a WebSocket in time. Its frames are then read in turns of a bounded number."""

    __slots__ = (
        "_frames",
        "_is_full",
        "_is_yielding",
        "_on_wait",
        "_timer",
        "_waiting",
        "admission",
        "connection",
        "info",
        "source",
    )

    def __init__(
        self,
        server: web.Server,
        loop: asyncio.AbstractEventLoop,
        admission: Admission,
        info: ConnectionInfo | None,
        waiting: dict["_Handshake", None],
        on_wait: Callable[[], None],
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # what `AppRunner` passes on to have none
            logger=REQUESTS,
            keepalive_timeout=admission.connect_timeout,
        )
        self.source = ""
        self.connection: Connection | None = None  # None until it is a WebSocket
        self.admission = admission
        self.info = info
        self._waiting = waiting
        self._on_wait = on_wait
        self._timer: asyncio.TimerHandle | None = None
        self._frames: MaskedFrames | None = None  # once it is a WebSocket
        self._is_yielding = False  # frames wait for the next turn of the loop
        self._is_full = False  # as many messages wait to be handled as aiohttp takes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        host = address_text(str(name[0]), int(name[1])) if isinstance(name, tuple) else ""
        self.source = source_of((self.info.peer if self.info is not None else "") or host)
        # For the whole request, however slowly it comes.
        self._timer = asyncio.get_running_loop().call_later(self.admission.connect_timeout, self._timed_out)
        self._waiting[self] = None
        self._on_wait()

    def upgraded(self) -> None:
        """Stop the time limit: the connection is a WebSocket."""
        self._waiting.pop(self, None)
        self._stop_timer()

    def abort(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.abort()
        self._stop_waiting()

    def _timed_out(self) -> None:
        if self in self._waiting:
            self.admission.refused_late += 1
            self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stop_waiting(self) -> None:
        self._stop_timer()
        if self in self._waiting:
            del self._waiting[self]
            self.admission.opening -= 1

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        self._frames = MaskedFrames(parser, self._on_partial)
        super().set_parser(self._frames, data_received_cb)  # type: ignore[arg-type]
        self._yield_turn()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._yield_turn()

    def pause_reading(self) -> None:
        self._is_full = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        self._is_full = False
        super().resume_reading(resume_parser)
        self._yield_turn()

    def _yield_turn(self) -> None:
        """If frames wait, stop reading and go on in the next turn of the loop."""
        if self._frames is None or not self._frames.has_more or self.transport is None:
            return
        self.transport.pause_reading()
        if not self._is_yielding:
            self._is_yielding = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_yielding = False
        if self._frames is None or self.transport is None or self.transport.is_closing() or self._is_full:
            return  # `resume_reading` goes on if it is full
        is_broken, _ = self._frames.feed_data(b"")
        if is_broken:
            self.close()
        elif self._frames.has_more:
            self._yield_turn()
        elif not self._is_full:
            self.transport.resume_reading()

    def _on_partial(self, size: int, has_ended: bool) -> None:
        if self.connection is not None:
            self.connection.undecoded_received(size, has_ended)

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        self._stop_waiting()


async def _close_after(_request: web.Request, response: web.StreamResponse) -> None:
    """Close connections that do not become WebSockets after one request."""
    if not isinstance(response, web.WebSocketResponse):
        response.force_close()


class _WebSocketTransport:
    """The transport of a WebSocket: writes are queued, and one task sends them."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._socket = socket
        self._transport = transport  # None: it has ended already
        self._queue: list[bytes] = []
        self._queued = 0  # bytes
        self._wake = asyncio.Event()
        self._closing = False
        self.readable = asyncio.Event()
        self.readable.set()
        self.connection: Connection | None = None

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._queue.append(data)
        self._queued += len(data)
        self._wake.set()
        if self._queued > _QUEUE_HIGH and self.connection is not None:
            self.connection.congested = True

    def close(self) -> None:
        self._closing = True
        self.readable.set()
        self._wake.set()

    def abort(self) -> None:
        self._queue.clear()
        self.close()
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name) if self._transport is not None else None

    def get_write_buffer_size(self) -> int:
        return self._queued

    def pause_reading(self) -> None:
        self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()

    async def write_out(self) -> None:
        """Send what is queued, until the connection ends."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._queue:
                    data = b"".join(self._queue)
                    self._queue.clear()
                    self._queued = 0
                    await self._socket.send_bytes(data)
                connection = self.connection
                if connection is not None and connection.congested and self._queued < _QUEUE_LOW:
                    connection.uncongested()
                if self._closing and not self._queue:
                    break
            await self._socket.close()
        except (ConnectionError, RuntimeError):
            self._closing = True  # the peer has closed; the reader ends by itself
