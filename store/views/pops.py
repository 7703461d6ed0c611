"""The view of groups that pop: of every group and queue, what is finished and what is out (`leases`).

What was used lately is in memory as objects, bounded in number; a checkpoint writes the rows of those that changed.
A queue's place is a head row and a row per block of 256 offsets that has messages that are out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from store.control import Settled
from store.views.groups import Groups
from store.views.leases import QueueLeases, unpack_head
from store.views.state import State, owned

_GROUPS: Final = b"j"  # group → number of its queues
_HEADS: Final = b"n"
_BLOCKS: Final = b"l"

_NO_RUNS: Final[list[tuple[int, int]]] = []
_NONE_AGAIN: Final[list[tuple[int, int, int]]] = []

Key = tuple[bytes, bytes]  # group, queue


class Pops:
    """Groups and their queues. `limit` bounds the objects in memory: queues, and blocks of 256 offsets."""

    def __init__(self, state: State, committed: Groups, limit: int) -> None:
        self._state = state
        self._committed = committed
        self._limit = limit
        self._queues: dict[Key, QueueLeases] = {}  # those that changed least recently first
        self._names: dict[bytes, dict[bytes, None]] = {}  # the same: the queues of each group
        self._changed: dict[Key, QueueLeases] = {}  # since the checkpoint
        self._changed_blocks = 0
        self._blocks = 0  # in memory
        self._count: int | None = None  # of groups, once it was asked for

    @property
    def changed(self) -> int:
        """Rows that a checkpoint has to write."""
        return len(self._changed) + self._changed_blocks

    @property
    def size(self) -> int:
        """Objects in memory."""
        return len(self._queues) + self._blocks

    def find(self, group: bytes, queue: bytes) -> QueueLeases | None:
        """A group's place in a queue, None where it never was."""
        found = self._queues.get((group, queue))
        return self._load(group, queue) if found is None else found

    def find_all(self, group: bytes, queues: Iterable[bytes]) -> list[QueueLeases | None]:
        """What the group has of each of these queues."""
        known = self._queues
        return [known.get((group, queue)) or self._load(group, queue) for queue in queues]

    def begin_of(self, group: bytes, queue: bytes) -> int | None:
        """Where a group begins a queue that it is new to, if its committed offsets say so."""
        if queue[:1] != b"p":
            return None
        parent, partition = queue[1:-3], int.from_bytes(queue[-2:], "big")
        return self._committed.offsets(group, parent).get(partition)

    def queues_of(self, group: bytes) -> int:
        """How many queues the group has a place in; 0: there is no such group."""
        row = self._state.get(_GROUPS, group)
        return 0 if row is None else int.from_bytes(row, "big")

    def groups(self) -> int:
        """How many groups there are."""
        if self._count is None:
            self._count = sum(1 for _ in self._state.scan(_GROUPS))
        return self._count

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` groups, sorted, behind `after`."""
        return [name for name, _ in islice(self._state.scan(_GROUPS, after=after), limit)]

    def places(self, group: bytes) -> list[tuple[bytes, int, int, int]]:
        """(queue, floor, next, unfinished) of each queue of the group, sorted."""
        self._write_group(group)
        return [(queue, *unpack_head(row)) for queue, row in self._state.scan(owned(_HEADS, group))]

    def popped(self, group: bytes, queues: dict[bytes, list[tuple[int, int]]], until: int) -> None:
        places: list[QueueLeases] = []
        for queue in queues:
            place = self.find(group, queue) or self._add(group, queue, self.begin_of(group, queue) or 0)
            self._changing(place)  # at once: what is about to change is not forgotten when the next place is loaded
            places.append(place)
        for place, runs in zip(places, queues.values(), strict=True):
            place.popped(runs, until)
        self._changed_to(places)

    def settled(self, group: bytes, event: Settled) -> None:
        places: list[QueueLeases] = []
        for queue in [*event.done, *[queue for queue in event.again if queue not in event.done]]:
            place = self.find(group, queue)
            if place is not None:
                self._changing(place)
                places.append(place)
        for place in places:
            place.settled(event.done.get(place.queue, _NO_RUNS), event.again.get(place.queue, _NONE_AGAIN))
        self._changed_to(places)

    def finished(self, group: bytes, queue: bytes, offsets: Sequence[int]) -> list[int]:
        """Finish these offsets. Returns those that were not, in their order."""
        place = self.find(group, queue)
        if place is None:
            return []
        self._changing(place)
        had: list[int] = []
        for offset in offsets:
            if place.deliveries_of(offset):
                place.finish(offset, offset + 1)
                had.append(offset)
        self._changed_to([place])
        return had

    def reset(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        for queue, offset in offsets.items():
            place = self.find(group, queue) or self._add(group, queue, offset)
            self._changing(place)
            place.reset(offset)
            self._changed_to([place])

    def removed(self, group: bytes) -> None:
        self._write_group(group)
        for queue in list(self._names.get(group, ())):
            self._forget((group, queue))
        for view in (_HEADS, _BLOCKS):
            bucket = owned(view, group)
            for name in [name for name, _ in self._state.scan(bucket)]:
                self._state.delete(bucket, name)
        if self.queues_of(group):
            self._state.delete(_GROUPS, group)
            if self._count is not None:
                self._count -= 1
        self._committed.remove(group)

    def checkpoint(self) -> None:
        """Hand the rows that changed to the state, which is about to be written, and keep no more objects than may
        be: those that changed least recently go."""
        self._write()
        self._make_room()

    def _write(self) -> None:
        for place in self._changed.values():
            self._write_place(place)
        self._changed = {}
        self._changed_blocks = 0

    def _write_group(self, group: bytes) -> None:
        for queue in self._names.get(group, ()):
            place = self._changed.pop((group, queue), None)
            if place is not None:
                self._changed_blocks -= len(place.changed)
                self._write_place(place)

    def _write_place(self, place: QueueLeases) -> None:
        blocks = owned(_BLOCKS, place.group)
        prefix = owned(b"", place.queue)
        for number, row in place.rows():
            name = prefix + number.to_bytes(8, "big")
            if row is None:
                self._state.delete(blocks, name)
            else:
                self._state.put(blocks, name, row)
        self._state.put(owned(_HEADS, place.group), place.queue, place.head())

    def _make_room(self) -> None:
        if self.size <= self._limit:
            return
        excess = self.size - self._limit + self._limit // 8  # a little more, so that it is not done for each
        keys: list[Key] = []
        for key, place in self._queues.items():
            if not place.is_changed:
                keys.append(key)
                excess -= 1 + len(place.blocks)
                if excess <= 0:
                    break
        for key in keys:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._blocks -= len(self._queues.pop(key).blocks)
        group, queue = key
        names = self._names[group]
        del names[queue]
        if not names:
            del self._names[group]

    def _keep(self, place: QueueLeases) -> QueueLeases:
        self._queues[place.group, place.queue] = place
        self._names.setdefault(place.group, {})[place.queue] = None
        return place

    def _load(self, group: bytes, queue: bytes) -> QueueLeases | None:
        row = self._state.get(owned(_HEADS, group), queue)
        if row is None:
            return None
        _, following, unfinished = unpack_head(row)
        place = QueueLeases(group, queue, following)
        if unfinished:
            place.load(list(self._block_rows(group, queue)))
        self._make_room()
        self._blocks += len(place.blocks)
        return self._keep(place)

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
        return self._keep(QueueLeases(group, queue, begin))

    def _changing(self, place: QueueLeases) -> None:
        """The place is about to change: `_changed_to` follows."""
        if not place.is_changed:
            place.is_changed = True
            key = (place.group, place.queue)
            self._changed[key] = place
            self._queues[key] = self._queues.pop(key)
        self._blocks -= len(place.blocks)
        self._changed_blocks -= len(place.changed)

    def _changed_to(self, places: Iterable[QueueLeases]) -> None:
        for place in places:
            self._blocks += len(place.blocks)
            self._changed_blocks += len(place.changed)
