"""Groups of cloud consumers: any member leases any message of a parent topic ("pop").

The rules of the file:

* A message is out with one member at a time. An acknowledgement completes it; a lease that runs out or is
  released brings it back, ahead of newer ones.
* The log knows one number per partition, the committed offset: the lowest that is not acknowledged. Leases and
  acknowledgements beyond it live in memory, so a restarted node delivers from the committed offset on again.
* An acknowledgement that moves the committed offset is answered when the control record that says so is
  committed. Such records are gathered: one is in flight per group, the next covers all that came meanwhile.
* Members that wait stand in line, and only the first is woken. Who leaves the line wakes the next, which looks
  whether anything is left: so a message costs the same with one member waiting and with a thousand.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.rpc.cursor import Cursor
from gateway.rpc.leases import Leases
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import exhausted
from gateway.rpc.wakeups import Wakeups, wait_until
from store.api import Appended, Bounds, Fetched, Store, partition_queue
from store.control import group_offsets_committed
from store.errors import OffsetOutOfRange, StoreBusy, StoreError

_BUSY_RETRY_S: Final = 0.05


@dataclass(slots=True)
class Run:
    """Consecutive records of a partition: sealed frames, back to back."""

    partition: int
    offset: int
    count: int
    frames: bytes


@dataclass(slots=True)
class Taken:
    """What a Receive got: the i-th record, counted through all runs, has lease id `lease + i`."""

    lease: int = 0
    runs: list[Run] = field(default_factory=list)


class Groups:
    """The groups in use, by (group, parent). A group that is not in use can be forgotten: the log has its offsets."""

    def __init__(self, store: Store, wakeups: Wakeups, limits: RpcLimits) -> None:
        self._store = store
        self._wakeups = wakeups
        self._limits = limits
        self._groups: dict[tuple[bytes, bytes], Group] = {}  # least recently used first
        self._loading = asyncio.Lock()

    def find(self, name: bytes, parent: bytes) -> "Group | None":
        """The group if a member received from it since the node started (and it was in use since)."""
        return self._groups.get((name, parent))

    async def get(self, name: bytes, parent: bytes, from_earliest: bool) -> "Group":
        """The group; one that nobody ever used begins at the oldest message or behind the newest."""
        key = (name, parent)
        group = self._groups.pop(key, None)
        if group is None:
            async with self._loading:
                group = self._groups.pop(key, None)
                if group is None:
                    self._make_room()
                    group = await self._load(name, parent, from_earliest)
        self._groups[key] = group
        return group

    def stop(self) -> None:
        for group in self._groups.values():
            group.stop()

    def _make_room(self) -> None:
        if len(self._groups) < self._limits.max_groups:
            return
        for key, group in self._groups.items():
            if group.idle:
                group.stop()
                del self._groups[key]
                return
        raise exhausted(f"{self._limits.max_groups} consumer groups are in use, which is the limit")

    async def _load(self, name: bytes, parent: bytes, from_earliest: bool) -> "Group":
        committed = await self._store.group_offsets(name, parent)
        cursors = []
        for partition in range(self._store.partitions):
            queue = partition_queue(parent, partition)
            offset = committed.get(partition)
            if offset is None:
                bounds = await self._store.bounds(queue)
                offset = bounds.begin if from_earliest else bounds.end
            cursors.append(Cursor(partition, queue, offset))
        group = Group(self._store, self._wakeups, self._limits, name, parent, cursors)
        if not committed:
            await group.commit(cursors)  # where it starts must not move when the node restarts
        return group


class Group:
    """One group on one parent topic."""

    def __init__(
        self,
        store: Store,
        wakeups: Wakeups,
        limits: RpcLimits,
        name: bytes,
        parent: bytes,
        cursors: list[Cursor],
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._limits = limits
        self._name = name
        self._parent = parent
        self._cursors = cursors
        self._turn = 0  # the cursor that the next Receive looks at first
        self._leases = Leases()
        self._taking = asyncio.Lock()  # a fetch may suspend: cursors move under one Receive at a time
        self._waiters: OrderedDict[asyncio.Event, None] = OrderedDict()  # the line; the first hears of commits
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._moved: set[Cursor] = set()  # whose committed offset the log does not know yet
        self._committers: list[asyncio.Future[None]] = []  # wait for the next control record
        self._committing = False

    @property
    def idle(self) -> bool:
        """Nothing is out, nobody waits, everything acknowledged is committed."""
        return not (self._leases.count or self._waiters or self._moved or self._committing or self._taking.locked())

    def stop(self) -> None:
        """Take the timer down and end the waits of members; leases are forgotten."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            waiter.set()

    async def receive(self, max_records: int, max_bytes: int, invisible_s: float, wait_s: float) -> Taken:
        """Lease up to `max_records` for `invisible_s`, waiting up to `wait_s` for the first one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        waiter = asyncio.Event()
        self._join(waiter)
        try:
            while True:
                async with self._taking:
                    runs, places = await self._take(max_records, max_bytes)
                if places:
                    lease = self._leases.add(loop.time() + invisible_s, places)
                    self._set_timer()
                    return Taken(lease.base, runs)
                if self._stopped or not wait_s or not await wait_until(waiter, deadline):
                    return Taken()
        finally:
            self._leave(waiter)

    async def acknowledge(self, done: Iterable[int], release: Iterable[int]) -> list[int]:
        """Complete the leases `done`, take back the leases `release`; returns those that were not held any more.
        Suspends until the committed offsets that moved are committed."""
        expired: list[int] = []
        moved: list[Cursor] = []
        full = self._leases.count >= self._limits.max_leases
        for lease_id in done:
            place = self._leases.take(lease_id)
            if place is None:
                expired.append(lease_id)
            elif place[0].acknowledge(place[1]):
                moved.append(place[0])
        returned = False
        for lease_id in release:
            place = self._leases.take(lease_id)
            if place is None:
                expired.append(lease_id)
            else:
                place[0].give_back(place[1])
                returned = True
        if returned or full or moved:
            self._wake()
        if moved:
            await self.commit(moved)
        return expired

    async def commit(self, cursors: Iterable[Cursor]) -> None:
        """Write the committed offsets of `cursors` to the log; returns when they are committed."""
        self._moved.update(cursors)
        committed = asyncio.get_running_loop().create_future()
        self._committers.append(committed)
        self._commit()
        await committed

    async def _take(self, max_records: int, max_bytes: int) -> tuple[list[Run], list[tuple[Cursor, int] | None]]:
        """Fetch from one partition after the other, what came back first; beginning at another one each time."""
        runs: list[Run] = []
        places: list[tuple[Cursor, int] | None] = []
        room = min(max_records, self._limits.max_leases - self._leases.count)
        order = self._cursors[self._turn :] + self._cursors[: self._turn]
        self._turn = (self._turn + 1) % len(order)
        try:
            for returned in (True, False):
                for cursor in order:
                    more = bool(cursor.returned) if returned else True
                    while more and room > 0 and max_bytes > 0:
                        fetch = self._fetch_returned if returned else self._fetch_next
                        fetched = await fetch(cursor, room, max_bytes)
                        more = returned and bool(cursor.returned) and fetched.count > 0
                        if fetched.count:
                            runs.append(Run(cursor.partition, fetched.offset, fetched.count, fetched.data))
                            places.extend((cursor, offset) for offset in range(fetched.offset, fetched.next_offset))
                            room -= fetched.count
                            max_bytes -= len(fetched.data)
        except BaseException:  # a call that ends half-way takes nothing
            for place in places:
                if place is not None:
                    place[0].give_back(place[1])
            raise
        return runs, places

    async def _fetch_next(self, cursor: Cursor, room: int, max_bytes: int) -> Fetched:
        count = min(room, self._limits.max_window - (cursor.next - cursor.committed))
        if count <= 0:
            return Fetched(cursor.next, 0, b"", Bounds(cursor.committed, cursor.next))
        fetched = await self._fetch(cursor, cursor.next, count, max_bytes)
        if fetched.count:
            cursor.next = fetched.next_offset
        return fetched

    async def _fetch_returned(self, cursor: Cursor, room: int, max_bytes: int) -> Fetched:
        offset, count = cursor.returned_run(room)
        taken = 0
        try:
            fetched = await self._fetch(cursor, offset, count, max_bytes)
            taken = fetched.count
        finally:
            for left in range(offset + taken, offset + count):
                cursor.give_back(left)
        return fetched

    async def _fetch(self, cursor: Cursor, offset: int, count: int, max_bytes: int) -> Fetched:
        try:
            return await self._store.fetch(cursor.queue, offset, count, max_bytes)
        except OffsetOutOfRange as error:
            if offset >= error.begin:
                raise
            if cursor.begin_at(error.begin):
                self._moved.add(cursor)
                self._commit()
            self._wake()  # look again, from the new begin
            return Fetched(offset, 0, b"", Bounds(error.begin, error.end))

    def _set_timer(self) -> None:
        deadline = self._leases.next_deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        places = self._leases.expire(asyncio.get_running_loop().time())
        for cursor, offset in places:
            cursor.give_back(offset)
        if places:
            self._wake()
        self._set_timer()

    def _join(self, waiter: asyncio.Event) -> None:
        self._waiters[waiter] = None
        if len(self._waiters) == 1:
            self._wakeups.add(self._parent, waiter)

    def _leave(self, waiter: asyncio.Event) -> None:
        is_first = next(iter(self._waiters)) is waiter
        del self._waiters[waiter]
        if is_first:
            self._wakeups.remove(self._parent, waiter)
            if self._waiters:
                self._wakeups.add(self._parent, next(iter(self._waiters)))
                self._wake()

    def _wake(self) -> None:
        if self._waiters:
            next(iter(self._waiters)).set()

    def _commit(self) -> None:
        """Append one control record for everything that moved, unless one is in flight."""
        if self._committing or not self._moved:
            return
        self._committing = True
        moved, self._moved = self._moved, set()
        committers, self._committers = self._committers, []
        offsets = {cursor.partition: cursor.committed for cursor in moved}
        frame = group_offsets_committed(self._name, self._parent, offsets)
        self._store.append([frame], lambda appended: self._committed(appended, moved, committers))

    def _committed(self, appended: Appended, moved: set[Cursor], committers: "list[asyncio.Future[None]]") -> None:
        self._committing = False
        if isinstance(appended.error, StoreBusy) and not self._stopped:
            self._moved |= moved
            self._committers = committers + self._committers
            asyncio.get_running_loop().call_later(_BUSY_RETRY_S, self._commit)
            return
        error: StoreError | None = appended.error
        for committer in committers:
            if committer.done():
                continue
            if error is None:
                committer.set_result(None)
            else:
                committer.set_exception(error)
        self._commit()
