"""Queues of messages: their names, their records, retained values, and the tree of topics."""

from dataclasses import dataclass
from typing import Protocol

from matcher.names import has_wildcard, split_shared


def topic_queue(topic: bytes) -> bytes:
    """Name of the queue of one full MQTT topic."""
    return b"t" + topic


def filter_queue(topic_filter: bytes) -> bytes:
    """Name of the queue of one wildcard filter that a durable session subscribes to."""
    return b"f" + topic_filter


def subscription_queue(topic_filter: bytes) -> bytes:
    """Name of the queue that a durable or shared subscription reads."""
    inner = split_shared(topic_filter)[1]
    return filter_queue(inner) if has_wildcard(inner) else topic_queue(inner)


def partition_queue(parent: bytes, partition: int) -> bytes:
    """Name of a partition of a parent topic (the first level of a topic, which may be empty)."""
    return b"p" + parent + b"\0" + partition.to_bytes(2, "big")


def message_queues(topic: bytes, partition: int) -> tuple[bytes, bytes]:
    """Names of the two queues that each message enters: that of its topic, and the partition of its parent topic."""
    return b"t" + topic, b"p" + topic.partition(b"/")[0] + b"\0" + partition.to_bytes(2, "big")


def dead_letter_queue(group: bytes) -> bytes:
    """Name of the queue of the messages that a group gave up on."""
    return b"d" + group


@dataclass(slots=True, frozen=True)
class Bounds:
    """The readable offsets of a queue: [begin, end)."""

    begin: int
    end: int


@dataclass(slots=True)
class Fetched:
    """Consecutive records of a queue: `count` sealed frames back to back, the first at offset `offset`.

    That may be behind the offset asked for: records in between are gone (reclaimed by retention, which takes a
    message that was held before its neighbours, or damaged). Go on at `next_offset`, also when `count` is 0."""

    offset: int
    count: int
    data: bytes
    bounds: Bounds

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


@dataclass(slots=True)
class Found:
    """Messages that have a key, the oldest first: `count` sealed frames back to back, each with its position.
    `after` is to be passed to get those behind, None at the end; there may be more also when `count` is 0."""

    count: int
    data: bytes
    after: int | None


@dataclass(slots=True)
class Retained:
    """A retained value: its topic and the sealed frame it is."""

    topic: bytes
    frame: bytes
    entered: int  # position of the record by which it came to be that: of a message that was held, not its own


@dataclass(slots=True)
class TopicPage:
    """Topics in the order of their levels; `after` is to be passed to get the next page, None at the end."""

    names: list[bytes]
    after: bytes | None


@dataclass(slots=True)
class Child:
    """A name in the tree of topics, of one level, which may be empty."""

    name: bytes
    is_topic: bool  # it was published to
    has_children: bool  # there are topics below it


@dataclass(slots=True)
class ChildPage:
    """Names of one level, sorted; `after` is to be passed to get the next page, None at the end."""

    children: list[Child]
    after: bytes | None


class QueueStore(Protocol):
    """Reads of queues, of retained values and of topic names."""

    partitions: int  # per parent topic

    async def bounds(self, queue: bytes) -> Bounds: ...

    async def partition_bounds(self, parent: bytes) -> list[Bounds]:
        """The bounds of every partition of a parent topic, in order."""

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        """Records from the first that is there at or behind `offset`, at least one where there is one; none at the
        end. Those of a topic or a partition come without these parts (`record.layout.PART_*`), which count in
        `max_bytes` all the same. Raises `OffsetOutOfRange` below begin or beyond end."""

    async def retention_floor(self, parent: bytes) -> int:
        """Store time, in ms, before which messages of a parent topic are not answered any more."""

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        """First offset whose store time is not before `time_ms`; the queue's end if there is none."""

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        """Messages of a parent topic that have the user property `key` with this value, oldest first, behind the
        position `after`: up to `limit`, and of `max_bytes`, but for the first. Those that entered their queues."""

    async def retained(self, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        """Retained values that match, in the order of their levels, behind `after`; fewer than `limit`: the end."""

    async def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        """Topics that were ever published to and begin with `prefix`, up to `limit`, fewer where they are long."""

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        """The names that follow `above` in topics that were ever published to, at a cost that does not grow with what
        is below them. `above` is empty, and the names are the parent topics; or some levels with a slash behind."""
