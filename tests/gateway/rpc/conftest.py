"""A store in memory that can delay and refuse appends, and a server with a client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import record
from cloud_sdk import Client
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns
from matcher.names import parent_of
from record.layout import Kind
from store import control
from store.api import (
    Appended,
    Ban,
    Bounds,
    Child,
    ChildPage,
    Commit,
    CommitListener,
    Done,
    Fetched,
    Listening,
    Redelivery,
    Rule,
    Store,
    TransactionListener,
    UserState,
    partition_queue,
)
from store.errors import OffsetOutOfRange, StoreError


class MemoryStore:
    """The store that the gRPC service needs. `hold` delays commits, `fail` makes appends fail."""

    partitions = 4
    wants = None
    redelivery = Redelivery(16, [1_000])

    def __init__(self) -> None:
        self.queues: dict[bytes, list[bytes]] = {}
        self.begins: dict[bytes, int] = {}
        self.fail: StoreError | None = None
        self.last: dict[bytes, int] = {}  # by producer, the last sequence
        self.hold = False
        self.appends = 0
        self.fetches = 0
        self._held: list[tuple[list[bytes], Done]] = []
        self._listeners: list[CommitListener] = []
        self._position = 0

    @property
    def bulk(self) -> "MemoryStore":
        return self

    def append(self, frames: list[bytes], done: Done) -> None:
        self.appends += 1
        loop = asyncio.get_running_loop()
        if self.fail is not None:
            loop.call_soon(done, Appended(error=self.fail))
        elif self.hold:
            self._held.append((frames, done))
        else:
            loop.call_soon(self._commit, frames, done)

    def release(self) -> None:
        """Commit what was held back, and hold no more."""
        self.hold = False
        held, self._held = self._held, []
        for frames, done in held:
            self._commit(frames, done)

    def on_commit(self, listener: CommitListener, parts: int) -> Listening:
        self._listeners.append(listener)
        return Listening(listener, parts)

    def may_hold(self) -> bool:
        return True

    async def rules(self, _name: bytes) -> list[Rule]:
        return []

    async def user_state(self, _name: bytes) -> UserState:
        return UserState()

    async def bans(self, _after: bytes | None, _limit: int) -> list[Ban]:
        return []

    def on_transaction_check(self, listener: TransactionListener) -> None:
        """Nothing is ever held."""

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        return (self.last[producer], 0, 0) if producer in self.last else None

    def partition_count(self, _parent: bytes) -> int:
        return self.partitions

    async def bounds(self, queue: bytes) -> Bounds:
        return Bounds(self.begins.get(queue, 0), len(self.queues.get(queue, [])))

    async def partition_bounds(self, parent: bytes) -> list[Bounds]:
        return [await self.bounds(partition_queue(parent, partition)) for partition in range(self.partitions)]

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        self.fetches += 1
        bounds = await self.bounds(queue)
        if not bounds.begin <= offset <= bounds.end:
            raise OffsetOutOfRange(queue, offset, bounds.begin, bounds.end)
        data = b""
        count = 0
        for frame in self.queues.get(queue, [])[offset : offset + max_records]:
            if count and len(data) + len(frame) > max_bytes:
                break
            data += frame
            count += 1
        return Fetched(offset, count, record.without(data, without), bounds)

    async def fetch_selected(self, *_: object) -> None:
        """There are no indexes."""

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        frames = self.queues.get(queue, [])
        return next((i for i, frame in enumerate(frames) if record.store_time_of(frame, 0) >= time_ms), len(frames))

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        assert above == b""
        names = {queue[1:].partition(b"\0")[0] for queue in self.queues}
        found = [Child(name, False, True) for name in sorted(names) if after is None or name > after]
        return ChildPage(found[:limit], found[limit - 1].name if len(found) > limit else None)

    def _commit(self, frames: list[bytes], done: Done) -> None:
        data = record.seal(frames, self._position, 1, 1_000 + self._position, 0)
        commit = Commit(data, self._position, 1_000 + self._position)
        positions = []
        for start in record.split(data):
            kind, _, _, topic, *_ = record.decode(data, start)
            positions.append(self._position + start)
            if kind != Kind.MESSAGE:
                assert kind in {Kind.PRODUCED, Kind.PRODUCER_ENDED}
                if kind == Kind.PRODUCED:
                    self.last[topic] = control.Produced.parse(record.decode(data, start)[6]).sequence
                continue
            frame = data[start : start + record.length_of(data, start)]
            commit.topics.append(topic)
            queue = partition_queue(parent_of(topic), sum(topic) % self.partitions)
            self.queues.setdefault(queue, []).append(frame)
        self._position += len(data)
        for listener in self._listeners:
            listener(commit)
        done(Appended(positions, commit.store_time))


def everything() -> LoopTurns:
    """Turns without limit."""
    return LoopTurns(1, 1, int, asyncio.get_running_loop())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


ServerFactory = Callable[..., Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[ServerFactory]:
    """Starts servers that are stopped at the end of the test: `port = await serve(store, limits, port=0)`."""
    servers: list[RpcServer] = []

    async def start(store: Store, limits: RpcLimits | None = None, port: int = 0) -> int:
        server = RpcServer(store, Authority(store, 0), limits)
        servers.append(server)
        return await server.start("127.0.0.1", port)

    yield start
    for server in servers:
        await server.stop(0.2)


@pytest.fixture
async def client(store: MemoryStore, serve: ServerFactory) -> AsyncIterator[Client]:
    port = await serve(store)
    async with Client(f"127.0.0.1:{port}", retry_seconds=5) as client:
        yield client
