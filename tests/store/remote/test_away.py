"""A store that cannot be reached for longer than `max_wait_ms`: what is appended meanwhile waits for it."""

import asyncio
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreBusy
from store.log.disk import Disk
from store.remote import RemoteConfig, RemoteStore, StoreServer
from tests.store.remote.middle import Middle
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("interpreted_flushes")

CONFIG = RemoteConfig(heartbeat_s=0.05, silence_s=1.5, grace_s=30, longest_pause_s=0.05)
MESSAGE = record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", b"x")


async def test_the_time_without_a_store_is_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, is_quick = Disk.write_durable, Event()
    is_quick.set()

    def slow(disk: Disk, fd: int, data: bytes, offset: int) -> None:
        is_quick.wait(30)
        write(disk, fd, data, offset)

    monkeypatch.setattr(Disk, "write_durable", slow)
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20, max_wait_ms=200))
    server = StoreServer(engine, Hub(engine), CONFIG)
    place = f"{mkdtemp(prefix='sluice-')}/s"  # short: paths of sockets have 107 bytes at the most
    await server.start(f"unix:{place}")
    middle = Middle(place)
    store = await RemoteStore.open(await middle.start(), "g", EventReceiver(), CONFIG, routed=False)
    answers: list[Appended] = []
    try:
        store.append([MESSAGE], answers.append)
        await until(lambda: len(answers) == 1)
        middle.hold()
        store.append([MESSAGE], answers.append)  # its wait has begun when the stream breaks
        await asyncio.sleep(0)
        middle.cut()
        await until(lambda: not store.is_connected)
        for _ in range(3):
            await asyncio.sleep(0.2)
            store.append([MESSAGE], answers.append)
        middle.let()
        await until(lambda: len(answers) == 5)
        assert [answer.error for answer in answers] == [None] * 5
        # The limit holds again.
        is_quick.clear()
        store.append([MESSAGE], answers.append)

        def is_refused() -> bool:
            store.append([MESSAGE], answers.append)
            return any(isinstance(answer.error, StoreBusy) for answer in answers)

        await until(is_refused)
    finally:
        is_quick.set()
        await store.close()
        await middle.stop()
        await server.stop()
        await engine.close()
        rmtree(Path(place).parent)
