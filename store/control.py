"""The control records: all state that is not a message, as records of the same log.

Each kind is a class here. Its fields are a MessagePack map in the frame's payload; fields with their default value are
left out. The frame's topic is the subject: a client id, the name of a group, and so on. `frame` makes the unsealed
frame, and `parse` reads a payload. The classes say what a record means; `store.views` folds it.

Source: `docs/format.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Self, TypeVar

import msgspec

import record
from record.layout import Kind
from store.api import DeadLetterReason, PendingRetained, Rule, StoredSubscription, User

MAX_REACH: Final = 65_536  # offsets: the default of `SessionOpened.reach`

MOST_RUNS: Final = 128  # that one record of a group names

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.decode


Runs = TypeVar("Runs")


class ControlRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The payload of a control record."""

    kind: ClassVar[Kind]

    def frame(self, subject: bytes = b"", publisher: bytes = b"") -> bytes:
        """Return the unsealed frame of this record."""
        return record.frame(int(self.kind), 0, 0, subject, publisher, b"", _encode(self))

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Read a payload. Raises `msgspec.MsgspecError`."""
        return _decode(payload, type=cls)


# --- sessions


class SessionOpened(ControlRecord, frozen=True):
    """A node has the session now. Ends the client's will. Ignored when the view has a newer epoch."""

    kind = Kind.SESSION_OPENED
    epoch: int
    expiry: int  # seconds; 0xFFFFFFFF: never
    clean: bool = False  # drop all older state of the client
    # Each subscription sends at most this many offsets, from its committed one on. So the log knows what a node that
    # died may have sent.
    reach: int = MAX_REACH
    user: bytes = b""  # owner of the session; b"": none
    gateway: bytes = b""  # that has the connection; b"": the process of the store itself


class SessionClosed(ControlRecord, frozen=True):
    """The connection has ended. The session expires from `at_ms` on; with an expiry of 0 it ends. Ignored when the view
    has a newer epoch."""

    kind = Kind.SESSION_CLOSED
    epoch: int
    expiry: int  # seconds; 0xFFFFFFFF: never
    at_ms: int


class SessionLost(ControlRecord, frozen=True):
    """Closes the session of a node that died. It is unknown what that node sent last. Messages within the reach of the
    connection may have been sent, and are sent again."""

    kind = Kind.SESSION_LOST
    epoch: int
    expiry: int  # seconds; 0xFFFFFFFF: never
    at_ms: int


class SessionEnded(ControlRecord, frozen=True):
    """The session and all its state are removed. Ignored when the view has a newer epoch."""

    kind = Kind.SESSION_ENDED
    epoch: int


class SubscribedFilter(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One subscription of `Subscribed`."""

    filter: bytes
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0  # 0: none
    begin: int = -1  # an offset of the topic's queue; with wildcards, a position of the log; -1: the queue's end


class Subscribed(ControlRecord, frozen=True):
    """Subscriptions of the session. A new one begins at the current end of its queue, or at `begin`. An existing one
    keeps its cursor and its start, and gets the new options."""

    kind = Kind.SUBSCRIBED
    subscriptions: Sequence[SubscribedFilter]


class Unsubscribed(ControlRecord, frozen=True):
    """Subscriptions that the session drops, with their cursors."""

    kind = Kind.UNSUBSCRIBED
    filters: Sequence[bytes]


class CursorsCommitted(ControlRecord, frozen=True):
    """The first offset that is not acknowledged, by filter. For the replay of a wildcard filter, the name is `$replay/`
    and the filter, and the place is a log position. A cursor never moves back."""

    kind = Kind.CURSORS_COMMITTED
    offsets: Mapping[bytes, int]


class InboundReleased(ControlRecord, frozen=True):
    """QoS 2 packet ids of the client that are free again, because PUBREL came (MQTT-4.3.3)."""

    kind = Kind.INBOUND_RELEASED
    packet_ids: Sequence[int]


class OutboundChanged(ControlRecord, frozen=True):
    """Exchanges with the client, folded in the order of the fields. A message of a wildcard filter's replay has
    `$replay/` and the filter as its filter, and the position of its record as its offset."""

    kind = Kind.OUTBOUND_CHANGED
    sent: Sequence[tuple[int, bytes, int, int]] = ()  # (packet id, filter, offset, QoS)
    received: Sequence[int] = ()  # packet ids for which PUBREC came
    completed: Sequence[int] = ()  # packet ids that are free again


class RetainedSent(ControlRecord, frozen=True):
    """Retained values were sent to the client, and what is pending for it now."""

    kind = Kind.RETAINED_SENT
    sent: Sequence[tuple[int, int, int]] = ()  # (packet id, position, QoS) of those that are not acknowledged
    pending: Sequence[PendingRetained] = ()  # in place of what was pending for the same filter
    finished: Sequence[bytes] = ()  # filters for which nothing is pending any more


# --- wills


class WillSet(ControlRecord, frozen=True):
    """The client's connection has this will, in place of an older one. Ignored when the view has a session of a newer
    epoch.

    After the end of the connection the will waits for `delay`, or for the end of the session if that is sooner. The
    message with FLAG_WILL ends it. Whether the user may publish it is decided when it is sent."""

    kind = Kind.WILL_SET
    epoch: int
    delay: int  # seconds
    topic: bytes
    flags: int  # of the message: its QoS, RETAIN
    properties: bytes = b""
    payload: bytes = b""
    user: bytes = b""  # of the connection; b"": none
    is_account: bool = False  # `user` is an account of this store, and the will is not sent once that is removed
    is_allowed: bool = True  # whether topics that no rule matches may be published to
    gateway: bytes = b""  # that has the connection; b"": the process of the store itself
    source: bytes = b""  # address of the client, which rules may name


class WillDropped(ControlRecord, frozen=True):
    """The client's will is not sent. Ignored when the will is of a newer epoch."""

    kind = Kind.WILL_DROPPED
    epoch: int


# --- held messages


class TimersFired(ControlRecord, frozen=True):
    """Delayed messages, by handle, enter their queues in this order. A handle that is not held does nothing."""

    kind = Kind.TIMERS_FIRED
    handles: Sequence[int]


class TimersRecalled(ControlRecord, frozen=True):
    """Delayed messages, by handle, are never delivered."""

    kind = Kind.TIMERS_RECALLED
    handles: Sequence[int]


class TransactionsEnded(ControlRecord, frozen=True):
    """Half messages, by handle. Those that are committed enter their queues in this order, or wait for their time if
    they are delayed as well; those that are rolled back are never delivered."""

    kind = Kind.TRANSACTIONS_ENDED
    committed: Sequence[int] = ()
    rolled_back: Sequence[int] = ()


class TransactionsChecked(ControlRecord, frozen=True):
    """The producers of these half messages, by handle, were asked for their outcome, and are asked again next at
    `next_check_ms`."""

    kind = Kind.TRANSACTIONS_CHECKED
    next_check_ms: int
    handles: Sequence[int]


# --- groups


class GroupOffsetsCommitted(ControlRecord, frozen=True):
    """The next offset of a pull group by partition of a parent topic. It may go back: a group may seek."""

    kind = Kind.GROUP_OFFSETS_COMMITTED
    parent: bytes
    offsets: Mapping[int, int]
    user: bytes = b""  # of the caller, and the creator of a group that begins with this record; b"": none


class Popped(ControlRecord, frozen=True):
    """Messages are leased to a member of the group, which is the frame's publisher. Older messages of a queue that were
    never leased are finished; a run of count 0 only moves the group past them. A negative count is that of messages
    that the group is moved past and that are not finished: they wait for an older message of their ordering key."""

    kind = Kind.POPPED
    until_ms: int
    queues: dict[bytes, list[tuple[int, int]]]  # by queue: first offset, count


class Settled(ControlRecord, frozen=True):
    """Leased messages are finished (`done`), or leased out again from a time on (`again`), which extends a lease or
    gives it back. A negative time is its absolute value, and the lease does not count as a delivery."""

    kind = Kind.SETTLED
    done: dict[bytes, list[tuple[int, int]]] = {}  # by queue: first offset, count
    again: dict[bytes, list[tuple[int, int, int]]] = {}  # by queue: first offset, count, at ms


class DeadLettered(ControlRecord, frozen=True):
    """Leased messages of a queue are finished, and enter the group's dead-letter queue in this order."""

    kind = Kind.DEAD_LETTERED
    queue: bytes
    offsets: Sequence[int]
    reason: DeadLetterReason = DeadLetterReason.LEASE_ENDED
    error: bytes = b""  # what the consumer said of the last failure


class GroupReset(ControlRecord, frozen=True):
    """The group begins these queues at these offsets, and its entries of them are removed."""

    kind = Kind.GROUP_RESET
    offsets: Mapping[bytes, int]  # by queue
    user: bytes = b""  # of the caller, and the creator of a group that begins with this record; b"": none


class GroupRemoved(ControlRecord, frozen=True):
    """The group is removed with its state. Its dead-letter queue stays."""

    kind = Kind.GROUP_REMOVED


class GroupPaused(ControlRecord, frozen=True):
    """The group is leased no messages from here on. Ignored when there is no such group, or when it is paused."""

    kind = Kind.GROUP_PAUSED
    by: bytes = b""  # user who paused it


class GroupResumed(ControlRecord, frozen=True):
    """The group is paused no longer."""

    kind = Kind.GROUP_RESUMED


# --- shared subscriptions


class ShareJoined(ControlRecord, frozen=True):
    """A gateway has members of a shared subscription whose sessions are not in the log. The group, which is named by
    the filter (`$share/…`), is kept for them until SHARE_LEFT."""

    kind = Kind.SHARE_JOINED
    gateway: bytes = b""  # b"": the process of the store itself


class ShareLeft(ControlRecord, frozen=True):
    """The gateway has no such members any more. A group without any member is removed."""

    kind = Kind.SHARE_LEFT
    gateway: bytes = b""


class ShareHandedOver(ControlRecord, frozen=True):
    """Leased messages of QoS 2 are exchanges of their member's session now, and are finished for the group
    (MQTT-4.8.2-4, -5)."""

    kind = Kind.SHARE_HANDED_OVER
    handed: Sequence[
        tuple[bytes, int, int]
    ]  # (client id, packet id, offset); packet id 0: the session is not in the log


# --- parent topics


class TopicPartitions(ControlRecord, frozen=True):
    """The parent topic has this many partitions from here on. Ignored when it has messages and as many or more."""

    kind = Kind.TOPIC_PARTITIONS
    count: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]


# --- accounts


class UserSet(ControlRecord, frozen=True):
    """The keys that verify a user's password (RFC 5802, section 3). The salt of the empty name is a secret from which
    the salts of unknown users are made."""

    kind = Kind.USER_SET
    iterations: int
    salt: bytes
    stored_key: bytes  # 32 bytes
    server_key: bytes  # 32 bytes


class UserRemoved(ControlRecord, frozen=True):
    """The user of this name is removed, with its rules and its state."""

    kind = Kind.USER_REMOVED


class RulesSet(ControlRecord, frozen=True):
    """The rules of a user, or of everybody (the empty name). They replace all earlier ones. The first rule that matches
    counts."""

    kind = Kind.RULES_SET
    rules: Sequence[Rule]


class UserChanged(ControlRecord, frozen=True):
    """The state of a user, in place of all of the earlier one."""

    kind = Kind.USER_CHANGED
    roles: Sequence[bytes] = ()
    is_super: bool = False
    is_disabled: bool = False


class RoleSet(ControlRecord, frozen=True):
    """A role, in place of an earlier one of its name. Its rules count before those of the roles that it inherits."""

    kind = Kind.ROLE_SET
    rules: Sequence[Rule] = ()
    inherits: Sequence[bytes] = ()


class RoleRemoved(ControlRecord, frozen=True):
    """The role of this name is removed."""

    kind = Kind.ROLE_REMOVED


class BanSet(ControlRecord, frozen=True):
    """A ban (`store.api.Ban`), in place of an earlier one of its target, which is the subject. It has begun with this
    record."""

    kind = Kind.BAN_SET
    until_ms: int = 0  # 0: no end
    by: bytes = b""
    reason: bytes = b""


class BanEnded(ControlRecord, frozen=True):
    """The ban of this target is removed. Ignored when `until_ms` is not 0 and the ban has another end."""

    kind = Kind.BAN_ENDED
    until_ms: int = 0


class AccessRequested(ControlRecord, frozen=True):
    """The user, who is the subject, asks for a rule."""

    kind = Kind.ACCESS_REQUESTED
    rule: Rule
    until_ms: int  # nobody has decided by then: it has expired
    reason: bytes = b""


class AccessDecided(ControlRecord, frozen=True):
    """A request of the user, who is the subject, is open no more. Ignored when it is not open. The rule, if it was
    approved, has a record of its own."""

    kind = Kind.ACCESS_DECIDED
    request: int  # position of its record
    outcome: int  # an `Outcome`
    by: bytes = b""
    reason: bytes = b""


# --- event rules


class EventRuleSet(ControlRecord, frozen=True):
    """An event rule (`store.api.EventRule`), in place of an earlier one of the same name, which is the subject. Its
    group begins each queue behind the newest message, or where `begins` says. A rule that was there keeps its place,
    unless its filters or `reads_parents` change or `restarts` is set: then its group is removed, and begins again."""

    kind = Kind.EVENT_RULE_SET
    filters: Sequence[bytes]
    reads_parents: bool = False
    definition: bytes = b""
    by: bytes = b""
    begins: Mapping[bytes, int] = {}
    restarts: bool = False


class EventRuleRemoved(ControlRecord, frozen=True):
    """The event rule is removed, with its group. The group's dead-letter queue stays."""

    kind = Kind.EVENT_RULE_REMOVED


# --- buckets


class EntryPut(ControlRecord, frozen=True):
    """The entry of a bucket has this value. The subject is the bucket, a slash and the key. Ignored when the key has
    another revision than expected, when there would be too many entries or bytes in all buckets, or when a change with
    the same token is known."""

    kind = Kind.ENTRY_PUT
    value: bytes = b""
    expected: int | None = None  # revision; 0: the key is not there; None: any
    token: bytes = b""  # under which the outcome is kept for a while; b"": it is not
    max_entries: int = 0  # of all buckets, by the settings of whoever appended this; 0: no limit
    max_bytes: int = 0  # of the buckets, keys and values of all entries; 0: no limit


class EntryRemoved(ControlRecord, frozen=True):
    """The entry of a bucket is removed. Ignored when the key has another revision than expected, when it is not there,
    or when a change with the same token is known."""

    kind = Kind.ENTRY_REMOVED
    expected: int | None = None
    token: bytes = b""


# --- producers and gateways


class Produced(ControlRecord, frozen=True):
    """The producer, which is a gateway process, appended the next `records` records as `sequence`."""

    kind = Kind.PRODUCED
    sequence: int
    records: int
    digest: int = 0  # of all that the producer had appended by then (64 bits, made by the producer); 0: none


class ProducerEnded(ControlRecord, frozen=True):
    """The producer has ended. Its name is never used again."""

    kind = Kind.PRODUCER_ENDED
    last: int | None = None  # position of its last PRODUCED: where it has another one, nothing changes


class GatewayJoined(ControlRecord, frozen=True):
    """A process of its own takes connections for the store. Its name is never used again."""

    kind = Kind.GATEWAY_JOINED


class GatewayLeft(ControlRecord, frozen=True):
    """The gateway has stopped, or is taken for dead, and what it had was ended."""

    kind = Kind.GATEWAY_LEFT


# --- the log itself


class LogTrimmed(ControlRecord, frozen=True):
    """From here on the log begins at `begin`, where a segment begins. Whoever folds the log removes the files of
    earlier segments later, at its own pace. A begin that is not behind the known one changes nothing."""

    kind = Kind.LOG_TRIMMED
    begin: int  # position
    begin_time: int  # ms: the store time of the log's first record then, or an earlier time if that is not known


class SegmentUploaded(ControlRecord, frozen=True):
    """An object store has the segment at `base`, in an object that was read back. Whoever folds the log may remove its
    own file of the segment. Ignored when the log begins behind `base`."""

    kind = Kind.SEGMENT_UPLOADED
    base: int  # position of its first byte
    end: int  # position behind its last record
    size: int  # bytes of the object
    name: str  # of the object, from the begin of the tier's address
    time_ms: int = 0  # store time of its first record; 0: it has none
    removed: Sequence[tuple[int, int]] = ()  # ranges [begin, end) of the segment that the object may lack


def subscribed(client_id: bytes, subscriptions: Sequence[StoredSubscription]) -> bytes:
    """Return the frame of `Subscribed`. The `replay` of a subscription with QoS above 0 is where it begins."""
    rows = [
        SubscribedFilter(
            each.topic_filter,
            each.qos,
            each.no_local,
            each.retain_as_published,
            each.retain_handling,
            each.identifier,
            each.replay if each.qos else -1,
        )
        for each in subscriptions
    ]
    return Subscribed(rows).frame(client_id)


def user_set(user: User) -> bytes:
    """Return the frame of `UserSet`."""
    return UserSet(user.iterations, user.salt, user.stored_key, user.server_key).frame(user.name)


def in_records(runs: dict[bytes, list[Runs]]) -> list[dict[bytes, list[Runs]]]:
    """Return runs by queue in portions of at most `MOST_RUNS`, one for each record."""
    if sum([len(some) for some in runs.values()]) <= MOST_RUNS:
        return [runs] if runs else []
    return [{queue: some[at : at + MOST_RUNS]} for queue, some in runs.items() for at in range(0, len(some), MOST_RUNS)]


# What the payload of each kind is.
RECORDS: Final[dict[int, type[ControlRecord]]] = {int(each.kind): each for each in ControlRecord.__subclasses__()}
