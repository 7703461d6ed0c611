"""The ends of queues in memory: where each ends, and its references that are not in RocksDB yet.

A queue is known by the digest of its name. One that was touched since the last checkpoint has a tail; of others the
end alone is kept, packed (`Ends`), so that a queue costs bytes and no object. Ends are a memory of what RocksDB would
answer with a seek: what is forgotten is sought there again.

Compiled from `_tails.pyx`; the plain classes stand in where there is no C compiler.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

from matcher.names import parent_of
from store.api import partition_queue, topic_queue

_REFERENCE = 24  # bytes
_TAG = slice(12, 16)  # of a reference


def plain_queue_digest(queue: bytes) -> bytes:
    """What stands for a queue's name in index keys, 16 bytes: its BLAKE2b-128."""
    return blake2b(queue, digest_size=16).digest()


class PlainEnds:
    """Ends of queues by digest (16 bytes), at most `limit` of them: the oldest are forgotten."""

    __slots__ = ("_ends", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: dict[bytes, int] = {}

    def get(self, digest: bytes) -> int:
        """The end that was put for the digest, -1 if there is none."""
        _check_digest(digest)
        return self._ends.get(digest, -1)

    def put(self, digest: bytes, end: int) -> None:
        """Remember an end."""
        _check_digest(digest)
        if digest not in self._ends and len(self._ends) >= self._limit:
            del self._ends[next(iter(self._ends))]
        self._ends[digest] = end


class PlainTails:
    """Where queues end, and the references of theirs that are not in RocksDB yet; by digest of the queue's name.

    `dirty` counts queues with references that wait, `references` those."""

    __slots__ = ("_ends", "_partitions", "_tails", "dirty", "references")

    def __init__(self, max_ends: int, partitions: int) -> None:
        self._ends = PlainEnds(max_ends)  # of queues that were touched before the last drain
        self._partitions = partitions
        self._tails: dict[bytes, tuple[int, list[bytes]]] = {}  # first offset that waits, and what waits
        self.dirty = 0
        self.references = 0

    def end(self, digest: bytes) -> int:
        """The offset that the queue's next reference gets; -1 if that is not known here."""
        tail = self._tails.get(digest)
        return self._ends.get(digest) if tail is None else tail[0] + len(tail[1])

    def learn(self, digest: bytes, end: int) -> None:
        """Where a queue ends: it is known at least until references are drained."""
        if not self._is_known(digest):
            self._tails[digest] = (end, [])

    def enter(self, digest: bytes, reference: bytes) -> int:
        """Add a reference (24 bytes) at the queue's end. Returns its offset; -1 if the end is not known: nothing is
        added then."""
        if len(reference) != _REFERENCE:
            raise ValueError("a reference has 24 bytes")
        return self._append(digest, reference) if self._is_known(digest) else -1

    def enter_messages(
        self, topics: list[bytes], references: list[bytes], offsets: list[int], unknown: Callable[[bytes], None]
    ) -> None:
        """Add each message's reference to its topic queue and its partition, and its offset in the topic queue to
        `offsets`. `unknown` is called with a topic of which an end is not known: it has to `learn` both.

        The partition of a topic is the tag of its reference, which is the topic's CRC-32C, modulo `partitions`.
        """
        if len(topics) != len(references):
            raise ValueError("columns of different length")
        for topic, reference in zip(topics, references, strict=True):
            if len(reference) != _REFERENCE:
                raise ValueError("a reference has 24 bytes")
            partition = int.from_bytes(reference[_TAG], "little") % self._partitions
            queue = plain_queue_digest(topic_queue(topic))
            parted = plain_queue_digest(partition_queue(parent_of(topic), partition))
            if not self._is_known(queue) or not self._is_known(parted):
                unknown(topic)
                if not self._is_known(queue) or not self._is_known(parted):
                    raise KeyError(topic)
            offsets.append(self._append(queue, reference))
            self._append(parted, reference)

    def first_waiting(self, digest: bytes) -> int:
        """The offset of the queue's first reference that waits; -1 if none does."""
        _check_digest(digest)
        first, references = self._tails.get(digest, (-1, []))
        return first if references else -1

    def waiting(self, digest: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` references that wait, packed, from `offset` on, which is not before the first of them."""
        _check_digest(digest)
        if digest not in self._tails:
            return b""
        first, references = self._tails[digest]
        if offset < first:
            raise ValueError("this reference does not wait")
        return b"".join(references[offset - first : offset - first + limit])

    def drain(self, prefix: bytes, put: Callable[[bytes, bytes], None]) -> None:
        """Call `put` with the key and the references of every queue that has some, in order of keys, which are
        `prefix`, digest, first offset (big-endian). They wait until `forget`.
        """
        for digest in sorted(self._tails):
            first, references = self._tails[digest]
            self._ends.put(digest, first + len(references))
            if references:
                put(prefix + digest + first.to_bytes(8, "big"), b"".join(references))

    def forget(self) -> None:
        """What was drained is in RocksDB: none wait any more, and are expected there when next asked for."""
        self._tails = {}
        self.dirty = self.references = 0

    def _is_known(self, digest: bytes) -> bool:
        """Whether the queue's end is known; it has a tail then."""
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
        from store.views._tails import Ends, Tails, queue_digest
    except ImportError:
        Ends, Tails, queue_digest = PlainEnds, PlainTails, plain_queue_digest
