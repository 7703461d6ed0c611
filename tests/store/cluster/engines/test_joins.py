"""A node joins by a snapshot, on each engine, when the slots before it are removed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store.cluster import clustered_store
from store.cluster.clustered_store import ClusteredStore, ClusteredStoreConfig
from store.cluster.shared_log import SlotRemoved
from store.cluster.snapshots import KEPT, snapshots_of
from tests.store.cluster.engines.engine import Engine
from tests.store.cluster.nodes import CONFIG, append
from tests.waiting import patience, until


async def test_a_node_joins_when_the_first_slots_are_gone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustered_store, "CHECK_S", 0.1)
    config = replace(CONFIG, segment_size=1 << 18)
    log = await engine.open()
    stores: list[ClusteredStore] = []
    running: list[asyncio.Task[None]] = []

    async def start(name: str) -> ClusteredStore:
        about = ClusteredStoreConfig(name, engine.url, f"{name}:1", engine.options, 5.0, 5, 3 << 20)
        store = await ClusteredStore.open(tmp_path / name, config, about)
        stores.append(store)
        running.append(asyncio.create_task(store.run()))
        return store

    first = await start("a")
    await until(lambda: first.engine is not None)
    await start("b")
    number = 0
    async with patience():
        while await log.begin() == 1:
            payload = b"%d " % number + bytes(100_000)
            assert first.engine is not None
            appended = await append(first.engine, [record.frame(Kind.MESSAGE, 0, 0, b"t/x", b"", b"", payload)])
            assert appended.error is None
            number += 1
    assert len(await snapshots_of(log)) == KEPT
    with pytest.raises(SlotRemoved):
        await log.read(1)
    third = await start("c")
    await until(lambda: third.history.end == first.history.end)
    position, digest = await first.digest()
    assert (position, digest) == await third.digest(position)
    assert (await third.log_state()).begin > 1
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for store in stores:
        await store.close()
    await log.close()
