"""An engine whose groups are tested, and what tests of groups have in common."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import record
from matcher.selector import EVERYTHING, Selection
from record.layout import Kind
from store.api import (
    Appended,
    Ordering,
    PopRequest,
    PopResult,
    Receipts,
    Run,
    Start,
    dead_letter_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.engine import Engine

Q = topic_queue(b"a/b")
OTHER = topic_queue(b"a/c")
DEAD = dead_letter_queue(b"g")
CONFIG = StoreConfig(segment_size=1 << 16, partitions=2, retry_delays_s=(1, 5), max_deliveries=3)


def message(number: int, topic: bytes = b"a/b", size: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, 0, 0, topic, b"c", b"", b"%d" % number + bytes(size))


def payloads(runs: Sequence[Run]) -> list[bytes]:
    found: list[bytes] = []
    for run in runs:
        starts = record.split(run.data)
        assert len(starts) == run.count
        found += [record.decode(run.data, start)[6].rstrip(b"\0") for start in starts]
    return found


def receipts(popped: PopResult) -> list[Receipts]:
    return [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]


def numbers(*wanted: int) -> list[bytes]:
    return [b"%d" % number for number in wanted]


class Bench:
    """An engine whose clock the test holds."""

    def __init__(self, path: Path, config: StoreConfig = CONFIG) -> None:
        self.path = path
        self.config = config
        self.now = 1_000_000
        self.dead: list[list[bytes]] = []  # of each commit that has some

    async def open(self) -> "Bench":
        self.engine = await Engine.open(self.path, self.config, clock=lambda: self.now)
        self.engine.on_commit(lambda commit: self.dead.append(commit.dead_letters) if commit.dead_letters else None)
        return self

    async def reopen(self) -> None:
        await self.engine.close()
        await self.open()

    @property
    def is_idle(self) -> bool:
        """Nothing that the groups decided waits to be committed, and no group is being reset or removed."""
        groups = self.engine._groups
        return not groups._uncommitted._by_key and not groups._locks

    async def append(self, *frames: bytes) -> Appended:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(list(frames), answer.set_result)
        done = await answer
        assert done.error is None
        return done

    async def fill(self, count: int, topic: bytes = b"a/b") -> None:
        await self.append(*(message(number, topic) for number in range(count)))

    async def pop(
        self,
        *queues: bytes,
        records: int = 100,
        size: int = 1 << 20,
        invisible: int = 10_000,
        start: Start = Start.EARLIEST,
        most: int = 0,
        group: bytes = b"g",
        selection: Selection = EVERYTHING,
        ordering: Ordering = Ordering.NONE,
        early: bool = False,
    ) -> PopResult:
        request = PopRequest(
            group, queues or (Q,), records, size, invisible, start, most, selection, ordering, early=early
        )
        return await self.engine.pop(request)

    async def take(self, *queues: bytes, records: int = 100, invisible: int = 10_000) -> list[bytes]:
        return payloads((await self.pop(*queues, records=records, invisible=invisible)).runs)

    async def lag(self) -> dict[bytes, tuple[int, int, int, int]]:
        states = [state for state in await self.engine.groups(None, 10) if state.group == b"g"]
        return {each.queue: (each.floor, each.next, each.unfinished, each.lag) for s in states for each in s.queues}
