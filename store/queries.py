"""The read methods of `store.api.Store`, answered from the views and the log.

`Engine` inherits them. References come from the views, bytes from the reader.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final, Self

import record
from matcher.names import parent_of
from record.layout import HEADER_SIZE, REFERENCE
from store import find
from store.api import (
    AccessRequest,
    Ban,
    Bounds,
    BucketChanges,
    BucketEntry,
    ChildPage,
    Chunk,
    DeadLetter,
    EntryChange,
    EntryPage,
    EventRule,
    Fetched,
    Found,
    GroupPause,
    GroupProgress,
    GroupQueueState,
    GroupState,
    HeldPage,
    ProducerState,
    Retained,
    Role,
    Rule,
    Selected,
    SessionState,
    StoredSubscription,
    StoredWill,
    TopicPage,
    User,
    UserState,
    dead_letter_queue,
    partition_queue,
)
from store.errors import LogCorrupt, OffsetOutOfRange
from store.log.reader import LogReader
from store.producer_progress import cut_from
from store.selected import SelectedReads, first_since
from store.views.fold import Views
from store.views.groups.counts import GroupCounts
from store.views.groups.leases import UNSENT
from store.views.queues.partitions import Partitions
from store.views.topics.retained import entered_at, frame_in, is_reference

_MAX_RECORDS: Final = 1 << 16  # of one fetch
_MAX_SKIPPED: Final = 4096  # references checked per turn of the loop where records are gone
# Kinds of queues that have one parent topic and so begin at its retention floor. Other queues skip single records.
_OF_ONE_PARENT: Final = (b"t", b"p")
_PAGE_BYTES: Final = 1 << 20  # of topic names in one page
_MAX_ROWS: Final = 1000  # rows read per turn of the loop: a few milliseconds
_MANY_QUEUES: Final = 1024  # of a group
_MAX_QUEUES: Final = 32  # queues whose ends are looked up per turn of the loop: a millisecond if none is in memory


class Queries:
    """Reads over views that are complete up to the committed end of the log."""

    _views: Views
    _reader: LogReader

    @property
    def bulk(self) -> Self:
        """All reads are in order here, and none holds up a commit."""
        return self

    @property
    def position(self) -> int:
        """Up to where the views have folded the log."""
        return self._views.position

    async def bounds(self, queue: bytes) -> Bounds:
        return self._views.bounds((queue,))[0]

    @property
    def partitions(self) -> Partitions:
        """How many partitions parent topics have."""
        return self._views.partitions

    def partition_count(self, parent: bytes) -> int:
        return self.partitions.of(parent)

    async def partition_bounds(self, parent: bytes) -> list[Bounds]:
        return self._views.bounds([partition_queue(parent, number) for number in range(self.partition_count(parent))])

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        at, wanted = offset, min(max_records, max_bytes // HEADER_SIZE + 1)
        is_of_one = queue[:1] in _OF_ONE_PARENT
        while True:
            bounds, refs = self._views.look_up(queue, at, min(wanted, _MAX_RECORDS))
            if not bounds.begin <= at <= bounds.end:
                raise OffsetOutOfRange(queue, offset, bounds.begin, bounds.end)
            if not refs:
                return Fetched(at, 0, b"", bounds)
            if not self._views.is_whole and self._views.has_gone(refs):
                there = _run([not self._views.is_gone(position) for position in record.unpack_refs(refs)[0]])
                refs = refs[there.start * REFERENCE : there.stop * REFERENCE]
                at += there.start
                if not refs:
                    wanted = _MAX_SKIPPED
                    await asyncio.sleep(0)  # very many may be gone: let other tasks run
                    continue
            count = record.count_within(refs[: max_records * REFERENCE], max_bytes)
            refs = refs[: count * REFERENCE]
            try:
                data = await self._reader.frames(refs, without if is_of_one else 0)
            except LogCorrupt:
                if not any(map(self._views.is_gone, record.unpack_refs(refs)[0])):
                    raise
                continue  # retention removed records during the read
            times = record.unpack_refs(refs)[2] if not is_of_one else []
            if times and times[0] < self._views.floors.highest:
                young, data = self._young(data, times)
                at += young.start
                count = young.stop - young.start
                if not count:
                    await asyncio.sleep(0)
                    continue
            return Fetched(at, count, data, bounds)

    async def read(self, position: int, max_bytes: int) -> Chunk:
        end = self._views.position
        if position == end:
            return Chunk(position, position, b"")
        if not self._views.begin <= position < end:
            raise OffsetOutOfRange(b"log", position, self._views.begin, end)
        removals = self._views.removals
        try:
            return await self._reader.chunk(position, end, max_bytes)
        except LogCorrupt:
            if removals == self._views.removals:
                raise
            return await self.read(position, max_bytes)  # retention removed records during the read

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        return first_since(self._views, queue, time_ms)

    def recent(self, queue: bytes, since_ms: int) -> tuple[int, int]:
        """When the newest message of a queue entered it (ms; 0: the queue holds none), and how many entered it since a
        time. It reads no messages, and the fewer the newer ones are."""
        bounds = self._views.bounds((queue,))[0]
        end = bounds.end
        if bounds.begin == end:
            return 0, 0
        last_ms = self._time_at(queue, end - 1)
        low, high, step = bounds.begin, end, 1
        while high > bounds.begin:  # `high` is not older than `since_ms`, or the end
            probe = max(end - step, bounds.begin)
            if self._time_at(queue, probe) < since_ms:
                low = probe + 1
                break
            high = probe
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if self._time_at(queue, middle) < since_ms:
                low = middle + 1
            else:
                high = middle
        return last_ms, end - high

    def _time_at(self, queue: bytes, offset: int) -> int:
        """When a message entered a queue, ms."""
        return int(record.unpack_refs(self._views.references(queue, offset, 1))[2][0])

    async def position_at(self, time_ms: int) -> int:
        begin, end = self._views.begin, self._views.position
        removals = self._views.removals
        try:
            return end if begin == end else await self._reader.position_at(time_ms, begin, end)
        except LogCorrupt:
            if removals == self._views.removals:
                raise
            return await self.position_at(time_ms)  # retention removed records during the read

    async def retention_floor(self, parent: bytes) -> int:
        return self._views.floors.of_parent(parent)

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
        reads = SelectedReads(self._views, self._reader, queue, topic_filter, keys)
        return await reads.fetch(offset, until, max_records, max_bytes, without)

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        return await find.by_key(self._views, self._reader, parent, key, after, limit, max_bytes)

    async def message(self, position: int) -> bytes:
        return await find.message(self._views, self._reader, position)

    async def session(self, client_id: bytes) -> SessionState | None:
        return self._views.sessions.session(client_id)

    async def session_row(self, client_id: bytes) -> SessionState | None:
        return self._views.sessions.session_row(client_id)

    async def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, StoredSubscription]:
        return self._views.sessions.subscriptions(client_id, filters)

    async def sessions(self, after: bytes | None, limit: int) -> list[bytes]:
        return self._views.sessions.page(after, limit)

    async def sessions_of(self, user_name: bytes, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        return self._views.sessions.of_user(user_name, after, _MAX_ROWS)

    async def session_count_of(self, user_name: bytes) -> int:
        return self._views.sessions.count_of(user_name)

    def session_count(self) -> int:
        return self._views.sessions.count

    async def will(self, client_id: bytes) -> StoredWill | None:
        return self._views.wills.will(client_id)

    async def wills(self, after: bytes | None, limit: int) -> list[StoredWill]:
        return self._views.wills.page(after, limit)

    async def wills_waiting(self, limit: int) -> list[tuple[bytes, int]]:
        return self._views.wills.waiting(limit)

    async def sessions_open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        return self._views.sessions.open(after, limit)

    async def sessions_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        return self._views.sessions.expired(now_ms, limit)

    async def retained(self, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        found: list[Retained] = []
        while True:
            removals, behind = self._views.removals, after
            rows, after = self._views.retained.matching(topic_filter, behind, limit - len(found), _MAX_ROWS)
            there = [(topic, row) for topic, row in rows if not self._is_lost(row)]
            try:
                found += [Retained(topic, await self._retained_frame(row), entered_at(row)) for topic, row in there]
            except LogCorrupt:
                if removals == self._views.removals:
                    raise
                after = behind  # retention removed records meanwhile; it moved the frames into the rows before
                continue
            if after is None or len(found) >= limit:
                return found
            await asyncio.sleep(0)  # a filter may match few of very many rows: let other tasks run

    async def groups(self, after: bytes | None, limit: int) -> list[GroupState]:
        pops = self._views.pops
        names = pops.page(after, limit)
        return [GroupState(group, [self._group_queue(*state) for state in pops.queue_states(group)]) for group in names]

    def group_names(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` names of groups behind `after`, sorted."""
        return self._views.pops.page(after, limit)

    async def group_progress(self, group: bytes) -> GroupProgress | None:
        """How far a group is; None if there is no such group, or if it has more than 1,024 queues, which would take too
        long. It reads no messages."""
        letters = dead_letter_queue(group)
        if not 0 < self._views.pops.queues_of(group) <= _MANY_QUEUES:
            return None
        states = self._views.pops.progress(group)
        lag = unfinished = oldest_ms = 0
        dead_letters = -1
        for number, state in enumerate(states, 1):
            queue = self._group_queue(*state)
            if queue.queue == letters:
                dead_letters = queue.lag
                continue
            lag += queue.lag
            unfinished += queue.unfinished
            if queue.lag:
                entered_ms = self._entered_ms(queue)
                oldest_ms = min(oldest_ms or entered_ms, entered_ms or oldest_ms)
            if number % _MAX_QUEUES == 0:
                await asyncio.sleep(0)
        if dead_letters < 0:
            bounds = self._views.bounds((letters,))[0]
            dead_letters = bounds.end - bounds.begin
        return GroupProgress(lag, unfinished, oldest_ms, dead_letters)

    async def group_attempts(self, group: bytes) -> dict[int, int]:
        """How many messages that a group has not finished it was delivered how often, beside its dead letters. The last
        number, 254, stands for all larger ones as well. Messages that wait for others of their key are left out."""
        letters = dead_letter_queue(group)
        found: Counter[int] = Counter()
        for number, (queue, *_) in enumerate(self._views.pops.progress(group)[:_MANY_QUEUES], 1):
            leases = None if queue == letters else self._views.pops.find(group, queue)
            if leases is not None and leases.unfinished:
                found.update(leases.deliveries())
            if number % _MAX_QUEUES == 0:
                await asyncio.sleep(0)
        del found[UNSENT]
        return dict(found)

    @property
    def group_counts(self) -> GroupCounts:
        """What groups have done since the log was opened."""
        return self._views.pops.counts

    @property
    def entered(self) -> int:
        """How many messages have entered their queues since the log was opened."""
        return self._views.messages

    async def entered_of(self, parent: bytes) -> int:
        """How many messages have ever entered the partitions of a parent topic."""
        queues = [partition_queue(parent, number) for number in range(self.partition_count(parent))]
        total = 0
        for first in range(0, len(queues), _MAX_QUEUES):
            if first:
                await asyncio.sleep(0)
            total += sum(self._views.ends(queues[first : first + _MAX_QUEUES]))
        return total

    def dead_letters(self, queue: bytes, offset: int, count: int) -> list[DeadLetter]:
        """Where the messages at `count` offsets of a dead-letter queue came from. They must be readable."""
        return self._views.dead_letters.find(queue, offset, count)

    def unfinished(self, group: bytes, queue: bytes, first: int, count: int) -> list[bool]:
        """Whether each message at `count` offsets from `first` on is not finished for the group."""
        leases = self._views.pops.find(group, queue)
        if leases is None:
            return [True] * count
        return [at >= leases.next or leases.deliveries_of(at) > 0 for at in range(first, first + count)]

    async def transient_shares(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[bytes]]]:
        return list(islice(self._views.shares.with_transient(after), limit))

    async def group_creator(self, group: bytes) -> bytes:
        return self._views.groups.creator(group)

    async def group_offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        return self._views.groups.offsets(group, parent)

    async def timers(self, after: bytes | None, limit: int) -> HeldPage:
        return self._views.held.timers(after, limit)

    async def transactions(self, after: bytes | None, limit: int) -> HeldPage:
        """Return up to `limit` (at least 1) messages of open transactions, from after `after` on."""
        return self._views.held.transactions(after, limit)

    async def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        found = TopicPage([], after)
        size = 0
        while True:
            page = self._views.names.topics(prefix, found.after, min(limit - len(found.names), _MAX_ROWS))
            found.names += page.names
            found.after = page.after
            size += sum(map(len, page.names))
            if page.after is None or len(found.names) >= limit or size >= _PAGE_BYTES:
                return found
            await asyncio.sleep(0)

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        found = ChildPage([], after)
        size = 0
        while True:
            page = self._views.names.children(above, found.after, min(limit - len(found.children), _MAX_ROWS))
            found.children += page.children
            found.after = page.after
            size += sum(len(child.name) for child in page.children)
            if page.after is None or len(found.children) >= limit or size >= _PAGE_BYTES:
                return found
            await asyncio.sleep(0)

    async def producers(self, after: bytes | None, limit: int) -> list[ProducerState]:
        """Return up to `limit` producers that have not ended, in order of their names, from after `after` on."""
        return self._views.producers.page(after, limit)

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        """See `store.api.Store.produced`."""
        return await cut_from(self._views, self._reader, producer)

    async def user(self, name: bytes) -> User | None:
        return self._views.access.user(name)

    async def users(self, after: bytes | None, limit: int) -> list[User]:
        return self._views.access.users(after, limit)

    async def rules(self, name: bytes) -> list[Rule]:
        return self._views.access.rules(name)

    async def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        return self._views.access.rules_of_all(after, limit)

    async def user_state(self, name: bytes) -> UserState:
        return self._views.access.user_state(name)

    async def user_states(self, after: bytes | None, limit: int) -> list[tuple[bytes, UserState]]:
        return self._views.access.user_states(after, limit)

    async def role(self, name: bytes) -> Role | None:
        return self._views.access.role(name)

    async def roles(self, after: bytes | None, limit: int) -> list[Role]:
        return self._views.access.roles(after, limit)

    async def group_pause(self, group: bytes) -> GroupPause | None:
        return self._views.groups.pauses.get(group)

    async def ban(self, target: bytes) -> Ban | None:
        return self._views.access.ban(target)

    async def bans(self, after: bytes | None, limit: int) -> list[Ban]:
        return self._views.access.bans(after, limit)

    async def ban_count(self) -> int:
        return self._views.access.ban_count.value

    async def access_request(self, number: int) -> AccessRequest | None:
        return self._views.access_requests.open_one(number)

    async def open_access_requests(self, user: bytes | None = None) -> list[AccessRequest]:
        return self._views.access_requests.all_open(user)

    async def decided_access_requests(self, before: int, limit: int) -> list[AccessRequest]:
        return self._views.access_requests.decided_before(before, min(limit, _MAX_ROWS))

    async def event_rule(self, name: bytes) -> EventRule | None:
        return self._views.event_rules.get(name)

    async def event_rules(self, after: bytes | None, limit: int) -> list[EventRule]:
        return self._views.event_rules.page(after, limit)

    async def event_rule_count(self) -> int:
        return self._views.event_rules.count.value

    async def entry(self, bucket: bytes, key: bytes) -> BucketEntry | None:
        return self._views.buckets.get(bucket, key)

    async def entries(self, bucket: bytes, prefix: bytes, after: bytes | None, limit: int) -> EntryPage:
        return self._views.buckets.page(bucket, prefix, after, limit)

    async def bucket_changes(self, bucket: bytes, revision: int, limit: int) -> BucketChanges:
        return self._views.buckets.changes(bucket, revision, limit)

    async def entry_change(self, token: bytes) -> EntryChange | None:
        return self._views.buckets.outcome(token)

    def _group_queue(self, queue: bytes, floor: int, following: int, unfinished: int) -> GroupQueueState:
        bounds = self._views.bounds((queue,))[0]
        ahead = bounds.end - max(following, bounds.begin)
        return GroupQueueState(queue, floor, following, unfinished, max(ahead, 0) + unfinished)

    def _entered_ms(self, state: GroupQueueState) -> int:
        """The store time of the first message of a queue that a group has not finished; 0 if it cannot be read."""
        begin = max(state.floor, self._views.bounds((state.queue,))[0].begin)
        times = record.unpack_refs(self._views.references(state.queue, begin, 1))[2]
        return times[0] if times else 0

    def _young(self, data: bytes, times: list[int]) -> tuple[slice, bytes]:
        """Return the first run of records in `data` that are not older than their parent topics' retention floors:
        its indexes and its frames."""
        starts = record.split(data)
        floors = self._views.floors
        parents = [parent_of(record.decode(data, start)[3]) for start in starts]
        young = _run([time >= floors.of_parent(parent) for time, parent in zip(times, parents, strict=False)])
        starts.append(len(data))
        return young, data[starts[young.start] : starts[young.stop]]

    def _is_lost(self, row: bytes) -> bool:
        """Whether a retained value is only a reference to a record that no file has."""
        return is_reference(row) and self._views.is_unreadable(record.unpack_refs(row[:REFERENCE])[0][0])

    async def _retained_frame(self, row: bytes) -> bytes:
        if not is_reference(row):
            return frame_in(row)
        positions, lengths, _, _ = record.unpack_refs(row[:REFERENCE])
        return await self._reader.records(positions, lengths)


def _run(there: list[bool]) -> slice:
    """Return the first run of true items; an empty slice at the end if there is none."""
    if True not in there:
        return slice(len(there), len(there))
    first = there.index(True)
    return slice(first, there.index(False, first) if False in there[first:] else len(there))
