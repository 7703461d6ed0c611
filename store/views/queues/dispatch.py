"""Enters each committed message into its queues. This module is compiled, because it runs per message.

A message enters its partition, its topic queue and the filter queues that are wanted at its position. Entering a queue
increments its end and keeps the reference (`store.views.queues.tails`). A checkpoint writes the references to RocksDB.
"""

from collections.abc import Callable
from typing import Final

from matcher.names import parent_of
from matcher.trie import Trie
from record.layout import FLAG_ADDRESSED, FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, FLAG_WILL, Kind
from store.api import Commit, Moved, filter_queue, message_queues, partition_of
from store.views.queues.partitions import Partitions
from store.views.queues.tails import Tails, queue_digest

_MESSAGE: Final = int(Kind.MESSAGE)
_STATE: Final = FLAG_RETAIN | FLAG_TRACK_ID | FLAG_ADDRESSED | FLAG_WILL
_WAITS: Final = FLAG_HELD | FLAG_REVIVED
_SPECIAL: Final = _STATE | _WAITS
_MAX_MATCHES: Final = 1 << 16  # topics whose matching filters are cached
_NONE: Final[list[bytes]] = []
_MAX_REMEMBERED: Final = 256  # bytes of a cached topic: topics of 65,535 bytes would need gigabytes

# (commit, start, reference, flags, topic, offset in the topic queue) of a message that also changes a state view
OnSpecial = Callable[[Commit, int, bytes, int, bytes, int], None]
# (commit data, start, flags, topic) of a held message or the copy of one → whether it enters its queues
OnHeld = Callable[[bytes, int, int, bytes], bool]
# (kind, commit, start) of a control record
OnControl = Callable[[int, Commit, int], None]


class Dispatcher:
    """Enters messages into queues, and knows the wanted filter queues.

    `cold_end` finds the end of a queue that is not in `tails`. `topic_end` does so for the topic queue of a new
    message, and adds new names to the names view.
    """

    def __init__(
        self,
        tails: Tails,
        partitions: Partitions,
        cold_end: Callable[[bytes], int],
        topic_end: Callable[[bytes], int],
        on_special: OnSpecial,
        on_held: OnHeld,
        on_control: OnControl,
    ) -> None:
        self._tails = tails
        self._partitions = partitions
        self._cold_end = cold_end
        self._topic_end = topic_end
        self._on_special = on_special
        self._on_held = on_held
        self._on_control = on_control
        self._wanted: dict[bytes, bytes] = {}  # filter → digest of its queue
        self._trie: Trie[bytes] = Trie()
        self._matches: dict[bytes, list[bytes]] = {}  # topic → wanted filters that match it

    def fold(
        self,
        commit: Commit,
        starts: list[int],
        kinds: list[int],
        flags: list[int],
        topics: list[bytes],
        refs: list[bytes],
    ) -> None:
        """Fold the records of a commit in order, and fill the commit's columns."""
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
        first = 0  # the first message that is not entered yet
        for i in range(len(starts)):
            if kinds[i] == _MESSAGE and not flags[i] & _WAITS:
                continue
            self._enter_run(commit, first, i, starts, flags, topics, refs)
            first = i + 1
            if kinds[i] != _MESSAGE:
                self._on_control(kinds[i], commit, starts[i])
            elif self._on_held(commit.data, starts[i], flags[i], topics[i]):
                self._enter_run(commit, i, i + 1, starts, flags, topics, refs)
        self._enter_run(commit, first, len(starts), starts, flags, topics, refs)

    def _enter_run(
        self,
        commit: Commit,
        first: int,
        end: int,
        starts: list[int],
        flags: list[int],
        topics: list[bytes],
        refs: list[bytes],
    ) -> None:
        """Enter the messages [first, end) of a commit."""
        if first == end:
            return
        commit.starts += starts[first:end]
        commit.topics += topics[first:end]
        commit.flags += flags[first:end]
        self._enter(commit, topics[first:end], refs[first:end])
        offsets = commit.topic_offsets
        behind = len(offsets) - end  # from a record's index to its message's
        for i in range(first, end):
            if flags[i] & _STATE:
                self._on_special(commit, starts[i], refs[i], flags[i], topics[i], offsets[behind + i])

    def enter_moved(self, commit: Commit, moved: list[tuple[int, int, bytes, int]], refs: list[bytes]) -> None:
        """Enter messages whose records are older than the commit into their queues, and add them to the commit.

        Each message is (position, length, topic, flags) with its reference. For use by `on_control`.
        """
        own = Commit(b"", 0, 0)
        self._enter(own, [topic for _, _, topic, _ in moved], refs)
        filters = own.filter_offsets
        for i in range(len(moved)):
            position, length, topic, flags = moved[i]
            entered = () if filters is None else filters[i]
            commit.moved.append(Moved(position, length, topic, flags, own.topic_offsets[i], entered))

    def enter_reference(self, queue: bytes, reference: bytes) -> int:
        """Enter a reference into a queue that is no partition, topic or filter queue. Returns its offset.

        For use by `on_control`.
        """
        return self._enter_queue(queue, queue_digest(queue), reference)

    def _enter(self, commit: Commit, topics: list[bytes], refs: list[bytes]) -> None:
        offsets = commit.topic_offsets
        filter_offsets = commit.filter_offsets
        if not self._wanted:
            self._tails.enter_messages(topics, refs, offsets, self._learn)
            if filter_offsets is not None:
                filter_offsets += [()] * len(topics)
            return
        if filter_offsets is None:
            filter_offsets = commit.filter_offsets = [()] * len(offsets)
        matches: dict[bytes, list[bytes]] = {}  # of those topics that have any
        for topic in set(topics):
            filters = self._filters_of(topic)
            if filters:
                matches[topic] = filters
        self._tails.enter_messages(topics, refs, offsets, self._learn)
        if not matches:
            filter_offsets += [()] * len(topics)
            return
        for i in range(len(topics)):
            filters = matches.get(topics[i], _NONE)
            if not filters:
                filter_offsets.append(())
                continue
            entered: list[tuple[bytes, int]] = []
            for name in filters:
                digest = self._wanted[name]
                offset: int = self._tails.enter(digest, refs[i])
                if offset < 0:
                    offset = self._enter_queue(filter_queue(name), digest, refs[i])
                entered.append((name, offset))
            filter_offsets.append(tuple(entered))

    def _learn(self, topic: bytes, tag: int) -> None:
        """Add the ends of the topic's queue, and of the partition of a message with this tag, to `tails`."""
        queue, partition = message_queues(topic, partition_of(tag, self._partitions.of(parent_of(topic))))
        digest = queue_digest(queue)
        if self._tails.end(digest) < 0:
            self._tails.learn(digest, self._topic_end(topic))
        digest = queue_digest(partition)
        if self._tails.end(digest) < 0:
            self._tails.learn(digest, self._cold_end(partition))

    def _filters_of(self, topic: bytes) -> list[bytes]:
        """The wanted filters that match a topic."""
        filters = self._matches.get(topic)
        if filters is None:
            if len(self._matches) >= _MAX_MATCHES:
                self._matches.clear()
            filters = self._trie.match(topic)
            if len(topic) <= _MAX_REMEMBERED:
                self._matches[topic] = filters
        return filters

    def _enter_queue(self, queue: bytes, digest: bytes, reference: bytes) -> int:
        offset = self._tails.enter(digest, reference)
        if offset < 0:
            self._tails.learn(digest, self._cold_end(queue))
            offset = self._tails.enter(digest, reference)
        return offset

    def want(self, topic_filter: bytes) -> None:
        """Enter messages into the queue of a wildcard filter from now on."""
        self._wanted[topic_filter] = queue_digest(filter_queue(topic_filter))
        self._trie.add(topic_filter, topic_filter)
        self._matches.clear()

    def unwant(self, topic_filter: bytes) -> None:
        """Enter no more messages into the queue of a filter. Its entries stay."""
        del self._wanted[topic_filter]
        self._trie.remove(topic_filter, topic_filter)
        self._matches.clear()

    def end(self, queue: bytes) -> int:
        """The offset that the next message of the queue gets."""
        known = self._tails.end(queue_digest(queue))
        return known if known >= 0 else self._cold_end(queue)
