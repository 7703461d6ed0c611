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
    start_position: int  # log position of its SUBSCRIBED record; it gets no older messages
    offset: int  # first offset of its queue that is not acknowledged
    # Of a subscription that began in the past, until all messages older than itself are acknowledged; otherwise -1. For
    # a topic it is the first offset that is not older. For a wildcard filter, whose queue has no older messages, it is
    # the log position to continue from. `store.control.subscribed` reads it as the place to begin: an offset of the
    # topic's queue, or a log position.
    replay: int = -1
    # A node that died may have sent the messages below this offset, and all of a wildcard filter's replay; -1: none.
    sent_before: int = -1


@dataclass(slots=True)
class Outbound:
    """A message in flight to a durable session: its packet id and its place."""

    packet_id: int
    # The subscription that sent it; `offset` is in its queue. In two cases `offset` is a log position: for a message of
    # a wildcard filter's replay, with `matcher.reserved.replay_name` of the filter, and for a retained value, with b"".
    topic_filter: bytes
    offset: int
    released: bool  # PUBREC came: PUBREL has to be sent, and the message must not be sent again
    qos: int  # with which it was sent


@dataclass(slots=True)
class PendingRetained:
    """A subscription's retained values that are still to be sent, in the order of the topics' levels."""

    topic_filter: bytes
    since: int  # log position; newer values are delivered as messages
    after: bytes | None  # values up to this topic, in the order of levels, were sent; None: no value was


@dataclass(slots=True)
class SessionState:
    """A durable session as of the last commit."""

    client_id: bytes
    epoch: int
    expiry_interval: int  # seconds; 0xFFFFFFFF: never
    closed_at: int  # ms; 0 while it has a connection
    subscriptions: list[StoredSubscription] = field(default_factory=list)
    inbound: list[int] = field(default_factory=list)  # QoS 2 packet ids received and not released
    outbound: list[Outbound] = field(default_factory=list)
    user_name: bytes = b""  # user of the last connection; b"": none
    pending_retained: list[PendingRetained] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class StoredWill:
    """The will of a connection. It is sent when the connection ends without a DISCONNECT that drops it."""

    client_id: bytes
    delay_interval: int  # seconds
    due_ms: int  # 0: the end of the connection is not recorded
    topic: bytes
    flags: int  # QoS and RETAIN as in a frame; the frame of the message has FLAG_WILL as well
    properties: bytes  # MQTT 5 property block without its length
    payload: bytes
    epoch: int = 0  # of the connection
    user_name: bytes = b""  # user of the connection; b"": none
    is_account: bool = False  # `user_name` is a user of the store, who may have been removed since
    is_allowed: bool = True  # whether topics that no rule matches may be published to
    gateway: bytes = b""  # that has the connection; b"": the process of the store itself
    source: bytes = b""  # address of the client, which rules may name


class SessionStore(Protocol):
    """Reads of durable sessions and of wills."""

    async def session(self, client_id: bytes) -> SessionState | None: ...

    async def session_row(self, client_id: bytes) -> SessionState | None:
        """The session without its subscriptions, packet ids and retained values. This reads one row."""

    async def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, StoredSubscription]:
        """The session's subscriptions with these filters, by filter. The cost does not grow with other ones."""

    async def sessions(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` client ids of durable sessions, sorted, from after `after` on."""

    async def sessions_of(self, user_name: bytes, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Search the next thousands of durable sessions after `after` for a user's. Returns their client ids, sorted,
        and the `after` to continue with; None: there are no more sessions."""

    async def session_count_of(self, user_name: bytes) -> int:
        """The number of sessions of a user."""

    def session_count(self) -> int:
        """The number of durable sessions."""

    async def sessions_open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        """Up to `limit` sessions with a connection, sorted, from after `after` on: (client id, epoch, expiry interval,
        gateway). The gateway is b"" for the process of the store itself."""

    async def sessions_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` closed sessions that have expired, as (client id, epoch)."""

    async def will(self, client_id: bytes) -> StoredWill | None: ...

    async def wills(self, after: bytes | None, limit: int) -> list[StoredWill]:
        """Up to `limit` wills, sorted by client id, from after the client `after` on."""

    async def wills_waiting(self, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` wills whose connection has ended, as (client id, due time in ms), those due next first."""
