"""What travels: messages out (`OutgoingMessage`, `Receipt`) and messages in (`Message`, `Batch`)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypedDict

import record
from cloud_sdk.errors import InvalidArgument
from cloud_sdk.properties import KEY, ORDERING_KEY, TAG, Properties, UserProperties
from cloud_sdk.properties import decode as decode_properties
from cloud_sdk.properties import encode as encode_properties
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

_INBOX: Final = b"$inbox/"  # and a client id: the topic of messages to one client
_LAST_S: Final = 1e13  # since 1970


class Receipt(NamedTuple):
    """The node has committed the message."""

    position: int  # in the log; -1: an attempt whose answer was lost had stored it, and where is not known
    store_time: int  # ms since 1970-01-01 UTC; 0: not known either


STORED: Final = Receipt(-1, 0)


class SendOptions(TypedDict, total=False):
    """What else may be said of a message that is sent."""

    qos: int  # the most that subscribers get it with: 0, 1 or 2
    retain: bool  # it becomes the topic's retained value; an empty payload then clears that
    properties: UserProperties | None  # user properties
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    message_expiry: int | None  # seconds
    keys: Sequence[str]  # to find it by: user properties `key`
    tag: str | None  # to select it by: the user property `tag`
    ordering_key: str | None  # what it has to stay in order with: the user property `ordering_key`
    deliver_at: datetime | None  # nobody gets it before; naive: local time
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

    def frame(self, publisher: bytes, *, half: bool = False) -> bytes:
        """The unsealed record; `half`: it waits for its transaction. Raises InvalidArgument when MQTT does not allow
        the message."""
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
            block = self._block()
            return record.frame(Kind.MESSAGE, flags, 0, topic, publisher, block, self.payload, due_ms)
        except TypeError as error:
            raise TypeError(f"a payload is bytes, and properties are texts: {error}") from error
        except ValueError as error:
            raise InvalidArgument(str(error)) from error

    def _due_ms(self) -> int:
        if self.deliver_at is not None and self.deliver_after is not None:
            raise InvalidArgument("a message is delivered at a time or after one, not both")
        due = time.time() + (self.deliver_after or 0.0) if self.deliver_at is None else self.deliver_at.timestamp()
        if not 0 <= due < _LAST_S:
            raise InvalidArgument(f"{due} s since 1970 is no time at which a message can be due")
        return int(due * 1_000)

    def _block(self) -> bytes:
        if (
            self.properties is None
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
            raise ValueError(f"keys are a sequence of up to {MAX_KEYS} texts")
        if any(not 0 < len(key.encode()) <= MAX_KEY for key in self.keys):
            raise ValueError(f"a key has 1 to {MAX_KEY} bytes")
        properties = Properties.of_user(self.properties)
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
    """The topic of messages to one client, of the name or client id."""
    hidden = name.replace("%", "%25").replace("+", "%2B").replace("#", "%23")
    return f"$inbox/{hidden}"


def _checked_tag(tag: str) -> str:
    if not tag or tag == "*" or "|" in tag or " " in tag or not tag.isprintable():
        raise ValueError(f"{tag[:40]!r} is no tag: it has no spaces and no |, and is not *")
    return tag


class Message:
    """A message of the log, as a partition holds it. Text and properties are decoded when they are asked for.

    `partition` and `offset` are -1 where it was found by key or id, and not read from a partition."""

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

    def __init__(self, frames: bytes, start: int, partition: int, offset: int) -> None:
        _, self.flags, _, self._topic, self._publisher, self._block, self.payload = record.decode(frames, start)
        self.position = record.position_of(frames, start)  # in the log
        self.store_time = record.store_time_of(frames, start)  # ms since 1970-01-01 UTC
        self.partition = partition
        self.offset = offset  # in its partition
        self._properties: Properties | None = None

    @property
    def topic(self) -> str:
        return self._topic.decode()

    @property
    def publisher(self) -> str:
        """The client id of the device, or the name of the cloud client, that sent it."""
        return self._publisher.decode()

    @property
    def qos(self) -> int:
        return self.flags & FLAG_QOS

    @property
    def retain(self) -> bool:
        return bool(self.flags & FLAG_RETAIN)

    @property
    def all_properties(self) -> Properties:
        """Everything that MQTT 5 sends along with a message."""
        if self._properties is None:
            self._properties = decode_properties(self._block)
        return self._properties

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """User properties in the order they were set; a name may repeat."""
        return self.all_properties.user

    @property
    def properties(self) -> dict[str, str]:
        """User properties by name; of a name that repeats, the last."""
        return dict(self.all_properties.user)

    @property
    def keys(self) -> list[str]:
        """What it can be found by (`Client.find`): its user properties `key`."""
        return [key.decode() for key in record.keys_of(self._block)]

    @property
    def tag(self) -> str | None:
        """What consumers select it by."""
        return self.properties.get(TAG)

    @property
    def ordering_key(self) -> str | None:
        """What it has to stay in order with."""
        return self.properties.get(ORDERING_KEY)

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
    """A message that waits for its time."""

    position: int  # its id: `Client.recall` and `Client.message` take it
    topic: str
    publisher: str
    due_ms: int  # ms since 1970-01-01 UTC


@dataclass(slots=True, frozen=True)
class Child:
    """A name in the tree of topics."""

    name: str  # one level, which may be empty
    is_topic: bool  # it was published to
    has_children: bool  # there are topics below it


@dataclass(slots=True, frozen=True)
class GroupQueue:
    """Where a group is in a queue. Everything below `floor` is finished, nothing from `next` on was ever delivered."""

    queue: str  # a parent topic with its partition, "home[0]"; a topic; a filter; or "dead letters of g"
    floor: int
    next: int
    unfinished: int  # messages that are out, or to be delivered again
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
    offset: int  # of the first record; behind the one asked for where records in between are gone
    count: int
    frames: bytes
    begin: int  # the partition holds [begin, end)
    end: int
    next_offset: int  # where to read on
    offsets: Sequence[int] = ()  # of each record, where they were selected; else they follow each other
    gone: int = 0  # records from the offset asked for up to `next_offset` that are gone from the log

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self) -> Iterator[Message]:
        offsets = self.offsets or range(self.offset, self.offset + self.count)
        for offset, start in zip(offsets, record.split(self.frames), strict=True):
            yield Message(self.frames, start, self.partition, offset)

    def __len__(self) -> int:
        return self.count
