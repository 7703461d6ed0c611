"""What clients have sent and is not yet on disk, with the answers that wait for it."""

from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.mqtt.encode import puback, pubrec
from gateway.mqtt.packets import Publish
from gateway.mqtt.reasons import ReasonCode
from gateway.session.qos_exchanges import ARRIVED
from gateway.session.session import Session
from gateway.topics.destination import Destination
from gateway.topics.destination import framed as framed_to
from record import frame
from record.layout import FLAG_ADDRESSED, Kind
from store.api import Appended, Store

if TYPE_CHECKING:
    from gateway.connection.connection import Connection

_MESSAGE: Final = int(Kind.MESSAGE)


class PublishBatch:
    """The messages of one read on their way to disk, and what is owed for them."""

    __slots__ = ("acks", "addressed", "connection", "frames", "received", "session", "settled", "size")

    def __init__(self, connection: "Connection", session: Session) -> None:
        self.connection = connection
        self.session = session
        self.frames: list[bytes] = []
        self.size = 0  # of the frames, in bytes
        self.acks: list[bytes] = []
        # To one client: index of frame and ack, QoS, packet id.
        self.addressed: list[tuple[int, int, int, int]] | None = None
        self.settled = 0  # QoS 1 messages: their share of the receive maximum is free again
        self.received: list[int] | None = None  # QoS 2 packet ids

    def add(self, packet: Publish, flags: int, packet_id: int, where: Destination | None) -> None:
        """Frame a message. `packet_id` is what its record remembers: 0 but for QoS 2 in a durable session. `where`: its
        topic says something else than where it goes."""
        if where is None:
            framed = frame(
                _MESSAGE, flags, packet_id, packet.topic, self.session.client_id, packet.properties, packet.payload
            )
        else:
            framed = framed_to(where, flags, packet_id, self.session.client_id, packet.properties, packet.payload)
            if where.flags == FLAG_ADDRESSED and packet.qos:
                if self.addressed is None:
                    self.addressed = []
                self.addressed.append((len(self.frames), len(self.acks) - 1, packet.qos, packet.packet_id))
        self.size += len(framed)
        self.frames.append(framed)

    def done(self, appended: Appended) -> None:
        connection = self.connection
        connection.uncommitted -= self.size
        connection.append_queue.committed(self.size)
        if appended.error is not None:
            for packet_id in self.received or ():
                self.session.inbound.pop(packet_id, None)
            connection.append_failed(appended.error)
            return
        if self.received is not None:
            inbound = self.session.inbound
            for packet_id in self.received:
                if packet_id in inbound:
                    inbound[packet_id] = ARRIVED
        if self.settled:
            connection.decoder.acknowledged(self.settled)
        acks = self.acks
        if self.addressed is not None:
            for index, at, qos, packet_id in self.addressed:
                if connection.requests.is_unreached(appended.positions[index]):
                    answer = puback if qos == 1 else pubrec
                    acks[at] = answer(connection.version, packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        if acks:
            connection.send(acks[0] if len(acks) == 1 else b"".join(acks))
        if connection.reading_paused:
            connection.resume_reading()


class AppendQueue:
    """What all connections together have handed to the store and is not yet on disk.

    Over the limit a read's messages are held back instead, and their socket is not read on: so the store's own
    bound is never reached by devices, and what is held is one read a connection at the most.
    """

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit  # bytes
        self._size: int = 0
        self._held: deque[PublishBatch] = deque()

    def append(self, batch: PublishBatch) -> bool:
        """Hand the batch to the store, or hold it. Whether its connection may read on."""
        if self._size > self._limit or self._held:
            self._held.append(batch)
            batch.connection.held_back += 1
            return False
        self._size += batch.size
        self._store.append(batch.frames, batch.done)
        return True

    def committed(self, size: int) -> None:
        """So many bytes have left the store; what is held goes on in its order."""
        self._size -= size
        held = self._held
        while held and self._size <= self._limit:
            batch = held.popleft()
            batch.connection.held_back -= 1
            if batch.received and batch.connection.closed:
                # Its session may be open elsewhere by now, and the client sends these again (MQTT-4.3.3-10).
                continue
            self._size += batch.size
            self._store.append(batch.frames, batch.done)


class PubrelBatch:
    """PUBRELs of a durable session on their way to disk."""

    __slots__ = ("connection", "packet_ids", "session")

    def __init__(self, connection: "Connection", session: Session, packet_ids: list[int]) -> None:
        self.connection = connection
        self.session = session
        self.packet_ids = packet_ids

    def done(self, appended: Appended) -> None:
        connection = self.connection
        if appended.error is not None:
            connection.append_failed(appended.error)
            return
        for packet_id in self.packet_ids:
            connection.finish_inbound(self.session, packet_id)
