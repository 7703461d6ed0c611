"""What a worker tells of its tasks, and how soon. The clock is that of the test."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, cast

import pytest

from cloud_sdk import Client
from connect.api import ConnectError, Settings, SourceConnector, SourceContext, SourceRecord, SourceTask
from connect.plugins import CONNECTORS
from connect.runtime.worker import Worker, WorkerSettings
from tests.connect.memory_bucket import MemoryBucket
from tests.connect.runtime.virtual_loop import VirtualLoop


class BreakingSource(SourceConnector):
    """Its tasks fail at times that the test sets."""

    name = "breaking"
    description = "for a test"
    settings: ClassVar = ()
    lives_s: ClassVar[dict[int, float]]  # by number of the task

    def task_settings(self, settings: Any, most: int) -> list[dict[str, str]]:
        return [dict(settings)] * most

    def task(self) -> SourceTask:
        return BreakingTask()


class BreakingTask(SourceTask):
    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._number = context.task

    async def poll(self) -> Sequence[SourceRecord]:
        await asyncio.sleep(BreakingSource.lives_s.pop(self._number, 1e9))
        raise ConnectError("broken")

    async def stop(self) -> None:
        """There is nothing to stop."""


class TimedBucket(MemoryBucket):
    """Notes when each state of a task was told."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[float] = []
        self.told: dict[tuple[int, str], float] = {}  # first time of a state, by number of the task

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        if key.startswith("worker/"):
            now = asyncio.get_running_loop().time()
            self.beats.append(now)
            for each in json.loads(value)["tasks"]:
                self.told.setdefault((each["task"], each["state"]), now)
        return await super().put(key, value, revision=revision)


async def connector(bucket: MemoryBucket, tasks: int, **more: Any) -> None:
    config = {"name": "b", "connector.class": "breaking", "tasks.max": str(tasks)}
    await bucket.put("connector/b", json.dumps({"config": config, **more}).encode())


async def stopped(worker: Worker, work: "asyncio.Task[None]") -> None:
    worker.stop()
    await work


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test)


@pytest.fixture(autouse=True)
def _breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BreakingSource, "lives_s", {}, raising=False)
    monkeypatch.setitem(cast("dict[str, str]", CONNECTORS._built_in), "breaking", f"{__name__}:BreakingSource")


def begun(bucket: MemoryBucket) -> "tuple[Worker, asyncio.Task[None]]":
    worker = Worker(cast("Client", None), bucket, WorkerSettings("w"), "test")
    return worker, asyncio.create_task(worker.run())


def test_states_are_told_within_a_second_and_restarts_when_the_worker_has_seen_them() -> None:
    async def test() -> None:
        bucket = TimedBucket()
        BreakingSource.lives_s[0] = 20.0
        await connector(bucket, 1)
        worker, work = begun(bucket)
        await asyncio.sleep(60)
        running, failed = bucket.told[0, "RUNNING"], bucket.told[0, "FAILED"]
        assert running <= 2.5 + 1
        assert 20 <= failed <= running + 20 + 1
        bucket.told.clear()
        began = asyncio.get_running_loop().time()
        await connector(bucket, 1, restarts={"0": 1})
        await asyncio.sleep(10)
        assert began <= bucket.told[0, "RUNNING"] <= began + 2.5 + 1
        bucket.told.clear()
        began = asyncio.get_running_loop().time()
        await connector(bucket, 1, restarts={"0": 1}, state="PAUSED")
        await asyncio.sleep(10)
        assert began <= bucket.told[0, "PAUSED"] <= began + 2.5 + 1
        bucket.told.clear()
        count = len(bucket.beats)
        await asyncio.sleep(100)
        assert len(bucket.beats) - count in (19, 20, 21)  # nothing new, nothing early
        await connector(bucket, 1, state="STOPPED")
        await asyncio.sleep(2.5 * 2 + 1)
        (said,) = [json.loads(each.value) for key, each in bucket.now.items() if key.startswith("worker/")]
        assert said["tasks"] == []
        await stopped(worker, work)

    run(test())


def test_many_changes_are_told_together() -> None:
    async def test() -> None:
        bucket = TimedBucket()
        await connector(bucket, 64)
        began = asyncio.get_running_loop().time()
        BreakingSource.lives_s.update((number, 10 + number / 10) for number in range(64))
        worker, work = begun(bucket)
        await asyncio.sleep(30)
        assert {state for _, state in bucket.told} == {"RUNNING", "FAILED"}
        lives = [bucket.told[number, "FAILED"] - began - 10 - number / 10 for number in range(64)]
        assert max(lives) - min(lives) <= 1.1
        gaps = [later - earlier for earlier, later in zip(bucket.beats, bucket.beats[1:], strict=False)]
        assert min(gaps) >= 0.99
        await stopped(worker, work)

    run(test())
