"""A session's membership in a shared subscription: its options, and how many more messages it takes."""

from collections.abc import Callable

from gateway.session.message_encoding import Message
from gateway.session.qos_exchanges import MAX_INFLIGHT
from gateway.session.session import Session
from gateway.session.subscription import SharedMembership


class SharedMember(SharedMembership):
    """One member of a group. `on_room` is called when it may have room again and is not in the ready queue."""

    __slots__ = ("has_left", "heard", "in_flight", "is_ready", "is_silent", "limit", "maximum", "on_room", "session")

    def __init__(self, session: Session, limit: int, on_room: Callable[["SharedMember"], None]) -> None:
        super().__init__()
        self.session = session
        self.limit = limit  # of `in_flight`
        self.on_room = on_room
        self.maximum: int = session.write_buffer.maximum_packet_size  # bytes; 0: no limit
        self.in_flight: int = 0  # messages of the group that the client has not acknowledged; QoS 2: not completed
        self.heard: int = 0  # the tick in which the client acknowledged last, or was given the first message
        self.is_ready: bool = False  # it is in the ready queue
        self.is_silent: bool = False  # it acknowledged nothing for too long and gets nothing until it does
        self.has_left: bool = False

    @property
    def room(self) -> int:
        """How many more messages it takes. 0: none for now."""
        session = self.session
        room = min(self.limit - self.in_flight, session.exchanges.window - session.exchanges.in_window)
        if (
            room <= 0
            or session.write_buffer.congested
            or self.is_silent
            or self.has_left
            or session.closed
            or session.exchanges.recorded >= MAX_INFLIGHT
        ):
            return 0
        return room

    def grant(self, qos: int, identifiers: tuple[int, ...], retain_as_published: bool) -> None:
        """Set the options of its last SUBSCRIBE."""
        self.qos = qos
        self.identifiers = identifiers
        self.retain_as_published = retain_as_published

    def accepts(self, message: Message, now_ms: int) -> bool:
        """Whether the packet is not larger than the client's maximum packet size (MQTT-3.1.2-24)."""
        if not self.maximum:
            return True
        qos = min(self.qos, message.qos)
        head, tail = message.parts(self.session.write_buffer.version, qos, False, False, self.identifiers, now_ms)
        return len(head) + len(tail) + (2 if qos else 0) <= self.maximum

    def resume(self) -> None:
        if not self.is_ready:
            self.on_room(self)
