"""A peer of the node without a socket: it does its steps and judges every byte that it gets."""

import asyncio
import itertools
from collections import deque
from typing import Any

from tests.fuzz.inputs import ANSWER, BREAK, CONGEST, HALF, LOGIN, RELIEVE, SCRAM, SETTLE, Step, way_of
from tests.fuzz.packets import NONCE, SECRET, USERS
from tests.gateway.mqtt import wire
from tests.gateway.people import auth, said
from tests.gateway.raw import AUTH, CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, ack
from tests.gateway.scram_client import ScramClient

_FIRST = frozenset((0x20, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0, 0xE0, 0xF0, *(0x30 | i for i in range(16))))
_PROPERTIES_AT = {CONNACK: 2, PUBACK: 3, PUBREC: 3, PUBREL: 3, PUBCOMP: 3, 9: 2, 11: 2, DISCONNECT: 1, 15: 1}
_numbers = itertools.count()


class Violation(AssertionError):
    """The node did what it may not do."""


class Peer(asyncio.Transport):
    """One connection, seen from both ends: the node's transport, and who is at its other end."""

    def __init__(self, steps: list[Step], stays: bool = False) -> None:
        super().__init__()
        self.stays = stays  # with nothing more to do it waits for more
        self.way = way_of(steps)
        self.steps = deque(steps[1:] if self.way else steps)
        self.is_user = self.way == LOGIN or self.way.startswith(SCRAM)
        self._number = next(_numbers)
        self.protocol: Any = None
        self.version = 0
        self.limit = 0  # its maximum packet size
        self.closing = False  # by the node
        self.over = False  # both ends know
        self.reading = True  # the node takes bytes
        self.taking = True  # the peer takes bytes
        self.waiting: list[bytes] = []  # while it does not
        self.received: list[tuple[int, bytes]] = []  # packets: first byte and body
        self.unanswered: list[bytes] = []  # acknowledgements that it owes
        self.messages = 0
        self.completed = 0  # PUBCOMPs
        self.last = b""  # payload of the newest message to `alive`
        self._partial = b""

    # --- what the node sees

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.waiting))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # Each has an address of its own: who sends wrong passwords is made to wait by his.
        address = f"127.{self._number >> 16 & 255}.{self._number >> 8 & 255}.{self._number & 255}"
        return (address, 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def write(self, data: Any) -> None:
        if self.over:
            return
        if self.closing:
            raise Violation("the node writes to a transport that it has closed")
        if self.taking:
            self._judge(bytes(data))
        else:
            self.waiting.append(bytes(data))

    # --- what the peer does

    def connect(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def step(self) -> bool:
        """Do the next step if there is one and it can be done. False: it is not its turn, or it is through."""
        if self.over:
            return False
        if self.closing:
            self.end()
            return False
        if not self.reading:
            return False
        if not self.steps:
            if not self.stays:
                self.end()
            return False
        step = self.steps.popleft()
        if isinstance(step, bytes):
            self.protocol.data_received(step)
            return True
        if step == ANSWER:
            self._answer()
        elif step == CONGEST:
            self._congest()
        elif step == RELIEVE:
            self.relieve()
        elif step in (BREAK, HALF):
            self.end()
        return step != SETTLE

    def relieve(self) -> None:
        """Take what waits."""
        if not self.taking:
            self.taking = True
            waiting, self.waiting = self.waiting, []
            for data in waiting:
                self._judge(data)
            if not self.over and not self.closing:
                self.protocol.resume_writing()

    def end(self) -> None:
        """The connection is over."""
        if not self.over:
            self.over = True
            self.protocol.connection_lost(None)

    def _congest(self) -> None:
        if self.taking:
            self.taking = False
            self.protocol.pause_writing()

    def _answer(self) -> None:
        unanswered, self.unanswered = self.unanswered, []
        if unanswered:
            self.protocol.data_received(b"".join(unanswered))

    # --- what it gets

    def _judge(self, data: bytes) -> None:
        data = self._partial + data if self._partial else data
        at, end = 0, len(data)
        while end - at >= 2:
            length, start = data[at + 1], at + 2
            if length >= 0x80:
                block = data[at + 1 : at + 5]
                size = next((i for i, byte in enumerate(block, 1) if byte < 0x80), 0)
                if not size:
                    break
                length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(block[:size]))
                start = at + 1 + size
            if start + length > end:
                break
            self._packet(data[at], data[start : start + length], start + length - at)
            at = start + length
        self._partial = data[at:]

    def _packet(self, first: int, body: bytes, size: int) -> None:
        kind = first >> 4
        if first not in _FIRST:
            raise Violation(f"the node sends a packet that begins with {first:#04x}")
        if self.received and self.received[-1][0] == DISCONNECT << 4:
            raise Violation("the node sends a packet behind its DISCONNECT (MQTT-3.14.4-1)")
        if self.limit and size > self.limit:
            raise Violation(f"a packet of {size} bytes to a client that takes {self.limit} (MQTT-3.1.2-24)")
        if kind == CONNACK:
            self.version = 5 if len(body) > 2 else 4
        elif kind == DISCONNECT and self.version != 5:
            raise Violation("DISCONNECT to a client of 3.1.1, or before CONNACK")
        if self.version == 5 and kind in _PROPERTIES_AT and len(body) > _PROPERTIES_AT[kind]:
            wire.properties(wire.split_sized(body[_PROPERTIES_AT[kind] :])[0])
        if kind == PUBLISH:
            self._publish(first, body)
        elif kind == PUBCOMP:
            self.completed += 1
        elif kind == PUBREL:
            self.unanswered.append(ack(PUBCOMP, int.from_bytes(body[:2], "big")))
        elif kind == AUTH and self.way.startswith(SCRAM):
            self._prove(Packet(first, body))
        if kind != PUBLISH:
            self.received = [(first, body)]

    def _prove(self, challenge: Packet) -> None:
        """Answer the node's challenge, if it is one to what this peer said."""
        name = self.way.removeprefix(SCRAM).encode()
        reason, method, data = said(challenge)
        if reason == 0x18 and data is not None and data.startswith(b"r=" + NONCE):
            self.unanswered.append(auth(0x18, method, ScramClient(name, dict(USERS)[name], NONCE).final(data)))

    def _publish(self, first: int, body: bytes) -> None:
        self.messages += 1
        qos = first >> 1 & 3
        at = 2 + int.from_bytes(body[:2], "big")
        if qos == 3 or (qos == 0 and first & 8):
            raise Violation(f"PUBLISH with the flags {first:#04x} (MQTT-3.3.1-2, -4)")
        topic = body[2:at]
        if b"+" in topic or b"#" in topic or len(body) < at + (2 if qos else 0):
            raise Violation("PUBLISH to a topic with a wildcard, or one that is cut (MQTT-3.3.2-2)")
        if qos:
            packet_id = int.from_bytes(body[at : at + 2], "big")
            if not packet_id:
                raise Violation("PUBLISH with a packet id of 0 (MQTT-2.2.1-4)")
            self.unanswered.append(ack(PUBACK if qos == 1 else PUBREC, packet_id))
            at += 2
        if self.version == 5:
            found = wire.properties(wire.split_sized(body[at:])[0])
            if not topic and not any(identifier == 0x23 for identifier, _ in found):
                raise Violation("PUBLISH with neither a topic nor an alias")
        elif not topic:
            raise Violation("PUBLISH without a topic")
        if topic == SECRET and self.is_user:
            raise Violation("a message that this user may not read")
        if topic == b"alive":
            self.last = wire.split_sized(body[at:])[1]
