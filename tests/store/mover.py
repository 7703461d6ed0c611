"""A process to be killed: `python -m tests.store.mover FOLDER FIRST` does all at once what moves references.

It tells what it did on standard output, a line each, once the store has said that it is done: numbers from FIRST on are
the messages, and whoever reads on knows what must be true of each.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, Kind
from store.api import Appended, PopRequest, Receipts, Start, partition_queue
from store.config import StoreConfig
from store.engine import Engine

CONFIG = StoreConfig(segment_size=1 << 16, partitions=1, generation_segments=2, checkpoint_keys=50)
PARTITION = partition_queue(b"w", 0)
GROUP = b"workers"
DELIVERIES = 3
POISON = 13  # numbers that it divides are never finished
LEASE_MS = 150


class Mover:
    """One store, and everybody who uses it."""

    def __init__(self, engine: Engine, first: int) -> None:
        self._engine = engine
        self._number = first
        self._rng = Random(first)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (self._produce(), self._delay(), self._transact(), self._consume(), self._consume()):
                group.create_task(work)

    async def _produce(self) -> None:
        while True:
            numbers = [self._next() for _ in range(self._rng.randrange(1, 4))]
            await self._append([record.frame(Kind.MESSAGE, 1, 0, b"w/p", b"", b"", b"%d" % n) for n in numbers])
            for number in numbers:
                tell("message", number)
            await asyncio.sleep(0.002)

    async def _delay(self) -> None:
        while True:
            number = self._next()
            due = time.time_ns() // 1_000_000 + self._rng.randrange(100)
            handle = await self._append(
                [record.frame(Kind.MESSAGE, FLAG_DELAYED | 1, 0, b"w/d", b"", b"", b"%d" % number, due)]
            )
            tell("delayed", number)
            if self._rng.random() < 0.3:
                tell("recalling", number)
                if not await self._engine.recall([handle]):
                    tell("recalled", number)

    async def _transact(self) -> None:
        while True:
            number = self._next()
            handle = await self._append(
                [record.frame(Kind.MESSAGE, FLAG_HALF | 1, 0, b"w/h", b"", b"", b"%d" % number)]
            )
            tell("half", number)
            await asyncio.sleep(0.002)
            commit = self._rng.choice((True, False, None))
            if commit is not None:
                tell("ending", number)
                if not await self._engine.end_transaction([handle], commit):
                    tell("committed" if commit else "rolled_back", number)

    async def _consume(self) -> None:
        while True:
            await consume(self._engine, LEASE_MS, self._rng.random() < 0.5)
            await asyncio.sleep(0.005)

    async def _append(self, frames: list[bytes]) -> int:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._engine.append(frames, answer.set_result)
        appended = await answer
        assert appended.error is None
        return appended.positions[0]

    def _next(self) -> int:
        self._number += 1
        return self._number


async def consume(engine: Engine, lease_ms: int, gives_back: bool) -> int:
    """Lease some messages, finish those that can be finished, and give the others back or let their lease end. Returns
    how many there were."""
    popped = await engine.pop(PopRequest(GROUP, [PARTITION], 5, 1 << 20, lease_ms, Start.EARLIEST, DELIVERIES))
    done: list[Receipts] = []
    back: list[tuple[Receipts, int | None]] = []
    for run in popped.runs:
        for place, start in enumerate(record.split(run.data)):
            number = int(record.decode(run.data, start)[6])
            tell("popped", run.offset + place, run.deliveries, number)
            receipts = Receipts(run.queue, run.offset + place, 1, run.deliveries)
            if number % POISON:
                done.append(receipts)
            elif gives_back:
                back.append((receipts, 5))
    refused = await engine.settle(GROUP, done, back) if done or back else []
    for receipts in done:
        if not _is_in(receipts, refused):
            tell("settled", receipts.offset)
    return sum(run.count for run in popped.runs)


def _is_in(receipts: Receipts, refused: Sequence[Receipts]) -> bool:
    return any(each.offset <= receipts.offset < each.offset + each.count for each in refused)


def tell(what: str, *numbers: int) -> None:
    sys.stdout.write(" ".join((what, *map(str, numbers))) + "\n")
    sys.stdout.flush()


async def main() -> None:
    engine = await Engine.open(Path(sys.argv[1]), CONFIG)
    await Mover(engine, int(sys.argv[2])).run()


if __name__ == "__main__":
    asyncio.run(main())
