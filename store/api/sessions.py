"""Durable sessions with their subscriptions and exchanges, and wills."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class StoredSubscription:
    """One durable subscription of a session with its committed cursor."""

    topic_filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int  # 0: none
    start_position: int  # log position of the record that made it: older messages are not its
    offset: int  # first offset of its queue that is not acknowledged
    # Of one that began in the past, until all that is older than itself is acknowledged; -1 else. For a topic: the
    # first offset of what is not older. For a wildcard filter, whose queue has nothing older: the log position to read
    # on from. To `store.control.subscribed` it says where to begin: an offset of the topic's queue, or a position.
    replay: int = -1
    # Offsets below it, and all of a wildcard filter's replay, may have been sent by a node that died; -1: nothing was.
    sent_before: int = -1


@dataclass(slots=True)
class Outbound:
    """A message on its way to a durable session: which packet id carries which queue entry."""

    packet_id: int
    # The subscription whose cursor sent it, and the offset in its queue. For a message of a wildcard filter's replay:
    # `matcher.reserved.replay_name` of the filter, and the position of its record; of a retained value: b"", and that.
    topic_filter: bytes
    offset: int
    released: bool  # PUBREC came: PUBREL is owed, the message itself must not be sent again
    qos: int  # at which it was sent


@dataclass(slots=True)
class PendingRetained:
    """Retained values that a subscription has asked for and not yet got. They are sent in the order of the topics'
    levels."""

    topic_filter: bytes
    since: int  # log position: younger values come as the messages they are
    after: bytes | None  # those up to this topic, in the order of levels, were sent; None: none was


@dataclass(slots=True)
class SessionState:
    """A durable session as the view has it."""

    client_id: bytes
    epoch: int
    expiry_interval: int  # seconds; 0xFFFFFFFF: never
    closed_at: int  # ms; 0 while a node holds it open
    subscriptions: list[StoredSubscription] = field(default_factory=list)
    inbound: list[int] = field(default_factory=list)  # QoS 2 packet ids received and not released
    outbound: list[Outbound] = field(default_factory=list)
    user_name: bytes = b""  # whose it is: of the last connection; b"": nobody's in particular
    pending_retained: list[PendingRetained] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class StoredWill:
    """The will of a connection: to be sent when that has ended in another way than by a DISCONNECT that drops it."""

    client_id: bytes
    delay_interval: int  # seconds
    due_ms: int  # 0: no end of the connection is recorded
    topic: bytes
    flags: int  # QoS and RETAIN as in a frame; that of its message has FLAG_WILL as well
    properties: bytes  # MQTT 5 block, no length prefix
    payload: bytes
    epoch: int = 0  # of the connection
    user_name: bytes = b""  # of who set it; b"": nobody in particular
    is_account: bool = False  # that is the name of a user, who may have been removed since
    is_allowed: bool = True  # what no rule speaks of may be published where it came from
    gateway: bytes = b""  # that has the connection; b"": the process of the store itself


class SessionStore(Protocol):
    """Reads of durable sessions and of wills."""

    async def session(self, client_id: bytes) -> SessionState | None: ...

    async def session_row(self, client_id: bytes) -> SessionState | None:
        """The session without what it has (subscriptions, packet ids, what is owed to it): one row to read."""

    async def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, StoredSubscription]:
        """The session's subscriptions with these filters, by filter, at a cost that does not grow with the others."""

    async def sessions(self, after: bytes | None, limit: int) -> list[bytes]:
        """Client ids of durable sessions, sorted, behind `after`."""

    async def sessions_of(self, user_name: bytes, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Client ids of a user's durable sessions among the next thousands behind `after`, sorted, and where to go on
        behind; None: that was all."""

    def session_count(self) -> int:
        """How many durable sessions there are."""

    async def sessions_open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        """Sessions that no SESSION_CLOSED has followed, sorted, behind `after`: (client id, epoch, expiry interval,
        gateway that has the connection, or nothing for the process of the store itself)."""

    async def sessions_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        """Closed sessions whose expiry has come, as (client id, epoch)."""

    async def will(self, client_id: bytes) -> StoredWill | None: ...

    async def wills(self, after: bytes | None, limit: int) -> list[StoredWill]:
        """All wills, sorted by client id, behind that of the client `after`."""

    async def wills_waiting(self, limit: int) -> list[tuple[bytes, int]]:
        """Wills whose connection is known to have ended, as (client id, due in ms), the next first."""
