"""Messages to send (`OutgoingMessage`, `Receipt`), received messages (`Message`, `Batch`), and results of queries."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

import record
from cloud_sdk.errors import InvalidArgument
from cloud_sdk.properties import KEY, ORDERING_KEY, TAG, Properties, UserProperties
from cloud_sdk.properties import decode as decode_properties
from cloud_sdk.properties import encode as encode_properties
from cloud_sdk.trace_context import TRACEPARENT, context_of, current_trace
from record.layout import (
    FLAG_ADDRESSED,
    FLAG_DELAYED,
    FLAG_HALF,
    FLAG_QOS,
    FLAG_RETAIN,
    MAX_KEY,
    MAX_KEYS,
    MAX_TOPIC,
    Kind,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context

_INBOX: Final = b"$inbox/"  # followed by a client id
_LAST_S: Final = 1e13  # since 1970


class Receipt(NamedTuple):
    """Proof that the node has committed a message."""

    position: int  # in the log, the id of the message; -1: not known, because the answer of the first attempt was lost
    store_time: int  # ms since 1970-01-01 UTC; 0: not known


STORED: Final = Receipt(-1, 0)


class SendOptions(TypedDict, total=False):
    """Options of a message that is sent."""

    qos: int  # the maximum QoS of its delivery to subscribers: 0, 1 or 2
    retain: bool  # it becomes the topic's retained message; an empty payload clears that
    properties: UserProperties | None  # user properties
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    message_expiry: int | None  # seconds
    keys: Sequence[str]  # `Client.find` finds it by these: user properties `key`
    tag: str | None  # consumers select it by this: the user property `tag`
    ordering_key: str | None  # messages with the same one stay in order: the user property `ordering_key`
    deliver_at: datetime | None  # the earliest delivery; naive: local time
    deliver_after: float | None  # seconds from now


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send; see `SendOptions` for the fields."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: UserProperties | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    message_expiry: int | None = None
    keys: Sequence[str] = ()
    tag: str | None = None
    ordering_key: str | None = None
    deliver_at: datetime | None = None
    deliver_after: float | None = None

    def frame(self, publisher: bytes, *, half: bool = False, in_trace: bool = True) -> bytes:
        """Return the unsealed frame.

        half: of a transaction. in_trace: with the current span of OpenTelemetry, if the program has one and the message
        names none. Raises `InvalidArgument` if MQTT does not allow the message, and `TypeError` if the topic is not
        text or the payload not bytes.
        """
        try:
            topic = self.topic.encode()
        except AttributeError as error:
            raise TypeError(f"a topic is a str, not {self.topic!r}") from error
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{self.topic[:100]!r} is not a topic name: {error}") from error
        if not 0 < len(topic) <= MAX_TOPIC or b"+" in topic or b"#" in topic or b"\0" in topic:
            raise InvalidArgument(f"{self.topic[:100]!r} is not a topic name (MQTT-4.7.1-1, MQTT-4.7.3-1)")
        if not 0 <= self.qos <= 2:
            raise InvalidArgument(f"a QoS is 0, 1 or 2, not {self.qos}")
        flags = self.qos | FLAG_RETAIN if self.retain else self.qos
        if topic.startswith(_INBOX):
            flags |= FLAG_ADDRESSED
        due_ms = self._due_ms() if self.deliver_at is not None or self.deliver_after is not None else None
        if due_ms is not None:
            flags |= FLAG_DELAYED
        if half:
            flags |= FLAG_HALF
        try:
            block = self._block(current_trace() if in_trace else {})
            return record.frame(Kind.MESSAGE, flags, 0, topic, publisher, block, self.payload, due_ms)
        except TypeError as error:
            raise TypeError(f"a payload is bytes, and properties are strings: {error}") from error
        except ValueError as error:
            raise InvalidArgument(str(error)) from error

    def _due_ms(self) -> int:
        if self.deliver_at is not None and self.deliver_after is not None:
            raise InvalidArgument("a message has deliver_at or deliver_after, not both")
        due = time.time() + (self.deliver_after or 0.0) if self.deliver_at is None else self.deliver_at.timestamp()
        if not 0 <= due < _LAST_S:
            raise InvalidArgument(f"{due} s since 1970 is out of range for a delivery time")
        return int(due * 1_000)

    def _block(self, trace: dict[str, str]) -> bytes:
        if (
            not trace
            and self.properties is None
            and self.content_type is None
            and self.response_topic is None
            and self.correlation_data is None
            and self.message_expiry is None
            and not self.keys
            and self.tag is None
            and self.ordering_key is None
        ):
            return b""
        if isinstance(self.keys, str) or len(self.keys) > MAX_KEYS:
            raise ValueError(f"keys are a sequence of up to {MAX_KEYS} strings")
        if any(not 0 < len(key.encode()) <= MAX_KEY for key in self.keys):
            raise ValueError(f"a key has 1 to {MAX_KEY} bytes")
        properties = Properties.of_user(self.properties)
        if trace and not any(name == TRACEPARENT for name, _ in properties.user):
            properties.user += trace.items()
        properties.user += ((KEY, key) for key in self.keys)
        if self.tag is not None:
            properties.user.append((TAG, _checked_tag(self.tag)))
        if self.ordering_key is not None:
            properties.user.append((ORDERING_KEY, self.ordering_key))
        properties.content_type = self.content_type
        properties.response_topic = self.response_topic
        properties.correlation_data = self.correlation_data
        properties.message_expiry = self.message_expiry
        return encode_properties(properties)


def inbox_of(name: str) -> str:
    """The topic of messages to the client with this name or client id."""
    hidden = name.replace("%", "%25").replace("+", "%2B").replace("#", "%23")
    return f"$inbox/{hidden}"


def _checked_tag(tag: str) -> str:
    if not tag or tag == "*" or "|" in tag or " " in tag or not tag.isprintable():
        raise ValueError(f"{tag[:40]!r} is not a tag: a tag has no spaces and no |, and is not *")
    return tag


RecordFields = tuple[int, int, int, bytes, bytes, bytes, bytes]  # a row of `record.decode_all`


class Message:
    """A message of the log. Topic and properties are decoded on first use.

    `partition` and `offset` are -1 if it was found by key or id, and not read from a partition."""

    __slots__ = (
        "_block",
        "_properties",
        "_publisher",
        "_topic",
        "flags",
        "offset",
        "partition",
        "payload",
        "position",
        "store_time",
    )

    position: int  # in the log
    store_time: int  # ms since 1970-01-01 UTC

    def __init__(self, fields: RecordFields, partition: int, offset: int) -> None:
        self.position, self.store_time, self.flags, self._topic, self._publisher, self._block, self.payload = fields
        self.partition = partition
        self.offset = offset  # in its partition
        self._properties: Properties | None = None

    @property
    def topic(self) -> str:
        return self._topic.decode()

    @property
    def publisher(self) -> str:
        """The client id of the device, or the name of the SDK client, that published it."""
        return self._publisher.decode()

    @property
    def qos(self) -> int:
        return self.flags & FLAG_QOS

    @property
    def retain(self) -> bool:
        return bool(self.flags & FLAG_RETAIN)

    @property
    def all_properties(self) -> Properties:
        """All MQTT 5 properties of the message."""
        if self._properties is None:
            self._properties = decode_properties(self._block)
        return self._properties

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """User properties in their order; a name may repeat."""
        return self.all_properties.user

    @property
    def properties(self) -> dict[str, str]:
        """User properties by name. If a name repeats, its last value."""
        return dict(self.all_properties.user)

    @property
    def keys(self) -> list[str]:
        """The keys by which `Client.find` finds it: its user properties `key`."""
        return [key.decode() for key in record.keys_of(self._block)]

    @property
    def tag(self) -> str | None:
        """The tag by which consumers select it: its user property `tag`."""
        return self.properties.get(TAG)

    @property
    def ordering_key(self) -> str | None:
        """Messages with the same ordering key stay in order: its user property `ordering_key`."""
        return self.properties.get(ORDERING_KEY)

    def trace_context(self) -> "Context | None":
        """The context of OpenTelemetry that the publisher sent along: the parent of the spans that handle the message.
        None if there is none, or if OpenTelemetry is not installed."""
        return context_of(self.user_properties) if TRACEPARENT.encode() in self._block else None

    @property
    def content_type(self) -> str | None:
        return self.all_properties.content_type

    @property
    def response_topic(self) -> str | None:
        return self.all_properties.response_topic

    @property
    def correlation_data(self) -> bytes | None:
        return self.all_properties.correlation_data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic!r} partition={self.partition} offset={self.offset}>"


@dataclass(slots=True, frozen=True)
class PartitionBounds:
    """The readable offsets of a partition: [begin, end)."""

    partition: int
    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class Timer:
    """A delayed message that is not delivered yet."""

    position: int  # its id, for `Client.recall` and `Client.message`
    topic: str
    publisher: str
    due_ms: int  # ms since 1970-01-01 UTC


@dataclass(slots=True, frozen=True)
class Child:
    """A name in the tree of topics."""

    name: str  # one level, which may be empty
    is_topic: bool  # there are messages of exactly this topic
    has_children: bool  # there are topics below it


@dataclass(slots=True, frozen=True)
class GroupQueue:
    """The place of a group in a queue. All messages below `floor` are finished, none from `next` on was ever leased."""

    queue: str  # a parent topic with its partition, "home[0]"; a topic; a filter; or "dead letters of g"
    floor: int
    next: int
    unfinished: int  # messages that are leased, or wait to come again
    lag: int  # messages that are not finished


@dataclass(slots=True, frozen=True)
class Group:
    """A group, and the queues that it receives from."""

    name: str
    queues: list[GroupQueue]

    @property
    def lag(self) -> int:
        """Messages that are not finished."""
        return sum(queue.lag for queue in self.queues)


@dataclass(slots=True)
class Batch:
    """Records of a partition, read by offset, in order. `frames` are sealed frames, back to back."""

    partition: int
    offset: int  # of the first record; above the requested one if records in between are gone
    count: int
    frames: bytes
    begin: int  # the partition holds [begin, end)
    end: int
    next_offset: int  # where to continue
    offsets: Sequence[int] = ()  # of each record, if there was a selection; else they are consecutive
    gone: int = 0  # records between the requested offset and `next_offset` that are gone from the log
    partitions: int = 0  # that the parent topic has by now

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self) -> Iterator[Message]:
        offsets = self.offsets or range(self.offset, self.offset + self.count)
        for offset, fields in zip(offsets, record.decode_all(self.frames), strict=True):
            yield Message(fields, self.partition, offset)

    def __len__(self) -> int:
        return self.count
