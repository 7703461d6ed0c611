"""Producers on the store's own loop: each has its messages in flight as one append, as one read of a socket has."""

import asyncio
import random
import time
from collections.abc import Callable

import record
from record.layout import Kind
from store.api import Appended, Done

PRODUCERS = 100
IN_FLIGHT = 20
PAYLOAD = random.Random(7).randbytes(256)
PARENTS = 16
KEY = b"\x26\x00\x03key\x00\x0eorder-%08d"  # a user property

Append = Callable[[list[bytes], Done], None]


def topic(number: int) -> bytes:
    return b"site%d/device%d/temp" % (number % PARENTS, number)


def message(number: int, properties: bytes = b"") -> bytes:
    return record.frame(Kind.MESSAGE, 1, 0, topic(number), b"producer", properties, PAYLOAD)


class Load:
    """Appends `count` messages with topics from `numbers`, in order of appends; each with a key of its own
    (`with_keys`)."""

    def __init__(self, append: Append, numbers: Callable[[], int], count: int, with_keys: bool = False) -> None:
        self._append = append
        self._numbers = numbers
        self._left = count
        self._in_flight = 0
        self.waits: list[float] = []  # seconds, of each append
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count = count
        self._with_keys = with_keys

    async def run(self) -> dict[str, float]:
        """Records per second, CPU µs per record (framing and producers included), p50 and p99 in ms."""
        began, used = time.perf_counter(), time.process_time()
        for _ in range(PRODUCERS):
            self._send()
        await self._over
        took, used = time.perf_counter() - began, time.process_time() - used
        return {
            "records_per_second": self._count / took,
            "cpu_us": used / self._count * 1e6,
            "p50_ms": percentile(self.waits, 50) * 1e3,
            "p99_ms": percentile(self.waits, 99) * 1e3,
        }

    def _send(self) -> None:
        size = min(IN_FLIGHT, self._left)
        if size == 0:
            if self._in_flight == 0 and not self._over.done():
                self._over.set_result(None)
            return
        self._left -= size
        self._in_flight += 1
        numbers = self._numbers
        if self._with_keys:
            first = self._left
            frames = [message(numbers(), KEY % (first + i)) for i in range(size)]
        else:
            frames = [message(numbers()) for _ in range(size)]
        sent = time.perf_counter()

        def done(answer: Appended) -> None:
            self._in_flight -= 1
            if answer.error is not None:
                if not self._over.done():
                    self._over.set_exception(answer.error)
                return
            self.waits.append(time.perf_counter() - sent)
            self._send()

        self._append(frames, done)


class Stalls:
    """How late a timer of a millisecond is, while it is entered: what else the loop does between two turns."""

    def __init__(self) -> None:
        self._late: list[float] = [0.0]
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Stalls":
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def figures(self) -> dict[str, float]:
        return {"stall_p99_ms": percentile(self._late, 99) * 1e3, "stall_max_ms": max(self._late) * 1e3}

    async def _run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self._late.append(time.perf_counter() - began - 0.001)


async def settle() -> float:
    """Wait until nothing is done any more, also by RocksDB. Returns the CPU seconds that it took."""
    began = used = time.process_time()
    while True:
        await asyncio.sleep(0.5)
        if time.process_time() - used < 0.01:
            return used - began
        used = time.process_time()


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


def uniform(topics: int, seed: int = 1) -> Callable[[], int]:
    """Random topics."""
    pick = random.Random(seed).random
    return lambda: int(pick() * topics)


def each_once(topics: int) -> Callable[[], int]:
    """Every topic once."""
    return iter(range(topics)).__next__
