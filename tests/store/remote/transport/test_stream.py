"""What counts as a sign of life on a stream. By a simulated clock, and over a slow network."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.config import StoreConfig
from store.engine import Engine
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.remote.transport.link import Link
from store.remote.transport.stream import Stream
from tests.store.remote.middle import Middle
from tests.store.simulation.loop import SimulatedLoop

CONFIG = RemoteConfig(heartbeat_s=1, silence_s=4)
RATE = 20_000  # bytes a second, of which a large message takes a minute


class Watched:
    """A stream on which nothing whole arrives."""

    def __init__(self, received: Callable[[float], float], delivered: Callable[[float], int] = lambda _: 0) -> None:
        self.busy = 0
        self._received = received
        self._delivered = delivered

    async def run(self, seconds: float) -> tuple[BaseException | None, float]:
        """Returns what broke it, and when; None if nothing did for so long."""
        loop = asyncio.get_running_loop()
        began, link = loop.time(), Link(1 << 20)

        def received() -> int:
            link.delivered_bytes = self._delivered(loop.time() - began)
            return int(self._received(loop.time() - began))

        def on_busy() -> None:
            self.busy += 1

        async def write(_: bytes) -> None:
            """Whatever is written is lost."""

        async def nothing() -> object:
            return await loop.create_future()

        async def never(_: bytes) -> None:
            raise AssertionError

        stream = Stream(link, CONFIG, nothing, write, never, received, on_busy)
        loop.call_later(seconds, stream.end)
        return await stream.run(), loop.time() - began


def run(watched: Watched, seconds: float = 60) -> tuple[BaseException | None, float]:
    loop = SimulatedLoop(Random(1))
    try:
        return loop.run_until_complete(watched.run(seconds))
    finally:
        loop.close()


def test_a_part_of_a_message_is_a_sign_of_life():
    watched = Watched(lambda seconds: RATE * seconds)
    assert run(watched) == (None, 60)
    assert watched.busy > 40


def test_silence_breaks_a_stream():
    error, seconds = run(Watched(lambda _: 0))
    assert isinstance(error, TimeoutError)
    assert seconds == CONFIG.silence_s


@pytest.mark.parametrize("rate", [1, 16_000])
def test_who_sends_a_few_bytes_at_a_time_is_silent(rate: int):
    watched = Watched(lambda seconds: rate * seconds)
    error, seconds = run(watched)
    assert isinstance(error, TimeoutError)
    assert seconds == CONFIG.silence_s


def test_a_message_that_stops_to_arrive_breaks_the_stream():
    error, seconds = run(Watched(lambda seconds: RATE * min(seconds, 10)))
    assert isinstance(error, TimeoutError)
    assert 10 < seconds <= 10 + 2 * CONFIG.silence_s


def test_a_side_that_takes_much_is_busy():
    """Its heartbeats may be behind what it is sent, and what it sends is little."""
    watched = Watched(lambda seconds: RATE * seconds, lambda seconds: int(RATE * seconds))
    run(watched)
    idle = Watched(lambda seconds: 1000 * seconds)
    run(idle)
    assert watched.busy
    assert not idle.busy


@pytest.mark.slow
async def test_a_gateway_whose_heartbeat_is_behind_much_lives(tmp_path: Path):
    """Over a slow network that takes longer for it than a lease."""
    sockets = Path(mkdtemp(prefix="sluice-"))
    engine = await Engine.open(tmp_path, StoreConfig(lease_s=2))
    registry = engine.gateway_registry
    await registry.start(_nothing_is_left)
    config = RemoteConfig(heartbeat_s=0.2, silence_s=1)
    server = StoreServer(engine, Hub(engine), config)
    await server.start(f"unix:{sockets / 's'}")
    middle = Middle(str(sockets / "s"))
    store = await RemoteStore.open(await middle.start(), "g", EventReceiver(), config)
    await store.join_gateway(b"g", None, False)
    middle.delay_s = 0.1  # for 64 KiB
    answers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for answer in answers:
        store.append([record.frame(Kind.MESSAGE, 1, 0, b"a", b"c", b"", bytes(900_000))], answer.set_result)
    await store.heartbeat(b"g", {})
    assert [appended.error for appended in await asyncio.gather(*answers)] == [None] * 3
    assert store.reconnects == 1
    await store.close()
    await middle.stop()
    await server.stop()
    await registry.stop()
    await engine.close()
    rmtree(sockets)


async def _nothing_is_left(_is_gone: Callable[[bytes], bool]) -> None:
    """There is nothing of it."""
