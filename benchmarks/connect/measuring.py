"""What measurements of connectors share."""

import time
from collections.abc import Sequence
from pathlib import Path

from cloud_sdk import Client
from connect.api import SinkRecord, SourceRecord


class Task:
    """What a worker is to a task."""

    connector = "bench"
    task = 0
    client: Client  # no sink that is measured uses it
    topics: Sequence[str] = ()

    async def require_allowed(self, host: str, port: int) -> None:
        pass

    def require_path(self, path: str) -> Path:
        return Path(path)

    def reject(self, record: SinkRecord, error: Exception) -> None:  # noqa: ARG002
        raise error

    async def store_rejected(self) -> None:
        pass

    async def publish(self, records: Sequence[SourceRecord]) -> None:
        raise NotImplementedError  # no sink that is measured does so


class Stopwatch:
    """Prints what each of some messages cost since it was made."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._since, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, name: str) -> None:
        rate = self._messages / (time.perf_counter() - self._since)
        cpu = (time.process_time() - self._cpu) / self._messages * 1e6
        print(f"{name}: {rate:,.0f} messages a second, {cpu:.1f} µs of CPU each", flush=True)
