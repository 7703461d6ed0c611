"""The control records: everything that is state and not a message, written as records of the same log.

A builder for each kind makes its unsealed frame; what the record does to the views is said there, how in
`store.views`. The subject (client id, or group) is the frame's topic, the fields are JSON in its payload, and
`parse_*` reads them back. Names are UTF-8, as MQTT wants them: others are a ValueError.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import orjson

import record
from record.layout import Kind
from store.api.sessions import Owed

MAX_REACH: Final = 65_536  # of a session that does not tell


class SubscriptionLike(Protocol):
    """What `subscribed` reads of a subscription (`store.api.Subscription` is one)."""

    @property
    def topic_filter(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def no_local(self) -> bool: ...
    @property
    def retain_as_published(self) -> bool: ...
    @property
    def retain_handling(self) -> int: ...
    @property
    def identifier(self) -> int: ...
    @property
    def replay(self) -> int: ...


class UserLike(Protocol):
    """What `user_set` reads of a user (`store.api.User` is one)."""

    @property
    def name(self) -> bytes: ...
    @property
    def salt(self) -> bytes: ...
    @property
    def iterations(self) -> int: ...
    @property
    def stored_key(self) -> bytes: ...
    @property
    def server_key(self) -> bytes: ...


class RuleLike(Protocol):
    """What `rules_set` reads of a rule (`store.api.Rule` is one)."""

    @property
    def allow(self) -> bool: ...
    @property
    def publish(self) -> bool: ...
    @property
    def subscribe(self) -> bool: ...
    @property
    def topic_filter(self) -> bytes: ...


def session_opened(
    client_id: bytes,
    epoch: int,
    expiry_interval: int,
    clean: bool,
    reach: int = MAX_REACH,
    user: bytes = b"",
    gateway: bytes = b"",
) -> bytes:
    """A node holds the session from here on. `expiry_interval` in seconds, 0xFFFFFFFF for never; `clean` drops all
    older state of the client, and its will goes in any case. `reach`: so many offsets, of each subscription, may be
    sent from the first one on that the log knows as not acknowledged. `user`: whose it is from here on, b"" for
    nobody in particular. `gateway`: the node's name, b"" for the process of the store itself. Ignored when the view has
    a newer epoch."""
    fields = [epoch, expiry_interval, clean, reach]
    whose = [user.decode(), *_named(gateway)] if user or gateway else []
    return _record(Kind.SESSION_OPENED, client_id, fields + whose)


def session_closed(client_id: bytes, epoch: int, expiry_interval: int, at_ms: int) -> bytes:
    """The connection is gone: the session's expiry runs from `at_ms`; an interval of 0 ends it. Ignored when the
    view has a newer epoch."""
    return _record(Kind.SESSION_CLOSED, client_id, [epoch, expiry_interval, at_ms])


def session_lost(client_id: bytes, epoch: int, expiry_interval: int, at_ms: int) -> bytes:
    """The same for a session whose node died: nobody knows what it sent last. What its subscriptions may have sent, by
    the reach of the connection, may be sent a second time from here on."""
    return _record(Kind.SESSION_LOST, client_id, [epoch, expiry_interval, at_ms])


def session_ended(client_id: bytes, epoch: int) -> bytes:
    """The session and all its state are gone. Ignored when the view has a newer epoch."""
    return _record(Kind.SESSION_ENDED, client_id, [epoch])


def subscribed(client_id: bytes, subscriptions: Sequence[SubscriptionLike]) -> bytes:
    """Filters of the session. A new one begins at its queue's end at this point of the log, or earlier: at an offset
    of the topic's queue, or, with wildcards, a position of the log (`replay`). One that is there keeps its cursor and
    start and takes the options."""
    rows = [
        [s.topic_filter.decode(), s.qos, s.no_local, s.retain_as_published, s.retain_handling, s.identifier]
        + ([s.replay] if s.replay >= 0 and s.qos else [])
        for s in subscriptions
    ]
    return _record(Kind.SUBSCRIBED, client_id, rows)


def unsubscribed(client_id: bytes, filters: Sequence[bytes]) -> bytes:
    """Filters that the session drops, with their cursors."""
    return _record(Kind.UNSUBSCRIBED, client_id, [name.decode() for name in filters])


def cursors_committed(client_id: bytes, offsets: Mapping[bytes, int]) -> bytes:
    """First offset not acknowledged, by filter; by `$replay/` and the filter, the first such place of its history in
    the log. A cursor never goes back."""
    return _record(Kind.CURSORS_COMMITTED, client_id, {name.decode(): offset for name, offset in offsets.items()})


def inbound_released(client_id: bytes, packet_ids: Sequence[int]) -> bytes:
    """QoS 2 packet ids of the client that are free again: PUBREL came (MQTT-4.3.3)."""
    return _record(Kind.INBOUND_RELEASED, client_id, list(packet_ids))


def outbound_changed(
    client_id: bytes,
    sent: Sequence[tuple[int, bytes, int, int]] = (),
    received: Sequence[int] = (),
    completed: Sequence[int] = (),
    owed: Sequence[Owed] = (),
    settled: Sequence[bytes] = (),
) -> bytes:
    """Exchanges with the client, folded in this order: messages sent as (packet id, filter, offset, QoS), packet ids
    whose PUBREC came, packet ids that are free again. And what retained values the client is owed, by filter, as of
    these: in place of what was said of the filter before (`owed`), or none any more (`settled`)."""
    rows = [[packet_id, name.decode(), offset, qos] for packet_id, name, offset, qos in sent]
    fields: list[list[Any]] = [rows, list(received), list(completed)]
    if owed or settled:
        ahead = [[topic.decode() for topic in each.ahead] for each in owed]
        after = [None if each.after is None else each.after.decode() for each in owed]
        debts = zip(owed, after, ahead, strict=True)
        fields.append([[each.topic_filter.decode(), each.since, *places] for each, *places in debts])
        fields[3] += [[topic_filter.decode()] for topic_filter in settled]
    return _record(Kind.OUTBOUND_CHANGED, client_id, fields)


def will_set(
    client_id: bytes,
    epoch: int,
    delay_s: int,
    topic: bytes,
    flags: int,
    properties: bytes,
    payload: bytes,
    user: bytes = b"",
    is_account: bool = False,
    is_allowed: bool = True,
    gateway: bytes = b"",
) -> bytes:
    """The client's connection has a will, instead of any older one. `flags` are those of the message: its QoS, RETAIN.
    A close of its session has it wait for `delay_s`, or for the end of the session if that comes first; the message
    with FLAG_WILL, when it is sent, ends it. `gateway`: who has the connection, as in `session_opened`. Ignored when
    the view has a session with a newer epoch.

    Whether it may be sent is asked again then: `user` is who set it (b"": nobody in particular), `is_account` that this
    is the name of a user who may be removed, `is_allowed` what counts for topics that no rule speaks of."""
    block, body = base64.b64encode(properties).decode(), base64.b64encode(payload).decode()
    fields = [epoch, delay_s, topic.decode(), flags, block, body]
    is_told = user or not is_allowed or gateway
    sender = [user.decode(), is_account, is_allowed, *_named(gateway)] if is_told else []
    return _record(Kind.WILL_SET, client_id, fields + sender)


def will_dropped(client_id: bytes, epoch: int) -> bytes:
    """The client's will is not sent. Ignored when it is of a newer epoch."""
    return _record(Kind.WILL_DROPPED, client_id, [epoch])


def produced(producer: bytes, sequence: int, records: int, digest: int = 0) -> bytes:
    """So many records behind this one are what the producer, a process of a gateway, appended as `sequence`. `digest`:
    of all that the work has given up to these (`store.api.Produced`), 64 bits; 0: there is none."""
    return _record(Kind.PRODUCED, producer, [sequence, records, digest] if digest else [sequence, records])


def producer_ended(producer: bytes, last: int = -1) -> bytes:
    """The producer appends nothing any more, and does not come back. `last`: the position of its last PRODUCED; where
    it has another one by now, nothing is said."""
    return _record(Kind.PRODUCER_ENDED, producer, [] if last < 0 else [last])


def group_offsets_committed(group: bytes, parent: bytes, offsets: Mapping[int, int]) -> bytes:
    """Next offset of a cloud group by partition of a parent topic. May go back: a group may seek."""
    return _record(Kind.GROUP_OFFSETS_COMMITTED, group, [parent.decode(), list(offsets.items())])


def timers_fired(handles: Sequence[int]) -> bytes:
    """These delayed messages enter their queues, in this order. A handle that is not held any more does nothing."""
    return _record(Kind.TIMERS_FIRED, b"", list(handles))


def timers_recalled(handles: Sequence[int]) -> bytes:
    """These delayed messages are never delivered."""
    return _record(Kind.TIMERS_RECALLED, b"", list(handles))


def transactions_ended(committed: Sequence[int], rolled_back: Sequence[int]) -> bytes:
    """Half messages by handle: the first enter their queues, in this order (one that is delayed as well waits for its
    time), the second are never delivered."""
    return _record(Kind.TRANSACTIONS_ENDED, b"", [list(committed), list(rolled_back)])


def transactions_checked(next_check_ms: int, handles: Sequence[int]) -> bytes:
    """Whoever sent these half messages was asked what became of them; the next time to ask is `next_check_ms`."""
    return _record(Kind.TRANSACTIONS_CHECKED, b"", [next_check_ms, list(handles)])


def popped(group: bytes, until_ms: int, runs: Mapping[bytes, Sequence[Sequence[int]]], member: bytes = b"") -> bytes:
    """Messages are leased to a member of the group until a time. `runs`: (first offset, count) by queue. Older messages
    of a queue that were never leased are finished; a run of count 0 only moves the group past them."""
    fields = {"until_ms": until_ms, "queues": {_queue_text(queue): some for queue, some in runs.items()}}
    return _record(Kind.POPPED, group, fields, member)


def settled(
    group: bytes,
    done: Mapping[bytes, Sequence[Sequence[int]]],
    again: Mapping[bytes, Sequence[Sequence[int]]],
    member: bytes = b"",
) -> bytes:
    """Leased messages are settled. `done`: finished, as (first offset, count) by queue. `again`: leased out again from
    a time on, as (first offset, count, at ms) by queue; this extends a lease or gives it back. A negative time is its
    absolute value, and the lease does not count as a delivery."""
    fields = {
        "done": {_queue_text(queue): some for queue, some in done.items()},
        "again": {_queue_text(queue): some for queue, some in again.items()},
    }
    return _record(Kind.SETTLED, group, fields, member)


def dead_lettered(group: bytes, queue: bytes, offsets: Sequence[int], member: bytes = b"") -> bytes:
    """Leased messages of a queue are finished, and enter the group's dead-letter queue in this order."""
    return _record(Kind.DEAD_LETTERED, group, [_queue_text(queue), list(offsets)], member)


def group_reset(group: bytes, offsets: Mapping[bytes, int]) -> bytes:
    """The group begins at these offsets of these queues; what it had of them is forgotten."""
    return _record(Kind.GROUP_RESET, group, {_queue_text(queue): offset for queue, offset in offsets.items()})


def group_removed(group: bytes) -> bytes:
    """The group is forgotten with all it had; its dead-letter queue stays."""
    return _record(Kind.GROUP_REMOVED, group, [])


def user_set(user: UserLike) -> bytes:
    """A user has this name and these proofs of the password from here on. The empty name is no user's: its salt is
    the secret from which those are made that unknown users seem to have."""
    fields = [user.iterations, user.salt.hex(), user.stored_key.hex(), user.server_key.hex()]
    return _record(Kind.USER_SET, user.name, fields)


def user_removed(name: bytes) -> bytes:
    """There is no such user any more, and no rules for one of this name."""
    return _record(Kind.USER_REMOVED, name, [])


def rules_set(name: bytes, rules: Sequence[RuleLike]) -> bytes:
    """What a user may do, or everybody (the empty name), in place of all rules there were. The first that fits
    counts."""
    rows = [[rule.allow, rule.publish, rule.subscribe, rule.topic_filter.decode()] for rule in rules]
    return _record(Kind.RULES_SET, name, rows)


def share_held(group: bytes, gateway: bytes = b"") -> bytes:
    """A node (`session_opened`) has members of a shared subscription whose sessions leave no trace in the log: until
    its SHARE_LEFT the group is kept for them. `group` is the filter as it was subscribed to, `$share/…`."""
    return _record(Kind.SHARE_HELD, group, _named(gateway))


def share_left(group: bytes, gateway: bytes = b"") -> bytes:
    """Those are gone. A group that no session in the log and no other node is a member of either is forgotten."""
    return _record(Kind.SHARE_LEFT, group, _named(gateway))


def share_handed(group: bytes, handed: Sequence[tuple[bytes, int, int]]) -> bytes:
    """Leased messages of QoS 2 are the affair of their member from here on, and finished for the group (MQTT-4.8.2-4,
    -5). As (client id, packet id, offset); without a packet id the session leaves no trace in the log."""
    return _record(Kind.SHARE_HANDED, group, [[client.decode(), *rest] for client, *rest in handed])


def gateway_joined(gateway: bytes) -> bytes:
    """A process of its own takes connections from here on. The name is of this one run: nobody else ever has it."""
    return _record(Kind.GATEWAY_JOINED, gateway, [])


def gateway_left(gateway: bytes) -> bytes:
    """It has stopped, or is taken for dead: what it had was seen to, and nothing that it says counts any more."""
    return _record(Kind.GATEWAY_LEFT, gateway, [])


class Opened(NamedTuple):
    epoch: int
    expiry_interval: int  # seconds
    clean: bool
    reach: int = MAX_REACH  # offsets
    user: bytes = b""
    gateway: bytes = b""  # whose connection it is; b"": of the store's own process


class Closed(NamedTuple):
    epoch: int
    expiry_interval: int  # seconds
    at_ms: int


class Subscribed(NamedTuple):
    topic_filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    replay: int = -1  # where it begins; -1: at the end


class OutboundChange(NamedTuple):
    sent: list[tuple[int, bytes, int, int]]  # QoS 0: an older version did not tell
    received: list[int]
    completed: list[int]
    owed: list[Owed] = []  # noqa: RUF012  nobody changes it
    settled: list[bytes] = []  # noqa: RUF012


class WillSet(NamedTuple):
    epoch: int
    delay_s: int
    topic: bytes
    flags: int
    properties: bytes
    payload: bytes
    user: bytes = b""
    is_account: bool = False
    is_allowed: bool = True
    gateway: bytes = b""  # as in `Opened`


class GroupOffsets(NamedTuple):
    parent: bytes
    offsets: dict[int, int]


class TransactionsEnded(NamedTuple):
    committed: list[int]  # handles
    rolled_back: list[int]


class TransactionsChecked(NamedTuple):
    next_check_ms: int
    handles: list[int]


class PoppedRuns(NamedTuple):
    until_ms: int
    runs: dict[bytes, list[list[int]]]  # by queue: first offset, count


class SettledRuns(NamedTuple):
    done: dict[bytes, list[list[int]]]  # by queue: first offset, count
    again: dict[bytes, list[list[int]]]  # by queue: first offset, count, at ms


class DeadLettered(NamedTuple):
    queue: bytes
    offsets: list[int]


class UserSet(NamedTuple):
    iterations: int
    salt: bytes
    stored_key: bytes  # 32 bytes
    server_key: bytes  # 32 bytes


class RuleSet(NamedTuple):
    allow: bool
    publish: bool
    subscribe: bool
    topic_filter: bytes


def parse_session_opened(payload: bytes) -> Opened:
    epoch, expiry_interval, clean, *rest = orjson.loads(payload)
    reach, user = rest[0] if rest else MAX_REACH, rest[1].encode() if rest[1:] else b""
    return Opened(epoch, expiry_interval, bool(clean), reach, user, _name_in(rest[2:]))


def parse_session_closed(payload: bytes) -> Closed:
    """Also of `session_lost`."""
    return Closed(*orjson.loads(payload))


def parse_session_ended(payload: bytes) -> int:
    """The epoch."""
    epoch: int = orjson.loads(payload)[0]
    return epoch


def parse_subscribed(payload: bytes) -> list[Subscribed]:
    return [
        Subscribed(name.encode(), qos, bool(no_local), bool(retain_as_published), *others)  # older logs have numbers
        for name, qos, no_local, retain_as_published, *others in orjson.loads(payload)
    ]


def parse_unsubscribed(payload: bytes) -> list[bytes]:
    return [name.encode() for name in orjson.loads(payload)]


def parse_cursors_committed(payload: bytes) -> dict[bytes, int]:
    return {name.encode(): offset for name, offset in orjson.loads(payload).items()}


def parse_inbound_released(payload: bytes) -> list[int]:
    packet_ids: list[int] = orjson.loads(payload)
    return packet_ids


def parse_outbound_changed(payload: bytes) -> OutboundChange:
    sent, received, completed, *debts = orjson.loads(payload)
    rows = [(number, name.encode(), at, qos[0] if qos else 0) for number, name, at, *qos in sent]
    owed: list[Owed] = []
    settled: list[bytes] = []
    for name, *places in debts[0] if debts else ():
        if not places:
            settled.append(name.encode())
            continue
        since, after, ahead = places
        after = None if after is None else after.encode()
        owed.append(Owed(name.encode(), since, after, [topic.encode() for topic in ahead]))
    return OutboundChange(rows, received, completed, owed, settled)


def parse_will_set(payload: bytes) -> WillSet:
    epoch, delay_s, topic, flags, properties, body, *sender = orjson.loads(payload)
    user, is_account, is_allowed, *gateway = sender or ("", False, True)
    message = topic.encode(), flags, base64.b64decode(properties), base64.b64decode(body)
    return WillSet(epoch, delay_s, *message, user.encode(), is_account, is_allowed, _name_in(gateway))


def parse_will_dropped(payload: bytes) -> int:
    """The epoch."""
    epoch: int = orjson.loads(payload)[0]
    return epoch


def parse_group_offsets_committed(payload: bytes) -> GroupOffsets:
    parent, rows = orjson.loads(payload)
    return GroupOffsets(parent.encode(), dict(rows))


def parse_handles(payload: bytes) -> list[int]:
    """Of `timers_fired` and `timers_recalled`."""
    handles: list[int] = orjson.loads(payload)
    return handles


def parse_transactions_ended(payload: bytes) -> TransactionsEnded:
    return TransactionsEnded(*orjson.loads(payload))


def parse_transactions_checked(payload: bytes) -> TransactionsChecked:
    return TransactionsChecked(*orjson.loads(payload))


def parse_popped(payload: bytes) -> PoppedRuns:
    fields = orjson.loads(payload)
    return PoppedRuns(fields["until_ms"], _runs_by_queue(fields["queues"]))


def parse_settled(payload: bytes) -> SettledRuns:
    fields = orjson.loads(payload)
    return SettledRuns(_runs_by_queue(fields["done"]), _runs_by_queue(fields["again"]))


def parse_dead_lettered(payload: bytes) -> DeadLettered:
    queue, offsets = orjson.loads(payload)
    return DeadLettered(_queue_of(queue), offsets)


def parse_group_reset(payload: bytes) -> dict[bytes, int]:
    """Offset by queue."""
    return {_queue_of(queue): offset for queue, offset in orjson.loads(payload).items()}


def parse_user_set(payload: bytes) -> UserSet:
    iterations, *proofs = orjson.loads(payload)
    return UserSet(iterations, *[bytes.fromhex(text) for text in proofs])


def parse_rules_set(payload: bytes) -> list[RuleSet]:
    return [
        RuleSet(allow, publish, subscribe, name.encode()) for allow, publish, subscribe, name in orjson.loads(payload)
    ]


def parse_produced(payload: bytes) -> tuple[int, int, int]:
    """(sequence, records, digest)."""
    sequence, records, *digest = orjson.loads(payload)
    return sequence, records, digest[0] if digest else 0


def parse_producer_ended(payload: bytes) -> int:
    """`last`; -1: whichever it is."""
    (last,) = orjson.loads(payload) or (-1,)
    return int(last)


def parse_share_holder(payload: bytes) -> bytes:
    """The gateway of `share_held` and `share_left`."""
    return _name_in(orjson.loads(payload))


def parse_share_handed(payload: bytes) -> list[tuple[bytes, int, int]]:
    """(client id, packet id, offset) of each."""
    return [(client.encode(), packet_id, offset) for client, packet_id, offset in orjson.loads(payload)]


def _named(gateway: bytes) -> list[str]:
    return [gateway.decode()] if gateway else []


def _name_in(fields: list[str]) -> bytes:
    return fields[0].encode() if fields else b""


def _queue_text(queue: bytes) -> str:
    """A queue's name as UTF-8: that of a partition ends in its number, in digits."""
    if queue[:1] == b"p":
        return f"{queue[:-2].decode()}{int.from_bytes(queue[-2:], 'big')}"
    return queue.decode()


def _queue_of(text: str) -> bytes:
    if text[:1] == "p":
        parent, _, partition = text.rpartition("\0")
        return b"%b\0%b" % (parent.encode(), int(partition).to_bytes(2, "big"))
    return text.encode()


def _runs_by_queue(fields: dict[str, list[list[int]]]) -> dict[bytes, list[list[int]]]:
    return {_queue_of(queue): runs for queue, runs in fields.items()}


def _record(kind: Kind, subject: bytes, fields: Any, publisher: bytes = b"") -> bytes:
    return record.frame(kind, 0, 0, subject, publisher, b"", orjson.dumps(fields))
