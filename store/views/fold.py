"""All views together: folds committed batches, and writes the changes to RocksDB with a checkpoint.

Changes are gathered in memory until they are worth a write; readers see both. One write covers a contiguous range of
the log entirely. So the replay from the checkpoint after a crash folds each missing record exactly once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

import record
from matcher.names import is_shared, parent_of
from matcher.reserved import client_of
from record.layout import (
    FLAG_ADDRESSED,
    FLAG_HELD,
    FLAG_RETAIN,
    FLAG_REVIVED,
    FLAG_TRACK_ID,
    FLAG_WILL,
    REFERENCE,
    Kind,
)
from store import control
from store.api import (
    Addressed,
    Bounds,
    Commit,
    dead_letter_queue,
    event_rule_group,
    partition_queue,
    split_entry_subject,
    subscription_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.errors import StoreError
from store.log.ranges import NO_RANGES, Ranges
from store.log.writer import SealedBatch
from store.views.access import Access
from store.views.access_requests import AccessRequests
from store.views.buckets import Buckets
from store.views.database.database import Checkpoint, Database
from store.views.database.state import State
from store.views.event_rules import EventRules, is_of_event_rule
from store.views.gateways import Gateways
from store.views.groups.dead_letters import DeadLetters
from store.views.groups.groups import Groups
from store.views.groups.leases import Entry
from store.views.groups.pops import Pops
from store.views.groups.shares import Shares
from store.views.held import Held, HeldRow
from store.views.log_begin import LogBegin
from store.views.producers import Producers
from store.views.queues.begins import Begins, Floors
from store.views.queues.dispatch import Dispatcher
from store.views.queues.index import Index, at_time, index_prefix
from store.views.queues.keys import Keys, key_digests
from store.views.queues.moved import MovedMessages
from store.views.queues.partitions import Partitions
from store.views.queues.tails import Tails, queue_digest
from store.views.queues.wanted import WantedFilters
from store.views.sessions.sessions import SessionsView
from store.views.sessions.wills import WillsView
from store.views.topics.names import Names
from store.views.topics.retained import RetainedValues
from store.views.uploaded import UploadedSegments

_PACKET_ID: Final = 2  # fields of `record.decode`
_PUBLISHER: Final = 4
_PROPERTIES: Final = 5
_PAYLOAD: Final = 6
_ENTERS_LATER: Final = FLAG_HELD | FLAG_REVIVED  # flags of messages that do not enter their queues with their record
_NOTHING: Final = bytes(REFERENCE)  # a reference to position 0, which is before the log's begin by then

_Fold = Callable[[bytes, Any], None]  # subject and record
_FoldAt = Callable[[Commit, int, bytes, Any], None]  # commit, start of the frame in it, subject and record


class Views:
    """The views of one store. They are complete up to `position` of the log.

    The log begins at `begin`, where its records let it begin (LOG_TRIMMED). Files of segments before that may still be
    there: those from `files_begin` on. Only a log that was restored as of an earlier moment may lack files behind
    `begin` of that moment; then it begins at `files_begin`.
    """

    def __init__(
        self, database: Database, config: StoreConfig, files_begin: int, files_time: int, gone: Ranges = NO_RANGES
    ) -> None:
        """files_begin: where the first segment with a file begins; files_time: store time of its first record (ms)."""
        self.gone = gone  # ranges of the log that are not read
        self.removals = 0  # how often files or parts of them were removed since the log was opened
        self._database = database
        self._config = config
        self._generation_bytes = config.segment_size * config.generation_segments
        saved = database.checkpoint()
        self.checkpointed = max(saved.position, files_begin)
        self.position = self.checkpointed
        self.store_time = saved.store_time
        self.records = 0  # folded
        self.messages = 0
        self.is_full = False  # the last fold has filled the memory for changes: a checkpoint is due
        # Of a shared log: what its slots have decided up to a position, for the checkpoint there.
        self.slots_at: Callable[[int], bytes] | None = None
        self._state = State(database)
        self.log_begin = LogBegin(self._state)
        self.uploaded = UploadedSegments(self._state)
        self._index = Index(database, files_begin, self.position, self._generation_bytes)
        self._begins = Begins(self._index, self.references, files_time)
        self._begin_where_trimmed()
        self.is_whole = self._begins.are_zero and not gone  # every record ever written can be read
        self.names = Names(self._state)
        self.partitions = Partitions(self._state, config.partitions)
        self._tails = Tails(config.max_queue_ends, config.partitions, self.partitions.counts)
        self._dispatcher = Dispatcher(
            self._tails,
            self.partitions,
            self._cold_end,
            self._topic_end,
            self._fold_special,
            self._fold_held,
            self._fold_control,
        )
        self.retained = RetainedValues(self._state)
        self.groups = Groups(self._state)
        self.access = Access(self._state)
        self.access_requests = AccessRequests(self._state)
        self.buckets = Buckets(self._state)
        self.producers = Producers(self._state)
        self.gateways = Gateways(self._state)
        self.keys = Keys(self._state, self._index, self._generation_bytes)
        self.held = Held(self._state, files_begin)
        self.moved = MovedMessages(self._state, self._generation_bytes)
        self.dead_letters = DeadLetters(self._state, self._index)
        self.pops = Pops(self._state, self.groups, config.max_group_objects)
        wanted = WantedFilters(self._state, self._dispatcher)
        self.shares = Shares(self._state, wanted, self._dispatcher, self.pops)
        self.event_rules = EventRules(self._state, wanted, self._dispatcher, self.pops)
        self.wills = WillsView(self._state)
        self.sessions = SessionsView(self._state, self._dispatcher, wanted, self.shares, self.wills)
        self._folds = self._plain_folds()
        self._folds_at = self._folds_of_commit()
        self.sessions.load()
        wanted.load()

    def fold(self, batch: SealedBatch) -> Commit:
        """Fold the next batch of the log. Returns its commit, which has the queues and offsets of each message."""
        generation = batch.position // self._generation_bytes
        if generation != self._index.newest:
            self.checkpoint(self.position)
            self._index.newest = generation
        starts, kinds, flags, topics, refs, keyed = record.scan(batch.data)
        commit = Commit(batch.data, batch.position, batch.store_time)
        if Kind.MESSAGE in kinds:
            self._dispatcher.fold(commit, starts, kinds, flags, topics, refs)
        else:
            for i in range(len(starts)):
                self._fold_control(kinds[i], commit, starts[i])
        for i, properties in keyed:
            if not flags[i] & _ENTERS_LATER:
                digests = key_digests(parent_of(topics[i]), properties)
                self.keys.enter(digests, batch.position + starts[i], record.length_of(batch.data, starts[i]))
        self.records += len(starts)
        self.messages += len(commit.starts) + len(commit.moved)
        self.position = commit.end
        self.store_time = batch.store_time
        waiting = self._tails.dirty + self._state.count + self.sessions.inbound.changed + self.pops.changed
        waiting += self.buckets.changed
        self.is_full = (
            waiting >= self._config.checkpoint_keys or self._tails.references >= self._config.checkpoint_references
        )
        return commit

    def skip(self, position: int) -> None:
        """Continue at `position`, behind a damaged range."""
        assert position >= self.position
        self.position = position

    @property
    def is_dirty(self) -> bool:
        """Whether anything was folded since the checkpoint."""
        return self.position != self.checkpointed

    def checkpoint(self, durable: int) -> None:
        """Write the changes and the checkpoint. The log is known to be on disk up to `durable`."""
        if not self.is_dirty and not self._state.count and self.slots_at is None:
            return
        self.pops.checkpoint()
        self.sessions.inbound.checkpoint()
        self.buckets.checkpoint()
        batch = self._database.batch()
        self._state.drain(batch)
        self._tails.drain(index_prefix(self._index.newest), batch.put)
        slots = b"" if self.slots_at is None else self.slots_at(self.position)
        self._database.write(
            batch, Checkpoint(self.position, min(durable, self.position), self.store_time, slots=slots)
        )
        self._state.forget()
        self._tails.forget()
        self.checkpointed = self.position
        self.is_full = False

    def end(self, queue: bytes) -> int:
        """The offset that the next message of the queue gets."""
        known = self._tails.end(queue_digest(queue))
        return known if known >= 0 else self._cold_end(queue)

    def first(self, queue: bytes) -> int:
        """The first offset that can be read; the queue's end if there is none.

        Its record is in the log and not older than its parent topic's floor.
        """
        return 0 if self.is_whole else self.bounds((queue,))[0].begin

    def bounds(self, queues: Sequence[bytes]) -> list[Bounds]:
        """`first` and `end` of each queue."""
        found: list[Bounds] = []
        for queue in queues:
            digest = queue_digest(queue)
            begin, end = 0, self._tails.end(digest)
            if end < 0:
                end = self._cold_end(queue)
            if not self.is_whole:
                waiting = self._tails.first_waiting(digest)
                begin = self._begins.first(queue, digest, end if waiting < 0 else waiting, end)
            found.append(Bounds(begin, end))
        return found

    def ends(self, queues: Sequence[bytes]) -> list[int]:
        """`end` of each queue."""
        found = [self._tails.end(queue_digest(queue)) for queue in queues]
        for i in range(len(found)):
            if found[i] < 0:
                found[i] = self._cold_end(queues[i])
        return found

    def has_entered(self, queue: bytes, times: tuple[int, int], log: range) -> bool:
        """Whether a record of the range `log` entered the queue between two store times, see `Begins.has_entered`."""
        digest = queue_digest(queue)
        end = self.end(queue)
        waiting = self._tails.first_waiting(digest)
        return self._begins.has_entered(queue, digest, end if waiting < 0 else waiting, end, times, log)

    @property
    def floors(self) -> Floors:
        """The store times before which messages are not returned. Set by retention."""
        return self._begins.floors

    @floors.setter
    def floors(self, floors: Floors) -> None:
        self._begins.floors = floors
        self.is_whole = self._begins.are_zero and not self.gone

    @property
    def begin(self) -> int:
        """Where the log begins. Records before it are not returned."""
        return self._index.begin

    @property
    def begin_time(self) -> int:
        """Store time of the log's first record, ms; an earlier time or 0 if that is not known."""
        return self._begins.store_time

    @property
    def files_begin(self) -> int:
        """Files of segments before this position are removed, or about to be. Views have what they need of them."""
        return self.held.begin

    def is_gone(self, position: int) -> bool:
        """Whether a record cannot be read: retention removed it, or the log is known to be damaged there."""
        return position < self._index.begin or (bool(self.gone) and self.gone.covers(position))

    def is_unreadable(self, position: int) -> bool:
        """Whether no file has a record any more. One that only `is_gone` may still be read for what refers to it."""
        return position < self.held.begin or (bool(self.gone) and self.gone.covers(position))

    def has_gone(self, refs: bytes) -> bool:
        """Whether any record of these packed references may be gone."""
        if self.is_whole:
            return False
        begin = self._index.begin
        low, high = record.extent(refs)
        return low < begin or (bool(self.gone) and self.gone.touches(low, high))

    def forget_files(self, begin: int) -> None:
        """Segments before `begin` are not read any more. What rows refer to there is kept in them, and on disk."""
        assert begin <= self.checkpointed
        self.removals += 1
        self.held.begin = begin

    def forget_tiered(self) -> None:
        """Segments in the tier that are before the log's begin are not read any more."""
        self.removals += 1

    def remove(self, gone: Ranges) -> None:
        """Do not return records in `gone`, which are all ranges that are not read. All changes up to there must be
        checkpointed."""
        assert gone.end <= self.checkpointed
        self.gone = gone
        self.is_whole = False
        self.removals += 1

    def oldest_generation(self) -> int | None:
        """The oldest generation if all its records are removed, so that its index entries can be dropped; else None.

        The views on disk know that the log begins behind it. So no fold after a crash misses the entries.
        """
        oldest, begin = self._index.oldest, min(self.files_begin, self.log_begin.position)
        return oldest if (oldest + 1) * self._generation_bytes <= begin else None

    def fold_ends(self, generation: int, digest: bytes, limit: int) -> bytes | None:
        """Write down the ends of some queues before `drop_generation`; see `Index.fold_ends`."""
        return self._index.fold_ends(generation, digest, limit)

    def drop_generation(self, generation: int) -> None:
        """Delete the index entries of a generation. The ends of its queues must be written down."""
        self._index.drop(generation)

    def references(self, queue: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` packed references of the queue's entries from `offset` on."""
        digest = queue_digest(queue)
        waiting = self._tails.first_waiting(digest)
        if 0 <= waiting <= offset:
            return self._tails.waiting(digest, offset, limit)
        return self._older(digest, waiting, offset, limit)

    def look_up(self, queue: bytes, offset: int, limit: int) -> tuple[Bounds, bytes]:
        """`bounds` and `references` of a queue. There are no references if `offset` is out of bounds."""
        digest = queue_digest(queue)
        begin, end, waiting = 0, self._tails.end(digest), self._tails.first_waiting(digest)
        if end < 0:
            end = self._cold_end(queue)
        if not self.is_whole:
            begin = self._begins.first(queue, digest, end if waiting < 0 else waiting, end)
        limit = min(limit, end - offset)
        if offset < begin or limit <= 0:
            return Bounds(begin, end), b""
        if 0 <= waiting <= offset:
            return Bounds(begin, end), self._tails.waiting(digest, offset, limit)
        return Bounds(begin, end), self._older(digest, waiting, offset, limit)

    def _older(self, digest: bytes, waiting: int, offset: int, limit: int) -> bytes:
        """References of a queue from an offset before `waiting`: that of its first one that is not in RocksDB, or
        -1."""
        if waiting < 0:
            return self._index.references(digest, offset, limit)
        older = self._index.references(digest, offset, min(limit, waiting - offset))
        count = len(older) // REFERENCE
        if offset + count == waiting and count < limit:
            return older + self._tails.waiting(digest, waiting, limit - count)
        return older

    def references_of(self, runs: Sequence[tuple[bytes, int, int]]) -> list[bytes]:
        """`references` of each (queue, offset, limit)."""
        digests: list[bytes] = []
        waiting: list[int] = []
        for queue, _, _ in runs:
            digest = queue_digest(queue)
            digests.append(digest)
            waiting.append(self._tails.first_waiting(digest))
        found: list[bytes] = []
        for (queue, offset, limit), digest, first in zip(runs, digests, waiting, strict=True):
            if first < 0:
                found.append(self._index.references(digest, offset, limit))
            elif offset >= first:
                found.append(self._tails.waiting(digest, offset, limit))
            else:
                found.append(self.references(queue, offset, limit))
        return found

    def _cold_end(self, queue: bytes) -> int:
        if queue[:1] == b"t" and not self.names.is_topic(queue[1:]):
            return 0
        return self._index.end(queue_digest(queue))

    def _topic_end(self, topic: bytes) -> int:
        return 0 if self.names.enter(topic) else self._index.end(queue_digest(topic_queue(topic)))

    def _fold_special(
        self, commit: Commit, start: int, reference: bytes, flags: int, topic: bytes, offset: int
    ) -> None:
        fields = record.decode(commit.data, start)
        if flags & FLAG_RETAIN:
            self.retained.fold(topic, reference, not fields[_PAYLOAD])
        if flags & FLAG_TRACK_ID:
            self.sessions.inbound_received(fields[_PUBLISHER], fields[_PACKET_ID])
        if flags & FLAG_WILL and not flags & FLAG_REVIVED:
            self.wills.drop(fields[_PUBLISHER])
        if flags & FLAG_ADDRESSED:
            self._address(commit, topic, commit.position + start, offset)

    def _address(self, commit: Commit, topic: bytes, position: int, offset: int) -> None:
        """Give the session of an inbox's client a subscription from this message on, if it has none."""
        client = client_of(topic)
        if client is not None:
            subscription = self.sessions.addressed(client, topic, position, offset)
            commit.addressed.append(Addressed(position, client, topic, subscription))

    def _fold_held(self, data: bytes, start: int, flags: int, topic: bytes) -> bool:
        fields = record.decode(data, start)
        digests = key_digests(parent_of(topic), fields[_PROPERTIES])
        if not flags & FLAG_REVIVED:
            if flags & FLAG_TRACK_ID:
                self.sessions.inbound_received(fields[_PUBLISHER], fields[_PACKET_ID])
            if flags & FLAG_WILL:
                self.wills.drop(fields[_PUBLISHER])
            self.held.add(data, start, digests)
            return False
        if not self.held.revived(record.trailer_of(data, start)):
            return False
        self.keys.enter(digests, record.position_of(data, start), record.length_of(data, start))
        return True

    def _fold_control(self, kind: int, commit: Commit, start: int) -> None:
        _, _, _, subject, _, _, payload = record.decode(commit.data, start)
        try:
            if kind not in control.RECORDS:
                raise ValueError("unknown kind: a newer version wrote it")
            event = control.RECORDS[kind].parse(payload)
            fold = self._folds.get(kind)
            if fold is not None:
                fold(subject, event)
            else:
                self._folds_at[kind](commit, start, subject, event)
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            position = commit.position + start
            raise StoreError(f"control record of kind {kind} at position {position}: {error}") from error

    def _fold_timers_or_transactions(self, commit: Commit, start: int, _: bytes, event: Any) -> None:
        rows = self.held.fold(event)
        self._enter_held(commit, rows, record.store_time_of(commit.data, start), commit.position + start)

    def _enter_held(self, commit: Commit, rows: list[HeldRow], store_time: int, by: int) -> None:
        """Enter released messages into their queues.

        They get the store time of the record that releases them, which is at position `by`, because store times never
        run backwards along a queue.
        """
        if not rows:
            return
        refs = [record.pack_refs([row.handle], [row.length], [store_time], [row.tag]) for row in rows]
        moved = [(row.handle, row.length, row.topic, row.flags & ~FLAG_HELD) for row in rows]
        self._dispatcher.enter_moved(commit, moved, refs)
        offsets = {entered.position: entered.topic_offset for entered in commit.moved[-len(rows) :]}
        for row, reference in zip(rows, refs, strict=True):
            self.keys.enter(row.digests, row.handle, row.length)
            self.moved.enter(row.topic, row.handle)
            if row.flags & FLAG_ADDRESSED:
                self._address(commit, row.topic, row.handle, offsets[row.handle])
            if row.flags & FLAG_RETAIN:
                self.retained.fold_moved(row.topic, row.frame or reference, not row.has_payload, by)

    def _fold_handed_over(self, commit: Commit, start: int, group: bytes, event: control.ShareHandedOver) -> None:
        finished = self.pops.finished(group, subscription_queue(group), [offset for _, _, offset in event.handed])
        if finished:
            self.pops.counts.acknowledged(group, len(finished), -1, record.store_time_of(commit.data, start))
        for client, packet_id, offset in event.handed:
            if packet_id:
                self.sessions.outbound_changed(client, control.OutboundChanged([(packet_id, group, offset, 2)]))

    def _fold_popped(self, commit: Commit, start: int, group: bytes, event: control.Popped) -> None:
        queues = event.queues
        if None in self.pops.find_all(group, queues) and (is_shared(group) or is_of_event_rule(group)):
            queues = {queue: runs for queue, runs in queues.items() if not self._is_over(group, queue)}
        self.pops.popped(group, queues, event.until_ms, record.store_time_of(commit.data, start))

    def _fold_settled(self, commit: Commit, _: int, group: bytes, event: control.Settled) -> None:
        is_ordered = self.pops.settled(group, event, commit.store_time)
        if self.pops.made_room(group) or event.again or is_ordered:
            _add_again(commit, group)

    def _fold_dead_lettered(self, commit: Commit, start: int, group: bytes, event: control.DeadLettered) -> None:
        had = self.pops.finished(group, event.queue, event.offsets)
        if had:
            self.pops.counts.dead_lettered(group, len(had))
        if self.pops.made_room(group) or self.pops.is_ordered(group, event.queue):
            _add_again(commit, group)
        self._dead_letter(commit, record.store_time_of(commit.data, start), group, event, had)

    def _fold_group_reset(self, commit: Commit, _: int, group: bytes, event: control.GroupReset) -> None:
        begins = {queue: offset for queue, offset in event.offsets.items() if not self._is_over(group, queue)}
        self._note_creator(group, event.user)
        self.pops.reset(group, begins)
        _add_again(commit, group)

    def _fold_offsets_committed(self, group: bytes, event: control.GroupOffsetsCommitted) -> None:
        self._note_creator(group, event.user)
        self.groups.committed(group, event)

    def _fold_log_trimmed(self, subject: bytes, event: control.LogTrimmed) -> None:
        self.log_begin.trimmed(subject, event)
        self._begin_where_trimmed()
        self.removals += 1
        self.uploaded.trimmed(self.log_begin.position)

    def _fold_segment_uploaded(self, _: bytes, event: control.SegmentUploaded) -> None:
        if event.base >= self.log_begin.position:
            self.uploaded.uploaded(event)

    def _begin_where_trimmed(self) -> None:
        if self.log_begin.position and self.log_begin.position >= self._index.begin:
            self._begins.move(self.log_begin.position, self.log_begin.store_time)
            self.is_whole = False

    def _note_creator(self, group: bytes, user: bytes) -> None:
        """Note the user as the creator of the group, if there is no such group yet."""
        if user and not self.pops.queues_of(group) and not self.groups.has_offsets(group):
            self.groups.created(group, user)

    def _fold_group_removed(self, commit: Commit, _: int, group: bytes, _event: control.GroupRemoved) -> None:
        self.pops.removed(group)
        _add_again(commit, group)

    def _fold_group_paused(self, commit: Commit, start: int, group: bytes, event: control.GroupPaused) -> None:
        if self.pops.queues_of(group) and group not in self.groups.pauses:
            self.groups.paused(group, event.by, record.store_time_of(commit.data, start))

    def _fold_group_resumed(self, commit: Commit, _: int, group: bytes, _event: control.GroupResumed) -> None:
        if self.groups.resumed(group):
            _add_again(commit, group)

    def _fold_partitions(self, parent: bytes, event: control.TopicPartitions) -> None:
        queues = [partition_queue(parent, number) for number in range(self.partitions.of(parent))]
        self.partitions.set(parent, event.count, self.ends(queues))

    def _fold_user_set(self, commit: Commit, _: int, name: bytes, event: control.UserSet) -> None:
        self.access.user_set(name, event)
        commit.users.append(name)

    def _fold_user_removed(self, commit: Commit, _: int, name: bytes, _event: control.UserRemoved) -> None:
        self.access.user_removed(name)
        self.access_requests.user_removed(name)
        commit.users.append(name)
        commit.rules.append(name)

    def _fold_user_changed(self, commit: Commit, _: int, name: bytes, event: control.UserChanged) -> None:
        self.access.user_changed(name, event)
        commit.rules.append(name)

    def _fold_role_set(self, commit: Commit, _: int, name: bytes, event: control.RoleSet) -> None:
        self.access.role_set(name, event)
        commit.rules.append(b"")  # any user may have it

    def _fold_role_removed(self, commit: Commit, _: int, name: bytes, _event: control.RoleRemoved) -> None:
        self.access.role_removed(name)
        commit.rules.append(b"")

    def _fold_ban_set(self, commit: Commit, start: int, target: bytes, event: control.BanSet) -> None:
        self.access.ban_set(target, event, record.store_time_of(commit.data, start))
        commit.bans.append(target)

    def _fold_ban_ended(self, commit: Commit, _: int, target: bytes, event: control.BanEnded) -> None:
        if self.access.ban_ended(target, event):
            commit.bans.append(target)

    def _fold_access_requested(self, commit: Commit, start: int, user: bytes, event: control.AccessRequested) -> None:
        time = record.store_time_of(commit.data, start)
        self.access_requests.requested(user, event, commit.position + start, time)

    def _fold_access_decided(self, commit: Commit, start: int, user: bytes, event: control.AccessDecided) -> None:
        self.access_requests.decided(user, event, record.store_time_of(commit.data, start))

    def _fold_event_rule_set(self, commit: Commit, start: int, name: bytes, event: control.EventRuleSet) -> None:
        self.event_rules.rule_set(name, event, record.store_time_of(commit.data, start))
        commit.event_rules.append(name)
        _add_again(commit, event_rule_group(name))

    def _fold_event_rule_removed(self, commit: Commit, _: int, name: bytes, _event: control.EventRuleRemoved) -> None:
        if self.event_rules.removed(name):
            commit.event_rules.append(name)

    def _fold_entry_put(self, commit: Commit, start: int, subject: bytes, event: control.EntryPut) -> None:
        bucket, key = split_entry_subject(subject)
        end = commit.position + start + record.length_of(commit.data, start)
        self.buckets.put(bucket, key, event, end, record.store_time_of(commit.data, start))

    def _fold_entry_removed(self, commit: Commit, start: int, subject: bytes, event: control.EntryRemoved) -> None:
        bucket, key = split_entry_subject(subject)
        end = commit.position + start + record.length_of(commit.data, start)
        self.buckets.removed(bucket, key, event, end)

    def _fold_rules_set(self, commit: Commit, _: int, name: bytes, event: control.RulesSet) -> None:
        self.access.rules_set(name, event.rules)
        commit.rules.append(name)

    def _fold_subscribed(self, commit: Commit, start: int, client: bytes, event: control.Subscribed) -> None:
        self.sessions.subscribed(client, event, commit.position + start)

    def _fold_produced(self, commit: Commit, start: int, producer: bytes, event: control.Produced) -> None:
        self.producers.produced(producer, event, commit.position + start)

    def _is_over(self, group: bytes, queue: bytes) -> bool:
        """Whether a shared subscription, or an event rule, ended before this record about its queue was committed."""
        if self.pops.find(group, queue) is not None:
            return False
        if is_of_event_rule(group):
            return queue[:1] != b"d" and not self.event_rules.reads(group, queue)
        if not is_shared(group):
            return False
        return queue == subscription_queue(group) and not self.shares.exists(group)

    def _dead_letter(
        self, commit: Commit, store_time: int, group: bytes, event: control.DeadLettered, had: list[tuple[int, Entry]]
    ) -> None:
        """Enter messages, by their offsets and entries, into the group's dead-letter queue.

        A reference to a record before the log's begin is entered as a null reference. So dead letters are the same no
        matter whether its index generation was dropped already.
        """
        queue, letters = event.queue, dead_letter_queue(group)
        end = self.end(queue)
        for offset, entry in had:
            if offset < end:
                reference = self.references(queue, offset, 1)
                if not reference or record.extent(reference)[0] < self.log_begin.position:
                    reference = _NOTHING
                at = self._dispatcher.enter_reference(letters, at_time(reference, store_time))
                self.dead_letters.enter(letters, at, event, offset, entry)
                if group not in commit.dead_letters:
                    commit.dead_letters.append(group)

    def _plain_folds(self) -> "dict[int, _Fold]":
        """The folds, by kind, that need only the subject and the fields."""
        sessions = self.sessions
        return {
            Kind.SESSION_OPENED: sessions.opened,
            Kind.SESSION_CLOSED: sessions.closed,
            Kind.SESSION_LOST: sessions.lost,
            Kind.SESSION_ENDED: sessions.ended,
            Kind.UNSUBSCRIBED: sessions.unsubscribed,
            Kind.CURSORS_COMMITTED: sessions.cursors_committed,
            Kind.INBOUND_RELEASED: sessions.inbound_released,
            Kind.OUTBOUND_CHANGED: sessions.outbound_changed,
            Kind.RETAINED_SENT: sessions.retained_sent,
            Kind.WILL_SET: sessions.will_set,
            Kind.WILL_DROPPED: self.wills.dropped,
            Kind.GROUP_OFFSETS_COMMITTED: self._fold_offsets_committed,
            Kind.SHARE_JOINED: self.shares.gateway_joined,
            Kind.SHARE_LEFT: self.shares.gateway_left,
            Kind.PRODUCER_ENDED: self.producers.ended,
            Kind.GATEWAY_JOINED: self.gateways.joined,
            Kind.GATEWAY_LEFT: self.gateways.left,
            Kind.LOG_TRIMMED: self._fold_log_trimmed,
            Kind.SEGMENT_UPLOADED: self._fold_segment_uploaded,
            Kind.TOPIC_PARTITIONS: self._fold_partitions,
        }

    def _folds_of_commit(self) -> "dict[int, _FoldAt]":
        """The folds, by kind, that need the record's position or change the commit."""
        return {
            Kind.SUBSCRIBED: self._fold_subscribed,
            Kind.TIMERS_FIRED: self._fold_timers_or_transactions,
            Kind.TIMERS_RECALLED: self._fold_timers_or_transactions,
            Kind.TRANSACTIONS_ENDED: self._fold_timers_or_transactions,
            Kind.TRANSACTIONS_CHECKED: self._fold_timers_or_transactions,
            Kind.POPPED: self._fold_popped,
            Kind.SETTLED: self._fold_settled,
            Kind.SHARE_HANDED_OVER: self._fold_handed_over,
            Kind.DEAD_LETTERED: self._fold_dead_lettered,
            Kind.GROUP_RESET: self._fold_group_reset,
            Kind.GROUP_REMOVED: self._fold_group_removed,
            Kind.GROUP_PAUSED: self._fold_group_paused,
            Kind.GROUP_RESUMED: self._fold_group_resumed,
            Kind.USER_SET: self._fold_user_set,
            Kind.USER_REMOVED: self._fold_user_removed,
            Kind.RULES_SET: self._fold_rules_set,
            Kind.USER_CHANGED: self._fold_user_changed,
            Kind.ROLE_SET: self._fold_role_set,
            Kind.ROLE_REMOVED: self._fold_role_removed,
            Kind.BAN_SET: self._fold_ban_set,
            Kind.BAN_ENDED: self._fold_ban_ended,
            Kind.ACCESS_REQUESTED: self._fold_access_requested,
            Kind.ACCESS_DECIDED: self._fold_access_decided,
            Kind.EVENT_RULE_SET: self._fold_event_rule_set,
            Kind.EVENT_RULE_REMOVED: self._fold_event_rule_removed,
            Kind.ENTRY_PUT: self._fold_entry_put,
            Kind.ENTRY_REMOVED: self._fold_entry_removed,
            Kind.PRODUCED: self._fold_produced,
        }


def _add_again(commit: Commit, group: bytes) -> None:
    if group not in commit.again and not is_shared(group):
        commit.again.append(group)
