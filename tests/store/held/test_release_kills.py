"""`kill -9` while messages are delayed, recalled, committed, rolled back, leased, finished and given up.

What the process was told is done stays done: nothing enters a queue twice, nothing recalled or rolled back enters one,
nothing finished is leased out again, and what nobody finishes is given up exactly once.
"""

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import record
from store.api import dead_letter_queue
from store.engine import Engine
from tests.store import mover
from tests.store.mover import CONFIG, DELIVERIES, GROUP, PARTITION, POISON

ROOT = Path(__file__).parents[3]
RUNS = 6


class Told:
    """The output of all processes, in order; each line is checked against those before it."""

    def __init__(self) -> None:
        self.numbers: dict[str, set[int]] = {}
        self.settled: set[int] = set()  # offsets
        self._deliveries: dict[int, int] = {}  # by offset

    def hear(self, line: str) -> None:
        what, *numbers = line.split()
        if what == "popped":
            offset, deliveries, _ = map(int, numbers)
            assert offset not in self.settled, "a message that was finished is leased out again"
            assert self._deliveries.get(offset, 0) < deliveries <= DELIVERIES, "deliveries are not counted"
            self._deliveries[offset] = deliveries
        elif what == "settled":
            self.settled.add(int(numbers[0]))
        else:
            self.numbers.setdefault(what, set()).add(int(numbers[0]))

    def of(self, *kinds: str) -> set[int]:
        return set().union(*(self.numbers.get(kind, set()) for kind in kinds))


async def killed(data: Path, first: int, told: Told, finished: int) -> None:
    """Run a process until it has finished so many messages, and kill it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.store.mover", data, str(first)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    wanted = len(told.settled) + finished
    while len(told.settled) < wanted:
        line = await process.stdout.readline()
        assert line, "the process ended by itself"
        told.hear(line.decode())
    process.send_signal(signal.SIGKILL)
    rest = (await process.communicate())[0].decode()
    for line in rest[: rest.rfind("\n") + 1].splitlines():
        told.hear(line)


async def numbers_in(engine: Engine, queue: bytes) -> list[int]:
    found: list[int] = []
    bounds = await engine.bounds(queue)
    offset = bounds.begin
    while offset < bounds.end:
        got = await engine.fetch(queue, offset, 1000, 1 << 20)
        found += [int(record.decode(got.data, start)[6]) for start in record.split(got.data)]
        offset = got.next_offset
    return found


@pytest.mark.slow
async def test_completed_operations_survive_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data, told = tmp_path / "data", Told()
    for run in range(RUNS):
        await killed(data, 1_000_000 * (run + 1), told, 40 + 30 * run)
    monkeypatch.setattr(mover, "tell", lambda what, *numbers: told.hear(" ".join((what, *map(str, numbers)))))
    engine = await Engine.open(data, CONFIG)
    while (await engine.timers(None, 1)).messages:
        await engine.release_due()
        await asyncio.sleep(0.01)
    while (await engine.groups(None, 1))[0].queues[0].lag:
        if not await mover.consume(engine, 20, gives_back=True):
            await asyncio.sleep(0.005)

    entered = await numbers_in(engine, PARTITION)
    assert max(Counter(entered).values()) == 1, "a message entered twice"
    there = set(entered)
    assert told.of("message") <= there
    assert told.of("delayed") - told.of("recalling") <= there
    assert told.of("committed") <= there
    assert not told.of("recalled", "rolled_back") & there
    handles = [held.handle for held in (await engine.transactions(None, 100_000)).messages]
    waiting = {int(record.decode(await engine.message(handle), 0)[6]) for handle in handles}
    assert told.of("half") - told.of("ending") <= waiting
    assert not waiting & there
    produced = [number for number in entered if number in told.of("message")]
    assert produced == sorted(produced)

    given_up = await numbers_in(engine, dead_letter_queue(GROUP))
    assert max(Counter(given_up).values()) == 1
    assert {number for number in there if number % POISON == 0} <= set(given_up)
    finished = {entered[offset] for offset in told.settled}
    assert not finished & set(given_up)
    assert told.of("recalled") and told.of("rolled_back") and told.of("committed") and given_up
    await engine.close()
