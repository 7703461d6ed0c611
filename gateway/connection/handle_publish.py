"""PUBLISH and PUBREL from a client: messages go into the log, and are acknowledged when they are durable.

All messages of one read of the socket are one append. Their acknowledgements are encoded before it and wait in the
`PublishBatch` until the append is committed. Nothing is acknowledged before that.
"""

from abc import ABCMeta, abstractmethod
from asyncio import TimerHandle, get_running_loop
from collections import deque
from math import inf
from time import time
from typing import Final

from gateway.auth.rules.permissions import Permissions
from gateway.connection.callbacks import UnreachedMessages
from gateway.mqtt.decode import Decoder
from gateway.mqtt.encode import Explanation, puback, pubcomp, pubrec
from gateway.mqtt.errors import ProtocolError, TopicNameInvalid
from gateway.mqtt.packets import Publish
from gateway.mqtt.reader import is_utf8
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission
from gateway.net.flow_control import FlowControl
from gateway.net.write_buffer import Flusher, Transport
from gateway.observe.counters import Counters
from gateway.schemas.payload_checks import PayloadChecks
from gateway.session.qos_exchanges import ARRIVED, ARRIVING
from gateway.session.session import Session
from gateway.topics.destination import Destination, InvalidDestination, frame_to, parse_destination
from matcher.reserved import DOLLAR
from record import frame
from record.layout import FLAG_ADDRESSED, FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store.api import Appended, LogStore, Store
from store.control import InboundReleased
from store.errors import StoreBusy, StoreError

_MESSAGE: Final = int(Kind.MESSAGE)
_PUBREC: Final = 0x50
_RECHECK_S: Final = 1.0  # between looks at batches that wait: the store may have become reachable
_MAX_EXPLAINED: Final = 16  # acknowledgements for one read that carry a reason string

PACKET_ID_IN_USE: Final = b"the packet id is that of a message of QoS 2 whose exchange has not ended (MQTT-2.2.1-3)"


class PublishHandler(FlowControl, metaclass=ABCMeta):
    """The side of a connection that receives messages from the client."""

    def __init__(
        self,
        flusher: Flusher,
        transport: Transport,
        decoder: Decoder,
        store: Store,
        append_queue: "AppendQueue",
        unreached: UnreachedMessages,
        counters: Counters,
        max_uncommitted: int,
        admission: Admission,
        payload_checks: PayloadChecks,
    ) -> None:
        super().__init__(flusher, transport, counters, admission, max_uncommitted)
        self.decoder = decoder
        self.payload_checks = payload_checks
        self.store = store
        self.append_queue = append_queue
        self.unreached = unreached
        self.permissions: Permissions | None = None  # None: everything is allowed
        self.releasing: set[int] | None = None  # QoS 2 packet ids whose release is being written to the log
        self.explained: int = 0  # acknowledgements for the current read that carry a reason string
        self.problem_information: bool = True  # the client wants reason strings (MQTT-3.1.2-29)

    @abstractmethod
    def fail(self, error: ProtocolError) -> None:
        """Close the connection because of an error."""

    def append_failed(self, error: Exception) -> None:
        """Close the connection because an append failed. None of its messages was acknowledged."""
        busy = isinstance(error, StoreBusy)
        reason = ReasonCode.SERVER_BUSY if busy else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self.fail(ProtocolError(str(error), reason))

    @abstractmethod
    def denied(self, topic: bytes) -> None:
        """Note that rules deny a message to a topic."""

    @abstractmethod
    def committed(self) -> None:
        """Handle the packets that waited until all messages before them were committed."""

    def may_receive(self, _topic_filter: bytes) -> bool:
        permissions = self.permissions
        return permissions is None or permissions.may_subscribe(_topic_filter)

    def explain(self, text: bytes) -> Explanation | None:
        """Return the reason string for an acknowledgement; None if the client gets none (MQTT-3.1.2-29).

        Only the first answers to one read have a text. Otherwise a client could get answers that are much longer than
        what it sends.
        """
        if self.version != 5 or not self.problem_information or self.explained >= _MAX_EXPLAINED:
            return None
        self.explained += 1
        return Explanation(text)

    # --- PUBLISH

    def add_publish(self, session: Session, packet: Publish, batch: "PublishBatch") -> None:
        """Add the message and its acknowledgement to the batch of this read, or refuse it."""
        destination: Destination | None = None
        if packet.topic[0] == DOLLAR:
            destination = self._destination(packet)
            if destination is None:
                return
        if self.permissions is not None and self._is_denied(session, self.permissions, packet, destination):
            return
        if destination is not None and destination.due_ms is not None and self._exceeds_held(session, packet):
            return
        if packet.is_text and not is_utf8(packet.payload):
            self._refuse(packet, ReasonCode.PAYLOAD_FORMAT_INVALID, b"the payload is not UTF-8, as its properties say")
            return
        if self.payload_checks.is_active and self._fails_schema(session, packet, destination):
            return
        qos = packet.qos
        flags = (qos | FLAG_RETAIN) if packet.retain else qos
        if qos == 0:
            batch.add(packet, flags, 0, destination)
            return
        packet_id: int = packet.packet_id
        if qos == 1:
            if self.version == 5 and packet_id in session.inbound:
                self._refuse(packet, ReasonCode.PACKET_IDENTIFIER_IN_USE, PACKET_ID_IN_USE)
                return
            batch.add(packet, flags, 0, destination)
            batch.acks.append(puback(self.version, packet_id, ReasonCode.SUCCESS))
            batch.acknowledged += 1
            return
        if packet_id in session.inbound:
            # A duplicate (MQTT-4.3.3-10): confirmed now, or by the append that is still under way.
            self.decoder.acknowledged(1)
            if session.inbound[packet_id] != ARRIVING:
                self.send(pubrec(self.version, packet_id, ReasonCode.SUCCESS))
            return
        session.receive(packet_id)
        if batch.received is None:
            batch.received = []
        batch.received.append(packet_id)
        if session.durable:
            batch.add(packet, flags | FLAG_TRACK_ID, packet_id, destination)
        else:
            batch.add(packet, flags, 0, destination)
        batch.acks.append(pubrec(self.version, packet_id, ReasonCode.SUCCESS))

    def append_batch(self, batch: "PublishBatch") -> None:
        """Append the messages of one read, and stop reading while too many bytes wait for the disk."""
        self.counters.messages_received += len(batch.frames)
        self.uncommitted += batch.size
        if not self.append_queue.append(batch) or self.uncommitted > self.max_uncommitted:
            self.pause_reading()

    def _destination(self, packet: Publish) -> Destination | None:
        """Return the destination of a message whose topic begins with $, or refuse the message and return None."""
        try:
            return parse_destination(packet.topic, int(time() * 1000))
        except InvalidDestination as refused:
            if self.version < 5 and refused.reason == ReasonCode.TOPIC_NAME_INVALID:
                self.counters.messages_refused += 1
                self.fail(TopicNameInvalid(str(refused)))
            else:
                self._refuse(packet, refused.reason, refused.text)
            return None

    def _is_denied(
        self, session: Session, permissions: Permissions, packet: Publish, destination: Destination | None
    ) -> bool:
        """Whether rules deny the message. If so, it is refused."""
        if permissions.may_publish(packet.topic if destination is None else destination.topic):
            return False
        if packet.qos == 2 and packet.packet_id in session.inbound:
            return False  # a duplicate of a message that was allowed: its exchange continues
        self.counters.messages_denied += 1
        self.denied(packet.topic if destination is None else destination.topic)
        self._refuse(packet, ReasonCode.NOT_AUTHORIZED, b"the topic may not be published to")
        return True

    def _exceeds_held(self, session: Session, packet: Publish) -> bool:
        """Whether the store has no room for another held message. If so, the message is refused."""
        if self.store.may_hold() or (packet.qos == 2 and packet.packet_id in session.inbound):
            return False
        self.counters.messages_unheld += 1
        self._refuse(packet, ReasonCode.QUOTA_EXCEEDED, b"too many messages are held (store.max_held)")
        return True

    def _fails_schema(self, session: Session, packet: Publish, destination: Destination | None) -> bool:
        """Hold a message against the schemas of its topic. Returns whether it is refused.

        Otherwise it may be marked, or go to quarantine: now, and not retained.
        """
        if packet.qos == 2 and packet.packet_id in session.inbound:
            return False  # a duplicate of a message that was accepted
        if packet.retain and not packet.payload:
            return False  # it removes the retained message, and says nothing
        topic = packet.topic if destination is None else destination.topic
        fault = self.payload_checks.fault(topic, packet.payload)
        if fault is None:
            return False
        if fault.mode == "refuse":
            self._refuse(packet, ReasonCode.PAYLOAD_FORMAT_INVALID, fault.reason.encode())
            return True
        packet.add_properties(fault.properties(topic))
        if fault.quarantine:
            packet.redirect(fault.quarantine)
            if destination is not None:
                destination.redirect(fault.quarantine)
        return False

    def _refuse(self, packet: Publish, reason: ReasonCode, text: bytes) -> None:
        """Acknowledge a message that is not accepted. 3.1.1 has only the normal acknowledgement (MQTT-3.3.5-2)."""
        self.counters.messages_refused += 1
        if packet.qos == 1:
            self.send(puback(self.version, packet.packet_id, reason, self.explain(text), self.maximum_packet_size))
        elif packet.qos == 2:
            self.send(pubrec(self.version, packet.packet_id, reason, self.explain(text), self.maximum_packet_size))
        if packet.qos == 1 or (packet.qos == 2 and self.version == 5):
            self.decoder.acknowledged(1)

    # --- PUBREL

    def release(self, session: Session, packet_ids: list[int]) -> None:
        """Answer PUBRELs. The packet ids of a durable session are free when that is committed (MQTT-4.3.3-11)."""
        known: list[int] = []
        releasing = self.releasing
        if releasing is None:
            releasing = set()
            self.releasing = releasing
        for packet_id in packet_ids:
            if packet_id not in session.inbound:
                why = self.explain(b"no message was received under this packet id")
                unknown = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
                self.send(pubcomp(self.version, packet_id, unknown, why, self.maximum_packet_size))
            elif packet_id not in releasing:  # else the client has repeated PUBREL: one PUBCOMP answers both
                releasing.add(packet_id)
                known.append(packet_id)
        if not known:
            return
        if session.durable:
            self.store.append([InboundReleased(known).frame(session.client_id)], PubrelBatch(self, session, known).done)
            return
        for packet_id in known:
            self.finish_inbound(session, packet_id)

    def finish_inbound(self, session: Session, packet_id: int) -> None:
        """Send PUBCOMP: the exchange is over on both sides."""
        if self.releasing is not None:
            self.releasing.discard(packet_id)
        if session.forget_received(packet_id) in (ARRIVING, ARRIVED):
            self.decoder.acknowledged(1)
        self.send(pubcomp(self.version, packet_id, ReasonCode.SUCCESS))


class PublishBatch:
    """The messages of one read of the socket, and the acknowledgements that wait for their commit."""

    __slots__ = ("acknowledged", "acks", "addressed", "connection", "frames", "received", "session", "size")

    def __init__(self, connection: PublishHandler, session: Session) -> None:
        self.connection = connection
        self.session = session
        self.frames: list[bytes] = []
        self.size = 0  # bytes of all frames
        self.acks: list[bytes] = []
        # Messages to inboxes: index in `frames`, index in `acks`, QoS, packet id.
        self.addressed: list[tuple[int, int, int, int]] | None = None
        self.acknowledged = 0  # QoS 1 messages, which leave the receive maximum with their PUBACK
        self.received: list[int] | None = None  # QoS 2 packet ids

    def add(self, packet: Publish, flags: int, packet_id: int, destination: Destination | None) -> None:
        """Frame a message. Its acknowledgement, if there is one, is the next in `acks`.

        packet_id: of a QoS 2 message of a durable session, whose record has it; otherwise 0. destination: for a topic
        that begins with $.
        """
        if destination is None:
            framed = frame(
                _MESSAGE, flags, packet_id, packet.topic, self.session.client_id, packet.properties, packet.payload
            )
        else:
            publisher = self.session.client_id
            framed = frame_to(destination, flags, packet_id, publisher, packet.properties, packet.payload)
            if destination.flags == FLAG_ADDRESSED and packet.qos:
                if self.addressed is None:
                    self.addressed = []
                self.addressed.append((len(self.frames), len(self.acks), packet.qos, packet.packet_id))
        self.size += len(framed)
        self.frames.append(framed)

    def done(self, appended: Appended) -> None:
        """The append is committed, or has failed: send the acknowledgements, or close the connection."""
        connection = self.connection
        connection.append_queue.committed(self.size)
        if appended.error is not None:
            self.refused(appended.error)
            return
        connection.uncommitted -= self.size
        if self.received is not None:
            self.session.received(self.received)
        if self.acknowledged:
            connection.decoder.acknowledged(self.acknowledged)
        acks = self.acks
        if self.addressed is not None:
            for index, at, qos, packet_id in self.addressed:
                if connection.unreached.is_unreached(appended.positions[index]):
                    answer = puback if qos == 1 else pubrec
                    acks[at] = answer(connection.version, packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        if acks:
            connection.send(acks[0] if len(acks) == 1 else b"".join(acks))
        self._resume_reading()

    def refused(self, error: StoreError) -> None:
        """None of the messages is in the log: say so, or close the connection.

        If the store is only busy, the client may send them again. 3.1.1 has no acknowledgement that says so.
        """
        connection = self.connection
        connection.uncommitted -= self.size
        for packet_id in self.received or ():
            self.session.forget_received(packet_id)
        if not isinstance(error, StoreBusy) or (self.acks and connection.version < 5):
            connection.append_failed(error)
            return
        connection.counters.messages_refused += len(self.frames)
        reason = ReasonCode.QUOTA_EXCEEDED
        for ack in self.acks:
            why = connection.explain(str(error).encode())
            answer = pubrec if ack[0] == _PUBREC else puback
            packet_id = int.from_bytes(ack[2:4], "big")
            connection.send(answer(connection.version, packet_id, reason, why, connection.maximum_packet_size))
        if self.acks:
            connection.decoder.acknowledged(len(self.acks))
        self._resume_reading()

    def _resume_reading(self) -> None:
        connection = self.connection
        if connection.reading_paused:
            if connection.awaits_commit and not connection.uncommitted:
                connection.committed()
            connection.resume_reading()


class PubrelBatch:
    """PUBRELs of a durable session that wait for their commit."""

    __slots__ = ("connection", "packet_ids", "session")

    def __init__(self, connection: PublishHandler, session: Session, packet_ids: list[int]) -> None:
        self.connection = connection
        self.session = session
        self.packet_ids = packet_ids

    def done(self, appended: Appended) -> None:
        """The append is committed, or has failed: send the PUBCOMPs, or close the connection."""
        connection = self.connection
        if appended.error is not None:
            connection.append_failed(appended.error)
            return
        for packet_id in self.packet_ids:
            connection.finish_inbound(self.session, packet_id)


class AppendQueue:
    """Passes the batches of all connections to the store, while less than `limit` bytes of them are not committed.

    Above the limit, batches wait here, and their connections are not read. So clients never reach the store's own
    limit, and at most one read of each connection waits. When one has waited for the store's `max_wait_ms`, it is
    refused, and so are new ones until the store commits something. The time in which the store cannot be reached does
    not count.
    """

    def __init__(self, store: LogStore, limit: int) -> None:
        self._store = store
        self._limit = limit  # bytes
        self._size: int = 0  # bytes that the store has and has not committed
        self._waiting: deque[tuple[float, PublishBatch]] = deque()  # with the loop times since when they wait
        self._timer: TimerHandle | None = None  # set while batches wait
        self._is_overdue: bool = False  # a batch has waited too long, and nothing was committed since

    def append(self, batch: PublishBatch) -> bool:
        """Pass a batch to the store, or let it wait. Returns whether its connection may be read."""
        if self._size > self._limit or self._waiting:
            if self._is_overdue and self._store.reached_at < inf:
                batch.refused(self._busy())
                return True
            self._wait(batch)
            return False
        self._size += batch.size
        self._store.append(batch.frames, batch.done)
        return True

    def committed(self, size: int) -> None:
        """Note that the store has committed `size` bytes, and append waiting batches in order."""
        self._size -= size
        self._is_overdue = False
        waiting = self._waiting
        while waiting and self._size <= self._limit:
            batch = waiting.popleft()[1]
            batch.connection.waiting_batches -= 1
            if batch.received and batch.connection.closed:
                # Its session may be open elsewhere by now, and the client repeats these messages (MQTT-4.3.3-10).
                continue
            self._size += batch.size
            self._store.append(batch.frames, batch.done)

    def _wait(self, batch: PublishBatch) -> None:
        self._waiting.append((get_running_loop().time(), batch))
        batch.connection.waiting_batches += 1
        if self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        loop = get_running_loop()
        self._timer = loop.call_at(min(self._refused_at(), loop.time() + _RECHECK_S), self._refuse_overdue)

    def _refused_at(self) -> float:
        """Loop time when the batch that has waited longest is to be refused; inf: not as things are."""
        max_wait_ms = self._store.max_wait_ms
        return max(self._waiting[0][0], self._store.reached_at) + max_wait_ms / 1000 if max_wait_ms else inf

    def _refuse_overdue(self) -> None:
        """Refuse the batches that have waited too long."""
        self._timer = None
        waiting = self._waiting
        now = get_running_loop().time()
        while waiting and self._refused_at() <= now:
            batch = waiting.popleft()[1]
            self._is_overdue = True
            batch.connection.waiting_batches -= 1
            if not (batch.received and batch.connection.closed):
                batch.refused(self._busy())
        if waiting:
            self._start_timer()

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"a message would wait for the store for more than {self._store.max_wait_ms / 1000:g} s")
