"""A small client of MQTT 5, fast enough that one process is a load."""

import asyncio
import struct
from typing import Final

_CONNACK: Final = 2
_PUBLISH: Final = 3
_PUBACK: Final = 4
_SUBACK: Final = 9
_MAX_LENGTH: Final = 4  # bytes of a packet's length
_SESSION_EXPIRY: Final = 0x11  # property identifiers
_MESSAGE_EXPIRY: Final = 0x02


class MqttClient(asyncio.Protocol):
    """One connection. Acknowledges what it receives, and counts it."""

    def __init__(self) -> None:
        self.received = 0
        self._answers: dict[tuple[int, int], asyncio.Future[int]] = {}  # by packet type and packet id
        self._packet_id = 0
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int, client_id: str, session_expiry: int = 0, will_topic: str = "") -> "MqttClient":
        """Connect to the node at a port of the loopback interface. `session_expiry` is in seconds. Raises OSError."""
        transport, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        client._transport = transport
        flags = 0x02 * (session_expiry == 0) | 0x0C * bool(will_topic)
        properties = bytes([5, _SESSION_EXPIRY]) + session_expiry.to_bytes(4)
        body = b"\0\4MQTT\5" + bytes([flags]) + b"\0\0" + properties + _text(client_id)
        if will_topic:
            body += b"\0" + _text(will_topic) + b"\0\4gone"
        await client._send(0x10, body, (_CONNACK, 0))
        return client

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False, expiry: int = 0) -> None:
        """Send a message with QoS 1 and wait for its PUBACK. `expiry` is in seconds; 0: never. Raises OSError."""
        packet_id = self._next_packet_id()
        properties = bytes([5, _MESSAGE_EXPIRY]) + expiry.to_bytes(4) if expiry else b"\0"
        await self._send(
            0x32 | retain, _text(topic) + packet_id.to_bytes(2) + properties + payload, (_PUBACK, packet_id)
        )

    async def subscribe(self, *topic_filters: str) -> None:
        """Subscribe with QoS 1. Raises OSError."""
        packet_id = self._next_packet_id()
        body = packet_id.to_bytes(2) + b"\0" + b"".join(_text(each) + b"\1" for each in topic_filters)
        await self._send(0x82, body, (_SUBACK, packet_id))

    def close(self, *, with_disconnect: bool = True) -> None:
        """Close the connection. Without DISCONNECT, the node publishes the will."""
        if self._transport is not None:
            if with_disconnect:
                self._transport.write(b"\xe0\0")
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        data = self._pending + data
        start = 0
        while (end := _packet_end(data, start)) is not None and end[1] <= len(data):
            self._handle(data[start] >> 4, data[start], data[end[0] : end[1]])
            start = end[1]
        self._pending = data[start:]

    def connection_lost(self, _error: Exception | None) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the node closed the connection"))
        self._answers.clear()

    def _handle(self, kind: int, first: int, body: bytes) -> None:
        if kind == _PUBLISH:
            self.received += 1
            if first & 0x06 and self._transport is not None:
                at = 2 + int.from_bytes(body[:2])
                self._transport.write(b"\x40\2" + body[at : at + 2])
        elif kind == _CONNACK:
            self._resolve((_CONNACK, 0), body[1])
        else:
            code = body[-1] if kind == _SUBACK else body[2] if len(body) > 2 else 0
            self._resolve((kind, int.from_bytes(body[:2])), code)

    def _resolve(self, key: tuple[int, int], code: int) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None and not answer.done():
            answer.set_result(code)

    async def _send(self, first: int, body: bytes, key: tuple[int, int]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._transport.write(bytes([first]) + _length(len(body)) + body)
        code = await answer
        if code >= 0x80:
            raise ConnectionRefusedError(f"the node answered {code:#x}")

    def _next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 0xFFFF + 1
        return self._packet_id


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _length(size: int) -> bytes:
    """Encode a packet's length (section 1.5.5)."""
    parts = bytearray()
    while size > 0x7F:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    parts.append(size)
    return bytes(parts)


def _packet_end(data: bytes, start: int) -> tuple[int, int] | None:
    """Return where the body of the packet at `start` begins and ends; None if its length has not come."""
    size = 0
    for i in range(_MAX_LENGTH):
        at = start + 1 + i
        if at >= len(data):
            return None
        size |= (data[at] & 0x7F) << 7 * i
        if data[at] < 0x80:
            return at + 1, at + 1 + size
    raise ValueError("the length of a packet has more than four bytes")
