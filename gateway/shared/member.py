"""A session's membership in a shared subscription, and the messages that it has of it.

A message with QoS 1 is leased: the group takes it back where the connection ends before PUBACK comes. One with QoS 2
is handed over before it is sent: from then on it is the session's own (MQTT-4.8.2-4, -5).
"""

from typing import TYPE_CHECKING, Final

from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.qos_exchanges import MAX_HELD
from gateway.session.session import Session
from gateway.session.subscription import SharedMembership

if TYPE_CHECKING:
    from gateway.shared.group import Share

ANY_SIZE: Final = -1


class Member(SharedMembership):
    """One subscriber of a group."""

    __slots__ = ("form", "has_left", "heard", "is_ready", "is_silent", "limit", "maximum", "out", "session", "share")

    def __init__(self, share: "Share", session: Session, limit: int) -> None:
        super().__init__()
        self.share = share
        self.session = session
        self.limit = limit  # of messages that it has of the group at a time
        self.maximum: int = session.write_buffer.maximum_packet_size  # 0: it takes packets of any size
        self.form: int = ANY_SIZE  # else: what a message is made of for it; the same has the same size
        self.out: int = 0  # of those: with QoS 2 until the exchange is over, whosever the message is by then
        self.heard: int = 0  # the round in which it acknowledged last, or was given the first after a while
        self.is_ready: bool = False  # it stands in line for messages
        self.is_silent: bool = False  # it kept messages too long: it gets no others before it acknowledges one
        self.has_left: bool = False

    @property
    def has_room(self) -> bool:
        session = self.session
        return (
            self.out < self.limit
            and session.has_room
            and not self.is_silent
            and not self.has_left
            and not session.closed
            and len(session.inflight) < MAX_HELD
        )

    @property
    def room(self) -> int:
        """Messages that its windows have room for."""
        return min(self.limit - self.out, self.session.window - self.session.in_window)

    def grant(self, qos: int, identifiers: tuple[int, ...], retain_as_published: bool) -> None:
        """What its SUBSCRIBE says. Only for who stands in no line."""
        self.qos = qos
        self.identifiers = identifiers
        self.retain_as_published = retain_as_published
        if self.maximum:
            size = sum([(each.bit_length() + 6) // 7 for each in identifiers])
            self.form = (size * 2 + (1 if qos else 0)) * 2 + (1 if self.session.write_buffer.version == 5 else 0)

    def size_of(self, message: Message, now_ms: int) -> int:
        """The bytes of the message, as it is sent to this member and to all of the same form."""
        qos = min(self.qos, message.qos)
        head, tail = message.parts(self.session.write_buffer.version, qos, False, False, self.identifiers, now_ms)
        return len(head) + len(tail) + (2 if qos else 0)

    def takes(self, message: Message, now_ms: int) -> bool:
        """Whether the message is not too large for it (MQTT-3.1.2-24)."""
        return not self.maximum or self.size_of(message, now_ms) <= self.maximum

    def resume(self) -> None:
        if not self.is_ready:
            self.share.line_up(self)


class Leased(Inflight):
    """A message that a group leased to a member."""

    __slots__ = ("deliveries", "is_counted", "is_held", "member", "renewed")

    def __init__(self, member: Member, offset: int, qos: int, deliveries: int, now: int) -> None:
        super().__init__(None, member.share.name, offset, qos)
        self.leased = True
        self.is_held: bool = True  # the group has it there: neither done, nor another's, nor the session's own
        self.is_counted: bool = True  # by `member.out`
        self.member = member
        self.deliveries = deliveries
        self.renewed: int = now  # round in which its lease began

    def uncount(self) -> None:
        """The member has one message less."""
        if self.is_counted:
            self.is_counted = False
            self.member.out -= 1

    def acknowledged(self) -> None:
        self.member.share.acknowledged(self)
