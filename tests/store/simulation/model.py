"""What the views have to say, folded from the records in the plainest way: lists and dicts, for reading.

Nothing here knows of files, batches, checkpoints or retention: a queue has all that ever entered it, and whoever asks
says from which position on the log is there. Meanings are those of `store.control` and `docs/format.md`.
"""

from collections import defaultdict
from typing import NamedTuple

import record
from matcher.names import matches, parent_of
from record.layout import FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store import control
from store.api import filter_queue, partition_queue, topic_queue
from tests.store.simulation.model_sessions import Sessions


class Entry(NamedTuple):
    """A place in a queue."""

    position: int  # of the record
    time: int  # ms, when it entered
    frame: bytes  # the sealed record


class Entered(NamedTuple):
    """A message went into its queues."""

    cause: int  # position of the record that had it enter: its own, or one that moved it
    position: int
    topic: bytes
    flags: int
    topic_offset: int
    filter_offsets: tuple[tuple[bytes, int], ...]  # (filter, offset), sorted


class Model:
    """The state after some sealed records."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.queues: defaultdict[bytes, list[Entry]] = defaultdict(list)
        self.topics: set[bytes] = set()
        self.keys: defaultdict[tuple[bytes, bytes], list[Entry]] = defaultdict(list)  # by (parent, key)
        self.retained: dict[bytes, bytes] = {}
        self.sessions = Sessions(lambda queue: len(self.queues.get(queue, ())))
        self.groups: defaultdict[tuple[bytes, bytes], dict[int, int]] = defaultdict(dict)
        self.entered: list[Entered] = []

    def fold(self, frame: bytes) -> None:
        """Take the next record of the log."""
        kind, flags, packet_id, topic, publisher, _, payload = record.decode(frame, 0)
        if kind == Kind.MESSAGE:
            self._enter(frame, record.position_of(frame, 0), record.store_time_of(frame, 0))
            if flags & FLAG_TRACK_ID:
                self.sessions.received(publisher, packet_id)
        elif kind == Kind.GROUP_OFFSETS_COMMITTED:
            parent, offsets = control.parse_group_offsets_committed(payload)
            self.groups[topic, parent].update(offsets)
        else:
            self.sessions.fold(Kind(kind), topic, payload, record.position_of(frame, 0))

    def first(self, queue: bytes, begin: int) -> int:
        """The first offset of a queue that is in a log from `begin` on; its end, if none is."""
        entries = self.queues.get(queue, [])
        return next((offset for offset, entry in enumerate(entries) if entry.position >= begin), len(entries))

    def _enter(self, frame: bytes, cause: int, time: int) -> None:
        """A message enters its queues, because of the record at `cause`, at that record's time."""
        _, flags, _, topic, _, properties, payload = record.decode(frame, 0)
        position = record.position_of(frame, 0)
        entry = Entry(position, time, frame)
        self.topics.add(topic)
        filters = sorted(name for name in self.sessions.wanted() if matches(name, topic))
        queues = [topic_queue(topic), *(filter_queue(name) for name in filters)]
        queues.append(partition_queue(parent_of(topic), record.crc32c(topic) % self.partitions))
        offsets = [len(self.queues[queue]) for queue in queues]
        for queue in queues:
            self.queues[queue].append(entry)
        for key in record.keys_of(properties):
            self.keys[parent_of(topic), key].append(entry)
        pairs = tuple(zip(filters, offsets[1:], strict=False))
        self.entered.append(Entered(cause, position, topic, flags, offsets[0], pairs))
        if flags & FLAG_RETAIN:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = frame
