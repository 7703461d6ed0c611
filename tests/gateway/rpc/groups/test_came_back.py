"""Waiting members get messages at once that other members returned, in one process and across gateways.

Leases and waits take an hour: a member that is not woken gets nothing within the test.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import record
from gateway.rpc.groups import long_polling
from gateway.rpc.groups.long_polling import LongPolling, parent_source
from gateway.rpc.wakeups import Wakeups, wait_until
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended, Commit, PopRequest, PopResult, Receipts, Start
from store.config import StoreConfig
from store.engine import Engine
from store.log.reader import LogReader
from store.remote import RemoteConfig, RemoteStore, StoreServer
from tests.gateway.rpc.conftest import everything
from tests.waiting import patience

HOUR_MS = 3_600_000
SOURCE = parent_source(b"g", b"home", 1)
REQUEST = PopRequest(SOURCE.group, SOURCE.queues, 10, 1 << 20, HOUR_MS, Start.EARLIEST)
REMOTE = RemoteConfig(grace_s=5)


class Gateways:
    """Two gateways of one store, or one process that is both, with a message in the store."""

    def __init__(self, engine: Engine, one: LongPolling, other: LongPolling, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.one = one
        self.other = other
        self._in_line = asyncio.Event()
        monkeypatch.setattr(long_polling, "wait_until", self._wait)

    async def _wait(self, waiter: asyncio.Event, deadline: float) -> bool:
        self._in_line.set()
        return await wait_until(waiter, deadline)

    async def waits(self) -> "asyncio.Task[PopResult]":
        """A member of the other gateway, which has found nothing and waits in line."""
        self._in_line.clear()
        waiting = asyncio.create_task(self.other.receive(SOURCE, REQUEST, 3_600))
        await self._in_line.wait()
        return waiting

    async def leased(self) -> list[Receipts]:
        """The messages that a member at the first gateway gets."""
        popped = await self.one.pop(REQUEST)
        return receipts(popped)


def receipts(popped: PopResult) -> list[Receipts]:
    return [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]


async def got(waiting: "asyncio.Task[PopResult]") -> list[int]:
    """The delivery count of the messages that came."""
    async with patience():
        return [each.deliveries for each in receipts(await waiting)]


@pytest.fixture(params=["one process", "split", "routed"])
async def gateways(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as opened:
        engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20, partitions=1))
        opened.push_async_callback(engine.close)
        if request.param == "one process":
            one = other = LongPolling(engine, Wakeups(engine), everything())
        else:
            server = StoreServer(engine, Hub(engine), REMOTE)
            address = f"unix:{opened.enter_context(TemporaryDirectory(prefix='sluice-'))}/store"
            await server.start(address)
            opened.push_async_callback(server.stop)
            stores: list[RemoteStore] = []
            for name in ("one", "other"):
                store = await RemoteStore.open(address, name, EventReceiver(), REMOTE, request.param == "routed")
                opened.push_async_callback(store.close)
                stores.append(store)
            one, other = [LongPolling(store, Wakeups(store), everything()) for store in stores]
        appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        assert not (await one.pop(REQUEST)).runs  # the group begins
        engine.append([record.frame(Kind.MESSAGE, 0, 0, b"home/t", b"", b"", b"x")], appended.set_result)
        await appended
        yield Gateways(engine, one, other, monkeypatch)


async def test_a_returned_message_ends_a_wait(gateways: Gateways) -> None:
    leased = await gateways.leased()
    waiting = await gateways.waits()
    await gateways.one.settle(SOURCE, (), [(each, 0) for each in leased])
    assert await got(waiting) == [2]


async def test_an_unsent_message_ends_a_wait(gateways: Gateways) -> None:
    leased = await gateways.leased()
    waiting = await gateways.waits()
    await gateways.one.return_leases(SOURCE, leased)
    assert await got(waiting) == [1]


async def test_an_earlier_redelivery_ends_a_wait(gateways: Gateways) -> None:
    leased = await gateways.leased()
    waiting = await gateways.waits()
    await gateways.one.settle(SOURCE, (), [(each, 1) for each in leased])
    assert await got(waiting) == [2]


async def test_a_reset_of_the_group_ends_a_wait(gateways: Gateways) -> None:
    leased = await gateways.leased()
    await gateways.one.settle(SOURCE, leased, ())
    waiting = await gateways.waits()
    await gateways.engine.reset_group(b"g", {SOURCE.queues[0]: 0})
    assert await got(waiting) == [1]


async def test_a_pop_cancelled_during_its_read_ends_a_wait(gateways: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading, may_read = LogReader.frames, asyncio.Event(), asyncio.Event()

    async def slowly(reader: LogReader, refs: bytes, without: int = 0) -> bytes:
        reading.set()
        await may_read.wait()
        return await read(reader, refs, without)

    monkeypatch.setattr(LogReader, "frames", slowly)
    popping = asyncio.create_task(gateways.one.pop(REQUEST))
    await reading.wait()
    waiting = await gateways.waits()
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    may_read.set()
    assert await got(waiting) == [1]


async def test_a_pop_cancelled_before_its_reply_ends_a_wait(gateways: Gateways) -> None:
    """The log has the lease, but the client has no reply yet."""

    def cancel(commit: Commit) -> None:
        if record.decode(commit.data, 0)[0] == Kind.POPPED:
            popping.cancel()

    gateways.engine.on_commit(cancel)
    popping = asyncio.create_task(gateways.one.pop(REQUEST))
    with pytest.raises(asyncio.CancelledError):
        await popping
    waiting = asyncio.create_task(gateways.other.receive(SOURCE, REQUEST, 3_600))
    assert await got(waiting) == [1]
