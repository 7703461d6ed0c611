"""A worker of connectors on a node."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from cloud_sdk import Client
from connect.plugins import CONNECTORS
from connect.runtime.entries import TaskId
from connect.runtime.worker import Worker, WorkerSettings
from gateway.broker.append import append
from store import control
from store.api import Action, Resource, Rule
from tests.cloud_sdk.conftest import Node, node
from tests.connect.runtime.recorder import Recorder, RecordingSink, RecordingSource, TransactionalSink
from tests.waiting import patience, until

__all__ = ["node"]  # the fixture

EVERYBODY = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"$kv/connect/#")


class Connect:
    """A node, its bucket, and workers that a test starts."""

    def __init__(self, node: Node, client: Client, folder: Path) -> None:
        self.node = node
        self.client = client
        self.folder = folder
        self.bucket = client.bucket("connect")

    async def set(self, name: str, config: Mapping[str, str], state: str = "RUNNING", **restarts: int) -> None:
        """Set a connector, as the node's management does."""
        fields = {"config": {"name": name, **config}, "state": state, "restarts": restarts}
        await self.bucket.put(f"connector/{name}", json.dumps(fields).encode())

    async def entries(self, prefix: str = "") -> dict[str, Any]:
        """The entries of the bucket, by key."""
        return {each.key: json.loads(each.value) async for each in self.bucket.entries(prefix)}

    async def until_no_lease(self) -> None:
        """Wait until no worker has a task."""
        async with patience():
            while await self.entries("lease/"):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def worker(self, **settings: Any) -> AsyncIterator[Worker]:
        """A worker that runs in the block. Times are short."""
        given: dict[str, Any] = {"heartbeat_s": 0.05, "allowed_folders": [str(self.folder)], **settings}
        worker = Worker(self.client, self.bucket, WorkerSettings(**given), "test")
        work = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await work

    async def until_state(self, worker: Worker, name: str, state: str, task: int = 0) -> dict[str, Any]:
        """Wait for the state of a task. Returns its fields in the heartbeat."""
        id_ = TaskId(name, task)
        await until(lambda: id_ in worker.running and worker.running[id_].fields()["state"] == state)
        return worker.running[id_].fields()


@pytest.fixture
async def connect(node: Node, tmp_path: Path) -> AsyncIterator[Connect]:
    folder = tmp_path / "files"
    folder.mkdir()
    await append(node.engine, [control.RulesSet([EVERYBODY]).frame(b"")])
    async with Client(node.endpoint, name="worker", retry_seconds=5) as client:
        yield Connect(node, client, folder)


@pytest.fixture
async def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What the connectors of `recorder.py` have seen."""
    made = Recorder()
    for kind in (RecordingSink, TransactionalSink, RecordingSource):
        monkeypatch.setattr(kind, "recorder", made, raising=False)
        table = cast("dict[str, str]", CONNECTORS._built_in)
        monkeypatch.setitem(table, kind.name, f"{kind.__module__}:{kind.__name__}")
    return made
