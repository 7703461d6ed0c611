"""The state of Connect: entries of a bucket of the log, which workers and nodes read and write.

connector/NAME          {"config": {…}, "state": "RUNNING", "restarts": {"0": 1}}, written by nodes
lease/NAME/TASK         {"worker": ID}, written by compare-and-set
worker/ID               the heartbeat of a worker: who it is, and what its tasks do
offset/NAME/TASK/SOURCE the offset of a source
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import orjson

CONNECTOR: Final = "connector/"
LEASE: Final = "lease/"
WORKER: Final = "worker/"
OFFSET: Final = "offset/"


class Entry(Protocol):
    """A key with its value."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes: ...

    @property
    def revision(self) -> int: ...


class Bucket(Protocol):
    """The part of the SDK's bucket that workers use. `revision` is the one that the entry must have; 0: there is none.
    A call raises `RevisionConflict` if it has another one."""

    async def get(self, key: str) -> Entry | None: ...

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int: ...

    async def remove(self, key: str, *, revision: int | None = None) -> None: ...

    def entries(self, prefix: str = "") -> AsyncIterator[Entry]: ...


class TaskId(NamedTuple):
    """A task of a connector."""

    connector: str
    number: int

    @property
    def lease(self) -> str:
        """The key of its lease."""
        return f"{LEASE}{self.connector}/{self.number}"

    def offset(self, source: str) -> str:
        """The key of the offset of a source."""
        return f"{OFFSET}{self.connector}/{self.number}/{quoted(source)}"


@dataclass(slots=True, frozen=True)
class ConnectorEntry:
    """A connector as a user wants it."""

    name: str
    config: Mapping[str, str]
    state: str  # RUNNING, PAUSED or STOPPED
    restarts: Mapping[str, int]  # how often a user restarted the "connector" or a task
    revision: int

    def restarts_of(self, task: int) -> tuple[int, int]:
        """A number that changes when a user restarts the task."""
        return self.restarts.get("connector", 0), self.restarts.get(str(task), 0)


@dataclass(slots=True, frozen=True)
class LeaseEntry:
    """Which worker runs a task."""

    worker: str
    revision: int


@dataclass(slots=True, frozen=True)
class WorkerEntry:
    """A worker, as its last heartbeat says."""

    id: str
    plugins: frozenset[str]
    revision: int


@dataclass(slots=True)
class Snapshot:
    """What the bucket says. Workers are read after leases, and a worker writes its heartbeat before it takes a lease.
    So a lease whose worker is missing belongs to nobody."""

    connectors: dict[str, ConnectorEntry] = field(default_factory=dict)
    leases: dict[TaskId, LeaseEntry] = field(default_factory=dict)
    workers: dict[str, WorkerEntry] = field(default_factory=dict)


async def read_snapshot(bucket: Bucket) -> Snapshot:
    """Read the connectors, leases and workers. Entries that nobody can read are left out: who may write
    to the bucket may write anything."""
    found = Snapshot()
    async for entry in bucket.entries(LEASE):
        name, _, number = entry.key.removeprefix(LEASE).rpartition("/")
        worker = _object(entry).get("worker")
        if number.isdecimal() and isinstance(worker, str):
            found.leases[TaskId(name, int(number))] = LeaseEntry(worker, entry.revision)
    async for entry in bucket.entries(WORKER):
        name = entry.key.removeprefix(WORKER)
        plugins = _object(entry).get("plugins")
        names = [each for each in plugins if isinstance(each, str)] if isinstance(plugins, list) else ()
        found.workers[name] = WorkerEntry(name, frozenset(names), entry.revision)
    async for entry in bucket.entries(CONNECTOR):
        name, fields = entry.key.removeprefix(CONNECTOR), _object(entry)
        config, state, restarts = fields.get("config"), fields.get("state"), fields.get("restarts")
        if isinstance(config, dict):
            texts = {each: str(text) for each, text in config.items() if not isinstance(text, dict | list)}
            wanted = state if isinstance(state, str) else "RUNNING"
            counts = restarts.items() if isinstance(restarts, dict) else ()
            numbers = {each: count for each, count in counts if isinstance(count, int)}
            found.connectors[name] = ConnectorEntry(name, texts, wanted, numbers, entry.revision)
    return found


def quoted(source: str) -> str:
    """The name of a source as the last part of a key."""
    return quote(source, safe="")


def packed(fields: Mapping[str, Any]) -> bytes:
    """The value of an entry."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _object(entry: Entry) -> dict[str, Any]:
    try:
        fields = orjson.loads(entry.value)
    except orjson.JSONDecodeError:  # also of JSON that is too deep
        return {}
    return fields if isinstance(fields, dict) else {}
