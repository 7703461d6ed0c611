"""Puts every committed message into its queues. The one loop of the fold that runs per message: compiled.

A message enters its partition, its topic queue and the filter queues that are wanted at its position. Entering
is counting the queue's end up and keeping the reference; references reach RocksDB at the checkpoint.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from matcher.trie import Trie
from record.layout import FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, Kind
from store.api import Commit, Moved, filter_queue, partition_queue, topic_queue
from store.views.ends import Ends
from store.views.queues import QueueTail, TopicTail, queue_digest

_MESSAGE: Final = int(Kind.MESSAGE)
_STATE: Final = FLAG_RETAIN | FLAG_TRACK_ID
_WAITS: Final = FLAG_HELD | FLAG_REVIVED
_SPECIAL: Final = _STATE | _WAITS

# (commit data, start, reference, flags, topic) of a message that is state as well as a queue entry
OnSpecial = Callable[[bytes, int, bytes, int, bytes], None]
# (commit data, start, flags, topic) of a message that is held or stands in for one → whether it enters its queues
OnHeld = Callable[[bytes, int, int, bytes], bool]
# (kind, commit, start) of a control record
OnControl = Callable[[int, Commit, int], None]


class Dispatcher:
    """Queue ends and the wanted filter queues. `cold_end` finds the end of a queue that has no tail;
    `partition_of` gives a topic's (parent, partition), and enters the names into their views unless they are known
    to be there."""

    def __init__(
        self,
        limit: int,
        ends: Ends,
        cold_end: Callable[[bytes], int],
        partition_of: Callable[[bytes, bool], tuple[bytes, int]],
        on_special: OnSpecial,
        on_held: OnHeld,
        on_control: OnControl,
    ) -> None:
        self._limit = limit
        self._ends = ends  # of queues whose tail was forgotten
        self._cold_end = cold_end
        self._partition_of = partition_of
        self._on_special = on_special
        self._on_held = on_held
        self._on_control = on_control
        self._topics: dict[bytes, TopicTail] = {}  # by topic; both least recently checkpointed first
        self._queues: dict[bytes, QueueTail] = {}  # partitions, and filters that are not wanted, by queue name
        self._wanted: dict[bytes, QueueTail] = {}  # by filter; never forgotten while wanted
        self._trie: Trie[bytes] = Trie()
        self._version = 0  # counts changes of `_wanted`
        self._dirty: list[QueueTail] = []  # queues with references
        self._dirty_topics: list[TopicTail] = []
        self.references = 0  # in memory

    @property
    def dirty(self) -> int:
        """Queues with references that are not in RocksDB."""
        return len(self._dirty)

    def fold(
        self,
        commit: Commit,
        starts: list[int],
        kinds: list[int],
        flags: list[int],
        topics: list[bytes],
        refs: list[bytes],
    ) -> None:
        """Fold a commit's records, in order, and fill its columns."""
        special = False
        for flag in flags:
            if flag & _SPECIAL:
                special = True
                break
        if not special and kinds.count(_MESSAGE) == len(kinds):
            commit.starts = starts
            commit.topics = topics
            commit.flags = flags
            self._enter(commit, topics, refs)
            return
        for i in range(len(starts)):
            if kinds[i] != _MESSAGE:
                self._on_control(kinds[i], commit, starts[i])
                continue
            if flags[i] & _WAITS and not self._on_held(commit.data, starts[i], flags[i], topics[i]):
                continue
            commit.starts.append(starts[i])
            commit.topics.append(topics[i])
            commit.flags.append(flags[i])
            self._enter(commit, topics[i : i + 1], refs[i : i + 1])
            if flags[i] & _STATE:
                self._on_special(commit.data, starts[i], refs[i], flags[i], topics[i])

    def enter_moved(self, commit: Commit, moved: list[tuple[int, int, bytes, int]], refs: list[bytes]) -> None:
        """Enter messages whose records are older than the commit, each (position, length, topic, flags) with its
        reference, into the queues that are wanted now, and tell the commit. For use by `on_control`."""
        own = Commit(b"", 0, 0)
        self._enter(own, [topic for _, _, topic, _ in moved], refs)
        filters = own.filter_offsets
        for i in range(len(moved)):
            position, length, topic, flags = moved[i]
            entered = () if filters is None else filters[i]
            commit.moved.append(Moved(position, length, topic, flags, own.topic_offsets[i], entered))

    def enter_reference(self, name: bytes, ref: bytes) -> int:
        """Enter a reference into one queue that messages do not enter by their topic: no partition, topic or filter
        queue. Returns its offset there. For use by `on_control`."""
        queue = self._queue_tail(name)
        if not queue.refs:
            self._dirty.append(queue)
        queue.refs.append(ref)
        queue.end += 1
        self.references += 1
        return queue.end - 1

    def _enter(self, commit: Commit, topics: list[bytes], refs: list[bytes]) -> None:
        offsets = commit.topic_offsets
        filter_offsets = commit.filter_offsets
        if self._wanted and filter_offsets is None:
            filter_offsets = commit.filter_offsets = [()] * len(offsets)
        tails = self._topics
        dirty = self._dirty
        for i in range(len(topics)):
            topic = topics[i]
            ref = refs[i]
            entry = tails.get(topic)
            if entry is None:
                entry = self._topic_tail(topic)
            queue = entry.queue
            if not queue.refs:
                dirty.append(queue)
                self._dirty_topics.append(entry)
            queue.refs.append(ref)
            offsets.append(queue.end)
            queue.end += 1
            queue = entry.partition
            if queue.end < 0:
                queue = entry.partition = self._queue_tail(queue.name)
            if not queue.refs:
                dirty.append(queue)
            queue.refs.append(ref)
            queue.end += 1
            if filter_offsets is not None:
                filter_offsets.append(self._enter_filters(entry, ref) if self._wanted else ())
        self.references += 2 * len(topics)

    def _enter_filters(self, entry: TopicTail, ref: bytes) -> tuple[tuple[bytes, int], ...]:
        if entry.filters_version != self._version:
            entry.filters = [(name, self._wanted[name]) for name in self._trie.match(entry.topic)]
            entry.filters_version = self._version
        if not entry.filters:
            return ()
        entered: list[tuple[bytes, int]] = []
        for name, queue in entry.filters:
            if not queue.refs:
                self._dirty.append(queue)
            queue.refs.append(ref)
            entered.append((name, queue.end))
            queue.end += 1
        self.references += len(entered)
        return tuple(entered)

    def want(self, topic_filter: bytes) -> None:
        """From here on the wildcard filter has a queue."""
        name = filter_queue(topic_filter)
        queue = self._queue_tail(name)
        del self._queues[name]
        self._wanted[topic_filter] = queue
        self._trie.add(topic_filter, topic_filter)
        self._version += 1

    def unwant(self, topic_filter: bytes) -> None:
        """From here on nothing enters the filter's queue; what is in it stays."""
        queue = self._wanted.pop(topic_filter)
        self._queues[queue.name] = queue
        self._trie.remove(topic_filter, topic_filter)
        self._version += 1

    def tail(self, queue: bytes) -> QueueTail | None:
        """The tail of a queue, if it is in memory."""
        kind = queue[:1]
        if kind == b"t":
            entry = self._topics.get(queue[1:])
            return None if entry is None else entry.queue
        if kind == b"f":
            wanted = self._wanted.get(queue[1:])
            if wanted is not None:
                return wanted
        return self._queues.get(queue)

    def end(self, queue: bytes) -> int:
        """The offset that the next message of the queue gets."""
        tail = self.tail(queue)
        if tail is not None:
            return tail.end
        known = self._ends.get(queue_digest(queue))
        return known if known >= 0 else self._cold_end(queue)

    def drain(self) -> list[tuple[bytes, int, bytes]]:
        """(digest, first offset, references) of every queue with references, which are expected to be in RocksDB
        when next asked for. Forgets the tails that were not used for longest beyond the limit."""
        rows = [(tail.digest, tail.end - len(tail.refs), b"".join(tail.refs)) for tail in self._dirty]
        for tail in self._dirty:
            tail.refs = []
            if tail.name in self._queues:
                self._queues[tail.name] = self._queues.pop(tail.name)
        for entry in self._dirty_topics:
            if entry.topic in self._topics:
                self._topics[entry.topic] = self._topics.pop(entry.topic)
        self._dirty = []
        self._dirty_topics = []
        self.references = 0
        self._forget()
        return rows

    def _forget(self) -> None:
        """Keep no more than the end of the tails that were not used for longest, beyond the limit."""
        for topic in _oldest(self._topics, len(self._topics) - self._limit):
            tail = self._topics.pop(topic).queue
            self._ends.put(tail.digest, tail.end)
            tail.end = -1
        for name in _oldest(self._queues, len(self._queues) - self._limit):
            tail = self._queues.pop(name)
            self._ends.put(tail.digest, tail.end)
            tail.end = -1

    def _topic_tail(self, topic: bytes) -> TopicTail:
        name = topic_queue(topic)
        digest = queue_digest(name)
        end = self._ends.get(digest)
        is_known = end >= 0
        queue = QueueTail(name, digest, end if is_known else self._cold_end(name))  # a topic without a name: 0 at once
        parent, partition = self._partition_of(topic, is_known)
        entry = TopicTail(topic, queue, self._queue_tail(partition_queue(parent, partition)))
        self._topics[topic] = entry
        return entry

    def _queue_tail(self, name: bytes) -> QueueTail:
        tail = self._queues.get(name)
        if tail is None:
            digest = queue_digest(name)
            end = self._ends.get(digest)
            tail = self._queues[name] = QueueTail(name, digest, end if end >= 0 else self._cold_end(name))
        return tail


def _oldest(names: Iterable[bytes], count: int) -> list[bytes]:
    """The first `count` of a dictionary's names. At once: its first name alone is found by stepping over all the
    places in front that were deleted, which is quadratic when done for each."""
    return list(islice(names, max(count, 0)))
