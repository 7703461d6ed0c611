"""Several workers over one bucket, with calls that are slow, fail, or are carried out although they fail; workers that
die, join and end. Never do two live workers run one task, and in the end each task has one, evenly.

The clock is that of the test, so an hour passes in a moment. Mutations of the rules show that the test finds faults.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, cast

import pytest

from cloud_sdk import Client, Unavailable
from connect.api import ConnectError, Settings, SourceConnector, SourceContext, SourceRecord, SourceTask
from connect.plugins import CONNECTORS
from connect.runtime.entries import read_snapshot
from connect.runtime.placement import Observer
from connect.runtime.worker import Worker, WorkerSettings
from tests.connect.memory_bucket import MemoryBucket, MemoryEntry
from tests.connect.runtime.virtual_loop import VirtualLoop

SEEDS = range(12)
TASKS = (3, 1, 4)  # of each connector
CHAOS_S = 1_200.0
CALM_S = 150.0  # for the dead to be found, and for what is above a share to be given up


class Holders:
    """Who runs which task now."""

    def __init__(self) -> None:
        self.now: dict[tuple[str, int], list[str]] = {}
        self.dead: set[str] = set()
        self.shared: list[str] = []  # what must not be
        self.random = random.Random(0)

    def live(self, task: tuple[str, int]) -> list[str]:
        return [each for each in self.now.get(task, []) if each not in self.dead]

    def begin(self, task: tuple[str, int], worker: str) -> None:
        self.now.setdefault(task, []).append(worker)
        if len(self.live(task)) > 1:
            self.shared.append(f"{task} at {asyncio.get_running_loop().time():.1f} s: {self.live(task)}")


HOLDERS = Holders()


class SharedSource(SourceConnector):
    """Has `tasks.max` tasks, which say where they run."""

    name = "shared"
    description = "for a test"
    settings: ClassVar = ()

    def task_settings(self, settings: Any, most: int) -> list[dict[str, str]]:
        return [dict(settings)] * most

    def task(self) -> SourceTask:
        return SharedTask()


class SharedTask(SourceTask):
    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._id = (context.connector, context.task)
        self._worker = next(name for name in WORKERS if _is_allowed(context, name))
        HOLDERS.begin(self._id, self._worker)

    async def poll(self) -> Sequence[SourceRecord]:
        await asyncio.sleep(1e9)
        return []

    async def stop(self) -> None:
        if HOLDERS.random.random() < 0.3:  # some take long, and are cancelled
            try:
                await asyncio.sleep(HOLDERS.random.uniform(0, 60))
            finally:
                HOLDERS.now[self._id].remove(self._worker)
        else:
            HOLDERS.now[self._id].remove(self._worker)


WORKERS = [f"w{number}" for number in range(12)]


def _is_allowed(context: SourceContext, name: str) -> bool:
    """A worker allows the folder with its name, by which a task knows where it is."""
    try:
        context.require_path(f"/workers/{name}")
    except ConnectError:
        return False
    return True


class FlakyBucket:
    """The bucket as one worker reaches it."""

    def __init__(self, bucket: MemoryBucket, chance: random.Random) -> None:
        self._bucket = bucket
        self._chance = chance
        self.away_until = 0.0  # nothing reaches the node
        self.is_calm = False
        self.is_gone = False

    async def get(self, key: str) -> MemoryEntry | None:
        await self._go()
        return await self._bucket.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        await self._go()
        put = await self._bucket.put(key, value, revision=revision)
        await self._come_back()
        return put

    async def remove(self, key: str, *, revision: int | None = None) -> None:
        await self._go()
        await self._bucket.remove(key, revision=revision)
        await self._come_back()

    async def entries(self, prefix: str = "") -> AsyncIterator[MemoryEntry]:
        await self._go()
        found = [each async for each in self._bucket.entries(prefix)]
        await self._come_back()  # what was read may be old by now
        for each in found:
            yield each

    async def _go(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._delay())
        if self.is_gone or loop.time() < self.away_until:
            await asyncio.sleep(min(30.0, max(0.0, self.away_until - loop.time())))
            if self.is_gone or loop.time() < self.away_until:
                raise Unavailable("the node is away")

    async def _come_back(self) -> None:
        await asyncio.sleep(self._delay())
        if self.is_gone or (not self.is_calm and self._chance.random() < 0.01):
            raise Unavailable("the answer was lost")

    def _delay(self) -> float:
        if self.is_calm:
            return 0.01
        if self._chance.random() < 0.02:
            return self._chance.uniform(0, 40)
        return self._chance.uniform(0, 0.3)


class Cluster:
    """The workers of one run."""

    def __init__(self, seed: int, kind: type[Worker], **settings: float) -> None:
        self.chance = random.Random(seed)
        self.bucket = MemoryBucket()
        self._kind = kind
        self._settings: dict[str, Any] = settings
        self._names = iter(WORKERS)
        self.live: dict[str, tuple[Worker, FlakyBucket, asyncio.Task[None]]] = {}

    async def begin(self) -> None:
        for number, tasks in enumerate(TASKS):
            config = {"connector.class": "shared", "tasks.max": str(tasks)}
            await self.bucket.put(f"connector/c{number}", json.dumps({"config": config}).encode())
        for _ in range(3):
            self.join()

    def join(self) -> None:
        name = next(self._names, None)
        if name is not None:
            bucket = FlakyBucket(self.bucket, self.chance)
            settings = WorkerSettings(name, allowed_folders=[f"/workers/{name}"], **self._settings)
            worker = self._kind(cast("Client", None), bucket, settings, "test")
            self.live[name] = (worker, bucket, asyncio.create_task(worker.run()))

    def kill(self) -> None:
        """The process of a worker is gone from one moment to the next."""
        name = self._any()
        _, bucket, work = self.live.pop(name)
        HOLDERS.dead.add(name)
        bucket.is_gone = True
        work.cancel()

    async def end(self) -> None:
        """A worker ends as it should."""
        worker, _, work = self.live.pop(self._any())
        worker.stop()
        await asyncio.wait((work,))

    def cut_off(self) -> None:
        _, bucket, _ = self.live[self._any()]
        bucket.away_until = asyncio.get_running_loop().time() + self.chance.uniform(1, 90)

    def calm(self) -> None:
        for _, bucket, _ in self.live.values():
            bucket.is_calm, bucket.away_until = True, 0.0

    def _any(self) -> str:
        return self.chance.choice(sorted(self.live))


async def chaos(seed: int, kind: type[Worker] = Worker, **settings: float) -> None:
    HOLDERS.__init__()  # type: ignore[misc]
    HOLDERS.random.seed(seed)
    cluster = Cluster(seed, kind, **settings)
    await cluster.begin()
    loop = asyncio.get_running_loop()
    until = loop.time() + CHAOS_S
    while loop.time() < until:
        await asyncio.sleep(cluster.chance.expovariate(1 / 25))
        what = cluster.chance.random()
        if what < 0.5:
            cluster.cut_off()
        elif what < 0.75:
            cluster.join()
        elif len(cluster.live) > 2 and what < 0.9:
            cluster.kill()
        elif len(cluster.live) > 2:
            await cluster.end()
    cluster.calm()
    await asyncio.sleep(CALM_S)
    if HOLDERS.shared:
        raise AssertionError(f"seed {seed}: two workers ran one task: {HOLDERS.shared}")
    live = {(f"c{number}", task): [] for number, count in enumerate(TASKS) for task in range(count)}
    live |= {task: HOLDERS.live(task) for task in live}
    assert all(len(each) == 1 for each in live.values()), f"seed {seed}: {live}"
    shares = Counter(each for (each,) in live.values())
    assert max(shares.values()) <= -(-sum(TASKS) // len(cluster.live)), f"seed {seed}: {shares}"
    for worker, _, work in cluster.live.values():
        worker.stop()
        await asyncio.wait((work,))
        work.result()


def run(seed: int, kind: type[Worker] = Worker, **settings: float) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(chaos(seed, kind, **settings))


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, str]", CONNECTORS._built_in), "shared", f"{__name__}:SharedSource")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_has_one_worker_and_gets_one_in_the_end(seed: int) -> None:
    run(seed)


class TakesFromTheSilent(Worker):
    """Takes leases of workers that it thinks dead without declaring them dead."""

    async def _bury(self, worker: str, revision: int) -> bool:
        return True


class TakesWithoutCompare(Worker):
    """Puts leases whatever they are."""

    async def _take(self, task: Any, lease: Any, entry: Any) -> None:
        self._bucket = _Careless(self._bucket)
        await super()._take(task, lease, entry)


class _Careless:
    def __init__(self, bucket: Any) -> None:
        self._inner = bucket

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        return int(await self._inner.put(key, value, revision=None if key.startswith("lease/") else revision))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Worker, {"stop_after_s": 60.0}),
        (TakesFromTheSilent, {}),
        (TakesWithoutCompare, {}),
    ],
    ids=["stops too late", "takes from the silent", "takes without compare"],
)
def test_a_fault_in_the_rules_is_found(kind: type[Worker], settings: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        run_many(kind, settings)


def run_many(kind: type[Worker], settings: dict[str, float]) -> None:
    for seed in range(40):
        run(seed, kind, **settings)


def test_a_silent_worker_is_dead_after_some_time_of_the_observer() -> None:
    observer = Observer(30.0)
    entry = type("Entry", (), {"id": "w", "revision": 1})()
    assert observer.dead({"w": entry}, 100.0) == []
    assert observer.dead({"w": entry}, 129.9) == []
    assert observer.dead({"w": entry}, 130.0) == [entry]
    entry.revision = 2
    assert observer.dead({"w": entry}, 131.0) == []


async def test_entries_that_nobody_can_read_do_no_harm() -> None:
    bucket = MemoryBucket()
    for key, value in {
        "connector/a": b'{"config": {"connector.class": ["x"], "tasks.max": null}, "restarts": [1]}',
        "connector/b": b'{"config": 5}',
        "connector/c": b'{"config": {"x": %s}, "state": %s, "restarts": {"0": %s}}'.replace(
            b"%s", b"[" * 1_000 + b"]" * 1_000
        ),
        "lease/a/0": b'{"worker": 5}',
        "worker/w1": b'{"plugins": 5}',
        "worker/w2": b"[" * 100_000,
        "worker/w3": b"\xff",
        "worker/w4": b'{"plugins": [%s]}'.replace(b"%s", b"[" * 1_000 + b"]" * 1_000),
    }.items():
        await bucket.put(key, value)
    found = await read_snapshot(bucket)
    assert list(found.connectors) == ["a", "c"] and found.connectors["a"].restarts_of(0) == (0, 0)
    assert found.connectors["c"].restarts_of(0) == (0, 0)
    assert (found.leases, {each.plugins for each in found.workers.values()}) == ({}, {frozenset()})
