"""Shared logs behind a link that fails, and on servers that are killed: each write settles, and calls go on by
themselves."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

import pytest
import uvloop

from sluice.demo.engine_servers import NatsServers
from store.cluster.engines import open_shared_log
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.errors import StoreError
from tests.store.cluster.engines.engine import Engine, Stream, decided, settle
from tests.tcp_proxy import TcpProxy
from tests.waiting import patience, until

_TIMEOUT_S = 0.5

pytestmark = pytest.mark.slow


@pytest.fixture
async def proxy(served_engine: Engine) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(served_engine.port()) as link:
        yield link


@pytest.fixture
async def log(served_engine: Engine, proxy: TcpProxy) -> AsyncIterator[SharedLog]:
    """A log behind the proxy, with slot 1."""
    async with patience():
        opened = await served_engine.through(proxy.port).open(request_timeout_s=_TIMEOUT_S)
        assert await settle(opened, 1, b"1") == b"1"
        yield opened
        await opened.close()


async def test_a_write_whose_answer_is_lost_is_settled_by_reading(served_engine: Engine, proxy: TcpProxy) -> None:
    log = await served_engine.through(proxy.port).open(request_timeout_s=1000)  # the call ends with its connection
    assert await settle(log, 1, b"1") == b"1"
    proxy.loses_answers = True
    async with patience():
        with pytest.raises(SharedLogUnavailable):
            await log.create(2, b"2")
    assert proxy.lost
    other = await served_engine.open()
    assert await decided(other, 2) == b"2"
    proxy.loses_answers = False
    assert await settle(log, 2, b"2") == b"2"
    assert await log.end() == 3
    for each in (log, other):
        await each.close()


@pytest.mark.parametrize("size", [1, 2 << 20])
async def test_a_link_that_loses_everything_is_unavailable_until_it_heals(
    served_engine: Engine, proxy: TcpProxy, log: SharedLog, size: int
) -> None:
    data = os.urandom(size)
    proxy.silence()
    for call in (log.create(2, data), log.read(1), log.end(), log.trim(2)):
        with pytest.raises(SharedLogUnavailable):
            await call
    proxy.heal()
    assert await settle(log, 2, data) == data
    other = await served_engine.open()
    assert await other.read(2) == data
    await other.close()


async def test_connections_that_the_network_forgot_are_given_up(
    served_engine: Engine, proxy: TcpProxy, log: SharedLog
) -> None:
    """New ones work at once. The old ones never end by themselves, and do not take what is written to them."""
    has_one_connection = isinstance(served_engine.servers, NatsServers)  # with room for 3 MB in the system
    await asyncio.gather(*(log.read(slot) for slot in range(1, 17)))
    before = proxy.connections
    proxy.forget()
    data = os.urandom(6 << 20 if has_one_connection else 1000)
    tries = 0  # on the old connections
    async with patience():
        while True:
            try:
                await log.create(2, data)
                break
            except SharedLogUnavailable:  # also because a busy machine is slow
                tries += proxy.connections == before
        assert await decided(log, 2) == data
    assert tries <= 4  # far less than there were connections
    assert proxy.connections > before


async def test_a_link_that_is_cut_is_unavailable_until_it_heals(proxy: TcpProxy, log: SharedLog) -> None:
    proxy.cut()
    for call in (log.create(2, b"2"), log.read(1), log.end(), log.trim(2)):
        with pytest.raises(SharedLogUnavailable):
            await call
    proxy.heal()
    assert await settle(log, 2, b"2") == b"2"


async def test_a_write_that_lands_after_its_timeout_is_settled(proxy: TcpProxy, log: SharedLog) -> None:
    proxy.delay_s = 2 * _TIMEOUT_S
    with pytest.raises(SharedLogUnavailable):
        await log.create(2, b"2")
    proxy.delay_s = 0.02
    assert await settle(log, 2, b"2") == b"2"
    assert await log.read(2) == b"2"


async def test_a_log_behind_a_silent_link_can_be_closed(proxy: TcpProxy, log: SharedLog) -> None:
    proxy.silence()
    writes = [asyncio.ensure_future(log.create(2, os.urandom(2 << 20))) for _ in range(4)]
    await asyncio.sleep(_TIMEOUT_S / 2)
    await log.close()
    assert all(isinstance(each, StoreError) for each in await asyncio.gather(*writes, return_exceptions=True))


class Load:
    """A writer, and a reader of what is written."""

    def __init__(self, engine: Engine) -> None:
        self.written: list[bytes] = []
        self._engine = engine
        self._wrong: list[tuple[int, bytes]] = []

    async def __aenter__(self) -> "Load":
        self._log = await self._engine.open(request_timeout_s=2)
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result
        await self._log.close()
        assert not self._wrong
        other = await self._engine.open()
        found = [await other.read(slot) for slot in range(1, len(self.written) + 1)]
        assert found == self.written
        await other.close()

    async def goes_on(self) -> None:
        """Wait until more was written."""
        before = len(self.written)
        await until(lambda: len(self.written) > before + 5 or any(task.done() for task in self._tasks))

    async def _write(self) -> None:
        for slot in count(1):
            data = b"%d " % slot + os.urandom(5000)
            assert await settle(self._log, slot, data) == data
            self.written.append(data)

    async def _read(self) -> None:
        for i in count():
            await asyncio.sleep(0.002)
            if self.written:
                slot = i % len(self.written) + 1
                with suppress(SharedLogUnavailable):
                    found = await self._log.read(slot)
                    if found is not None and found != self.written[slot - 1]:
                        self._wrong.append((slot, found))


async def test_writing_goes_on_while_one_of_three_nats_servers_is_away(jetstream: Engine) -> None:
    assert isinstance(jetstream.servers, NatsServers)
    async with Load(jetstream) as load:
        await load.goes_on()
        first = jetstream.servers.servers[0]
        for stop in (first.kill, lambda: first.signal(signal.SIGSTOP)):
            stop()
            await load.goes_on()
            first.signal(signal.SIGCONT)
            if not first.is_running:
                first.start()
            await asyncio.to_thread(jetstream.servers.wait_until_ready)
        await load.goes_on()


async def test_what_is_decided_can_be_read_while_most_nats_servers_are_away(jetstream: Engine) -> None:
    servers = jetstream.servers
    assert isinstance(servers, NatsServers)
    log = await jetstream.open(request_timeout_s=_TIMEOUT_S)
    for slot in range(1, 4):
        assert await settle(log, slot, b"%d" % slot) == b"%d" % slot
    for server in servers.servers[1:]:
        server.kill()
    for _ in range(3):
        with pytest.raises(SharedLogUnavailable):
            await log.create(4, b"4")
    assert await decided(log, 3) == b"3"
    for server in servers.servers[1:]:
        server.start()
    assert await settle(log, 4, b"4") == b"4"
    await log.close()
    await asyncio.to_thread(servers.wait_until_ready)


async def test_writing_goes_on_when_the_leader_of_the_stream_changes(jetstream: Engine) -> None:
    async with Load(jetstream) as load, Stream(jetstream) as stream:
        for _ in range(5):
            await load.goes_on()
            await stream.ask("LEADER.STEPDOWN")
        await load.goes_on()


@pytest.mark.nightly
async def test_writing_goes_on_when_servers_were_killed(served_engine: Engine) -> None:
    servers = served_engine.servers
    assert servers is not None
    async with Load(served_engine) as load:
        for server in servers.servers:
            await load.goes_on()
            server.kill()
            server.start()
            await asyncio.to_thread(servers.wait_until_ready)
        await load.goes_on()


async def test_writing_goes_on_when_a_volume_server_was_killed(seaweedfs: Engine) -> None:
    assert seaweedfs.servers is not None
    volume = seaweedfs.servers.servers[1]
    async with Load(seaweedfs) as load:
        await load.goes_on()
        volume.kill()
        volume.start()
        await load.goes_on()


def test_a_log_whose_connection_was_lost_can_be_closed_on_uvloop() -> None:
    """What waits to be sent then cannot be written to the old connection, which uvloop says with RuntimeError."""

    async def open_at_a_server_that_ends() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"s","version":"2.11.0","max_payload":1048576,"headers":true}\r\n')
            while (line := await reader.readline()) and not line.startswith(b"PING"):
                pass
            server.close()
            writer.write(b"PONG\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SharedLogUnavailable):
            await open_shared_log(f"nats://127.0.0.1:{port}/log", {"request_timeout_s": _TIMEOUT_S})

    uvloop.run(open_at_a_server_that_ends())
