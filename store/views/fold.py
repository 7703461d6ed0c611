"""All views together: folds committed batches, and moves what changed to RocksDB with the checkpoint.

Changes wait in memory until they are worth a write; a reader sees both. One write covers a contiguous range of
the log entirely, so after a crash the replay from the checkpoint does exactly what is missing, once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import record
from matcher.names import is_shared, parent_of
from matcher.reserved import client_of
from record.layout import FLAG_ADDRESSED, FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, FLAG_WILL, Kind
from store import control
from store.api import Addressed, Commit, Rule, dead_letter_queue, subscription_queue, topic_queue
from store.config import StoreConfig
from store.errors import StoreError
from store.log.damaged_ranges import NO_DAMAGE, Damaged
from store.log.writer import Batch
from store.views.access import Access
from store.views.begins import Begins, Floors
from store.views.database import Checkpoint, Database
from store.views.dispatch import Dispatcher
from store.views.gateways import Gateways
from store.views.groups import Groups
from store.views.held import Held, HeldRow
from store.views.index import REFERENCE, Index, at_time, index_prefix
from store.views.keys import Keys, key_digests
from store.views.moved import MovedMessages
from store.views.names import Names
from store.views.pops import Pops
from store.views.producers import Producers
from store.views.retained import RetainedValues
from store.views.sessions import Sessions
from store.views.shares import Shares
from store.views.state import State
from store.views.tails import Tails, queue_digest
from store.views.wanted import Wanted
from store.views.wills import Wills

_PACKET_ID: Final = 2  # fields of `record.decode`
_PUBLISHER: Final = 4
_PROPERTIES: Final = 5
_PAYLOAD: Final = 6
_ENTERS_LATER: Final = FLAG_HELD | FLAG_REVIVED  # if at all
_NOTHING: Final = bytes(REFERENCE)  # position 0: before the log's begin, since it moved

_Folds = dict[int, tuple[Callable[[bytes, Any], None], Callable[[bytes], Any]]]


class Views:
    """The views of one store, true up to `position`, of a log whose first record, of `begin_time`, is at `begin`."""

    def __init__(
        self, database: Database, config: StoreConfig, begin: int, begin_time: int, damaged: Damaged = NO_DAMAGE
    ) -> None:
        self.damaged = damaged  # places of the log that are not read
        self.partitions = config.partitions
        self._database = database
        self._config = config
        self._generation_bytes = config.segment_size * config.generation_segments
        saved = database.checkpoint()
        self.checkpointed = max(saved.position, begin)
        self.position = self.checkpointed
        self.store_time = saved.store_time
        self.records = 0  # folded
        self.messages = 0
        self._state = State(database)
        self._index = Index(database, begin, self.position, self._generation_bytes)
        self._begins = Begins(self._index, self.references, begin_time)
        self.is_whole = self._begins.are_zero and not damaged  # every record that was ever written can be read
        self.names = Names(self._state)
        self._tails = Tails(config.max_queue_ends, config.partitions)
        self._dispatcher = Dispatcher(
            self._tails,
            config.partitions,
            self._cold_end,
            self._topic_end,
            self._fold_special,
            self._fold_held,
            self._fold_control,
        )
        self.retained = RetainedValues(self._state)
        self.groups = Groups(self._state)
        self.access = Access(self._state)
        self.producers = Producers(self._state)
        self.gateways = Gateways(self._state)
        self.keys = Keys(self._state, self._index, self._generation_bytes)
        self.held = Held(self._state, begin)
        self.moved = MovedMessages(self._state, self._generation_bytes)
        self.pops = Pops(self._state, self.groups, config.max_group_objects)
        wanted = Wanted(self._state, self._dispatcher)
        self.shares = Shares(self._state, wanted, self._dispatcher, self.pops)
        self.wills = Wills(self._state)
        self.sessions = Sessions(self._state, self._dispatcher, wanted, self.shares, self.wills)
        self._plain = _plain_folds(self.sessions, self.wills)
        self.sessions.load()
        wanted.load()

    def fold(self, batch: Batch) -> Commit:
        """Fold the next batch of the log. Its commit says where each message went."""
        generation = batch.position // self._generation_bytes
        if generation != self._index.newest:
            self.checkpoint(self.position)
            self._index.newest = generation
        commit = Commit(batch.data, batch.position, batch.store_time)
        starts, kinds, flags, topics, refs, keyed = record.scan(batch.data)
        self._dispatcher.fold(commit, starts, kinds, flags, topics, refs)
        for i, properties in keyed:
            if not flags[i] & _ENTERS_LATER:
                digests = key_digests(parent_of(topics[i]), properties)
                self.keys.enter(digests, batch.position + starts[i], record.length_of(batch.data, starts[i]))
        self.records += len(starts)
        self.messages += len(commit.starts) + len(commit.moved)
        self.position = commit.end
        self.store_time = batch.store_time
        return commit

    def skip(self, position: int) -> None:
        """Go on at `position`: what lies before it is damaged, and passed over."""
        assert position >= self.position
        self.position = position

    @property
    def is_dirty(self) -> bool:
        """Whether anything was folded since the checkpoint."""
        return self.position != self.checkpointed

    def is_full(self) -> bool:
        """Whether what waits in memory has reached its bound."""
        waiting = self._tails.dirty + self._state.count + self.sessions.inbound.changed + self.pops.changed
        return waiting >= self._config.checkpoint_keys or self._tails.references >= self._config.checkpoint_references

    def checkpoint(self, durable: int) -> None:
        """Write what changed; `durable` of the log is known to be on disk."""
        if not self.is_dirty and not self._state.count:
            return
        self.pops.checkpoint()
        self.sessions.inbound.checkpoint()
        batch = self._database.batch()
        self._state.drain(batch)
        self._tails.drain(index_prefix(self._index.newest), batch.put)
        self._database.write(batch, Checkpoint(self.position, min(durable, self.position), self.store_time))
        self._state.forget()
        self._tails.forget()
        self.checkpointed = self.position

    def end(self, queue: bytes) -> int:
        """The offset that the next message of the queue gets."""
        return self._dispatcher.end(queue)

    def first(self, queue: bytes) -> int:
        """The first offset that is answered: its record is in the log and as young as its parent topic wants; the
        queue's end if there is none."""
        if self._begins.are_zero:
            return 0
        digest = queue_digest(queue)
        end = self.end(queue)
        waiting = self._tails.first_waiting(digest)
        return self._begins.first(queue, digest, end if waiting < 0 else waiting, end)

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
        """How young messages have to be to be answered. Set by retention."""
        return self._begins.floors

    @floors.setter
    def floors(self, floors: Floors) -> None:
        self._begins.floors = floors
        self.is_whole = self._begins.are_zero and not self.damaged

    @property
    def begin(self) -> int:
        """Where the log begins: nothing before it is answered."""
        return self._index.begin

    @property
    def begin_time(self) -> int:
        """Store time of the log's first record, in ms; an earlier one, or 0, where that is not known."""
        return self._begins.store_time

    def is_gone(self, position: int) -> bool:
        """Whether a record is not to be had: retention took it, or it is in a place that is known as damaged."""
        return position < self._index.begin or (bool(self.damaged) and self.damaged.covers(position))

    def has_gone(self, refs: bytes) -> bool:
        """Whether one of the records that packed references name may be."""
        if self.is_whole:
            return False
        begin = self._index.begin
        low, high = record.extent(refs)
        return low < begin or (bool(self.damaged) and self.damaged.touches(low, high))

    def reclaim(self, begin: int, begin_time: int) -> None:
        """The log begins at `begin`, with a record of `begin_time`, from here on; nothing that is not in RocksDB may
        lie before it."""
        assert begin <= self.checkpointed
        self._begins.move(begin, begin_time)
        self.is_whole = False
        self.held.begin = begin

    def oldest_generation(self) -> int | None:
        """The generation whose index entries are all of reclaimed records and can be dropped, if there is one."""
        oldest = self._index.oldest
        return oldest if (oldest + 1) * self._generation_bytes <= self._index.begin else None

    def fold_ends(self, generation: int, digest: bytes, limit: int) -> bytes | None:
        """A slice of what comes before `drop_generation`; see `Index.fold_ends`."""
        return self._index.fold_ends(generation, digest, limit)

    def drop_generation(self, generation: int) -> None:
        """Delete the index entries of a generation whose ends are folded."""
        self._index.drop(generation)

    def references(self, queue: bytes, offset: int, limit: int) -> bytes:
        """Up to `limit` packed references of the queue's entries from `offset` on."""
        digest = queue_digest(queue)
        waiting = self._tails.first_waiting(digest)
        if waiting < 0:
            return self._index.references(digest, offset, limit)
        if offset >= waiting:
            return self._tails.waiting(digest, offset, limit)
        older = self._index.references(digest, offset, min(limit, waiting - offset))
        count = len(older) // REFERENCE
        if offset + count == waiting and count < limit:
            return older + self._tails.waiting(digest, waiting, limit - count)
        return older

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
        """A message entered an inbox: its client's session has a subscription from there on."""
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
            self.held.hold(data, start, digests)
            return False
        if not self.held.revived(record.trailer_of(data, start)):
            return False
        self.keys.enter(digests, record.position_of(data, start), record.length_of(data, start))
        return True

    def _fold_control(self, kind: int, commit: Commit, start: int) -> None:
        _, _, _, subject, _, _, payload = record.decode(commit.data, start)
        position = commit.position + start
        try:
            plain = self._plain.get(kind)
            if plain is not None:
                fold, parse = plain
                fold(subject, parse(payload))
            elif Kind.TIMERS_FIRED <= kind <= Kind.TRANSACTIONS_CHECKED:
                self._enter_held(
                    commit, self.held.fold(kind, payload), record.store_time_of(commit.data, start), position
                )
            elif Kind.POPPED <= kind <= Kind.GROUP_REMOVED:
                self._fold_group(kind, commit, start, subject, payload)
            elif Kind.USER_SET <= kind <= Kind.RULES_SET:
                self._fold_access(kind, commit, subject, payload)
            elif Kind.SHARE_HELD <= kind <= Kind.SHARE_HANDED:
                self._fold_share(kind, subject, payload)
            elif Kind.PRODUCED <= kind <= Kind.GATEWAY_LEFT:
                self._fold_process(kind, subject, payload, position)
            else:
                self._fold_kind(kind, subject, payload, position)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"control record of kind {kind} at position {position}: {error}") from error

    def _enter_held(self, commit: Commit, rows: list[HeldRow], store_time: int, by: int) -> None:
        """Enter messages that are held no more, with the store time of the record, at `by`, that lets them go: store
        times do not run backwards along a queue."""
        if not rows:
            return
        refs = [record.pack_refs([row.handle], [row.length], [store_time], [record.crc32c(row.topic)]) for row in rows]
        moved = [(row.handle, row.length, row.topic, row.flags & ~FLAG_HELD) for row in rows]
        self._dispatcher.enter_moved(commit, moved, refs)
        offsets = {entered.position: entered.topic_offset for entered in commit.moved[-len(rows) :]}
        for row, reference in zip(rows, refs, strict=True):
            self.keys.enter(row.digests, row.handle, row.length)
            self.moved.enter(row.topic, row.handle)
            if row.flags & FLAG_ADDRESSED:
                self._address(commit, row.topic, row.handle, offsets[row.handle])
            if row.flags & FLAG_RETAIN:
                self.retained.fold_moved(row.topic, reference, not row.has_payload, by)

    def _fold_share(self, kind: int, group: bytes, payload: bytes) -> None:
        if kind == Kind.SHARE_HELD:
            self.shares.hold(group, control.parse_share_holder(payload))
        elif kind == Kind.SHARE_LEFT:
            self.shares.let_go(group, control.parse_share_holder(payload))
        else:
            handed = control.parse_share_handed(payload)
            self.pops.finished(group, subscription_queue(group), [offset for _, _, offset in handed])
            for client, packet_id, offset in handed:
                if packet_id:
                    self.sessions.outbound_changed(
                        client, control.OutboundChange([(packet_id, group, offset, 2)], [], [])
                    )

    def _fold_group(self, kind: int, commit: Commit, start: int, group: bytes, payload: bytes) -> None:
        pops = self.pops
        if kind == Kind.POPPED:
            event = control.parse_popped(payload)
            if is_shared(group):
                for queue in [queue for queue in event.runs if self._is_over(group, queue)]:
                    del event.runs[queue]
            pops.popped(group, event)
        elif kind == Kind.SETTLED:
            settled = control.parse_settled(payload)
            pops.settled(group, settled)
            if settled.again:
                _tell_again(commit, group)
        elif kind == Kind.DEAD_LETTERED:
            queue, offsets = control.parse_dead_lettered(payload)
            had = pops.finished(group, queue, offsets)
            self._dead_letter(commit, record.store_time_of(commit.data, start), group, queue, had)
        elif kind == Kind.GROUP_RESET:
            begins = control.parse_group_reset(payload)
            pops.reset(group, {name: at for name, at in begins.items() if not self._is_over(group, name)})
            _tell_again(commit, group)
        else:
            pops.removed(group)
            _tell_again(commit, group)

    def _fold_access(self, kind: int, commit: Commit, name: bytes, payload: bytes) -> None:
        if kind == Kind.RULES_SET:
            self.access.rules_set(name, [Rule(*rule) for rule in control.parse_rules_set(payload)])
        elif kind == Kind.USER_SET:
            self.access.user_set(name, control.parse_user_set(payload))
        else:
            self.access.user_removed(name)
        if kind != Kind.RULES_SET:
            commit.users.append(name)
        if kind != Kind.USER_SET:
            commit.rules.append(name)

    def _is_over(self, group: bytes, queue: bytes) -> bool:
        """Whether the last member of a shared subscription left before what was decided of its queue was committed."""
        if not is_shared(group) or self.pops.find(group, queue) is not None:
            return False
        return queue == subscription_queue(group) and not self.shares.exists(group)

    def _dead_letter(self, commit: Commit, store_time: int, group: bytes, queue: bytes, offsets: list[int]) -> None:
        """Enter what these offsets of a queue refer to into the group's dead-letter queue. A reference that is gone
        with its generation of the index enters as one to nothing: others have the same offsets whenever it went."""
        end = self.end(queue)
        for offset in offsets:
            if offset < end:
                reference = self.references(queue, offset, 1) or _NOTHING
                self._dispatcher.enter_reference(dead_letter_queue(group), at_time(reference, store_time))
                if group not in commit.dead_letters:
                    commit.dead_letters.append(group)

    def _fold_process(self, kind: int, name: bytes, payload: bytes, position: int) -> None:
        if kind == Kind.PRODUCED:
            self.producers.produced(name, *control.parse_produced(payload), position)
        elif kind == Kind.PRODUCER_ENDED:
            self.producers.ended(name, control.parse_producer_ended(payload))
        elif kind == Kind.GATEWAY_JOINED:
            self.gateways.joined(name)
        else:
            self.gateways.left(name)

    def _fold_kind(self, kind: int, subject: bytes, payload: bytes, position: int) -> None:
        if kind == Kind.SUBSCRIBED:
            self.sessions.subscribed(subject, control.parse_subscribed(payload), position)
        elif kind == Kind.GROUP_OFFSETS_COMMITTED:
            self.groups.fold(subject, *control.parse_group_offsets_committed(payload))
        else:
            raise ValueError("unknown kind: a newer version wrote it")


def _tell_again(commit: Commit, group: bytes) -> None:
    if group not in commit.again and not is_shared(group):
        commit.again.append(group)


def _plain_folds(sessions: Sessions, wills: Wills) -> _Folds:
    """The records that the life of a session consists of, by kind: what folds each for its client, and what reads its
    payload."""
    return {
        int(Kind.SESSION_OPENED): (sessions.opened, control.parse_session_opened),
        int(Kind.SESSION_CLOSED): (sessions.closed, control.parse_session_closed),
        int(Kind.SESSION_LOST): (sessions.lost, control.parse_session_closed),
        int(Kind.SESSION_ENDED): (sessions.ended, control.parse_session_ended),
        int(Kind.UNSUBSCRIBED): (sessions.unsubscribed, control.parse_unsubscribed),
        int(Kind.CURSORS_COMMITTED): (sessions.cursors_committed, control.parse_cursors_committed),
        int(Kind.INBOUND_RELEASED): (sessions.inbound_released, control.parse_inbound_released),
        int(Kind.OUTBOUND_CHANGED): (sessions.outbound_changed, control.parse_outbound_changed),
        int(Kind.WILL_SET): (sessions.will_set, control.parse_will_set),
        int(Kind.WILL_DROPPED): (wills.dropped, control.parse_will_dropped),
    }
