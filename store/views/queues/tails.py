"""The ends of queues in memory, and their references that are not in RocksDB yet.

A queue is known by the digest of its name. A queue that changed since the last checkpoint has a tail. For other
queues only the end is kept, packed (`Ends`), so that a queue costs bytes and no object. Ends are a cache: RocksDB has
them too, and finds them with a seek.

`_tails.pyx` is the compiled version. The plain classes are used without it.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

from matcher.names import parent_of
from store.api import message_queues, partition_of

_REFERENCE = 24  # bytes
_TAG = slice(12, 16)  # of a reference


def plain_queue_digest(queue: bytes) -> bytes:
    """The digest of a queue's name in index keys: BLAKE2b-128, 16 bytes."""
    return blake2b(queue, digest_size=16).digest()


class PlainEnds:
    """Ends of queues by digest (16 bytes). The oldest are dropped beyond `limit`."""

    __slots__ = ("_ends", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: dict[bytes, int] = {}

    def get(self, digest: bytes) -> int:
        """The end of the queue with this digest; -1 if it is not known here."""
        _check_digest(digest)
        return self._ends.get(digest, -1)

    def put(self, digest: bytes, end: int) -> None:
        """Add or replace an end."""
        _check_digest(digest)
        if digest not in self._ends and len(self._ends) >= self._limit:
            del self._ends[next(iter(self._ends))]
        self._ends[digest] = end


class PlainTails:
    """Ends of queues, and their references that are not in RocksDB yet, by digest of the queue's name.

    `references` counts these references, and `dirty` the queues with some. A parent topic has as many partitions as
    `counts` says, or else `partitions`.
    """

    __slots__ = ("_counts", "_ends", "_partitions", "_tails", "dirty", "references")

    def __init__(self, max_ends: int, partitions: int, counts: dict[bytes, int]) -> None:
        self._ends = PlainEnds(max_ends)  # of queues without a tail
        self._partitions = partitions
        self._counts = counts
        self._tails: dict[bytes, tuple[int, list[bytes]]] = {}  # the first reference's offset, and the references
        self.dirty = 0
        self.references = 0

    def end(self, digest: bytes) -> int:
        """The offset that the queue's next reference gets; -1 if it is not known here."""
        tail = self._tails.get(digest)
        return self._ends.get(digest) if tail is None else tail[0] + len(tail[1])

    def learn(self, digest: bytes, end: int) -> None:
        """Set the end of a queue. It is known at least until the next `drain`."""
        if not self._is_known(digest):
            self._tails[digest] = (end, [])

    def enter(self, digest: bytes, reference: bytes) -> int:
        """Add a reference (24 bytes) at the queue's end. Returns its offset, or -1 and adds nothing if the end is not
        known."""
        if len(reference) != _REFERENCE:
            raise ValueError("a reference has 24 bytes")
        return self._append(digest, reference) if self._is_known(digest) else -1

    def enter_messages(
        self, topics: list[bytes], references: list[bytes], offsets: list[int], unknown: Callable[[bytes, int], None]
    ) -> None:
        """Add each message's reference to its topic queue and its partition, and its topic offset to `offsets`.

        Calls `unknown` with a topic and a tag if the end of one of the two queues is not known; that has to `learn`
        both. The partition is that of the reference's tag (`store.api.partition_of`).
        """
        if len(topics) != len(references):
            raise ValueError("columns of different length")
        for topic, reference in zip(topics, references, strict=True):
            if len(reference) != _REFERENCE:
                raise ValueError("a reference has 24 bytes")
            tag = int.from_bytes(reference[_TAG], "little")
            count = self._counts.get(parent_of(topic), self._partitions)
            queue, parted = map(plain_queue_digest, message_queues(topic, partition_of(tag, count)))
            if not self._is_known(queue) or not self._is_known(parted):
                unknown(topic, tag)
                if not self._is_known(queue) or not self._is_known(parted):
                    raise KeyError(topic)
            offsets.append(self._append(queue, reference))
            self._append(parted, reference)

    def first_waiting(self, digest: bytes) -> int:
        """The offset of the queue's first reference that is not in RocksDB; -1 if there is none."""
        _check_digest(digest)
        first, references = self._tails.get(digest, (-1, []))
        return first if references else -1

    def waiting(self, digest: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` packed references from `offset` on, which must not be before `first_waiting`."""
        _check_digest(digest)
        if digest not in self._tails:
            return b""
        first, references = self._tails[digest]
        if offset < first:
            raise ValueError("this reference does not wait")
        return b"".join(references[offset - first : offset - first + limit])

    def drain(self, prefix: bytes, put: Callable[[bytes, bytes], None]) -> None:
        """Call `put` with the key and the references of each queue that has some, in order of keys.

        A key is `prefix`, the digest and the first offset (big-endian). The references stay here until `forget`.
        """
        for digest in sorted(self._tails):
            first, references = self._tails[digest]
            self._ends.put(digest, first + len(references))
            if references:
                put(prefix + digest + first.to_bytes(8, "big"), b"".join(references))

    def forget(self) -> None:
        """Drop all references. They must be in RocksDB."""
        self._tails = {}
        self.dirty = self.references = 0

    def _is_known(self, digest: bytes) -> bool:
        """Whether the queue's end is known. Gives the queue a tail if so."""
        end = self._ends.get(digest)
        if digest not in self._tails and end >= 0:
            self._tails[digest] = (end, [])
        return digest in self._tails

    def _append(self, digest: bytes, reference: bytes) -> int:
        first, references = self._tails[digest]
        references.append(reference)
        self.dirty += len(references) == 1
        self.references += 1
        return first + len(references) - 1


def _check_digest(digest: bytes) -> None:
    if len(digest) != 16:
        raise ValueError("a digest has 16 bytes")


if TYPE_CHECKING:
    Ends = PlainEnds
    Tails = PlainTails
    queue_digest = plain_queue_digest
else:
    try:
        from store.views.queues._tails import Ends, Tails, queue_digest
    except ImportError:
        Ends, Tails, queue_digest = PlainEnds, PlainTails, plain_queue_digest
