"""A client that says exactly what a test tells it to, byte for byte, and returns what the node answers."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.gateway.mqtt import wire
from tests.waiting import patience

_BARE_ACK = 4  # bytes of one that says no reason


@dataclass
class Packet:
    """A received packet: its first byte, and the bytes behind the length."""

    first: int
    body: bytes

    @property
    def kind(self) -> int:
        return self.first >> 4

    @property
    def packet_id(self) -> int:
        """Of an acknowledgement."""
        return int.from_bytes(self.body[:2], "big")

    @property
    def reason(self) -> int:
        """Of a version 5 acknowledgement, CONNACK or DISCONNECT."""
        if self.kind == CONNACK:
            return self.body[1]
        if self.kind in (DISCONNECT, AUTH):
            return self.body[0]
        return self.body[2] if len(self.body) > 2 else 0

    @property
    def size(self) -> int:
        """Bytes of the whole packet."""
        return len(wire.packet(self.first, self.body))

    @property
    def properties(self) -> list[wire.Property]:
        """Of a version 5 packet other than PUBLISH."""
        at = {SUBACK: 2, UNSUBACK: 2, DISCONNECT: 1, AUTH: 1, CONNACK: 2}.get(self.kind, 3)
        return wire.properties(wire.split_sized(self.body[at:])[0]) if len(self.body) > at else []


CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH = (
    *(2, 3, 4, 5, 6, 7, 9),
    *(11, 13, 14, 15),
)


@dataclass
class Message:
    """A PUBLISH that came."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: bytes = b""


class RawClient:
    """One connection to a node on this machine."""

    connack: Packet

    def __init__(self, version: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.version = version
        self.reader = reader
        self.writer = writer
        self.unreleased: set[int] = set()  # packet ids that PUBREC was sent for, and PUBREL did not come

    @classmethod
    async def open(cls, port: int, version: int = 4) -> "RawClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(version, reader, writer)

    @classmethod
    async def connect(
        cls, port: int, client_id: bytes, version: int = 4, clean: bool = True, properties: bytes = b"", **options: Any
    ) -> "RawClient":
        """Connect, and expect to be accepted. The CONNACK stays in `connack`."""
        client = await cls.open(port, version)
        client.send(connect(version, client_id, clean, properties, **options))
        client.connack = await client.packet()
        assert client.connack.kind == CONNACK
        assert client.connack.body[1] == 0
        return client

    @property
    def session_present(self) -> bool:
        return self.connack.body[0] == 1

    def send(self, *packets: bytes) -> None:
        for each in packets:
            if len(each) == _BARE_ACK and each[0] >> 4 == PUBREC:
                self.unreleased.add(int.from_bytes(each[2:4], "big"))
        self.writer.write(b"".join(packets))

    async def packet(self) -> Packet:
        """The next packet. Raises IncompleteReadError when the node has closed."""
        async with patience():
            first = (await self.reader.readexactly(1))[0]
            length, shift = 0, 0
            while True:
                byte = (await self.reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            packet = Packet(first, await self.reader.readexactly(length))
            if packet.kind == PUBREL:
                self.unreleased.discard(packet.packet_id)
            return packet

    async def expect(self, kind: int) -> Packet:
        packet = await self.packet()
        assert packet.kind == kind, packet
        return packet

    async def message(self) -> Message:
        """The next packet, which must be a PUBLISH; acknowledging is the test's business."""
        return self.parse(await self.expect(PUBLISH))

    def parse(self, packet: Packet) -> Message:
        assert packet.kind == PUBLISH, packet
        return parse(self.version, packet)

    async def take(self, count: int) -> list[Message]:
        """The next messages, acknowledged; other packets of their exchanges are answered and left out."""
        found: list[Message] = []
        while len(found) < count:
            packet = await self.packet()
            if packet.kind == PUBREL:
                self.send(ack(PUBCOMP, packet.packet_id))
                continue
            message = self.parse(packet)
            found.append(message)
            if message.qos:
                self.send(ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
        return found

    async def subscribe(self, *requests: tuple[bytes, int], packet_id: int = 1, properties: bytes = b"") -> bytes:
        """Subscribe and return the reason codes."""
        self.send(wire.subscribe(self.version, packet_id, *requests, properties=properties))
        reply = await self.expect(SUBACK)
        assert reply.packet_id == packet_id
        return wire.split_sized(reply.body[2:])[1] if self.version == 5 else reply.body[2:]

    async def unsubscribe(self, *topic_filters: bytes, packet_id: int = 1) -> bytes:
        """Unsubscribe and return the reason codes, of which 3.1.1 has none."""
        self.send(wire.unsubscribe(self.version, packet_id, *topic_filters))
        reply = await self.expect(UNSUBACK)
        assert reply.packet_id == packet_id
        return wire.split_sized(reply.body[2:])[1] if self.version == 5 else reply.body[2:]

    async def publish(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 1,
        packet_id: int = 1,
        retain: bool = False,
        properties: bytes = b"",
    ) -> None:
        """Publish and wait for the exchange to end."""
        self.send(wire.publish(self.version, topic, payload, qos, packet_id, properties, retain))
        if qos == 1:
            assert (await self.expect(PUBACK)).packet_id == packet_id
        elif qos == 2:
            assert (await self.expect(PUBREC)).packet_id == packet_id
            self.send(ack(PUBREL, packet_id))
            assert (await self.expect(PUBCOMP)).packet_id == packet_id

    async def settle(self) -> None:
        """Answer PUBRELs until nothing is on its way to this client and no message comes. A PUBREL follows the record
        of its PUBREC, and may come behind the answer to a later PINGREQ."""
        is_answered = False
        self.send(b"\xc0\x00")
        while self.unreleased or not is_answered:
            packet = await self.packet()
            if packet.kind == PINGRESP:
                is_answered = True
                continue
            assert packet.kind == PUBREL, packet
            self.send(ack(PUBCOMP, packet.packet_id))

    async def quiet(self) -> None:
        """Nothing is on its way to this client: the next packet answers a PINGREQ."""
        self.send(b"\xc0\x00")
        await self.expect(PINGRESP)

    async def closed(self) -> None:
        """The node closes the connection."""
        async with patience():
            with suppress(ConnectionResetError):  # it had not read all that was sent
                rest = await self.reader.read()
                assert not rest, f"these bytes came: {rest.hex(' ')}"

    async def drop(self) -> None:
        """Break the connection, without a DISCONNECT."""
        self.writer.transport.abort()

    async def disconnect(self) -> None:
        self.send(b"\xe0\x00")
        await self.closed()
        self.writer.close()


def parse(version: int, packet: Packet) -> Message:
    """Decode a PUBLISH."""
    body = packet.body
    qos = packet.first >> 1 & 3
    size = int.from_bytes(body[:2], "big")
    at = 2 + size
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(body[at : at + 2], "big")
        at += 2
    properties = b""
    if version == 5:
        properties, payload = wire.split_sized(body[at:])
    else:
        payload = body[at:]
    flags = packet.first
    return Message(body[2 : 2 + size], payload, qos, flags & 1 == 1, flags & 8 == 8, packet_id, properties)


def ack(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((kind << 4 | (2 if kind == PUBREL else 0), 2)) + packet_id.to_bytes(2, "big")


def publish(
    version: int,
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    body = wire.text(topic) + (wire.u16(packet_id) if qos else b"")
    if version == 5:
        body += wire.sized(properties)
    return wire.packet(0x30 | qos << 1 | retain | dup << 3, body + payload)


def connect(
    version: int,
    client_id: bytes,
    clean: bool = True,
    properties: bytes = b"",
    keep_alive: int = 0,
    expiry: int | None = None,
    receive_maximum: int | None = None,
    will: tuple[bytes, bytes] | None = None,
    username: bytes | None = None,
    password: bytes | None = None,
) -> bytes:
    """CONNECT; `expiry` and `receive_maximum` are properties of version 5. The will is of QoS 1."""
    flags = (2 if clean else 0) | (0x0C if will else 0)
    flags |= (0x80 if username is not None else 0) | (0x40 if password is not None else 0)
    body = wire.text(b"MQTT") + bytes((version, flags)) + wire.u16(keep_alive)
    if version == 5:
        if expiry is not None:
            properties += b"\x11" + wire.u32(expiry)
        if receive_maximum is not None:
            properties += b"\x21" + wire.u16(receive_maximum)
        body += wire.sized(properties)
    body += wire.text(client_id)
    if will is not None:
        body += (b"\x00" if version == 5 else b"") + wire.text(will[0]) + wire.text(will[1])
    body += b"".join([wire.text(text) for text in (username, password) if text is not None])
    return wire.packet(0x10, body)
