"""A connection to an MQTT broker on the event loop, by paho-mqtt.

aiomqtt has no manual acknowledgements and drops the reason codes of PUBACK (2.5.1), and amqtt speaks 3.1.1 only. So
this drives paho, as its documentation of external event loops says: the loop watches the socket, and no thread is left
behind. A connection is never opened again: who needs one makes a new one.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt import client as paho
from paho.mqtt.client import ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from connect.api import ConnectError, RetriableError, Settings, TaskContext
from connect.connectors.common.tls import tls_context
from connect.connectors.mqtt.settings import endpoint, read_uri

WINDOW: Final = 1_000  # messages in flight, if the broker allows as many
_MAX_HELD: Final = 4_000  # received messages that nobody has taken; then the socket is not read
_MAX_HELD_BYTES: Final = 16 << 20
_CLOSE_S: Final = 2.0
_DISCONNECT: Final = b"\xe0\x00"  # normal disconnection, in 3.1.1 and 5.0
# Refusals that the same call meets again: malformed or unsupported requests, credentials, names, bans, methods.
_FINAL: Final = frozenset({0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9D})


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message to publish."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None


class Connection:
    """Call `open` once, and `close` at the end."""

    def __init__(
        self, settings: Settings, context: TaskContext, *, session_s: int = 0, receive_maximum: int = WINDOW
    ) -> None:
        """session_s: how long the broker keeps the session; 0: a clean one. Raises `ConnectError`."""
        self._settings = settings
        self._context = context
        self._session_s = session_s
        self._receive_maximum = receive_maximum
        self._where = endpoint(settings)
        self._timeout = settings["mqtt.connect.timeout.seconds"]
        self.is_5 = settings["mqtt.protocol.version"] == "5.0"
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._error: ConnectError | None = None
        self._welcomed = False
        self._reads = False
        self._granted: list[ReasonCode] | None = None
        self._in_flight: dict[int, int] = {}  # packet id → place in what is published
        self._reasons: list[ReasonCode | None] = []  # by that place
        self._window = WINDOW
        self._held: deque[MQTTMessage] = deque()
        self._held_bytes = 0
        self._upkeep: asyncio.TimerHandle | None = None
        self.session_present = False
        self.max_qos = 2
        self.keeps_retained = True
        self.max_packet: int | None = None  # bytes
        self._client = self._make_client()

    def _make_client(self) -> paho.Client:
        settings = self._settings
        identifier = settings["mqtt.client.id"] or f"sluice-{self._context.connector}"
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            f"{identifier}-{self._context.task}",
            clean_session=None if self.is_5 else self._session_s == 0,
            protocol=MQTTProtocolVersion.MQTTv5 if self.is_5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # `publish_all` has the window: paho's costs a scan for each message
        client.connect_timeout = self._timeout
        if settings["mqtt.username"] is not None:
            client.username_pw_set(settings["mqtt.username"], settings["mqtt.password"])
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        return client

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Connect. Raises `ConnectError`, which is a `RetriableError` if it may go better later."""
        host, port, secure = read_uri(self._settings["mqtt.server.uri"])
        await self._context.require_allowed(host, port)
        if secure:
            self._client.tls_set_context(await asyncio.to_thread(tls_context, self._context, self._settings))
        properties = None
        if self.is_5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = self._session_s
            properties.ReceiveMaximum = self._receive_maximum
        try:
            await asyncio.to_thread(
                self._client.connect,
                host,
                port,
                self._settings["mqtt.keepalive.interval.seconds"],
                clean_start=self._session_s == 0 if self.is_5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
                properties=properties,
            )
        except ssl.SSLError as error:
            text = getattr(error, "verify_message", None) or error.reason or str(error)
            raise ConnectError(f"TLS to the MQTT broker {self._where} fails: {text}") from error
        except (OSError, ValueError) as error:
            raise RetriableError(f"cannot reach the MQTT broker {self._where}: {error}") from error
        self._watch()
        await self._until(lambda: self._welcomed, "answer to CONNECT")

    async def close(self) -> None:
        """Send what waits to be sent, and say goodbye."""
        sock: Any = self._client.socket()
        if self._error is None and sock is not None:
            if self._upkeep is not None:
                self._upkeep.cancel()
            self._unwatch(sock)
            self._client.on_socket_register_write = self._client.on_socket_unregister_write = None
            await asyncio.to_thread(self._leave, sock)
        self.abort()

    def _leave(self, sock: Any) -> None:
        """Send DISCONNECT. paho would close the socket behind it. If that has unread bytes, the broker gets a reset
        and loses the acknowledgements that it has not read."""
        deadline = time.monotonic() + _CLOSE_S
        with suppress(OSError):
            sock.settimeout(_CLOSE_S)
            while self._client.want_write() and time.monotonic() < deadline:
                self._client.loop_write()
            sock.sendall(_DISCONNECT)
            sock.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and sock.recv(65_536):
                pass

    def abort(self) -> None:
        """Close the socket."""
        if self._upkeep is not None:
            self._upkeep.cancel()
        self._fail(RetriableError(f"the connection to the MQTT broker {self._where} was given up"))
        sock: Any = self._client.socket()
        if sock is not None:
            self._unwatch(sock)
            sock.close()

    def _watch(self) -> None:
        sock = self._client.socket()
        if sock is None:
            self._fail(RetriableError(f"lost the connection to the MQTT broker {self._where}"))
            return
        self._client.on_socket_register_write = self._on_wants_to_write
        self._client.on_socket_unregister_write = self._on_has_written
        self._client.on_socket_close = lambda _client, _data, each: self._unwatch(each)
        self._resume()
        self._keep_up()

    def _on_wants_to_write(self, _client: object, _data: object, sock: Any) -> None:
        self._loop.add_writer(sock.fileno(), self._write)

    def _on_has_written(self, _client: object, _data: object, sock: Any) -> None:
        self._loop.remove_writer(sock.fileno())

    def _unwatch(self, sock: Any) -> None:
        self._reads = False
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())

    def _keep_up(self) -> None:
        """Send pings, and notice that their answers do not come."""
        self._guarded(self._client.loop_misc)
        pause = min(5.0, self._settings["mqtt.keepalive.interval.seconds"] / 4)
        self._upkeep = self._loop.call_later(pause, self._keep_up)

    def _read(self) -> None:
        sock: Any = self._client.socket()
        while True:
            self._guarded(self._client.loop_read)
            is_full = len(self._held) >= _MAX_HELD or self._held_bytes >= _MAX_HELD_BYTES
            # What TLS has decrypted already makes no socket readable.
            if is_full or not self._reads or not isinstance(sock, ssl.SSLSocket) or not sock.pending():
                break
        if is_full and self._reads:
            self._loop.remove_reader(sock.fileno())
            self._reads = False

    def _write(self) -> None:
        self._guarded(self._client.loop_write)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 (paho raises what it meets in a packet)
            self._fail(RetriableError(f"lost the connection to the MQTT broker {self._where}: {error}"))

    def _resume(self) -> None:
        sock: Any = self._client.socket()
        if not self._reads and sock is not None and self._error is None:
            self._reads = True
            self._loop.add_reader(sock.fileno(), self._read)
            if isinstance(sock, ssl.SSLSocket) and sock.pending():
                self._loop.call_soon(self._read)

    # ------------------------------------------------------------------ waiting

    def _fail(self, error: ConnectError) -> None:
        self._error = self._error or error
        self._changed.set()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what the broker does. Raises what ended the connection, or `RetriableError` if nothing comes."""
        try:
            while not condition():
                if self._error is not None:
                    raise self._error
                self._changed.clear()
                async with asyncio.timeout(self._timeout):
                    await self._changed.wait()
        except TimeoutError:
            raise RetriableError(f"no {what} from the MQTT broker {self._where} for {self._timeout} s") from None

    # ------------------------------------------------------------------ publishing

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[ReasonCode]:
        """Publish in order, `WINDOW` at a time, and wait for all acknowledgements. Returns their reasons.

        After an error nothing is known of messages in flight: the connection is of no more use. One caller at a time.
        """
        self._reasons = [None] * len(messages)
        for place, each in enumerate(messages):
            await self._until(lambda: len(self._in_flight) < self._window, "acknowledgement")
            info = self._client.publish(each.topic, each.payload, each.qos, each.retain, each.properties)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._fail(RetriableError(f"lost the connection to the MQTT broker {self._where}"))
            self._in_flight[info.mid] = place
        await self._until(lambda: not self._in_flight, "acknowledgement")
        return [reason for reason in self._reasons if reason is not None]

    def _on_publish(self, _client: object, _data: object, mid: int, reason: ReasonCode, _: object) -> None:
        place = self._in_flight.pop(mid, None)
        if place is not None:
            self._reasons[place] = reason
            self._changed.set()

    # ------------------------------------------------------------------ receiving

    async def subscribe(self, filters: Sequence[str], qos: int) -> None:
        """Subscribe. Retained messages come for filters that are new to the session; on 3.1.1, for all of them. Raises
        `ConnectError`."""
        if self.is_5:
            options = SubscribeOptions(
                qos=qos, retainAsPublished=True, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            self._client.subscribe([(each, options) for each in filters])
        else:
            self._client.subscribe([(each, qos) for each in filters])
        await self._until(lambda: self._granted is not None, "answer to SUBSCRIBE")
        for each, reason in zip(filters, self._granted or (), strict=False):
            if reason.is_failure:
                raise ConnectError(f"the MQTT broker {self._where} refuses the subscription {each}: {reason}")

    async def receive(self, most: int, most_bytes: int) -> list[MQTTMessage]:
        """Wait for messages, and return some. Raises `RetriableError` when the connection is gone."""
        while not self._held:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        taken: list[MQTTMessage] = []
        size = 0
        while self._held and len(taken) < most and size < most_bytes:
            message = self._held.popleft()
            size += len(message.payload)
            taken.append(message)
        self._held_bytes -= size
        self._resume()
        return taken

    def acknowledge(self, message: MQTTMessage) -> None:
        """Tell the broker that a message is here for good."""
        if self._error is None:
            self._client.ack(message.mid, message.qos)

    def _on_message(self, _client: object, _data: object, message: MQTTMessage) -> None:
        self._held.append(message)
        self._held_bytes += len(message.payload)
        self._changed.set()

    # ------------------------------------------------------------------ what the broker says

    def _on_connect(
        self, _client: object, _data: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            kind = ConnectError if reason.value in _FINAL else RetriableError
            self._fail(kind(f"the MQTT broker {self._where} refuses the connection: {reason}{_why(properties)}"))
            return
        self.session_present = flags.session_present
        self._window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
        self.max_qos = getattr(properties, "MaximumQoS", 2)
        self.keeps_retained = bool(getattr(properties, "RetainAvailable", 1))
        self.max_packet = getattr(properties, "MaximumPacketSize", None)
        self._welcomed = True
        self._changed.set()

    def _on_disconnect(
        self, _client: object, _data: object, _flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._fail(RetriableError(f"lost the connection to the MQTT broker {self._where}: {reason}{_why(properties)}"))

    def _on_subscribe(
        self, _client: object, _data: object, _mid: int, reasons: list[ReasonCode], _: Properties | None
    ) -> None:
        self._granted = reasons
        self._changed.set()


def _why(properties: Properties | None) -> str:
    """What the broker says beside the code; only MQTT 5.0 can."""
    text = getattr(properties, "ReasonString", "")
    return f": {text}" if text else ""
