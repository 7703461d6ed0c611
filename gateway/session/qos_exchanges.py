"""The window of messages in flight: packet ids, acknowledgements, and the records that packets wait for.

`gateway.session.session` decides what is sent, and in which order.
"""

from collections import deque
from typing import Final

from gateway.mqtt.aliases import TopicAliases
from gateway.mqtt.encode import pubrel
from gateway.mqtt.reasons import ReasonCode
from gateway.session.inflight import COMPLETED, RELEASED, RESERVED, SENT, WAITING, Inflight, StagedMessage
from gateway.session.message_encoding import Message
from gateway.session.queue_cursor import QueueCursor
from gateway.session.subscription import Subscriber

# State of a QoS 2 message from the client, by its packet id.
ARRIVING: Final = 0  # its append is under way
ARRIVED: Final = 1  # committed
RESTORED: Final = 2  # committed, and received on an earlier connection

MAX_STAGED: Final = 1024  # messages of a session that wait for a record
MAX_INFLIGHT: Final = 30_000  # packet ids of a durable session: with its window fewer than there are (MQTT-2.2.1-3)
_MOST_AVOIDED: Final = 256  # packet ids
_ALIAS_ROOM: Final = 5  # bytes that naming an alias may add: the property, and a byte more of two lengths
_PACKET_IDS: Final = [i.to_bytes(2, "big") for i in range(65_536)]

# Empty values that all sessions share. They are never changed.
_NO_INFLIGHT: Final[dict[int, Inflight]] = {}
_NO_STAGED: Final[list[StagedMessage]] = []
_NO_PACKET_IDS: Final[list[int]] = []
_NO_RESENDS: Final[deque[int]] = deque()
_NO_CURSORS: Final[list[QueueCursor]] = []


class QosExchanges:
    """The exchanges of one session with its client. A part of `gateway.session.session.Session`."""

    __slots__ = (
        "_marked",
        "_next_packet_id",
        "_received",
        "_staged",
        "in_window",
        "inflight",
        "max_window",
        "recorded",
        "resends",
        "staging",
        "subscriber",
        "window",
    )
    __deletable__ = ("subscriber",)  # by `release`

    def __init__(self, subscriber: Subscriber, window: int) -> None:
        self.subscriber = subscriber
        self.max_window = window  # messages with QoS > 0 in flight at the most
        self.window = window  # the same, or less while the session catches up
        self.in_window: int = 0  # entries of `inflight` that count against the window
        self.inflight = _NO_INFLIGHT  # sent and not acknowledged, by packet id
        self.resends = _NO_RESENDS  # packet ids of an earlier connection that are sent again; bounded by its window
        self.staging: int = 0  # messages that wait for a record, under way or not
        self._staged = _NO_STAGED  # those whose record is not under way
        self._received = _NO_PACKET_IDS  # PUBREC came: recorded before PUBREL goes out
        self.recorded: int = 0  # entries of `inflight` that the log has
        self._marked = _NO_CURSORS  # cursors that have yet to read messages which a lost node may have sent
        self._next_packet_id: int = 0

    # --- the window

    @property
    def has_room(self) -> bool:
        """Whether one more message with QoS > 0 may go out."""
        return self.in_window < self.window and not self.subscriber.write_buffer.congested

    @property
    def has_room_in_order(self) -> bool:
        """Whether a subscription's next message may go out: what an earlier connection left open goes first
        (MQTT-4.6.0-1), and packet ids and records are bounded."""
        return (
            self.in_window < self.window
            and not self.subscriber.write_buffer.congested
            and self.staging < MAX_STAGED
            and len(self.inflight) < MAX_INFLIGHT
            and not self.resends
        )

    def limit_window(self, window: int) -> None:
        """Have no more than `window` messages in flight, nor more than the client allows."""
        self.window = min(self.max_window, window)

    def shrink(self) -> None:
        """Free what takes memory and is empty."""
        if not self.inflight:
            self.inflight = _NO_INFLIGHT
        if not self.resends:
            self.resends = _NO_RESENDS

    def release(self) -> None:
        """The session is closed: drop what refers back to it."""
        self.inflight = _NO_INFLIGHT
        if hasattr(self, "subscriber"):
            del self.subscriber

    # --- messages out

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
        """Encode and send. `entry`: the exchange (if None, one that only this connection knows)."""
        packet_id = 0
        if qos:
            if entry is None:
                entry = Inflight(None, b"", message.position, qos)
            packet_id = self._enter(entry)
        subscriber = self.subscriber
        write_buffer = subscriber.write_buffer
        if write_buffer.aliases is None or qos == 2:  # MQTT.js (5.16) forgets the topic of an aliased message of QoS 2
            head, tail = message.parts(write_buffer.version, qos, retain, dup, identifiers, now_ms)
        else:
            head, tail = self._aliased_parts(write_buffer.aliases, message, qos, retain, dup, identifiers, now_ms)
        if write_buffer.maximum_packet_size and self._is_oversized(head, tail):
            if entry is not None:
                self._complete(packet_id, entry)
            return
        subscriber.counters.messages_sent += 1
        data = head + _PACKET_IDS[packet_id] + tail if qos else head
        if self.staging or (entry is not None and entry.waits_for_record and subscriber.durable):
            self._stage(packet_id, entry, data)
        else:
            write_buffer.send(data)

    def reserve(self, entry: Inflight) -> int:
        """Reserve a packet id for an exchange that begins later. No acknowledgement is for it before that."""
        entry.phase = RESERVED
        return self._enter(entry)

    def _enter(self, entry: Inflight) -> int:
        """Give an exchange a packet id. It counts against the window from here on."""
        packet_id = self._allocate(entry)
        if self.inflight is _NO_INFLIGHT:
            self.inflight = {}
        self.inflight[packet_id] = entry
        self.in_window += 1
        return packet_id

    def send_reserved(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        """Send a shared subscription's message of QoS 2. The log has it as this session's own by now."""
        entry.phase = SENT
        entry.leased = False
        if self.subscriber.durable:
            self._note_recorded(entry)
        write_buffer = self.subscriber.write_buffer
        head, tail = message.parts(write_buffer.version, 2, retain, False, identifiers, now_ms)
        if write_buffer.maximum_packet_size and self._is_oversized(head, tail):
            self._complete(packet_id, entry)
            return
        self.subscriber.counters.messages_sent += 1
        write_buffer.send(head + _PACKET_IDS[packet_id] + tail)

    def cancel_reserved(self, packet_id: int) -> None:
        """Free the packet id of a reserved exchange that does not begin."""
        if packet_id in self.inflight:
            del self.inflight[packet_id]
            self.in_window -= 1
            if self.in_window <= self.window >> 1:
                self.subscriber.room_available()

    def remove_leased(self) -> list[Inflight]:
        """Remove what is leased from shared subscriptions: the connection has ended."""
        leased = {packet_id: entry for packet_id, entry in self.inflight.items() if entry.leased}
        for packet_id in leased:
            del self.inflight[packet_id]
        return list(leased.values())

    def _stage(self, packet_id: int, entry: Inflight | None, data: bytes) -> None:
        """Send when a record is committed: of this packet id, or of one that this packet must not overtake."""
        if self._staged is _NO_STAGED:
            self._staged = []
        self._staged.append(StagedMessage(packet_id, entry, data))
        self.staging += 1
        self.subscriber.note_change(True)

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
        limit = self.subscriber.write_buffer.maximum_packet_size
        if not limit or len(head) + len(tail) + 2 + _ALIAS_ROOM <= limit:
            alias = aliases.give(message.topic)
            if alias:  # a message that is left out would leave the client without the name
                return message.naming_parts(qos, retain, dup, identifiers, now_ms, alias)
        return head, tail

    def _is_oversized(self, head: bytes, tail: bytes) -> bool:
        """Whether the packet is too large for the client: not sent, but counted as sent (MQTT-3.1.2-24, -25)."""
        limit = self.subscriber.write_buffer.maximum_packet_size
        if not limit or len(head) + len(tail) + (2 if tail else 0) <= limit:
            return False
        self.subscriber.dropped().add_oversized()
        return True

    # --- packet ids

    def _allocate(self, entry: Inflight) -> int:
        """A packet id that is not in use; the window is smaller than their number (MQTT-2.2.1-3)."""
        inflight = self.inflight
        cursor = entry.cursor
        if cursor is not None:
            packet_id = cursor.packet_id(entry.offset)
            if packet_id not in inflight and (
                not self._marked or entry.offset < cursor.sent_before or not self._may_have_been_used(packet_id)
            ):
                return packet_id
            entry.waits_for_record = True
        packet_id = self._next_packet_id
        avoids = _MOST_AVOIDED
        while True:
            packet_id += 1
            if packet_id > 0xFFFF:
                packet_id = 1
            if packet_id not in inflight:
                avoids -= 1
                if avoids < 0 or not self._marked or not self._may_have_been_used(packet_id):
                    self._next_packet_id = packet_id
                    return packet_id

    def _may_have_been_used(self, packet_id: int) -> bool:
        """Whether a node that died may have sent a message with it that a cursor has yet to read (MQTT-4.4.0-1)."""
        self._marked = [cursor for cursor in self._marked if cursor.next < cursor.sent_before]
        return any(cursor.may_have_used(packet_id) for cursor in self._marked)

    def mark_sent_before(self, cursors: list[QueueCursor]) -> None:
        """Keep the packet ids free that a node that died may have used for messages of these cursors."""
        self._marked = [cursor for cursor in cursors if cursor.next < cursor.sent_before]

    # --- exchanges of an earlier connection

    def restore(self, packet_id: int, entry: Inflight) -> None:
        """Restore an exchange. `send_again` or `resend_release` follows when there is room."""
        entry.phase = WAITING
        self._note_recorded(entry)
        if self.inflight is _NO_INFLIGHT:
            self.inflight = {}
        self.inflight[packet_id] = entry

    def queue_resends(self, packet_ids: list[int]) -> None:
        """Have these exchanges sent again before everything else."""
        if packet_ids:
            if self.resends is _NO_RESENDS:
                self.resends = deque()
            self.resends.extend(packet_ids)

    def end_resend(self) -> None:
        """The first exchange that is to be sent again is done with."""
        self.resends.popleft()

    def waiting(self, packet_id: int) -> Inflight | None:
        """The restored exchange whose message is still to be sent again. None: it is over, or PUBREC has come."""
        entry = self.inflight.get(packet_id)
        return entry if entry is not None and entry.phase == WAITING and not entry.released else None

    def resend_without(self, cursor: QueueCursor) -> bool:
        """Its subscription has ended: queue what it was to send again. Whether there is any."""
        waiting = [packet_id for _, packet_id in sorted(cursor.resend.items()) if self.waiting(packet_id) is not None]
        cursor.resend = {}
        self.queue_resends(waiting)
        return bool(waiting)

    def send_again(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        """Send again under the old packet id, with DUP (MQTT-4.4.0-1)."""
        head, tail = message.parts(self.subscriber.write_buffer.version, entry.qos, retain, True, identifiers, now_ms)
        if entry.qos == 0 or self._is_oversized(head, tail):
            self.forget(packet_id, entry)
            return
        entry.phase = SENT
        self.in_window += 1
        self.subscriber.counters.messages_sent += 1
        data = head + _PACKET_IDS[packet_id] + tail
        if self.staging:
            self._stage(packet_id, None, data)
        else:
            self.subscriber.write_buffer.send(data)

    def resend_release(self, packet_id: int, entry: Inflight) -> None:
        """Send PUBREL again (MQTT-4.4.0-1)."""
        entry.qos = 2
        entry.phase = RELEASED
        self.in_window += 1
        self._send_pubrel(packet_id, ReasonCode.SUCCESS)

    def forget(self, packet_id: int, entry: Inflight) -> None:
        """Do not send the message of a restored exchange again: retention has removed it, or the client may not read
        it. With QoS 2 the client may have received it: PUBREL ends the exchange, else it would take the next message
        with this packet id for the same one."""
        entry.phase = SENT
        self.in_window += 1
        if entry.qos == 2:
            self.pubrec(packet_id, ReasonCode.SUCCESS)
        else:
            self._complete(packet_id, entry)

    def forget_lost(self, packet_ids: list[int]) -> None:
        """Forget the restored exchanges among these, whose messages are gone from the log."""
        for packet_id in packet_ids:
            entry = self.waiting(packet_id)
            if entry is not None:
                self.forget(packet_id, entry)
        self.subscriber.note_change(False)

    def detach(self, filters: set[bytes]) -> None:
        """These subscriptions have ended, and no cursor reads their messages again: the packet ids are free as soon as
        the exchanges are over."""
        for entry in self.inflight.values():
            if entry.cursor is not None and entry.topic_filter in filters and not entry.leased:
                entry.cursor = None

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
        """PUBREC. A failure ends the exchange (MQTT-4.3.3); else PUBREL goes out, once recorded. False: the packet id
        belongs to a QoS 1 exchange."""
        entry = self.inflight.get(packet_id)
        if entry is None:
            if reason >= 0x80:
                return True  # the client has no exchange that a PUBREL would end
            self._send_pubrel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            return True
        if entry.phase >= COMPLETED:
            return True
        if entry.qos != 2:
            return False
        if reason >= 0x80:
            self._complete(packet_id, entry)
        elif entry.phase == SENT:
            entry.phase = RELEASED
            if self.subscriber.durable:
                if self._received is _NO_PACKET_IDS:
                    self._received = []
                self._received.append(packet_id)
                self.subscriber.note_change(True)
            else:
                self._send_pubrel(packet_id, ReasonCode.SUCCESS)
        elif entry.phase == RELEASED and packet_id not in self._received:
            self._send_pubrel(packet_id, ReasonCode.SUCCESS)
        return True

    def pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP. False: the packet id belongs to a QoS 1 exchange, or to one whose PUBREC has not come
        (MQTT-4.13.1-1)."""
        entry = self.inflight.get(packet_id)
        if entry is None or entry.phase >= COMPLETED:
            return True
        if entry.qos != 2 or entry.phase == SENT:
            return False
        if entry.phase == RELEASED:
            self._complete(packet_id, entry)
        return True

    def _send_pubrel(self, packet_id: int, reason: ReasonCode) -> None:
        write_buffer = self.subscriber.write_buffer
        write_buffer.send(pubrel(write_buffer.version, packet_id, reason))

    def _complete(self, packet_id: int, entry: Inflight) -> None:
        self.in_window -= 1
        commit_is_due = entry.acknowledged()
        if entry.recorded:
            # The record of the packet id goes only together with a cursor that has passed the message:
            # until then a crash must still know that it was delivered.
            entry.phase = COMPLETED
        else:
            del self.inflight[packet_id]
        if self.in_window <= self.window >> 1:
            self.subscriber.room_available()
        if entry.recorded or entry.cursor is not None:
            self.subscriber.note_change(commit_is_due)

    # --- records

    def _note_recorded(self, entry: Inflight) -> None:
        """The log has the packet id, or is about to have it."""
        if not entry.recorded:
            entry.recorded = True
            self.recorded += 1

    def pop_staged(self) -> tuple[list[StagedMessage], list[int]]:
        """Remove and return what waits for the record that is written now: messages, and packet ids of PUBRECs. The
        packet ids count as recorded from here on. `send_staged` follows."""
        staged, received = self._staged, self._received
        self._staged, self._received = _NO_STAGED, _NO_PACKET_IDS
        for waiting in staged:
            if waiting.entry is not None and waiting.entry.waits_for_record:
                self._note_recorded(waiting.entry)
        return staged, received

    def send_staged(self, staged: list[StagedMessage], received: list[int]) -> None:
        """The record is in the log: send what has waited for it."""
        self.staging -= len(staged)
        for waiting in staged:
            self.subscriber.write_buffer.send(waiting.data)
        for packet_id in received:
            self._send_pubrel(packet_id, ReasonCode.SUCCESS)

    def pop_unrecorded(self, filters: set[bytes]) -> list[tuple[int, bytes, int, int]]:
        """The messages in flight by these filters that the log does not have, to be recorded now."""
        found: list[tuple[int, bytes, int, int]] = []
        for packet_id, entry in self.inflight.items():
            if entry.phase == SENT and not entry.recorded and not entry.leased and entry.topic_filter in filters:
                self._note_recorded(entry)
                found.append((packet_id, entry.topic_filter, entry.offset, entry.qos))
        return found

    def pop_completed(self) -> list[int]:
        """Free and return the recorded packet ids whose exchanges are over and whose cursors have passed them."""
        if not self.recorded:
            return []
        completed = [
            packet_id
            for packet_id, entry in self.inflight.items()
            if entry.phase == COMPLETED and (entry.cursor is None or entry.cursor.is_settled(entry.offset))
        ]
        for packet_id in completed:
            del self.inflight[packet_id]
        self.recorded -= len(completed)
        return completed

    def at_close(self) -> tuple[list[tuple[int, bytes, int, int]], list[int], list[int]]:
        """What the log must have when the connection ends, beside exact cursors: messages sent, as (packet id, filter,
        offset, QoS), packet ids whose PUBREC came, and packet ids that are free."""
        sent: list[tuple[int, bytes, int, int]] = []
        completed: list[int] = []
        for packet_id, entry in self.inflight.items():
            if entry.phase == COMPLETED:
                if entry.cursor is None or entry.cursor.is_past(entry.offset):
                    completed.append(packet_id)
            elif entry.phase == SENT and not entry.leased:
                sent.append((packet_id, entry.topic_filter, entry.offset, entry.qos))
        return sent, self._received, completed
