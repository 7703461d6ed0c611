"""Devices that keep to the letter of MQTT, at whatever gateway takes them, and note what they said and heard."""

import asyncio
from random import Random

from tests.gateway.mqtt import wire
from tests.gateway.raw import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    Packet,
    RawClient,
    ack,
    connect,
    publish,
)
from tests.system.chaos.world import World

EVER = 0xFFFF_FFFF
PING_S = 1.0


class Device:
    """A client with a session that stays, which moves now and then."""

    expiry = EVER
    tick_s = PING_S

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = Random(f"{name} {world.rng.random()}")
        self.has_session = False
        self.connections = 0
        self.is_over = False
        self._how = ""
        self._moved = asyncio.Event()

    def move(self) -> None:
        """Go to another gateway, or to the same."""
        self._how = self.rng.choice(("drop", "leave", "take over"))
        self._moved.set()

    async def run(self) -> None:
        old: RawClient | None = None
        while not self.is_over:
            client = await self._connect()
            if old is not None:
                await old.drop()
                old = None
            if client is None:
                return
            await self._serve(client)
            if self._how == "leave" or self.is_over:
                self.left()
                client.send(b"\xe0\x00")
                client.writer.close()
            elif self._how == "take over":
                old = client
            else:
                await client.drop()
            self._how = ""
            self._moved.clear()

    async def _serve(self, client: RawClient) -> None:
        """Until the connection ends, or we move."""
        reader, moved, ticks = (
            asyncio.create_task(each) for each in (self._read(client), self._moved.wait(), self._tick(client))
        )
        await asyncio.wait([reader, moved, ticks], return_when=asyncio.FIRST_COMPLETED)
        for task in (reader, moved, ticks):
            task.cancel()
        for end in await asyncio.gather(reader, moved, ticks, return_exceptions=True):
            if isinstance(end, Exception) and not isinstance(end, OSError | EOFError):
                self.world.wrong(f"{self.name}: {end!r}")

    async def _connect(self) -> RawClient | None:
        client: RawClient | None = None
        while not self.is_over:
            try:
                client = await RawClient.open(self.world.port(), 5)
                client.send(self.greeting())
                client.connack = await client.packet()
                if client.connack.kind == CONNACK and client.connack.reason == 0:
                    self.connections += 1
                    if self.has_session and not client.session_present:
                        self.world.wrong(f"{self.name}: its session is lost")
                    self.has_session = self.expiry > 0
                    self.connected(client)
                    return client
            except (OSError, EOFError, TimeoutError):
                pass
            if client is not None:
                await client.drop()
            await asyncio.sleep(0.05)
        return None

    async def _read(self, client: RawClient) -> None:
        while True:
            packet = await client.packet()
            if packet.kind == DISCONNECT:
                return
            if packet.kind != PINGRESP:
                self.heard(client, packet)

    async def _tick(self, client: RawClient) -> None:
        pings = 0.0
        while not self.is_over:
            await asyncio.sleep(self.tick_s)
            pings += self.tick_s
            if pings >= PING_S:
                client.send(b"\xc0\x00")
                pings = 0.0
            self.ticked(client)

    # --- what devices differ in

    def greeting(self) -> bytes:
        return connect(5, self.name.encode(), False, expiry=self.expiry, receive_maximum=20)

    def connected(self, client: RawClient) -> None:
        """The connection stands."""

    def heard(self, client: RawClient, packet: Packet) -> None:
        """A packet came."""

    def ticked(self, client: RawClient) -> None:
        """Some time has passed."""

    def left(self) -> None:
        """A DISCONNECT is about to be said."""


class Publisher(Device):
    """Publishes numbers, a few at a time, each until it is acknowledged."""

    tick_s = 0.02

    def __init__(self, world: World, name: str, topic: bytes, qos: int, retain: bool = False) -> None:
        super().__init__(world, name)
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.numbers = 0
        self.acknowledged: list[int] = []
        self.stops = False
        self._last_id = 0
        self._in_flight: dict[int, tuple[int, bool]] = {}  # packet id: number, whether PUBREL was sent

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def connected(self, client: RawClient) -> None:
        for packet_id, (number, is_released) in self._in_flight.items():
            client.send(ack(PUBREL, packet_id) if is_released else self._packet(packet_id, number, True))

    def ticked(self, client: RawClient) -> None:
        while len(self._in_flight) < 3 and not self.stops:
            packet_id = self._last_id = self._last_id % 50 + 1
            while packet_id in self._in_flight:
                packet_id = self._last_id = self._last_id % 50 + 1
            self._in_flight[packet_id] = (self.numbers, False)
            client.send(self._packet(packet_id, self.numbers, False))
            self.numbers += 1

    def heard(self, client: RawClient, packet: Packet) -> None:
        if packet.reason not in (0, 0x10) and not (packet.kind == PUBCOMP and packet.reason == 0x92):
            self.world.wrong(f"{self.name}: packet {packet.kind} with reason {packet.reason:#x}")
        number, is_released = self._in_flight.get(packet.packet_id, (-1, False))
        if packet.kind == PUBREC:
            if number >= 0 and not is_released:
                self.acknowledged.append(number)
                self._in_flight[packet.packet_id] = (number, True)
            client.send(ack(PUBREL, packet.packet_id))
        elif packet.kind == PUBCOMP or (packet.kind == PUBACK and number >= 0):
            self._in_flight.pop(packet.packet_id, None)
            if packet.kind == PUBACK:
                self.acknowledged.append(number)

    def _packet(self, packet_id: int, number: int, dup: bool) -> bytes:
        payload = f"{self.name} {number}".encode()
        return publish(5, self.topic, payload, self.qos, packet_id, self.retain, dup)


class Subscriber(Device):
    """Takes what comes, and acknowledges it."""

    def __init__(self, world: World, name: str, *requests: tuple[bytes, int]) -> None:
        super().__init__(world, name)
        self.requests = requests
        self.subscribed = asyncio.Event()
        self.taken: dict[str, list[int]] = {}  # numbers by publisher, those that came anew
        self.again: dict[str, list[tuple[int, bool]]] = {}  # those that came once more, and whether with DUP
        self._known: dict[str, set[int]] = {}
        self._open: set[int] = set()  # packet ids of QoS 2 that are not released

    def connected(self, client: RawClient) -> None:
        if not self.subscribed.is_set():
            client.send(wire.subscribe(5, 1, *self.requests))

    def heard(self, client: RawClient, packet: Packet) -> None:
        if packet.kind == SUBACK:
            self.subscribed.set()
        elif packet.kind == PUBREL:
            self._open.discard(packet.packet_id)
            client.send(ack(PUBCOMP, packet.packet_id))
        elif packet.kind == PUBLISH:
            message = client.parse(packet)
            if message.qos == 2:
                if message.packet_id not in self._open:
                    self._open.add(message.packet_id)
                    self._take(message.payload, message.dup)
                client.send(ack(PUBREC, message.packet_id))
            else:
                self._take(message.payload, message.dup)
                if message.qos:
                    client.send(ack(PUBACK, message.packet_id))

    def _take(self, payload: bytes, dup: bool) -> None:
        name, _, number = payload.decode().rpartition(" ")
        taken = self.taken.setdefault(name, [])
        known = self._known.setdefault(name, set())
        if int(number) in known:
            self.again.setdefault(name, []).append((int(number), dup))
        else:
            known.add(int(number))
            taken.append(int(number))


class Mortal(Device):
    """Has a will, another one each time."""

    expiry = 0

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.number = -1
        self.due: set[int] = set()  # wills that have to be sent
        self.left_with: set[int] = set()  # those that may or may not: DISCONNECT was said, or CONNACK never came

    def greeting(self) -> bytes:
        self.number += 1
        self.left_with.add(self.number)
        will = (b"wills/" + self.name.encode(), f"{self.name} {self.number}".encode())
        return connect(5, self.name.encode(), True, expiry=0, will=will)

    def connected(self, client: RawClient) -> None:
        self.left_with.discard(self.number)
        self.due.add(self.number)

    def left(self) -> None:
        self.due.discard(self.number)
        self.left_with.add(self.number)


class Newcomer(Device):
    """Sets a retained value at one gateway, and has to find it at the next, to which it comes at once."""

    expiry = 0
    tick_s = 0.1

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.found = 0  # values
        self._is_set = False
        self._waited_s = 0.0

    def connected(self, client: RawClient) -> None:
        self._waited_s = 0.0
        topic = b"still/" + self.name.encode()
        if self._is_set:
            client.send(wire.subscribe(5, 1, (topic, 0)))
        else:
            client.send(publish(5, topic, b"%d" % self.found, 1, 1, True))

    def heard(self, client: RawClient, packet: Packet) -> None:
        if packet.kind == PUBACK:
            self._is_set = True
            self.move()
        elif packet.kind == PUBLISH and self._is_set:
            number = int(client.parse(packet).payload)
            if number != self.found:
                self.world.wrong(f"{self.name} finds {number}, and has set {self.found}")
            self.found += 1
            self._is_set = False
            self.move()

    def ticked(self, client: RawClient) -> None:
        self._waited_s += self.tick_s
        if self._waited_s > self.world.stuck_s:
            self.world.wrong(f"{self.name} does not find {self.found}, which it has set")
            self._waited_s = 0.0
