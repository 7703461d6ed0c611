"""A device that keeps to the specification, holds on to its session state, and checks what a node may not do.

It acknowledges only when told to, so a test can stop it in any state; over reconnects and kills of the node it
keeps what a client has to keep (section 4.1): the QoS 2 packet ids whose PUBREL is awaited.
"""

import random
from collections import Counter

from tests.gateway import raw
from tests.gateway.mqtt import wire
from tests.gateway.raw import (
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Packet,
    RawClient,
    ack,
    parse,
)

EVER = 0xFFFF_FFFF


class Device:
    """A client with a persistent session."""

    def __init__(self, port: int, client_id: bytes, version: int, window: int) -> None:
        self.port = port
        self.client_id = client_id
        self.version = version
        self.window = window  # its receive maximum; 3.1.1 knows none
        self.client: RawClient | None = None
        self.seen: list[tuple[bytes, bytes, int]] = []  # what the application got: topic, payload, QoS
        self.arrived: list[list[raw.Message]] = []  # every PUBLISH, by connection
        self.owed: list[tuple[int, int]] = []  # acknowledgements not sent yet: kind, packet id
        self.unsettled: dict[int, bytes] = {}  # packet id → payload, of exchanges that are open on this connection
        self.earlier: dict[int, bytes] = {}  # the same, from before the last reconnect
        self.held: set[int] = set()  # QoS 2: PUBREL is awaited
        self.lost: dict[int, bytes] = {}  # packet id → payload, of what may not come again
        self.settled: set[bytes] = set()  # payloads whose acknowledgement the node has read for sure
        self.acknowledged: set[bytes] = set()  # on this connection
        self.may_repeat: set[bytes] = set()  # payloads that may come once more, by another subscription
        self.levels: dict[int, int] = {}  # packet id → QoS of the message that came with it last
        self.strict = True  # nothing was killed: packet ids are kept and acknowledgements remembered

    async def connect(self) -> None:
        """Connect, taking over from a connection that is still open."""
        before = self.client
        properties = {"expiry": EVER, "receive_maximum": self.window} if self.version == 5 else {}
        self.client = await RawClient.connect(self.port, self.client_id, self.version, False, **properties)
        if before is not None:
            await before.drop()
        self.acknowledged = set()
        self.arrived.append([])
        self.earlier.update(self.unsettled)
        self.unsettled = {}
        self.owed = []

    async def subscribe(self, topic_filter: bytes, qos: int) -> None:
        assert self.client is not None
        self.client.send(wire.subscribe(self.version, 1, (topic_filter, qos)))
        while True:
            packet = await self.client.packet()
            if packet.kind == SUBACK:
                assert packet.body[-1] == qos
                return
            self._take(packet)

    async def unsubscribe(self, topic_filter: bytes) -> None:
        assert self.client is not None
        self.client.send(wire.unsubscribe(self.version, 2, topic_filter))
        while True:
            packet = await self.client.packet()
            if packet.kind == UNSUBACK:
                return
            self._take(packet)

    async def pipeline(self, changes: list[tuple[bytes, int | None]]) -> dict[int, int]:
        """SUBSCRIBEs (filter, QoS) and UNSUBSCRIBEs (filter, None) in one write. By their place: the (last) reason
        codes of their answers, which may come in any order; of UNSUBACK in 3.1.1 there is none."""
        assert self.client is not None
        self.begin(changes)
        found: dict[int, int] = {}
        for _ in changes:
            while (packet := await self.client.packet()).kind not in (SUBACK, UNSUBACK):
                self._take(packet)
            found[packet.packet_id - 1] = packet.body[-1] if len(packet.body) > 2 else 0
        return found

    def begin(self, changes: list[tuple[bytes, int | None]]) -> None:
        """Send SUBSCRIBEs and UNSUBSCRIBEs in one write, without waiting for answers."""
        assert self.client is not None
        packets = []
        for number, (topic_filter, qos) in enumerate(changes):
            if qos is None:
                packets.append(wire.unsubscribe(self.version, number + 1, topic_filter))
            else:
                packets.append(wire.subscribe(self.version, number + 1, (topic_filter, qos)))
        self.client.send(*packets)

    def lose(self) -> None:
        """The rules forbid what some of the open exchanges came by: these may be ended, with PUBREL where QoS is 2."""
        self.lost |= self.earlier
        self.earlier = {}

    async def disconnect(self) -> None:
        """DISCONNECT, and wait for the end: the node has read every acknowledgement."""
        assert self.client is not None
        client, self.client = self.client, None
        client.send(b"\xe0\x00")
        while await self._next(client) is not None:
            pass
        client.writer.close()
        self.settled.update(self.acknowledged)
        self.acknowledged = set()

    async def drop(self) -> None:
        """Break the connection; what was on its way may be lost."""
        if self.client is not None:
            await self.client.drop()
            self.client = None
        self.acknowledged = set()

    async def killed(self) -> None:
        """The node was killed: it may have forgotten acknowledgements, and the packet ids of QoS 1."""
        await self.drop()
        self.strict = False
        self.settled = set()
        self.unsettled = {packet_id: payload for packet_id, payload in self.unsettled.items() if packet_id in self.held}
        self.earlier = {packet_id: payload for packet_id, payload in self.earlier.items() if packet_id in self.held}

    async def poll(self) -> None:
        """Read what has come by now."""
        assert self.client is not None
        self.client.send(b"\xc0\x00")
        while True:
            packet = await self.client.packet()
            if packet.kind == PINGRESP:
                return
            self._take(packet)

    async def read(self) -> None:
        """Read one more packet, which has to come."""
        assert self.client is not None
        self._take(await self.client.packet())

    def acknowledge(self, count: int, order: random.Random | None = None) -> int:
        """Send up to `count` of the acknowledgements owed. Returns how many."""
        assert self.client is not None
        owed = self.owed
        for done in range(count):
            if not owed:
                return done
            kind, packet_id = owed.pop(order.randrange(len(owed)) if order is not None else 0)
            if kind in (PUBACK, PUBCOMP):
                payload = self.unsettled.pop(packet_id, None)
                if payload is not None:
                    self.acknowledged.add(payload)
            self.client.send(ack(kind, packet_id))
        return count

    async def _next(self, client: RawClient) -> Packet | None:
        try:
            packet = await client.packet()
        except (EOFError, OSError):
            return None
        if packet.kind in (PUBLISH, PUBREL):
            self._take(packet)
        return packet

    def _take(self, packet: Packet) -> None:
        if packet.kind == PUBREL:
            assert packet.first == 0x62
            self.held.discard(packet.packet_id)
            self.lost.pop(packet.packet_id, None)
            self.owed.append((PUBCOMP, packet.packet_id))
            if packet.packet_id in self.earlier:
                self.unsettled[packet.packet_id] = self.earlier.pop(packet.packet_id)
            return
        if packet.kind == DISCONNECT:
            raise EOFError(f"the node ends the connection: {packet}")
        assert packet.kind == PUBLISH, packet
        message = parse(self.version, packet)
        self.arrived[-1].append(message)
        if message.qos == 0:
            self.seen.append((message.topic, message.payload, 0))
            return
        packet_id = message.packet_id
        assert packet_id not in self.unsettled, "a packet id is in use (MQTT-2.2.1-4)"
        self.levels[packet_id] = message.qos
        assert message.payload not in self.settled - self.may_repeat, f"{message} was acknowledged"
        self._check_resent(message)
        self.unsettled[packet_id] = message.payload
        if self.version == 5:
            assert len(self.unsettled) <= self.window, "beyond the receive maximum (MQTT-3.3.4-9)"
        if message.qos == 2:
            self.owed.append((PUBREC, packet_id))
            if packet_id in self.held:
                return  # MQTT-4.3.3-10: not again to the application
            self.held.add(packet_id)
        else:
            self.owed.append((PUBACK, packet_id))
        self.seen.append((message.topic, message.payload, message.qos))

    def _check_resent(self, message: raw.Message) -> None:
        """Open exchanges are resent under their packet ids with DUP (MQTT-4.4.0-1); other messages have no DUP."""
        before = self.earlier.pop(message.packet_id, None)
        if message.packet_id in self.lost:
            lost = self.lost.pop(message.packet_id)
            assert message.payload == lost or message.packet_id not in self.held, f"{lost!r} was not released"
            return
        if before is not None and message.payload == before:
            assert message.dup or not self.strict
        elif self.strict and message.payload not in self.may_repeat:
            assert message.payload not in self.earlier.values(), f"{message} came under another packet id"
        if message.packet_id in self.held:
            assert before == message.payload, f"{message} uses the packet id of {before!r}"


class Publisher:
    """Sends numbered messages, each at its QoS, and sees every exchange to its end."""

    def __init__(self, port: int, client_id: bytes) -> None:
        self.port = port
        self.client_id = client_id
        self.client: RawClient | None = None
        self.sent: list[tuple[bytes, bytes, int]] = []  # topic, payload, QoS; acknowledged
        self._number = 0

    async def burst(self, topics: list[bytes], qos: list[int]) -> None:
        """One message to each topic, all in one write; returns when all are acknowledged."""
        if self.client is None:
            self.client = await RawClient.connect(self.port, self.client_id)
        client = self.client
        open_ids: set[int] = set()
        for topic, level in zip(topics, qos, strict=True):
            self._number += 1
            payload = b"%06d" % self._number
            packet_id = self._number % 0xFFFF + 1
            client.send(wire.publish(4, topic, payload, level, packet_id))
            self.sent.append((topic, payload, level))
            if level:
                open_ids.add(packet_id)
        while open_ids:
            packet = await client.packet()
            if packet.kind == PUBREC:
                client.send(ack(PUBREL, packet.packet_id))
            else:
                assert packet.kind in (PUBACK, PUBCOMP)
                open_ids.remove(packet.packet_id)


async def check_delivery(device: Device, sent: list[tuple[bytes, bytes, int]], granted: dict[bytes, int]) -> None:
    """Take everything that is still to come and compare it with what was sent.

    granted: topic → the highest QoS of the device's filters that match it.
    """
    wanted = {(topic, payload, min(qos, granted[topic])) for topic, payload, qos in sent if topic in granted}
    device.acknowledge(len(device.owed))
    while not wanted <= set(device.seen) or device.unsettled or device.earlier:
        await device.read()
        device.acknowledge(len(device.owed))
    await device.poll()
    got = Counter(device.seen)
    assert set(got) == wanted
    for message, count in got.items():
        most = 2 if message[1] in device.may_repeat else 1
        assert count <= most or message[2] == 1, f"{message} came {count} times"
    for topic in granted:
        first_seen = list(dict.fromkeys(payload for at, payload, _ in device.seen if at == topic))
        assert first_seen == sorted(first_seen), f"{topic!r} is out of order"
