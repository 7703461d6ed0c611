"""One client's connection: packets in, to the log and the session; acknowledgements out.

The walk of a PUBLISH: `receive` decodes everything one read of the socket brought, frames each message,
and hands all of them to the store as one append with one ready-made run of acknowledgements. When the
commit is durable, `PublishBatch.done` sends that run. Nothing is acknowledged before (design section 5.1).

What may take time (CONNECT, subscriptions of durable sessions, retained messages) is handed to `RequestCallbacks`.
"""

import logging
from time import monotonic, time
from typing import Final

from gateway.auth.identity import Identity
from gateway.auth.permissions import Permissions
from gateway.connection.callbacks import LifetimeCallbacks, RequestCallbacks
from gateway.connection.enhanced_auth import EnhancedAuthentication
from gateway.connection.handle_publish import AppendQueue, PublishBatch, PubrelBatch
from gateway.mqtt.decode import Decoder
from gateway.mqtt.encode import (
    ConnackProperties,
    Explanation,
    connack,
    disconnect,
    pingresp,
    puback,
    pubcomp,
    pubrec,
)
from gateway.mqtt.errors import PacketTooLarge, ProtocolError, TopicNameInvalid
from gateway.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import varint
from gateway.mqtt.reader import is_utf8
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission, ConnectionInfo
from gateway.net.flow_control import FlowControl
from gateway.net.peer_closed import has_left
from gateway.net.proxy_protocol import address_text
from gateway.net.write_buffer import Flusher, Transport
from gateway.observe.counters import Counters
from gateway.session.qos_exchanges import ARRIVING, RESTORED
from gateway.session.session import Session
from gateway.topics.destination import Destination, InvalidDestination, address
from matcher.reserved import DOLLAR
from record.layout import FLAG_RETAIN, FLAG_TRACK_ID
from store.api import Store
from store.control import inbound_released
from store.errors import StoreBusy

log = logging.getLogger(__name__)

PACKET_ID_IN_USE: Final = b"the packet id is that of a message of QoS 2 whose exchange has not ended (MQTT-2.2.1-3)"
_MAX_EXPLAINED: Final = 16  # answers to one read that say why
_LARGE: Final = 64 * 1024  # bytes of a packet that has not ended: smaller ones cost about what connections cost
_LIVELY: Final = 1024  # bytes that are a sign of life (MQTT-3.1.2-22) though no packet ends in them


class Connection(FlowControl):
    """A network connection that speaks MQTT."""

    def __init__(
        self,
        flusher: Flusher,
        transport: Transport,
        decoder: Decoder,
        store: Store,
        append_queue: AppendQueue,
        requests: RequestCallbacks,
        counters: Counters,
        max_uncommitted: int,
        lifetime: LifetimeCallbacks,
        admission: Admission,
    ) -> None:
        super().__init__(flusher, transport, counters, admission, max_uncommitted)
        self.info: ConnectionInfo | None = None
        self.decoder = decoder
        self.store = store
        self.append_queue = append_queue
        self.requests = requests
        self.lifetime = lifetime
        self.session: Session | None = None
        self.client_id: bytes = b""
        self.identity: Identity | None = None  # from CONNACK on
        self.enhanced_auth: EnhancedAuthentication | None = None  # an authentication with AUTH packets is under way
        self.releasing: set[int] | None = None  # QoS 2 packet ids whose release is on its way to disk
        self.early: list[Packet] | None = None  # what came behind CONNECT meanwhile; the socket is not read on
        self.explained: int = 0  # answers to one read that said why
        self.last_received: float = 0.0  # monotonic seconds: a packet, or a good part of one
        self.dripped: int = 0  # bytes since then
        self.keep_alive: int = 0  # seconds
        self.tick: int = 0  # of the clock, when it is to be looked at
        self.problem_information: bool = True  # the client wants to hear why, beside reason codes
        self.will: Will | None = None
        self.is_will_dropped: bool = False  # however the connection ends: it may not be sent any more
        self.disconnect_packet: Disconnect | None = None
        self.is_partial: bool = False  # a large packet has begun, and not ended
        self.outside: int = 0  # bytes of one that wait for others in front of the decoder: in a WebSocket's message

    # --- what the event loop tells the protocol of a socket

    def data_received(self, data: bytes) -> None:
        self.receive(data)

    def eof_received(self) -> None:
        """The client sends no more. What waits for it has as long as with any other end."""
        self.flusher.close(self.transport)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.uncongested()

    def connection_lost(self, _error: Exception | None) -> None:
        self.lifetime.gone(self)

    # --- bytes in

    def receive(self, data: bytes) -> None:
        """Everything one read of the socket brought."""
        if self.closed:
            return
        self.counters.bytes_received += len(data)
        if self.congested:
            self.note_unanswered(len(data))
        self._take(data)

    def _take(self, data: bytes) -> None:
        decoder = self.decoder
        packets = decoder.feed(data)
        self.explained = 0
        self.dripped += len(data)
        if packets or self.dripped >= _LIVELY:
            self.last_received = monotonic()
            self.dripped = 0
        if self.session is None:
            self._before_session(packets)
        elif packets:
            self._handle(packets)
        if self.closed:
            return
        self._count_partial(bool(packets))
        error = decoder.error
        if error is not None:
            self.fail(error)
        elif decoder.has_more and not self.putting_off:
            self.putting_off = True
            self.pause_reading()
            self.flusher.call_later(0.0, self._go_on)

    def held_outside(self, size: int, is_new: bool) -> None:
        """So many bytes have come that are not handed on before others come."""
        self.outside = size
        if not self.closed:
            self._count_partial(is_new)

    def _count_partial(self, is_new: bool) -> None:
        held = self.outside + (0 if self.decoder.has_more else self.decoder.held())
        if held > _LARGE or self.is_partial:
            self.is_partial = held > _LARGE
            self.lifetime.partial(self, held if self.is_partial else 0, is_new)

    def _go_on(self) -> None:
        """The other clients have had their turn: on with what this one has sent."""
        self.putting_off = False
        if self.closed or self.connecting:
            return  # `opened` goes on
        self._take(b"")
        self.resume_reading()

    def _before_session(self, packets: list[Packet]) -> None:
        for packet in packets:
            if isinstance(packet, Connect):
                self.connecting = True
                self.version = packet.version
                self.client_id = packet.client_id
                self.maximum_packet_size = packet.maximum_packet_size
                self.problem_information = packet.request_problem_information
                self.pause_reading()
                self.requests.connect(self, packet)
            elif self.enhanced_auth is not None:
                self._during_authentication(self.enhanced_auth, packet)
            else:
                if self.early is None:
                    self.early = []
                self.early.append(packet)

    def _during_authentication(self, enhanced_auth: EnhancedAuthentication, packet: Packet) -> None:
        """Nothing but AUTH and DISCONNECT comes between CONNECT and CONNACK then (MQTT-3.1.2-30)."""
        if isinstance(packet, Disconnect):
            self._disconnected(packet)
        elif not isinstance(packet, Auth) or not enhanced_auth.answer(packet):
            self.fail(ProtocolError("not the AUTH that was asked for (MQTT-3.1.2-30)", ReasonCode.PROTOCOL_ERROR))

    def refuse(self, reason: ReasonCode, text: str, server_reference: bytes = b"") -> None:
        """Answer CONNECT with a refusal and close (MQTT-3.2.2-7), with silence where no answer fits."""
        if self.closed:
            return
        properties = ConnackProperties()
        if server_reference:
            properties.server_reference = server_reference
        limit = self.maximum_packet_size
        answer = connack(self.version, reason, False, properties, Explanation(text.encode()), limit)
        if not limit or len(answer) <= limit:
            self.send(answer)
        self._shut()
        self.requests.lost(self, True)

    def opened(self, session: Session, keep_alive: int) -> None:
        """CONNECT was accepted: go on with what came behind it. keep_alive: seconds, 0 for none."""
        self.connecting = False
        self.session = session
        self.keep_alive = keep_alive
        self.lifetime.opened(self)
        early = self.early
        self.early = None
        if early is not None:
            self._handle(early)
        if self.decoder.has_more:
            self._go_on()
        self.resume_reading()

    def _handle(self, packets: list[Packet]) -> None:
        session = self.session
        assert session is not None
        batch: PublishBatch | None = None
        released: list[int] | None = None
        published = 0
        for packet in packets:
            if isinstance(packet, Publish):
                published += 1
                if batch is None:
                    batch = PublishBatch(self, session)
                self._publish(session, packet, batch)
                if self.closed:
                    break
            elif isinstance(packet, PubAck):
                if not session.puback(packet.packet_id):
                    self._wrong_exchange(packet.packet_id)
                    break
            elif isinstance(packet, PubRel):
                if released is None:
                    released = []
                released.append(packet.packet_id)
            elif not self._handle_rare(session, packet):
                break
        if batch is not None and batch.frames:
            self.counters.messages_received += len(batch.frames)
            self.uncommitted += batch.size
            if not self.append_queue.append(batch) or self.uncommitted > self.max_uncommitted:
                self.pause_reading()
        if published and self.admission.publish_rate:
            self.keep_pace(published)
        if released is not None:
            self._release(session, released)
        if self.disconnect_packet is not None:
            self._disconnected(self.disconnect_packet)

    def _publish(self, session: Session, packet: Publish, batch: PublishBatch) -> None:
        """PUBLISH: into the append of this read. Its acknowledgement waits there for the commit."""
        where: Destination | None = None
        if packet.topic[0] == DOLLAR:
            where = self._where(packet)
            if where is None:
                return
        if self.permissions is not None and self._denied(session, self.permissions, packet, where):
            return
        if where is not None and where.due_ms is not None and self._unheld(session, packet):
            return
        if packet.is_text and not is_utf8(packet.payload):
            self._refuse(packet, ReasonCode.PAYLOAD_FORMAT_INVALID, b"the payload is not UTF-8, as its properties say")
            return
        qos = packet.qos
        flags = (qos | FLAG_RETAIN) if packet.retain else qos
        if qos == 0:
            batch.add(packet, flags, 0, where)
            return
        packet_id: int = packet.packet_id
        if qos == 1:
            if self.version == 5 and packet_id in session.inbound:
                self._refuse(packet, ReasonCode.PACKET_IDENTIFIER_IN_USE, PACKET_ID_IN_USE)
                return
            batch.acks.append(puback(self.version, packet_id, ReasonCode.SUCCESS))
            batch.settled += 1
            batch.add(packet, flags, 0, where)
            return
        if packet_id in session.inbound:
            # Received already (MQTT-4.3.3-10): confirmed now, or by the append that is still under way.
            self.decoder.acknowledged(1)
            if session.inbound[packet_id] != ARRIVING:
                self.send(pubrec(self.version, packet_id, ReasonCode.SUCCESS))
            return
        session.inbound[packet_id] = ARRIVING
        if batch.received is None:
            batch.received = []
        batch.received.append(packet_id)
        batch.acks.append(pubrec(self.version, packet_id, ReasonCode.SUCCESS))
        if session.durable:
            batch.add(packet, flags | FLAG_TRACK_ID, packet_id, where)
        else:
            batch.add(packet, flags, 0, where)

    def _denied(self, session: Session, permissions: Permissions, packet: Publish, where: Destination | None) -> bool:
        """Whether a message may not go where it goes; its sender was told then."""
        if permissions.may_publish(packet.topic if where is None else where.topic):
            return False
        if packet.qos == 2 and packet.packet_id in session.inbound:
            return False  # it was taken when it still might be: the exchange goes to its end
        self.counters.messages_denied += 1
        self._refuse(packet, ReasonCode.NOT_AUTHORIZED, b"the topic may not be published to")
        return True

    def _unheld(self, session: Session, packet: Publish) -> bool:
        """Whether there is no room for one more message that waits; its sender was told then."""
        if self.store.may_hold() or (packet.qos == 2 and packet.packet_id in session.inbound):
            return False
        self.counters.messages_unheld += 1
        self._refuse(packet, ReasonCode.QUOTA_EXCEEDED, b"as many messages wait for their time as may (store.max_held)")
        return True

    def _where(self, packet: Publish) -> Destination | None:
        """Where a message goes whose topic begins with $; None when it goes nowhere, and its sender was told."""
        try:
            return address(packet.topic, int(time() * 1000))
        except InvalidDestination as refused:
            if self.version < 5 and refused.reason == ReasonCode.TOPIC_NAME_INVALID:
                self.counters.messages_refused += 1
                self.fail(TopicNameInvalid(str(refused)))
            else:
                self._refuse(packet, refused.reason, refused.text)
            return None

    def _handle_rare(self, session: Session, packet: Packet) -> bool:
        """Packets that are not of the hot path. False: the connection is closing."""
        if isinstance(packet, Disconnect):
            self.disconnect_packet = packet
            return False
        if isinstance(packet, PubRec):
            if not session.pubrec(packet.packet_id, packet.reason):
                return self._wrong_exchange(packet.packet_id)
        elif isinstance(packet, PubComp):
            if not session.pubcomp(packet.packet_id):
                return self._wrong_exchange(packet.packet_id)
        elif isinstance(packet, PingReq):
            self.send(pingresp())
        elif isinstance(packet, Subscribe):
            self.requests.subscribe(self, packet)
        elif isinstance(packet, Unsubscribe):
            self.requests.unsubscribe(self, packet)
        elif isinstance(packet, Auth):
            self.requests.auth(self, packet)
        return not self.closed

    def _wrong_exchange(self, packet_id: int) -> bool:
        self.fail(ProtocolError(f"packet id {packet_id} is in another exchange", ReasonCode.PROTOCOL_ERROR))
        return False

    def _refuse(self, packet: Publish, reason: ReasonCode, text: bytes) -> None:
        """Do not take a message. 3.1.1 has no way to say so but a normal acknowledgement (3.1.1: MQTT-3.3.5-2)."""
        self.counters.messages_refused += 1
        if packet.qos == 1:
            self.send(puback(self.version, packet.packet_id, reason, self.explain(text), self.maximum_packet_size))
        elif packet.qos == 2:
            self.send(pubrec(self.version, packet.packet_id, reason, self.explain(text), self.maximum_packet_size))
        if packet.qos == 1 or (packet.qos == 2 and self.version == 5):
            self.decoder.acknowledged(1)

    def explain(self, text: bytes) -> Explanation | None:
        """What an acknowledgement may say beside its reason code, where the client wants it (MQTT-3.1.2-29). Who makes
        the same mistake over and over is not told each time: the answers would be many times as long as the mistake."""
        if self.version != 5 or not self.problem_information or self.explained >= _MAX_EXPLAINED:
            return None
        self.explained += 1
        return Explanation(text)

    def may_answer(self, filters: int) -> bool:
        """Whether a SUBACK or UNSUBACK for so many filters is within what the client takes; else close."""
        limit = self.maximum_packet_size
        size = 3 + filters  # packet id, length of the properties, reason codes
        if not limit or 1 + len(varint(size)) + size <= limit:
            return True
        self.fail(PacketTooLarge(f"the answer would be larger than the {limit} bytes the client takes", limit))
        return False

    # --- QoS 2 in

    def _release(self, session: Session, packet_ids: list[int]) -> None:
        """PUBREL: the packet ids are free again once the log says so (at once in a transient session)."""
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
            elif packet_id not in releasing:  # else the client repeats itself: one PUBCOMP answers both
                releasing.add(packet_id)
                known.append(packet_id)
        if not known:
            return
        if session.durable:
            self.store.append([inbound_released(session.client_id, known)], PubrelBatch(self, session, known).done)
            return
        for packet_id in known:
            self.finish_inbound(session, packet_id)

    def finish_inbound(self, session: Session, packet_id: int) -> None:
        """The exchange is over on both sides (MQTT-4.3.3-11)."""
        if self.releasing is not None:
            self.releasing.discard(packet_id)
        if session.inbound.pop(packet_id, RESTORED) != RESTORED:
            self.decoder.acknowledged(1)
        self.send(pubcomp(self.version, packet_id, ReasonCode.SUCCESS))

    # --- closing

    def append_failed(self, error: Exception) -> None:
        """The store did not take it: nothing was acknowledged, and the client has to hear that."""
        busy = isinstance(error, StoreBusy)
        reason = ReasonCode.SERVER_BUSY if busy else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self.fail(ProtocolError(str(error), reason))

    def fail(self, error: ProtocolError) -> None:
        """Close because of an error, saying so where the protocol can (MQTT-4.13.1-1)."""
        if self.closed:
            return
        self.counters.protocol_errors += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("closing the connection of %r from %s: %s", self.client_id, self.peer(), error)
        self.disconnect_packet = None
        if self.session is None and not self.connecting and self.decoder.version:
            # The fault is in CONNECT itself, and the client has said which version it speaks.
            self.version = self.decoder.version
            self.refuse(error.reason, str(error))
            return
        user = ((b"limit", b"%d" % error.limit),) if error.limit else ()
        self.close(error.reason, Explanation(str(error).encode(), user))

    def close(self, reason: ReasonCode, why: Explanation | None = None, server_reference: bytes = b"") -> None:
        """Close from this side. The session treats it as a lost connection: its will is sent."""
        if self.closed:
            return
        if self.version == 5 and self.session is not None:
            self.send(disconnect(5, reason, why, server_reference, self.maximum_packet_size))
        self._shut()
        self.requests.lost(self, False)

    def _disconnected(self, packet: Disconnect) -> None:
        """DISCONNECT from the client. Only reason 0 drops the will (MQTT-3.14.4-3)."""
        if self.closed:
            return
        self._shut()
        self.requests.lost(self, packet.reason == ReasonCode.SUCCESS)

    def peer(self) -> str:
        """The client's address, as a proxy told it or as the socket has it."""
        if self.info is not None and self.info.peer:
            return self.info.peer
        try:
            name = self.transport.get_extra_info("peername")
        except AttributeError:  # of uvloop: it has just let go of the socket
            return "a connection that is gone"
        return address_text(str(name[0]), int(name[1])) if isinstance(name, tuple) else "a local process"

    def lost(self) -> None:
        """The network connection is gone."""
        if self.closed:
            return
        self.closed = True
        self.requests.lost(self, False)

    def has_left(self) -> bool:
        """The client has gone while it waited for CONNACK: its socket is not read, and tells nothing by itself. One
        that sent more behind CONNECT did not mean to wait, and is served."""
        if self.closed:
            return True
        is_silent = self.early is None and not self.decoder.held()
        return is_silent and has_left(self.transport)

    def uncongested(self) -> None:
        """The socket takes data again."""
        self.congested = False
        self.unanswered = 0
        self.resume_reading()
        session = self.session
        if session is None:
            return
        if session.lagging and not session.pumping:
            session.on_room(session)
        if session.starved:
            session.feed()

    def _shut(self) -> None:
        self.flush()
        self.closed = True
        self.flusher.close(self.transport)
