"""The ends of queues in memory: where the next message of a queue goes, and its newest references.

A tail exists for queues that were used lately, bounded in number. There is never more than one of a queue:
whoever keeps one checks `end`, which is -1 once it was forgotten.
"""

from hashlib import blake2b


def queue_digest(queue: bytes) -> bytes:
    """What stands for a queue's name in index keys, 16 bytes."""
    return blake2b(queue, digest_size=16).digest()


class QueueTail:
    """The end of one queue."""

    __slots__ = ("digest", "end", "name", "refs")

    def __init__(self, name: bytes, digest: bytes, end: int) -> None:
        self.name = name
        self.digest = digest
        self.end = end  # offset of the next message; -1: forgotten
        self.refs: list[bytes] = []  # packed references that are not in RocksDB yet, the last at end - 1


class TopicTail:
    """A topic queue's end and where else the topic's messages go."""

    __slots__ = ("filters", "filters_version", "partition", "queue", "topic")

    def __init__(self, topic: bytes, queue: QueueTail, partition: QueueTail) -> None:
        self.topic = topic
        self.queue = queue
        self.partition = partition
        self.filters: list[tuple[bytes, QueueTail]] = []  # true for `filters_version` of the dispatcher
        self.filters_version = -1
