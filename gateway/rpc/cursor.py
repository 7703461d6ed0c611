"""A group's place in one partition: what it has acknowledged, what is next, what has come back."""

from heapq import heappop, heappush


class Cursor:
    """Offsets below `committed` are acknowledged, all of them; offsets from `next` on were never leased.

    In between an offset is leased, acknowledged out of order (`acknowledged`), or came back (`returned`).
    """

    __slots__ = ("acknowledged", "committed", "next", "partition", "queue", "returned")

    def __init__(self, partition: int, queue: bytes, committed: int) -> None:
        self.partition = partition
        self.queue = queue
        self.committed = committed
        self.next = committed
        self.acknowledged: set[int] = set()
        self.returned: list[int] = []  # a heap: leased before, not acknowledged, to be leased again

    def acknowledge(self, offset: int) -> bool:
        """Note that `offset` is done. True when `committed` moved."""
        if offset < self.committed:
            return False
        if offset > self.committed:
            self.acknowledged.add(offset)
            return False
        offset += 1
        while offset in self.acknowledged:
            self.acknowledged.remove(offset)
            offset += 1
        self.committed = offset
        return True

    def give_back(self, offset: int) -> None:
        """A lease ran out or was released: the offset goes out again before newer ones."""
        if offset >= self.committed:
            heappush(self.returned, offset)

    def returned_run(self, limit: int) -> tuple[int, int]:
        """Take the oldest returned offset and those right behind it, up to `limit`: (offset, count)."""
        first = heappop(self.returned)
        count = 1
        while count < limit and self.returned and self.returned[0] == first + count:
            heappop(self.returned)
            count += 1
        return first, count

    def begin_at(self, begin: int) -> bool:
        """Records below `begin` left the log: they cannot be delivered any more. True when `committed` moved."""
        self.returned = [offset for offset in self.returned if offset >= begin]  # sorted order of a heap may
        self.returned.sort()  # be broken by the filter; a sorted list is a heap
        self.next = max(self.next, begin)
        if self.committed >= begin:
            return False
        self.acknowledged = {offset for offset in self.acknowledged if offset >= begin}
        self.committed = begin
        while self.committed in self.acknowledged:
            self.acknowledged.remove(self.committed)
            self.committed += 1
        return True
