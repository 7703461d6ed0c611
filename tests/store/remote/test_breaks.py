"""Whatever breaks between a gateway and its store: what is acknowledged is there, once, in order, and told of."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended, Commit, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreClosed, StoreError
from store.remote import RemoteConfig, RemoteStore, StoreServer
from tests.store.remote.middle import Middle
from tests.waiting import until

QUICK = RemoteConfig(heartbeat_s=0.05, silence_s=1.5, grace_s=30, longest_pause_s=0.05)


def message(number: int) -> bytes:
    return record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", b"%d" % number)


class Publisher:
    """Appends numbers, and notes what became of each."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.acknowledged: list[int] = []
        self.positions: list[int] = []  # of what was acknowledged
        self.failed: list[StoreError] = []
        self.next = 0
        self.changed = asyncio.Event()

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.store.append([message(self.next)], self._done(self.next))
            self.next += 1

    async def all(self) -> None:
        """Wait until everything is answered."""
        while len(self.acknowledged) + len(self.failed) < self.next:
            self.changed.clear()
            await self.changed.wait()

    def _done(self, number: int) -> Callable[[Appended], None]:
        def done(appended: Appended) -> None:
            if appended.error is None:
                self.acknowledged.append(number)
                self.positions += appended.positions
            else:
                self.failed.append(appended.error)
            self.changed.set()

        return done


class Listener:
    """The commits that a gateway was sent, and the gaps that it was told of."""

    def __init__(self, store: RemoteStore) -> None:
        self.numbers: list[int] = []
        self.offsets: list[int] = []
        self.missed: list[tuple[int, int]] = []
        self.end = 0
        store.on_commit(self._take)

    def _take(self, commit: Commit) -> None:
        assert commit.end >= self.end, "events go back"
        self.end = commit.end
        if commit.missed_from >= 0:
            self.missed.append((commit.missed_from, commit.position))
        for start, offset in zip(commit.starts, commit.topic_offsets, strict=True):
            self.numbers.append(int(record.decode(commit.data, start)[6]))
            self.offsets.append(offset)


async def stored(store: RemoteStore) -> list[int]:
    """The numbers in the topic's queue."""
    found: list[int] = []
    while True:
        got = await store.fetch(topic_queue(b"a/b"), len(found), 1000, 1 << 20)
        if not got.count:
            return found
        found += [int(record.decode(got.data, start)[6]) for start in record.split(got.data)]


@pytest.fixture
def sockets() -> AsyncIterator[Path]:
    folder = Path(mkdtemp(prefix="sluice-"))  # short: paths of sockets have 107 bytes at the most
    yield folder
    rmtree(folder)


@asynccontextmanager
async def serving(
    folder: Path, sockets: Path, config: RemoteConfig = QUICK
) -> AsyncIterator[tuple[Engine, Middle, str]]:
    engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20))
    server = StoreServer(engine, Hub(engine), config)
    await server.start(f"unix:{sockets / 's'}")
    middle = Middle(str(sockets / "s"))
    address = await middle.start()
    try:
        yield engine, middle, address
    finally:
        await middle.stop()
        await server.stop()
        await engine.close()


async def forgotten(engine: Engine) -> None:
    """Wait until no producer is known."""
    while await engine.producers(None, 10):  # noqa: ASYNC110  as above
        await asyncio.sleep(0.01)


async def test_streams_that_break_lose_and_double_nothing(tmp_path: Path, sockets: Path):
    rng = random.Random(7)
    async with serving(tmp_path, sockets) as (_, middle, address):
        store = await RemoteStore.open(address, "a", EventReceiver(), QUICK, routed=False)
        other = await RemoteStore.open(address, "b", EventReceiver(), QUICK, routed=False)
        heard = Listener(other)
        publisher = Publisher(store)
        for _ in range(12):
            before = store.reconnects + other.reconnects
            for _ in range(rng.randrange(1, 20)):
                publisher.publish(rng.randrange(1, 30))
                await asyncio.sleep(rng.choice((0, 0, 0.002)))
            middle.cut()
            publisher.publish(5)
            await until(lambda before=before: store.reconnects + other.reconnects == before + 2)
        await publisher.all()
        assert not publisher.failed
        assert publisher.acknowledged == list(range(publisher.next))
        assert await stored(other) == publisher.acknowledged
        assert heard.numbers == publisher.acknowledged
        assert heard.missed == []  # nothing of it: the link goes on where it was
        await store.close()
        await other.close()


async def test_a_network_that_is_parted_is_noticed_and_healed(tmp_path: Path, sockets: Path):
    async with serving(tmp_path, sockets) as (_, middle, address):
        store = await RemoteStore.open(address, "a", EventReceiver(), QUICK, routed=False)
        publisher = Publisher(store)
        publisher.publish(3)
        await publisher.all()
        question = asyncio.ensure_future(stored(store))
        await question
        middle.hold()
        publisher.publish(100)
        question = asyncio.ensure_future(store.bounds(topic_queue(b"a/b")))
        await until(lambda: not store.is_connected)
        assert len(publisher.acknowledged) == 3  # nothing is acknowledged meanwhile
        assert not question.done()
        middle.cut()
        middle.let()
        await publisher.all()
        assert publisher.acknowledged == list(range(103))
        assert (await question).end in (3, 103)
        assert await stored(store) == list(range(103))
        await store.close()


async def test_calls_fail_after_the_grace_time_until_the_store_returns(tmp_path: Path, sockets: Path):
    config = RemoteConfig(heartbeat_s=0.05, silence_s=1, grace_s=0.3, longest_pause_s=0.05)
    async with serving(tmp_path, sockets, config) as (engine, middle, address):
        store = await RemoteStore.open(address, "a", EventReceiver(), config, routed=False)
        lost: list[bool] = []
        store.on_lost(lambda: lost.append(store.is_connected))
        publisher = Publisher(store)
        publisher.publish(3)
        await publisher.all()
        middle.hold()
        publisher.publish(2)
        question = asyncio.ensure_future(store.session(b"c"))
        await publisher.all()
        assert [type(error) for error in publisher.failed] == [StoreClosed, StoreClosed]
        with pytest.raises(StoreClosed, match="cannot be reached"):
            await question
        with pytest.raises(StoreClosed, match="cannot be reached"):
            await store.session(b"c")
        publisher.publish(1)
        await publisher.all()
        assert len(publisher.failed) == 3
        assert lost == [False]
        # The store gives the gateway up, too: what it may still have on its way is nobody's.
        await forgotten(engine)
        middle.cut()
        middle.let()
        await until(lambda: store.is_connected)
        publisher.publish(2)
        await publisher.all()
        assert publisher.acknowledged == [0, 1, 2, 6, 7]
        assert await stored(store) == [0, 1, 2, 6, 7]
        await store.close()


async def test_a_gateway_that_leaves_is_not_waited_for(tmp_path: Path, sockets: Path):
    async with serving(tmp_path, sockets) as (engine, _, address):
        store = await RemoteStore.open(address, "a", EventReceiver(), QUICK, routed=False)
        publisher = Publisher(store)
        publisher.publish(10)
        assert len(await engine.producers(None, 10)) == 1
        await store.close()
        assert publisher.acknowledged == list(range(10))
        await forgotten(engine)


async def test_a_store_that_is_killed_again_and_again_has_everything_once(tmp_path: Path, sockets: Path):
    rng = random.Random(11)
    path = str(sockets / "s")
    middle = Middle(path)
    address = await middle.start()
    process = await start(tmp_path, path)
    store = await RemoteStore.open(address, "a", EventReceiver(), QUICK, routed=False)
    other = await RemoteStore.open(address, "b", EventReceiver(), QUICK, routed=False)
    heard = Listener(other)
    publisher = Publisher(store)
    for _ in range(6):
        pauses = rng.randrange(5, 40)
        for _ in range(pauses):
            publisher.publish(rng.randrange(1, 200))
            await asyncio.sleep(rng.choice((0, 0.001)))
        process.kill()
        await process.wait()
        publisher.publish(50)
        process = await start(tmp_path, path)
        await until(lambda: store.is_connected and other.is_connected)
    await publisher.all()
    assert not publisher.failed
    assert publisher.acknowledged == list(range(publisher.next))
    assert await stored(other) == publisher.acknowledged
    for number, position in zip(publisher.acknowledged, publisher.positions, strict=True):
        assert record.decode(await store.message(position), 0)[6] == b"%d" % number
    # What the other gateway was not told of it was told that it missed.
    assert len(heard.numbers) == len(set(heard.numbers))
    assert heard.numbers == sorted(heard.numbers)
    if heard.numbers != publisher.acknowledged:
        assert heard.missed
    await store.close()
    await other.close()
    process.kill()
    await process.wait()
    await middle.stop()


async def start(folder: Path, socket: str) -> asyncio.subprocess.Process:
    """A process that serves."""
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.store.remote.serving", str(folder), socket),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process
