"""The view of pop consumer groups: which messages of each queue are finished or leased (`leases`).

Recently used queues are in memory as objects, and their number is bounded. A checkpoint writes the rows of changed
objects. A queue has a head row, and a row for each block of 256 offsets with unfinished messages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from store.control import Settled
from store.views.database.state import State, owned
from store.views.groups.counts import GroupCounts
from store.views.groups.groups import Groups
from store.views.groups.leases import Entry, QueueLeases, unpack_head

_GROUPS: Final = b"j"  # group → number of its queues
_HEADS: Final = b"n"  # queue → head
_BLOCKS: Final = b"l"  # queue, block number → entries

_NO_RUNS: Final[list[tuple[int, int]]] = []
_NO_POSTPONED: Final[list[tuple[int, int, int]]] = []

Key = tuple[bytes, bytes]  # group, queue


class Pops:
    """Groups and their queues. `limit` bounds the objects in memory: queues, and blocks of 256 offsets."""

    def __init__(self, state: State, committed: Groups, limit: int) -> None:
        self._state = state
        self._committed = committed
        self._limit = limit
        self._queues: dict[Key, QueueLeases] = {}  # the least recently changed ones first
        self._names: dict[bytes, dict[bytes, None]] = {}  # queues in memory, by group
        self._changed: dict[Key, QueueLeases] = {}  # since the last checkpoint
        self.changed = 0  # rows that a checkpoint has to write
        self._blocks = 0  # in memory
        self._count: int | None = None  # of groups, after the first call of `groups`
        self._short_of_room: set[bytes] = set()  # groups that may lease more once something is settled
        self.counts = GroupCounts()

    @property
    def size(self) -> int:
        """The number of objects in memory."""
        return len(self._queues) + self._blocks

    def find(self, group: bytes, queue: bytes) -> QueueLeases | None:
        """The state of a group in a queue, or None if it has none."""
        found = self._queues.get((group, queue))
        return self._load(group, queue) if found is None else found

    def find_all(self, group: bytes, queues: Iterable[bytes]) -> list[QueueLeases | None]:
        """The state of a group in each of the queues."""
        known = self._queues
        return [known.get((group, queue)) or self._load(group, queue) for queue in queues]

    def begin_of(self, group: bytes, queue: bytes) -> int | None:
        """The offset at which a group begins a new queue, if it has a committed offset for it."""
        if queue[:1] != b"p":
            return None
        parent, partition = queue[1:-3], int.from_bytes(queue[-2:], "big")
        return self._committed.offsets(group, parent).get(partition)

    def queues_of(self, group: bytes) -> int:
        """The number of queues that a group has; 0 if there is no such group."""
        row = self._state.get(_GROUPS, group)
        return 0 if row is None else int.from_bytes(row, "big")

    def groups(self) -> int:
        """The number of groups."""
        if self._count is None:
            self._count = sum(1 for _ in self._state.scan(_GROUPS))
        return self._count

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` group names after `after`, sorted."""
        return [name for name, _ in islice(self._state.scan(_GROUPS, after=after), limit)]

    def queue_states(self, group: bytes) -> list[tuple[bytes, int, int, int]]:
        """(queue, floor, next, unfinished) of each queue of a group, sorted."""
        self._write_group(group)
        return [(queue, *unpack_head(row)) for queue, row in self._state.scan(owned(_HEADS, group))]

    def progress(self, group: bytes) -> list[tuple[bytes, int, int, int]]:
        """What `queue_states` returns, unsorted. It writes nothing."""
        found = {queue: unpack_head(row) for queue, row in self._state.all(owned(_HEADS, group))}
        for queue in self._names.get(group, ()):
            leases = self._queues[group, queue]
            found[queue] = (leases.floor, leases.next, leases.unfinished)
        return [(queue, *head) for queue, head in found.items()]

    def popped(self, group: bytes, queues: dict[bytes, list[tuple[int, int]]], until: int, time: int) -> None:
        """Apply POPPED, which was stored at `time` (ms)."""
        all_leases: list[QueueLeases] = []
        for queue in queues:
            leases = self.find(group, queue) or self._add(group, queue, self.begin_of(group, queue) or 0)
            self._begin_change(leases)  # before the next `find`, which may evict unchanged objects
            all_leases.append(leases)
        count = again = 0
        for leases, runs in zip(all_leases, queues.values(), strict=True):
            again += leases.popped(runs, until, time)
            for _, size in runs:
                if size > 0:
                    count += size
        self._end_change(all_leases)
        if count:
            self.counts.delivered(group, count, again, time)

    def settled(self, group: bytes, event: Settled, time: int) -> bool:
        """Apply SETTLED, which was stored at `time` (ms). Returns whether messages that were kept back may be leased
        now."""
        all_leases: list[QueueLeases] = []
        for queue in [*event.done, *[queue for queue in event.again if queue not in event.done]]:
            leases = self.find(group, queue)
            if leases is not None:
                self._begin_change(leases)
                all_leases.append(leases)
        finished, handled_ms = 0, -1
        for leases in all_leases:
            done = event.done.get(leases.queue, _NO_RUNS)
            if done and handled_ms < 0:
                entry = leases.entry_of(done[0][0])
                handled_ms = -1 if entry is None else max(time - entry[2], 0)
            unfinished = leases.unfinished
            leases.settled(done, event.again.get(leases.queue, _NO_POSTPONED))
            finished += unfinished - leases.unfinished
        self._end_change(all_leases)
        if finished:
            self.counts.acknowledged(group, finished, handled_ms, time)
        return any([leases.is_ordered for leases in all_leases])  # noqa: C419 a generator costs more

    def wait_for_room(self, group: bytes) -> None:
        """Note that a group may lease more once something is settled. This is no state of the log."""
        self._short_of_room.add(group)

    def made_room(self, group: bytes) -> bool:
        """Whether the group waited for room, now that something is settled. It does so no longer."""
        if group in self._short_of_room:
            self._short_of_room.remove(group)
            return True
        return False

    def is_ordered(self, group: bytes, queue: bytes) -> bool:
        """Whether messages of the queue may have been kept back, which may be leased after a settlement."""
        leases = self.find(group, queue)
        return leases is not None and leases.is_ordered

    def finished(self, group: bytes, queue: bytes, offsets: Sequence[int]) -> list[tuple[int, Entry]]:
        """Finish offsets. Returns those that were unfinished, in the same order, with their entries."""
        leases = self.find(group, queue)
        if leases is None:
            return []
        self._begin_change(leases)
        finished: list[tuple[int, Entry]] = []
        for offset in offsets:
            entry = leases.entry_of(offset)
            if entry is not None:
                leases.finish(offset, offset + 1)
                finished.append((offset, entry))
        self._end_change([leases])
        return finished

    def reset(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        for queue, offset in offsets.items():
            leases = self.find(group, queue) or self._add(group, queue, offset)
            self._begin_change(leases)
            leases.reset(offset)
            self._end_change([leases])

    def removed(self, group: bytes) -> None:
        self._short_of_room.discard(group)
        self._write_group(group)
        for queue in list(self._names.get(group, ())):
            self._discard((group, queue))
        for view in (_HEADS, _BLOCKS):
            table = owned(view, group)
            for name in [name for name, _ in self._state.scan(table)]:
                self._state.delete(table, name)
        if self.queues_of(group):
            self._state.delete(_GROUPS, group)
            if self._count is not None:
                self._count -= 1
        self._committed.remove(group)

    def checkpoint(self) -> None:
        """Put the changed rows into the state, which is written next. Then evict the least recently changed objects
        beyond the limit."""
        self._write()
        self._evict()

    def _write(self) -> None:
        for leases in self._changed.values():
            self._write_leases(leases)
        self._changed = {}
        self.changed = 0

    def _write_group(self, group: bytes) -> None:
        for queue in self._names.get(group, ()):
            leases = self._changed.pop((group, queue), None)
            if leases is not None:
                self.changed -= 1 + len(leases.changed)
                self._write_leases(leases)

    def _write_leases(self, leases: QueueLeases) -> None:
        blocks = owned(_BLOCKS, leases.group)
        prefix = owned(b"", leases.queue)
        for number, row in leases.rows():
            name = prefix + number.to_bytes(8, "big")
            if row is None:
                self._state.delete(blocks, name)
            else:
                self._state.put(blocks, name, row)
        self._state.put(owned(_HEADS, leases.group), leases.queue, leases.head())

    def _evict(self) -> None:
        if self.size <= self._limit:
            return
        excess = self.size - self._limit + self._limit // 8  # an eighth more, so that evictions are rare
        keys: list[Key] = []
        for key, leases in self._queues.items():
            if not leases.is_changed:
                keys.append(key)
                excess -= 1 + len(leases.blocks)
                if excess <= 0:
                    break
        for key in keys:
            self._discard(key)

    def _discard(self, key: Key) -> None:
        self._blocks -= len(self._queues.pop(key).blocks)
        group, queue = key
        names = self._names[group]
        del names[queue]
        if not names:
            del self._names[group]

    def _cache(self, leases: QueueLeases) -> QueueLeases:
        self._queues[leases.group, leases.queue] = leases
        self._names.setdefault(leases.group, {})[leases.queue] = None
        return leases

    def _load(self, group: bytes, queue: bytes) -> QueueLeases | None:
        row = self._state.get(owned(_HEADS, group), queue)
        if row is None:
            return None
        _, following, unfinished = unpack_head(row)
        leases = QueueLeases(group, queue, following)
        if unfinished:
            leases.load(list(self._block_rows(group, queue)))
            leases.is_ordered = True
        self._evict()
        self._blocks += len(leases.blocks)
        return self._cache(leases)

    def _block_rows(self, group: bytes, queue: bytes) -> Iterator[tuple[int, bytes]]:
        prefix = owned(b"", queue)
        for name, row in self._state.scan(owned(_BLOCKS, group), prefix):
            if not name.startswith(prefix):
                break
            yield int.from_bytes(name[len(prefix) :], "big"), row

    def _add(self, group: bytes, queue: bytes, begin: int) -> QueueLeases:
        known = self.queues_of(group)
        self._state.put(_GROUPS, group, (known + 1).to_bytes(4, "big"))
        if not known and self._count is not None:
            self._count += 1
        return self._cache(QueueLeases(group, queue, begin))

    def _begin_change(self, leases: QueueLeases) -> None:
        """Prepare the counts for a change. Call `_end_change` after the change."""
        if not leases.is_changed:
            leases.is_changed = True
            self.changed += 1
            key = (leases.group, leases.queue)
            self._changed[key] = leases
            self._queues[key] = self._queues.pop(key)
        self._blocks -= len(leases.blocks)
        self.changed -= len(leases.changed)

    def _end_change(self, all_leases: Iterable[QueueLeases]) -> None:
        for leases in all_leases:
            self._blocks += len(leases.blocks)
            self.changed += len(leases.changed)
