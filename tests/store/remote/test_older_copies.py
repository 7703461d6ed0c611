"""A store that is replaced by an older copy of itself while gateways are attached."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreClosed
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.until import Until
from store.remote import RemoteConfig, RemoteStore, StoreServer
from tests.waiting import until

CONFIG = RemoteConfig(heartbeat_s=0.05, silence_s=10, grace_s=60, longest_pause_s=0.05)


@asynccontextmanager
async def serving(folder: Path, address: str) -> AsyncIterator[Engine]:
    engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20, partitions=1))
    server = StoreServer(engine, Hub(engine), CONFIG)
    await server.start(address)
    try:
        yield engine
    finally:
        await server.stop()
        await engine.close()


@pytest.fixture
def address():
    with TemporaryDirectory(prefix="sluice-") as folder:  # short: paths of sockets have 107 bytes at the most
        yield f"unix:{folder}/s"


async def publish(store: RemoteStore | Engine, count: int) -> list[Appended]:
    answers: list[Appended] = []
    for number in range(count):
        store.append([record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", b"%d" % number)], answers.append)
    await until(lambda: len(answers) == count)
    return answers


async def count(store: RemoteStore | Engine) -> int:
    return (await store.bounds(topic_queue(b"a/b"))).end


@pytest.mark.parametrize("later", [0, 50])
async def test_a_gateway_is_given_up_by_an_older_copy_of_its_store(tmp_path: Path, address: str, later: int):
    """`later`: messages that others append to the copy, so that its log is longer than what the gateway knows."""
    async with serving(tmp_path / "data", address):
        store = await RemoteStore.open(address, "g", EventReceiver(), CONFIG)
        lost = asyncio.Event()
        store.on_lost(lost.set)
        await publish(store, 10)
        shutil.copytree(tmp_path / "data" / "log", tmp_path / "copy" / "log")  # views are folded again
        shutil.copy(tmp_path / "data" / "store.json", tmp_path / "copy")
        await publish(store, 10)
    copy = await Engine.open(tmp_path / "copy", StoreConfig(segment_size=1 << 20, partitions=1))
    await publish(copy, later)
    await copy.close()
    async with serving(tmp_path / "copy", address) as engine:
        await asyncio.wait_for(lost.wait(), 60)
        assert await count(engine) == 10 + later
        await until(lambda: store.is_connected)  # as a new process would be
        assert [answer.error for answer in await publish(store, 1)] == [None]
        assert await count(engine) == 11 + later
        await store.close()


async def test_an_append_under_way_fails_where_an_older_copy_answers(tmp_path: Path, address: str):
    async with serving(tmp_path / "data", address):
        store = await RemoteStore.open(address, "g", EventReceiver(), CONFIG)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    async with serving(tmp_path / "data", address):
        await publish(store, 3)
    failed: list[Appended] = []
    store.append([record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", b"")], failed.append)
    async with serving(tmp_path / "copy", address):
        await until(lambda: bool(failed))
        assert isinstance(failed[0].error, StoreClosed)
        assert "the log is not the one that the gateway read up to position" in str(failed[0].error)
        await store.close()


async def test_a_gateway_continues_with_a_restored_store_that_lost_nothing(tmp_path: Path, address: str):
    async with serving(tmp_path / "data", address) as engine:
        store = await RemoteStore.open(address, "g", EventReceiver(), CONFIG)
        lost = asyncio.Event()
        store.on_lost(lost.set)
        await publish(store, 10)
        log_id = engine.meta.log_id
    restore(tmp_path / "data", tmp_path / "restored", Until(), [], CopyOptions())
    async with serving(tmp_path / "restored", address) as engine:
        assert engine.meta.log_id == log_id
        assert [answer.error for answer in await publish(store, 10)] == [None] * 10
        assert await count(engine) == 20
        assert not lost.is_set()
        await store.close()
