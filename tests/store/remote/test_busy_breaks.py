"""A store that has no room while the stream of a gateway breaks: what arrived is taken as a whole, in order."""

import asyncio
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended, Done, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreBusy, StoreError
from store.remote import RemoteConfig, RemoteStore, StoreServer
from tests.store.remote.middle import Middle
from tests.waiting import until

CONFIG = RemoteConfig(heartbeat_s=0.1, silence_s=5, grace_s=20)


def frame(number: int) -> bytes:
    return record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", b"%d" % number + bytes(200_000))


async def test_a_broken_stream_to_a_busy_store_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=8 << 20))
    server = StoreServer(engine, Hub(engine), CONFIG)
    place = f"{mkdtemp(prefix='sluice-')}/s"  # short: paths of sockets have 107 bytes at the most
    await server.start(f"unix:{place}")
    middle = Middle(place)
    store = await RemoteStore.open(await middle.start(), "g", EventReceiver(), CONFIG, routed=False)
    offer, refused, is_busy = engine.offer, 0, True

    def busy(frames: list[bytes], done: Done) -> StoreError | None:
        nonlocal refused
        if is_busy:
            refused += 1
            return StoreBusy("no room")
        return offer(frames, done)

    monkeypatch.setattr(engine, "offer", busy)
    answers: list[Appended] = []
    for number in range(5):  # parcels of one message: they are gathered in a turn, and are large
        store.append([frame(number)], answers.append)
    await until(lambda: refused > 3)
    before = store.reconnects
    middle.cut()
    await until(lambda: store.reconnects > before and store.is_connected)
    store.append([frame(5)], answers.append)
    await asyncio.sleep(0.2)  # that it goes, and finds no room either
    is_busy = False
    try:
        await until(lambda: len(answers) == 6)
    finally:
        await store.close()
        await middle.stop()
        await server.stop()
        fetched = await engine.fetch(topic_queue(b"a/b"), 0, 100, 8 << 20)
        await engine.close()
        rmtree(Path(place).parent)
    stored = [record.decode(fetched.data, start)[6].rstrip(b"\0") for start in record.split(fetched.data)]
    assert [answer.error for answer in answers] == [None] * 6
    assert stored == [b"%d" % number for number in range(6)]
