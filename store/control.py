"""The control records: everything that is state and not a message, written as records of the same log.

A builder for each kind makes its unsealed frame; what the record does to the views is said there, how in
`store.views`. The subject (client id, or group) is the frame's topic, the fields are JSON in its payload, and
`parse_*` reads them back. Names are UTF-8, as MQTT wants them: others are a ValueError.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

import record
from record.layout import Kind


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


def session_opened(client_id: bytes, epoch: int, expiry_interval: int, clean: bool) -> bytes:
    """A node holds the session from here on. `expiry_interval` in seconds, 0xFFFFFFFF for never; `clean` drops all
    older state of the client. Ignored when the view has a newer epoch."""
    return _record(Kind.SESSION_OPENED, client_id, [epoch, expiry_interval, clean])


def session_closed(client_id: bytes, epoch: int, expiry_interval: int, at_ms: int) -> bytes:
    """The connection is gone: the session's expiry runs from `at_ms`; an interval of 0 ends it. Ignored when the
    view has a newer epoch."""
    return _record(Kind.SESSION_CLOSED, client_id, [epoch, expiry_interval, at_ms])


def session_ended(client_id: bytes, epoch: int) -> bytes:
    """The session and all its state are gone. Ignored when the view has a newer epoch."""
    return _record(Kind.SESSION_ENDED, client_id, [epoch])


def subscribed(client_id: bytes, subscriptions: Sequence[SubscriptionLike]) -> bytes:
    """Filters of the session. A new one begins at its queue's end at this point of the log; one that is there
    keeps its cursor and start and takes the options."""
    rows = [
        [s.topic_filter.decode(), s.qos, s.no_local, s.retain_as_published, s.retain_handling, s.identifier]
        for s in subscriptions
    ]
    return _record(Kind.SUBSCRIBED, client_id, rows)


def unsubscribed(client_id: bytes, filters: Sequence[bytes]) -> bytes:
    """Filters that the session drops, with their cursors."""
    return _record(Kind.UNSUBSCRIBED, client_id, [name.decode() for name in filters])


def cursors_committed(client_id: bytes, offsets: Mapping[bytes, int]) -> bytes:
    """First offset not acknowledged, by filter. A cursor never goes back."""
    return _record(Kind.CURSORS_COMMITTED, client_id, {name.decode(): offset for name, offset in offsets.items()})


def inbound_released(client_id: bytes, packet_ids: Sequence[int]) -> bytes:
    """QoS 2 packet ids of the client that are free again: PUBREL came (MQTT-4.3.3)."""
    return _record(Kind.INBOUND_RELEASED, client_id, list(packet_ids))


def outbound_changed(
    client_id: bytes,
    sent: Sequence[tuple[int, bytes, int]] = (),
    received: Sequence[int] = (),
    completed: Sequence[int] = (),
) -> bytes:
    """QoS 2 towards the client, folded in this order: messages sent as (packet id, filter, offset), packet ids
    whose PUBREC came, packet ids that are free again."""
    rows = [[packet_id, name.decode(), offset] for packet_id, name, offset in sent]
    return _record(Kind.OUTBOUND_CHANGED, client_id, [rows, list(received), list(completed)])


def group_offsets_committed(group: bytes, parent: bytes, offsets: Mapping[int, int]) -> bytes:
    """Next offset of a cloud group by partition of a parent topic. May go back: a group may seek."""
    return _record(Kind.GROUP_OFFSETS_COMMITTED, group, [parent.decode(), list(offsets.items())])


class Opened(NamedTuple):
    epoch: int
    expiry_interval: int  # seconds
    clean: bool


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


class OutboundChange(NamedTuple):
    sent: list[tuple[int, bytes, int]]
    received: list[int]
    completed: list[int]


class GroupOffsets(NamedTuple):
    parent: bytes
    offsets: dict[int, int]


def parse_session_opened(payload: bytes) -> Opened:
    return Opened(*orjson.loads(payload))


def parse_session_closed(payload: bytes) -> Closed:
    return Closed(*orjson.loads(payload))


def parse_session_ended(payload: bytes) -> int:
    """The epoch."""
    epoch: int = orjson.loads(payload)[0]
    return epoch


def parse_subscribed(payload: bytes) -> list[Subscribed]:
    return [Subscribed(name.encode(), *options) for name, *options in orjson.loads(payload)]


def parse_unsubscribed(payload: bytes) -> list[bytes]:
    return [name.encode() for name in orjson.loads(payload)]


def parse_cursors_committed(payload: bytes) -> dict[bytes, int]:
    return {name.encode(): offset for name, offset in orjson.loads(payload).items()}


def parse_inbound_released(payload: bytes) -> list[int]:
    packet_ids: list[int] = orjson.loads(payload)
    return packet_ids


def parse_outbound_changed(payload: bytes) -> OutboundChange:
    sent, received, completed = orjson.loads(payload)
    return OutboundChange([(number, name.encode(), at) for number, name, at in sent], received, completed)


def parse_group_offsets_committed(payload: bytes) -> GroupOffsets:
    parent, rows = orjson.loads(payload)
    return GroupOffsets(parent.encode(), dict(rows))


def _record(kind: Kind, subject: bytes, fields: Any) -> bytes:
    return record.frame(kind, 0, 0, subject, b"", b"", orjson.dumps(fields))
