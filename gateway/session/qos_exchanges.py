"""What a session has sent and is not acknowledged: packet ids, the window, and the records that packets wait for.

Bytes go out here, and acknowledgements come in. `gateway.session.session` decides what is sent, and in which order.
"""

from collections import deque
from typing import Final

from gateway.mqtt.aliases import TopicAliases
from gateway.mqtt.encode import pubrel
from gateway.mqtt.reasons import ReasonCode
from gateway.net.write_buffer import WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.cursor import Cursor
from gateway.session.drop_counters import DropCounters
from gateway.session.inflight import COMPLETED, RELEASED, RESERVED, SENT, WAITING, Inflight, Staged
from gateway.session.message_encoding import Message
from gateway.session.pending_subscriptions import PendingSubscriptions
from gateway.session.pending_work import PendingWork, RetainedRequest
from store.api import Owed

# Where a QoS 2 message from the client stands, by its packet id.
ARRIVING: Final = 0  # its append is under way
ARRIVED: Final = 1  # committed
RESTORED: Final = 2  # committed, and received on an earlier connection

MAX_STAGED: Final = 1024  # messages of a session that wait for a record
MAX_HELD: Final = 30_000  # packet ids of a durable session: with its window fewer than there are (MQTT-2.2.1-3)
_MOST_AVOIDED: Final = 256  # packet ids
_ALIAS_ROOM: Final = 5  # bytes that naming an alias may add: the property, and a byte more of two lengths
_PACKET_IDS: Final = [i.to_bytes(2, "big") for i in range(65_536)]


class QosExchanges:
    """The exchanges of one session with its client."""

    def __init__(self, durable: bool, window: int, write_buffer: WriteBuffer, counters: Counters) -> None:
        self.durable: bool = durable
        self.full_window = window  # messages with QoS > 0 in flight at the most
        self.window = window  # the same, or less while its backlog is read (`gateway.delivery.catch_up`)
        self.write_buffer = write_buffer
        self.counters = counters
        self.closed: bool = False
        self.starved: bool = False  # a shared subscription has to be told when there is room
        self.in_window: int = 0  # entries of `inflight` that count against the window
        self.drops: DropCounters | None = None  # None: nothing was dropped
        self.lagging: bool = False  # catch-up has work for it once there is room
        self.changed: bool = False  # cursors moved or packet ids changed since the last record
        self.urgent: bool = False  # …and a packet to the client waits for that record
        self.staging: int = 0  # of `staged` and those whose record is under way
        self.recorded: int = 0  # entries of `inflight` that the log knows
        self.marked: list[Cursor] = []  # that have yet to come by what a node that died may have sent
        self._next_packet_id: int = 0
        self._inbound: dict[int, int] | None = None
        self._inflight: dict[int, Inflight] | None = None
        self._unfinished: PendingWork | None = None

    # --- of the session

    def note(self, urgent: bool) -> None:
        """Something has to be written to the log; `urgent`: a packet to the client waits for it."""
        raise NotImplementedError

    def use_room(self) -> None:
        """There may be room for what waits for it."""
        raise NotImplementedError

    # --- what is made when it is first asked for: a client that is idle, or only publishes, has none of it

    @property
    def inbound(self) -> dict[int, int]:
        """QoS 2 packet ids received and not released: where each stands."""
        if self._inbound is None:
            self._inbound = {}
        return self._inbound

    @property
    def inflight(self) -> dict[int, Inflight]:
        """What was sent and is not acknowledged, by packet id."""
        if self._inflight is None:
            self._inflight = {}
        return self._inflight

    @property
    def unfinished(self) -> "PendingWork":
        """What there is to do besides."""
        if self._unfinished is None:
            self._unfinished = PendingWork()
        return self._unfinished

    @property
    def subscribing(self) -> PendingSubscriptions:
        return self.unfinished.subscribing

    @property
    def retained(self) -> dict[bytes, RetainedRequest]:
        return self.unfinished.retained

    @property
    def resends(self) -> deque[int]:
        return self.unfinished.resends

    # --- messages out

    def dropped(self) -> DropCounters:
        """Where a message that is not sent is counted."""
        drops = self.drops
        if drops is None:
            drops = self.drops = DropCounters(self.counters)
        return drops

    @property
    def has_room(self) -> bool:
        """Whether one more message with QoS > 0 may go out."""
        return self.in_window < self.window and not self.write_buffer.congested

    def send(
        self,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        entry: Inflight | None,
        now_ms: int,
    ) -> None:
        """Encode and send. `entry` is what the acknowledgement settles (a transient one is made if None)."""
        write_buffer = self.write_buffer
        if write_buffer.aliases is None or qos == 2:  # MQTT.js (5.16) forgets the topic of an aliased message of QoS 2
            head, tail = message.parts(write_buffer.version, qos, retain, dup, identifiers, now_ms)
        else:
            head, tail = self._aliased_parts(write_buffer.aliases, message, qos, retain, dup, identifiers, now_ms)
        if write_buffer.maximum_packet_size and self._is_oversized(head, tail):
            if entry is not None:
                entry.acknowledged()
                self._note_ack(entry)
            return
        self.counters.messages_sent += 1
        if qos == 0:
            self._stage_or_send(0, None, head)
            return
        if entry is None:
            entry = Inflight(None, b"", message.position, qos)
        packet_id = self._enter(entry)
        self._stage_or_send(packet_id, entry, head + _PACKET_IDS[packet_id] + tail)

    def reserve(self, entry: Inflight) -> int:
        """Have a packet id for an exchange that is begun later. No acknowledgement means it before that."""
        entry.phase = RESERVED
        return self._enter(entry)

    def _enter(self, entry: Inflight) -> int:
        """Have a packet id for an exchange, which counts against the window from here on."""
        packet_id = self._allocate(entry)
        self.inflight[packet_id] = entry
        self.in_window += 1
        return packet_id

    def send_reserved(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        """Send a shared subscription's message of QoS 2. The log has it as this session's own by now."""
        entry.phase = SENT
        entry.leased = False
        if self.durable:
            self.note_recorded(entry)
        write_buffer = self.write_buffer
        head, tail = message.parts(write_buffer.version, 2, retain, False, identifiers, now_ms)
        if write_buffer.maximum_packet_size and self._is_oversized(head, tail):
            self._complete(packet_id, entry)
            return
        self.counters.messages_sent += 1
        write_buffer.send(head + _PACKET_IDS[packet_id] + tail)

    def cancel_reserved(self, packet_id: int) -> None:
        """Free the packet id of a reserved exchange that does not begin."""
        if self.inflight.pop(packet_id, None) is not None:
            self.in_window -= 1
            self._note_room()

    def wait_for_room(self) -> None:
        """Have the shared subscriptions hear of it when there is room again."""
        self.starved = True

    def remove_leased(self) -> list[Inflight]:
        """Remove what is leased from shared subscriptions: the connection has ended."""
        inflight = self._inflight or {}
        leased = {packet_id: entry for packet_id, entry in inflight.items() if entry.leased}
        for packet_id in leased:
            del inflight[packet_id]
        return list(leased.values())

    def _stage_or_send(self, packet_id: int, entry: Inflight | None, data: bytes) -> None:
        """Send, unless a record has to come first: of this packet id, or of one that this must not overtake."""
        if self.staging or (self.durable and entry is not None and entry.waits_for_record):
            self.unfinished.staged.append(Staged(packet_id, entry, data))
            self.staging += 1
            self._note_urgent()
        else:
            self.write_buffer.send(data)

    def _aliased_parts(
        self,
        aliases: TopicAliases,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
    ) -> tuple[bytes, bytes]:
        """The parts of a message to a client that takes aliases: one in place of the topic, or beside it, or none."""
        alias = aliases.known(message.topic)
        if alias:
            return message.aliased_parts(qos, retain, dup, identifiers, now_ms, alias)
        head, tail = message.parts(5, qos, retain, dup, identifiers, now_ms)
        limit = self.write_buffer.maximum_packet_size
        if not limit or len(head) + len(tail) + 2 + _ALIAS_ROOM <= limit:
            alias = aliases.give(message.topic)
            if alias:  # a message that is left out would leave the client without the name
                return message.naming_parts(qos, retain, dup, identifiers, now_ms, alias)
        return head, tail

    def _is_oversized(self, head: bytes, tail: bytes) -> bool:
        """Larger than the client takes: not sent, and treated as if it had been (MQTT-3.1.2-24, -25)."""
        limit = self.write_buffer.maximum_packet_size
        if not limit or len(head) + len(tail) + (2 if tail else 0) <= limit:
            return False
        self.dropped().add_oversized()
        return True

    def note_recorded(self, entry: Inflight) -> None:
        """The log knows, or is about to know, of the packet id."""
        if not entry.recorded:
            entry.recorded = True
            self.recorded += 1

    def unrecorded(self, filters: set[bytes]) -> list[tuple[int, bytes, int, int]]:
        """The messages on their way by these filters that the log does not know of, to be recorded now."""
        found: list[tuple[int, bytes, int, int]] = []
        for packet_id, entry in self.inflight.items():
            if entry.phase == SENT and not entry.recorded and not entry.leased and entry.topic_filter in filters:
                self.note_recorded(entry)
                found.append((packet_id, entry.topic_filter, entry.offset, entry.qos))
        return found

    def restore(self, packet_id: int, entry: Inflight) -> None:
        """Take over an exchange of an earlier connection; `resend` or `resend_release` follows when there is room."""
        entry.phase = WAITING
        self.note_recorded(entry)
        self.inflight[packet_id] = entry

    def send_again(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        """Send again under its old packet id, with DUP (MQTT-4.4.0-1)."""
        head, tail = message.parts(self.write_buffer.version, entry.qos, retain, True, identifiers, now_ms)
        if entry.qos == 0 or self._is_oversized(head, tail):
            self.forget(packet_id, entry)
            return
        entry.phase = SENT
        self.in_window += 1
        self.counters.messages_sent += 1
        self._stage_or_send(packet_id, None, head + _PACKET_IDS[packet_id] + tail)

    def end_resend(self) -> None:
        """The first of `resends` is sent again, or nothing is left of it."""
        self.unfinished.resends.popleft()

    def resend_without(self, cursor: Cursor) -> None:
        """Its subscription is gone: what it was to send again goes first now."""
        for _, packet_id in sorted(cursor.open.items()):
            entry = self.inflight.get(packet_id)
            if entry is not None and entry.phase == WAITING and not entry.released:
                self.unfinished.resends.append(packet_id)
                self.lagging = True
        cursor.open = {}

    def orphan(self, filters: set[bytes]) -> None:
        """Their subscriptions are gone, and nobody comes by the messages on their way again: the packet ids are free
        as soon as they are done with."""
        for entry in self.inflight.values():
            if entry.cursor is not None and entry.topic_filter in filters and not entry.leased:
                entry.cursor = None

    def resend_release(self, packet_id: int, entry: Inflight) -> None:
        """Send PUBREL again (MQTT-4.4.0-1)."""
        entry.qos = 2
        entry.phase = RELEASED
        self.in_window += 1
        self.write_buffer.send(pubrel(self.write_buffer.version, packet_id, ReasonCode.SUCCESS))

    def forget(self, packet_id: int, entry: Inflight) -> None:
        """The message of a restored exchange is gone (retention), or may not be read: it is not sent again. With QoS 2
        the client may have it, and would take another one with the packet id for the same: PUBREL ends it there."""
        entry.phase = SENT
        self.in_window += 1
        if entry.qos == 2:
            self.pubrec(packet_id, ReasonCode.SUCCESS)
        else:
            self._complete(packet_id, entry)

    def _allocate(self, entry: Inflight) -> int:
        """A packet id that is not in use; the window is smaller than their number (MQTT-2.2.1-3)."""
        inflight = self.inflight
        cursor = entry.cursor
        if cursor is not None:
            packet_id = cursor.packet_id(entry.offset)
            if packet_id not in inflight and (entry.offset < cursor.sent_before or not self._is_spoken_for(packet_id)):
                return packet_id
            entry.has_other_id = True
        packet_id = self._next_packet_id
        avoids = _MOST_AVOIDED
        while True:
            packet_id += 1
            if packet_id > 0xFFFF:
                packet_id = 1
            if packet_id not in inflight:
                avoids -= 1
                if avoids < 0 or not self._is_spoken_for(packet_id):
                    self._next_packet_id = packet_id
                    return packet_id

    def _is_spoken_for(self, packet_id: int) -> bool:
        """Whether a node that died may have sent a message with it that a cursor has yet to come by (MQTT-4.4.0-1)."""
        if not self.marked:
            return False
        self.marked = [cursor for cursor in self.marked if cursor.next < cursor.sent_before]
        return any(cursor.may_have_used(packet_id) for cursor in self.marked)

    # --- acknowledgements in

    def puback(self, packet_id: int) -> bool:
        """PUBACK. False: the packet id belongs to a QoS 2 exchange."""
        entry = self.inflight.get(packet_id)
        if entry is None or entry.phase >= COMPLETED:
            return True
        if entry.qos != 1:
            return False
        self._complete(packet_id, entry)
        return True

    def pubrec(self, packet_id: int, reason: int) -> bool:
        """PUBREC. A failure ends the exchange (MQTT-4.3.3); else PUBREL goes out, once recorded."""
        entry = self.inflight.get(packet_id)
        if entry is None:
            self.write_buffer.send(pubrel(self.write_buffer.version, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            return True
        if entry.phase >= COMPLETED:
            return True
        if entry.qos != 2:
            return False
        if reason >= 0x80:
            self._complete(packet_id, entry)
        elif entry.phase == SENT:
            entry.phase = RELEASED
            if self.durable:
                self.unfinished.received.append(packet_id)
                self._note_urgent()
            else:
                self.write_buffer.send(pubrel(self.write_buffer.version, packet_id, ReasonCode.SUCCESS))
        elif entry.phase == RELEASED and packet_id not in self.unfinished.received:
            self.write_buffer.send(pubrel(self.write_buffer.version, packet_id, ReasonCode.SUCCESS))
        return True

    def pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP."""
        entry = self.inflight.get(packet_id)
        if entry is None or entry.phase >= COMPLETED:
            return True
        if entry.qos != 2:
            return False
        if entry.phase == RELEASED:
            self._complete(packet_id, entry)
        return True

    def _complete(self, packet_id: int, entry: Inflight) -> None:
        self.in_window -= 1
        entry.acknowledged()
        if entry.recorded or entry.cursor is not None:
            self._note_ack(entry)
        if entry.recorded:
            # The record of the packet id goes only together with a cursor that has passed the message:
            # until then a crash must still know that it was delivered.
            entry.phase = COMPLETED
        else:
            del self.inflight[packet_id]
        self._note_room()

    def _note_room(self) -> None:
        """An exchange is over: there may be room for others."""
        if self.in_window <= self.window >> 1 and (self.lagging or self.starved):
            self.use_room()

    def take_staged(self) -> tuple[list[Staged], list[int]]:
        """What waits for a record that is written now: messages, and packet ids of PUBRECs."""
        unfinished = self._unfinished
        if unfinished is None or not (unfinished.staged or unfinished.received):
            return [], []
        staged, received = unfinished.staged, unfinished.received
        unfinished.staged, unfinished.received = [], []
        return staged, received

    def take_owed(self) -> tuple[list[Owed], list[bytes], bool]:
        """See `gateway.session.pending_work`."""
        unfinished = self._unfinished
        if unfinished is None or not (unfinished.retained or unfinished.settled or unfinished.is_answered):
            return [], [], False
        return unfinished.take_owed()

    def free_completed(self) -> list[int]:
        """Take out the recorded packet ids that are done with and whose cursors have passed them."""
        if not self.recorded:
            return []
        free = [
            packet_id
            for packet_id, entry in self.inflight.items()
            if entry.phase == COMPLETED and (entry.cursor is None or entry.cursor.has_passed(entry.offset))
        ]
        for packet_id in free:
            del self.inflight[packet_id]
        self.recorded -= len(free)
        return free

    def _note_ack(self, entry: Inflight) -> None:
        if entry.cursor is None:
            self.note_change()
        else:
            self._note_progress(entry.cursor)

    def _note_progress(self, cursor: Cursor) -> None:
        if cursor.strains and self.durable:
            self._note_urgent()
        elif not self.changed:
            self.note_change()

    def note_change(self) -> None:
        """Have the session's progress written to the log."""
        if not self.changed and self.durable:
            self.changed = True
            self.note(False)

    def _note_urgent(self) -> None:
        if not self.urgent:
            self.urgent = True
            self.changed = True
            self.note(True)
