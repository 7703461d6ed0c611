"""Queues of messages: their names, their records, retained values, and the tree of topics."""

from dataclasses import dataclass
from typing import Protocol

from matcher.names import has_wildcard, split_shared
from record.layout import NAMES_KEY


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


def partition_of(tag: int, partitions: int) -> int:
    """The partition of messages whose references have this tag (`record.tag_of`)."""
    return (tag & ~NAMES_KEY) % partitions


def message_queues(topic: bytes, partition: int) -> tuple[bytes, bytes]:
    """Names of the two queues that each message enters: the queue of its topic and a partition of its parent topic."""
    return b"t" + topic, b"p" + topic.partition(b"/")[0] + b"\0" + partition.to_bytes(2, "big")


def dead_letter_queue(group: bytes) -> bytes:
    """Name of the dead-letter queue of a group."""
    return b"d" + group


@dataclass(slots=True, frozen=True)
class Bounds:
    """The readable offsets of a queue: [begin, end)."""

    begin: int
    end: int


@dataclass(slots=True)
class Fetched:
    """Consecutive records of a queue: `count` sealed frames back to back, the first at offset `offset`.

    `offset` may be after the requested one, if the records in between are damaged or were removed by retention, which
    removes a message that was held before its neighbours. Continue at `next_offset`, also if `count` is 0.
    """

    offset: int
    count: int
    data: bytes
    bounds: Bounds

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


@dataclass(slots=True)
class Selected:
    """The selected records of a part of a partition: sealed frames back to back, and the offset of each. Continue at
    `next_offset`, also if there are none. `gone` counts wanted records that are gone from the log."""

    offsets: list[int]
    data: bytes
    next_offset: int
    gone: int
    bounds: Bounds


@dataclass(slots=True)
class Found:
    """Messages with a key, the oldest first: `count` sealed frames back to back.

    Pass `after` to get the next ones; None: there are no more. It may be set although `count` is 0.
    """

    count: int
    data: bytes
    after: int | None


@dataclass(slots=True)
class Retained:
    """A retained value: its topic and its sealed frame."""

    topic: bytes
    frame: bytes
    entered: int  # position of the record that made it the retained value: for a held message, of its release


@dataclass(slots=True)
class TopicPage:
    """Topics in the order of their levels. Pass `after` to get the next page; None: this is the last one."""

    names: list[bytes]
    after: bytes | None


@dataclass(slots=True)
class Child:
    """A node of the tree of topics: the name of one level, which may be empty."""

    name: bytes
    is_topic: bool  # it was published to
    has_children: bool  # there are topics below it


@dataclass(slots=True)
class ChildPage:
    """Names of one level, sorted. Pass `after` to get the next page; None: this is the last one."""

    children: list[Child]
    after: bytes | None


class QueueStore(Protocol):
    """Reads of queues, of retained values and of topic names."""

    def partition_count(self, parent: bytes) -> int:
        """How many partitions a parent topic has. It may grow between two openings of the store."""

    async def bounds(self, queue: bytes) -> Bounds: ...

    async def partition_bounds(self, parent: bytes) -> list[Bounds]:
        """The bounds of every partition of a parent topic, in order."""

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        """Read records from the first readable one at or after `offset`. Returns at least one, unless there is none.

        without: parts (`record.layout.PART_*`) that are left out of records of a topic or a partition. They count in
        `max_bytes` anyway. Raises `OffsetOutOfRange` for an offset before the begin or after the end.
        """

    async def fetch_selected(
        self,
        queue: bytes,
        offset: int,
        until: int,
        topic_filter: bytes,
        keys: list[bytes],
        max_records: int,
        max_bytes: int,
        without: int = 0,
    ) -> Selected | None:
        """Read messages of a partition from `offset` on and before `until` whose topic matches a filter and that have
        one of `keys`. An empty filter and no keys select any; at least one of them must be given. Only the records that
        may be selected are read.

        Returns None if the filter or the keys may select so many that a `fetch` is as good. `without` is that of
        `fetch`, but topic and properties are never left out. Raises `OffsetOutOfRange` as `fetch` does.
        """

    async def retention_floor(self, parent: bytes) -> int:
        """The store time in ms before which messages of a parent topic are not returned any more."""

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        """The first offset with a store time of at least `time_ms`; the queue's end if there is none."""

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        """Find messages of a parent topic that have the user property `key` with this value, the oldest first.

        Returns up to `limit` messages after the position `after`, of at most `max_bytes` together, but one message may
        be larger. Held messages are not found.
        """

    async def retained(self, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        """Up to `limit` retained values that match, in the order of their topics' levels, from after `after` on. Fewer
        than `limit` means that there are no more."""

    async def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        """Up to `limit` topics that begin with `prefix` and were ever published to; fewer if they are long."""

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        """The names of the level below `above`, of topics that were ever published to. The cost does not grow with the
        number of topics below these names.

        above: b"" for the parent topics, otherwise one or more levels with a slash at the end.
        """
