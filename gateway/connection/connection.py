"""One client's connection: packets in, to the log and the session; acknowledgements out.

The walk of a PUBLISH: `receive` decodes everything that one read of the socket brought. `_handle` adds each message to
the batch of this read (`gateway.connection.handle_publish`), which goes to the store as one append with one run of
acknowledgements. When the commit is durable, `PublishBatch.done` sends that run.

Requests that may take time (CONNECT, AUTH, SUBSCRIBE, UNSUBSCRIBE) go to the `RequestCallbacks`. SUBSCRIBE and
UNSUBSCRIBE do not overtake messages: they, and everything behind them, wait until what came before is committed.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.auth.identity import Identity
from gateway.auth.rules.sources import LOCAL_PEER
from gateway.connection.callbacks import LifetimeCallbacks, RequestCallbacks
from gateway.connection.enhanced_auth import EnhancedAuthentication
from gateway.connection.handle_publish import AppendQueue, PublishBatch, PublishHandler
from gateway.mqtt.decode import Decoder
from gateway.mqtt.encode import ConnackProperties, Explanation, connack, disconnect, pingresp
from gateway.mqtt.errors import PacketTooLarge, ProtocolError
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
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission, ConnectionInfo
from gateway.net.peer_closed import has_left
from gateway.net.proxy_protocol import address_text
from gateway.net.write_buffer import Flusher, Transport
from gateway.observe.counters import Counters
from gateway.schemas.payload_checks import PayloadChecks
from gateway.session.session import Session
from matcher.names import is_shared
from store.api import Action, Store

log = logging.getLogger(__name__)

_LARGE: Final = 64 * 1024  # bytes of a partial packet; smaller ones cost about what connections cost
_MANY_FILTERS: Final = 64  # of SUBSCRIBE and UNSUBSCRIBE, after which a connection rests
_REST_S: Final = 0.0002  # for each of them: several times what a filter costs the loop
_SHARED_FILTERS: Final = 4  # that a shared filter counts as: a group begins or ends with its only member
_LIVELY: Final = 1024  # bytes that are a sign of life (MQTT-3.1.2-22) though no packet ends in them


class Connection(PublishHandler):
    """A network connection that speaks MQTT."""

    def __init__(
        self,
        flusher: Flusher,
        transport: Transport,
        decoder: Decoder,
        store: Store,
        append_queue: AppendQueue,
        requests: "RequestCallbacks[Connection]",
        counters: Counters,
        max_uncommitted: int,
        lifetime: "LifetimeCallbacks[Connection]",
        admission: Admission,
        payload_checks: PayloadChecks,
    ) -> None:
        super().__init__(
            flusher,
            transport,
            decoder,
            store,
            append_queue,
            requests,
            counters,
            max_uncommitted,
            admission,
            payload_checks,
        )
        self.info: ConnectionInfo | None = None
        self.requests = requests
        self.lifetime = lifetime
        self.session: Session | None = None
        self.client_id: bytes = b""
        self.identity: Identity | None = None  # from CONNACK on
        self.forget_expiry: Callable[[], None] | None = None  # stops the timer that ends it with its credentials
        self.counted_user: bytes = b""  # among whose connections it counts; b"": none
        self.counted_subscriptions: int = 0  # among those of that user
        self.enhanced_auth: EnhancedAuthentication | None = None  # an authentication with AUTH packets is under way
        self.early: list[Packet] | None = None  # packets behind a CONNECT that is being served
        self.deferred: list[Packet] | None = None  # SUBSCRIBE or UNSUBSCRIBE behind uncommitted messages, and the rest
        self.filters: int = 0  # of SUBSCRIBE and UNSUBSCRIBE, since the connection rested
        self.ending: bool = False  # deferred packets do not wait any more
        self.is_lost: bool = False  # the network connection has ended
        self.last_received: float = 0.0  # monotonic seconds: a packet, or _LIVELY bytes of one
        self.received_since: int = 0  # bytes since then
        self.keep_alive: int = 0  # seconds
        self.is_clean_start: bool = False  # as CONNECT says
        self.opened_at: float = 0.0  # Unix time of CONNACK, seconds
        self.tick: int = 0  # of the connection timer: when the connection is due
        self.will: Will | None = None
        self.is_will_dropped: bool = False  # it may not be sent any more, however the connection ends
        self.disconnect_packet: Disconnect | None = None
        self.is_partial: bool = False  # a large packet has begun and not ended
        self.undecoded: int = 0  # bytes of a WebSocket message whose end has not come, not yet given to the decoder

    # --- the protocol of an asyncio transport

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
        self.lifetime.closed(self)

    # --- bytes in

    @property
    def awaits_connect(self) -> bool:
        """Whether the client has not sent CONNECT."""
        return self.session is None and not self.connecting and self.enhanced_auth is None and not self.closed

    def receive(self, data: bytes) -> None:
        """Handle everything that one read of the socket brought."""
        if self.closed:
            return
        self.counters.bytes_received += len(data)
        if self.congested:
            self.note_unanswered(len(data))
        self._decode(data)

    def _decode(self, data: bytes) -> None:
        decoder = self.decoder
        packets = decoder.feed(data)
        if self.tracer is not None:
            self.tracer.received(packets)
        self.explained = 0
        self.received_since += len(data)
        if packets or self.received_since >= _LIVELY:
            self.last_received = monotonic()
            self.received_since = 0
        if self.session is None:
            self._before_session(packets)
        elif self.deferred is not None:
            self.deferred += packets
        elif packets:
            self._handle(packets)
        if self.closed:
            return
        if self.is_partial or self.undecoded + decoder.partial_size > _LARGE:
            self._count_partial(bool(packets))
        error = decoder.error
        if error is not None:
            if self.deferred is None:
                self.fail(error)
        elif (decoder.has_more or self.filters > _MANY_FILTERS) and not self.yielding:
            self._yield()

    def _yield(self) -> None:
        """Let the other clients have their turn, and the loop to themselves for a while after many filters."""
        seconds = 0.0
        if self.filters > _MANY_FILTERS:
            seconds = self.filters * _REST_S
            self.filters = 0
        self.yielding = True
        self.pause_reading()
        self.flusher.call_later(seconds, self._go_on)

    def undecoded_received(self, size: int, is_new: bool) -> None:
        """`size` bytes of a WebSocket message wait for its end. is_new: another message than before."""
        self.undecoded = size
        if not self.closed:
            self._count_partial(is_new)

    def _count_partial(self, is_new: bool) -> None:
        size = self.undecoded + (0 if self.decoder.has_more else self.decoder.partial_size)
        if size > _LARGE or self.is_partial:
            self.is_partial = size > _LARGE
            self.lifetime.partial(self, size if self.is_partial else 0, is_new)

    def _go_on(self) -> None:
        """Decode on: the other clients have had their turn."""
        self.yielding = False
        if self.closed or self.connecting or self.deferred is not None:
            return  # `opened` or `committed` goes on
        if self.filters > _MANY_FILTERS:
            self._yield()
            return
        self._decode(b"")
        self.resume_reading()

    def _before_session(self, packets: list[Packet]) -> None:
        for i in range(len(packets)):
            packet = packets[i]
            if isinstance(packet, Connect):
                self.connecting = True
                self.version = packet.version
                self.client_id = packet.client_id
                self.maximum_packet_size = packet.maximum_packet_size
                self.problem_information = packet.request_problem_information
                if packet.authentication_method is None and i + 1 < len(packets):
                    self.early = packets[i + 1 :]
                self.requests.connect(self, packet)
                if self.connecting:
                    self.pause_reading()
                if packet.authentication_method is None:
                    return
            elif self.enhanced_auth is not None:
                self._during_authentication(self.enhanced_auth, packet)
            else:
                if self.early is None:
                    self.early = []
                self.early.append(packet)

    def _during_authentication(self, enhanced_auth: EnhancedAuthentication, packet: Packet) -> None:
        """Only AUTH and DISCONNECT may come between CONNECT and CONNACK then (MQTT-3.1.2-30)."""
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
        """CONNECT was accepted: handle what came behind it. keep_alive: seconds, 0 for none."""
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
        deferred: list[Packet] | None = None
        released: list[int] | None = None
        published = 0
        for packet in packets:
            if isinstance(packet, Publish):
                published += 1
                if batch is None:
                    batch = PublishBatch(self, session)
                self.add_publish(session, packet, batch)
                if self.closed:
                    break
            elif isinstance(packet, PubAck):
                if not session.exchanges.puback(packet.packet_id):
                    self._wrong_exchange(packet.packet_id)
                    break
            elif isinstance(packet, PubRel):
                if released is None:
                    released = []
                released.append(packet.packet_id)
            elif (
                (batch is not None or self.uncommitted)
                and isinstance(packet, (Subscribe, Unsubscribe))
                and not self.ending
            ):
                deferred = packets[packets.index(packet) :]
                break
            elif not self._handle_rare(session, packet):
                break
        if batch is not None and batch.frames:
            self.append_batch(batch)
        if published and self.admission.paces:
            self.limit_rate(published, 0 if batch is None else batch.size)
        if released is not None:
            self.release(session, released)
        if deferred is not None or self.disconnect_packet is not None:
            self._end_read(deferred)

    def _end_read(self, deferred: list[Packet] | None) -> None:
        """End with DISCONNECT, or handle the deferred packets when the messages before them are committed."""
        if self.disconnect_packet is not None:
            self._disconnected(self.disconnect_packet)
        elif deferred is None or self.closed:
            return
        elif self.uncommitted:
            self.deferred = deferred
            self.awaits_commit = True
            self.pause_reading()
        else:  # no message was accepted
            self._handle(deferred)

    def committed(self) -> None:
        """All messages that were appended are committed: handle what waits for that."""
        packets = self.deferred
        self.deferred = None
        self.awaits_commit = False
        if packets is not None and not self.closed:
            self._handle(packets)
            self._after_deferred()

    def _end_deferral(self) -> None:
        """Handle what waits for a commit at once, because the connection ends."""
        packets = self.deferred
        if packets is not None:
            self.deferred = None
            self.awaits_commit = False
            self.ending = True
            self._handle(packets)

    def _after_deferred(self) -> None:
        """Go on with what the client sent behind the packets that were deferred."""
        if self.closed or self.deferred is not None:
            return
        if self.decoder.error is not None:
            self.fail(self.decoder.error)
        elif (self.decoder.has_more or self.filters > _MANY_FILTERS) and not self.yielding:
            self._go_on()

    def _handle_rare(self, session: Session, packet: Packet) -> bool:
        """Handle a packet that is not of the hot path. Returns False when the connection is closing."""
        if isinstance(packet, Disconnect):
            self.disconnect_packet = packet
            return False
        if isinstance(packet, PubRec):
            if not session.exchanges.pubrec(packet.packet_id, packet.reason):
                return self._wrong_exchange(packet.packet_id)
        elif isinstance(packet, PubComp):
            if not session.exchanges.pubcomp(packet.packet_id):
                return self._wrong_exchange(packet.packet_id)
        elif isinstance(packet, PingReq):
            self.send(pingresp())
        elif isinstance(packet, Subscribe):
            self._count_filters([each.topic_filter for each in packet.requests])
            self.requests.subscribe(self, packet)
        elif isinstance(packet, Unsubscribe):
            self._count_filters(packet.topic_filters)
            self.requests.unsubscribe(self, packet)
        elif isinstance(packet, Auth):
            self.requests.auth(self, packet)
        return not self.closed

    def _count_filters(self, topic_filters: list[bytes]) -> None:
        for each in topic_filters:
            self.filters += _SHARED_FILTERS if is_shared(each) else 1

    def _wrong_exchange(self, packet_id: int) -> bool:
        self.fail(ProtocolError(f"packet id {packet_id} is in another exchange", ReasonCode.PROTOCOL_ERROR))
        return False

    def may_answer(self, filters: int) -> bool:
        """Whether a SUBACK or UNSUBACK for so many filters is within the client's maximum packet size; close if not."""
        limit = self.maximum_packet_size
        size = 3 + filters  # packet id, length of the properties, reason codes
        if not limit or 1 + len(varint(size)) + size <= limit:
            return True
        self.fail(PacketTooLarge(f"the answer would be larger than the {limit} bytes the client takes", limit))
        return False

    # --- closing

    def fail(self, error: ProtocolError) -> None:
        """Close because of an error, and name it where the protocol can (MQTT-4.13.1-1)."""
        if self.closed:
            return
        self.counters.protocol_errors += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "closing the connection of %r from %s: %s",
                self.client_id,
                self.peer(),
                error,
                extra={"client": self.client_id},
            )
        self.disconnect_packet = None
        if self.session is None and not self.connecting and self.decoder.version:
            # The fault is in CONNECT itself, and the client has said which version it speaks.
            self.version = self.decoder.version
            self.refuse(error.reason, str(error))
            return
        user = ((b"limit", b"%d" % error.limit),) if error.limit else ()
        self.close(error.reason, Explanation(str(error).encode(), user))

    def close(self, reason: ReasonCode, why: Explanation | None = None, server_reference: bytes = b"") -> None:
        """Close from this side. The session treats it as a lost connection: its will is sent, unless the client has
        sent DISCONNECT meanwhile."""
        self._end_deferral()
        if self.closed:
            return
        if self.version == 5 and self.session is not None:
            self.send(disconnect(5, reason, why, server_reference, self.maximum_packet_size))
        self._shut()
        self.requests.lost(self, False)

    def _disconnected(self, packet: Disconnect) -> None:
        """Close after DISCONNECT from the client. Only reason 0 drops the will (MQTT-3.14.4-3)."""
        if self.closed:
            return
        if not self.is_lost:
            self._shut()
        self.closed = True
        self.requests.lost(self, packet.reason == ReasonCode.SUCCESS)

    def denied(self, topic: bytes) -> None:
        """Note that rules deny a message to a topic."""
        self.requests.denied(self, Action.PUB, topic)

    def peer(self) -> str:
        """The client's address, as a proxy reported it or as the socket has it."""
        if self.info is not None and self.info.peer:
            return self.info.peer
        try:
            name = self.transport.get_extra_info("peername")
        except AttributeError:  # of uvloop: it has just let go of the socket
            return "a connection that is gone"
        return address_text(str(name[0]), int(name[1])) if isinstance(name, tuple) else LOCAL_PEER

    def queued_bytes(self) -> int:
        """The number of bytes that wait for the client's socket."""
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:  # of uvloop: it has just let go of the socket
            return 0

    def lost(self) -> None:
        """The network connection has ended."""
        self.is_lost = True
        self._end_deferral()
        if self.closed:
            return
        self.closed = True
        self.requests.lost(self, False)

    def has_left(self) -> bool:
        """Whether the client has closed its end while it waited for CONNACK.

        Its socket is not read meanwhile, so nothing reports that. A client that sent more behind CONNECT did not mean
        to wait, and is served.
        """
        if self.closed:
            return True
        is_silent = self.early is None and not self.decoder.partial_size
        return is_silent and has_left(self.transport)

    def uncongested(self) -> None:
        """The socket takes data again."""
        self.congested = False
        self.unanswered = 0
        self.resume_reading()
        if self.session is not None:
            self.session.room_available()

    def _shut(self) -> None:
        self.flush()
        self.closed = True
        self.flusher.close(self.transport)
