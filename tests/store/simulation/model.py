"""What the views have to say, folded from the records in the plainest way: lists and dicts, for reading.

Nothing here knows of files, batches, checkpoints or retention: a queue has all that ever entered it, and whoever asks
says from which position on the log is there. Meanings are those of `store.control` and `docs/format.md`.
"""

from collections import defaultdict
from typing import NamedTuple

from msgspec.structs import astuple

import record
from matcher.names import is_shared, matches, parent_of
from matcher.reserved import client_of
from record.layout import (
    FLAG_ADDRESSED,
    FLAG_HALF,
    FLAG_HELD,
    FLAG_RETAIN,
    FLAG_REVIVED,
    FLAG_TRACK_ID,
    FLAG_WILL,
    Kind,
)
from store import control
from store.api import (
    Addressed,
    DeadLetter,
    dead_letter_queue,
    event_rule_group,
    filter_queue,
    partition_of,
    partition_queue,
    topic_queue,
)
from tests.store.simulation.model_access import Access
from tests.store.simulation.model_buckets import Buckets
from tests.store.simulation.model_event_rules import EventRules
from tests.store.simulation.model_groups import Groups
from tests.store.simulation.model_held import Held
from tests.store.simulation.model_sessions import Sessions
from tests.store.simulation.model_shares import Shares

TIMERS = {Kind.TIMERS_FIRED, Kind.TIMERS_RECALLED, Kind.TRANSACTIONS_ENDED, Kind.TRANSACTIONS_CHECKED}
EVENT_RULES = {Kind.EVENT_RULE_SET, Kind.EVENT_RULE_REMOVED}
ENTRIES = {Kind.ENTRY_PUT, Kind.ENTRY_REMOVED}
ACCESS = {
    *EVENT_RULES,
    *ENTRIES,
    *(Kind.USER_SET, Kind.USER_REMOVED, Kind.RULES_SET),
    *(Kind.USER_CHANGED, Kind.ROLE_SET, Kind.ROLE_REMOVED, Kind.BAN_SET, Kind.BAN_ENDED),
    *(Kind.ACCESS_REQUESTED, Kind.ACCESS_DECIDED),
}
GATEWAYS = {Kind.GATEWAY_JOINED, Kind.GATEWAY_LEFT}
SHARES = {Kind.SHARE_JOINED, Kind.SHARE_LEFT, Kind.SHARE_HANDED_OVER}
POPS = {Kind.POPPED, Kind.SETTLED, Kind.DEAD_LETTERED, Kind.GROUP_RESET, Kind.GROUP_REMOVED}
PAUSES = {Kind.GROUP_PAUSED, Kind.GROUP_RESUMED}
LOG = {*GATEWAYS, Kind.LOG_TRIMMED, Kind.TOPIC_PARTITIONS}


class Entry(NamedTuple):
    """A place in a queue."""

    position: int  # of the record
    cause: int  # position of the record that had it enter: its own, or one that moved it
    time: int  # ms, of that record
    frame: bytes  # the sealed record

    @property
    def topic(self) -> bytes:
        return record.decode(self.frame, 0)[3]


class Entered(NamedTuple):
    """A message went into its queues."""

    cause: int
    position: int
    topic: bytes
    flags: int  # as if it had never been held
    topic_offset: int
    filter_offsets: tuple[tuple[bytes, int], ...]  # (filter, offset), sorted


class Model:
    """The state after some sealed records."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions  # of a parent topic without a number of its own
        self.counts: dict[bytes, int] = {}  # of those with one
        self.growths: defaultdict[bytes, list[list[int]]] = defaultdict(list)  # ends before each time that they rose
        self.queues: defaultdict[bytes, list[Entry]] = defaultdict(list)
        self.topics: set[bytes] = set()
        self.keys: defaultdict[tuple[bytes, bytes], list[Entry]] = defaultdict(list)  # by (parent, key)
        self.retained: dict[bytes, Entry] = {}
        self.were_retained = False  # any, ever
        self.were_held = False
        self.were_half = False
        self.sessions = Sessions(self.end)
        self.held = Held()
        self.committed: defaultdict[tuple[bytes, bytes], dict[int, int]] = defaultdict(dict)  # by (group, parent)
        self.groups = Groups(self.committed)
        self.shares = Shares(self.sessions, self.groups, self.end)
        self.event_rules = EventRules(self.groups, self.end)
        self.groups.is_over = lambda *place: self.shares.is_over(*place) or self.event_rules.is_over(*place)
        self.access = Access()
        self.buckets = Buckets()
        self.producers: dict[bytes, tuple[int, int, int, int]] = {}  # (sequence, position, records, digest) by name
        self.gateways: set[bytes] = set()
        self.entered: list[Entered] = []
        self.addressed: list[tuple[int, Addressed]] = []  # (cause, what listeners are told)
        self.letters: defaultdict[bytes, list[DeadLetter]] = defaultdict(list)  # by dead-letter queue and offset
        self.dead_letters: list[tuple[int, bytes]] = []  # (cause, group), each time a dead-letter queue grew
        self.again: list[tuple[int, bytes]] = []  # (cause, group), each time its members have to look again
        self.settled: list[tuple[int, bytes]] = []  # (cause, group): members of ordered groups may have to, too
        self.came: list[tuple[int, int]] = []  # (handle, ms) of messages that were held, and entered their queues
        self.begin: tuple[int, int] | None = None  # where the log lets itself begin, and the time of its first record
        self.time = 0  # ms, of the last record
        self.log_end = 0

    def fold(self, frame: bytes) -> None:
        """Take the next record of the log."""
        kind, _, _, subject, _, _, payload = record.decode(frame, 0)
        position, time = record.position_of(frame, 0), record.store_time_of(frame, 0)
        self.log_end, self.time = position + len(frame), time
        if kind == Kind.MESSAGE:
            self._message(frame, position, time)
        elif kind in TIMERS:
            for held in self.held.fold(Kind(kind), payload):
                self.came.append((record.position_of(held, 0), time))
                self._enter(held, position, time)
        elif kind in POPS:
            if not is_shared(subject):
                self._note_again(Kind(kind), position, subject, payload)
            for letter in self.groups.fold(Kind(kind), subject, payload, time):
                self._dead_letter(subject, letter, position, time)
        elif kind in PAUSES:
            self._pause(Kind(kind), position, subject, payload, time)
        elif kind == Kind.GROUP_OFFSETS_COMMITTED:
            parent, offsets, _ = astuple(control.GroupOffsetsCommitted.parse(payload))
            self.committed[subject, parent].update(offsets)
        elif kind in SHARES:
            self.shares.fold(Kind(kind), subject, payload)
        elif kind in LOG:
            self._log(Kind(kind), subject, payload)
        elif kind in ACCESS:
            self._access(Kind(kind), subject, payload, position, time)
        elif kind == Kind.PRODUCED:
            sequence, records, digest = astuple(control.Produced.parse(payload))
            self.producers[subject] = (sequence, position, records, digest)
        elif kind == Kind.PRODUCER_ENDED:
            last, known = control.ProducerEnded.parse(payload).last, self.producers.get(subject)
            if known is not None and last in (None, known[1]):
                del self.producers[subject]
        else:
            self.sessions.fold(Kind(kind), subject, payload, position)
        self.shares.notice()

    def _access(self, kind: Kind, name: bytes, payload: bytes, position: int, time: int) -> None:
        """Take a record about a user, a role, a ban, an event rule or an entry of a bucket."""
        if kind in ENTRIES:
            self.buckets.fold(kind, name, payload, self.log_end, time)
        elif kind not in EVENT_RULES:
            self.access.fold(kind, name, payload, position, time)
        elif self.event_rules.fold(kind, name, payload, position, time) and kind == Kind.EVENT_RULE_SET:
            self.again.append((position, event_rule_group(name)))

    def _pause(self, kind: Kind, position: int, group: bytes, payload: bytes, time: int) -> None:
        if self.groups.pause(kind, group, payload, time) and not is_shared(group):
            self.again.append((position, group))

    def _log(self, kind: Kind, subject: bytes, payload: bytes) -> None:
        if kind in GATEWAYS:
            (self.gateways.add if kind == Kind.GATEWAY_JOINED else self.gateways.discard)(subject)
        elif kind == Kind.LOG_TRIMMED:
            self._trim(*astuple(control.LogTrimmed.parse(payload)))
        else:
            self._set_partitions(subject, control.TopicPartitions.parse(payload).count)

    def _trim(self, begin: int, begin_time: int) -> None:
        assert self.begin is None or begin > self.begin[0], "the log's begin is decided twice"
        self.begin = (begin, begin_time)

    def count(self, parent: bytes) -> int:
        """The number of partitions of a parent topic."""
        return self.counts.get(parent, self.partitions)

    def _set_partitions(self, parent: bytes, count: int) -> None:
        ends = [self.end(partition_queue(parent, number)) for number in range(self.count(parent))]
        if sum(ends) and count <= len(ends):
            return
        if count > len(ends):
            self.growths[parent].append(ends)
        else:
            self.growths[parent] = [each for each in self.growths[parent] if len(each) < count]
        self.counts[parent] = count

    def end(self, queue: bytes) -> int:
        """The offset of a queue's next message."""
        return len(self.queues.get(queue, ()))

    def first(self, queue: bytes, begin: int, floor: int) -> int:
        """The first offset of a queue that is in a log from `begin` on and entered at `floor` (ms) or later; its end,
        if none is."""
        entries = self.queues.get(queue, [])
        answered = (n for n, entry in enumerate(entries) if entry.position >= begin and entry.time >= floor)
        return next(answered, len(entries))

    def _note_again(self, kind: Kind, position: int, group: bytes, payload: bytes) -> None:
        is_moved = kind in {Kind.GROUP_RESET, Kind.GROUP_REMOVED}
        if is_moved or (kind == Kind.SETTLED and control.Settled.parse(payload).again):
            self.again.append((position, group))
        if kind in {Kind.SETTLED, Kind.DEAD_LETTERED}:
            self.settled.append((position, group))

    def _message(self, frame: bytes, position: int, time: int) -> None:
        _, flags, packet_id, _, publisher, _, _ = record.decode(frame, 0)
        if flags & FLAG_TRACK_ID:
            self.sessions.received(publisher, packet_id)
        if flags & FLAG_WILL and not flags & FLAG_REVIVED:
            self.sessions.wills.by_client.pop(publisher, None)
        if flags & FLAG_HELD:
            self.held.hold(frame, position, time)
            self.were_held = True
            self.were_half |= bool(flags & FLAG_HALF)
        elif not flags & FLAG_REVIVED:
            self._enter(frame, position, time)
        elif self.held.drop(record.trailer_of(frame, 0)):
            self.came.append((record.trailer_of(frame, 0), time))
            self._enter(frame, position, time)

    def _enter(self, frame: bytes, cause: int, time: int) -> None:
        """A message enters its queues, because of the record at `cause`, at that record's time."""
        _, flags, _, topic, _, properties, payload = record.decode(frame, 0)
        position = record.position_of(frame, 0)
        entry = Entry(position, cause, time, frame)
        self.topics.add(topic)
        wanted = {*self.sessions.wanted(), *self.shares.wanted(), *self.event_rules.wanted()}
        filters = sorted(name for name in wanted if matches(name, topic))
        queues = [topic_queue(topic), *(filter_queue(name) for name in filters)]
        parent = parent_of(topic)
        queues.append(partition_queue(parent, partition_of(record.tag_of(topic, properties), self.count(parent))))
        offsets = [self.end(queue) for queue in queues]
        for queue in queues:
            self.queues[queue].append(entry)
        for key in record.keys_of(properties):
            self.keys[parent_of(topic), key].append(entry)
        pairs = tuple(zip(filters, offsets[1:], strict=False))
        self.entered.append(Entered(cause, position, topic, flags & ~FLAG_HELD, offsets[0], pairs))
        client = client_of(topic) if flags & FLAG_ADDRESSED else None
        if client is not None:
            subscription = self.sessions.addressed(client, topic, position, offsets[0])
            self.addressed.append((cause, Addressed(position, client, topic, subscription)))
        if flags & FLAG_RETAIN:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = entry
                self.were_retained = True

    def _dead_letter(self, group: bytes, letter: DeadLetter, cause: int, time: int) -> None:
        if letter.offset < self.end(letter.queue):
            entry = self.queues[letter.queue][letter.offset]
            self.queues[dead_letter_queue(group)].append(entry._replace(cause=cause, time=time))
            self.letters[dead_letter_queue(group)].append(letter)
            self.dead_letters.append((cause, group))
