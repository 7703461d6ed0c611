"""A store and its gateways that stop at the same time, as an init system may have them do."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.broker.client_ownership import JoinedGateway
from gateway.config.config import load
from gateway.node.store_node import StoreNode
from notify.event_receiver import EventReceiver
from store.remote.client.remote_store import RemoteStore
from store.remote.config import RemoteConfig
from tests.waiting import patience, until


class SlowStore:
    async def leave_gateway(self, _name: bytes) -> None:
        await asyncio.Event().wait()


async def test_a_gateway_does_not_wait_for_all_that_the_store_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.broker.client_ownership._LEAVING_SECONDS", 0.01)
    store: Any = SlowStore()
    async with patience():
        await JoinedGateway(store, b"g1/1", dict).stop()


async def test_the_store_outlives_gateways_that_have_not_heard_that_they_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would look for the store until they are killed."""
    monkeypatch.setattr("gateway.node.served_store._CHECK_SECONDS", 0)
    ports = {"mqtt.port": 0, "mqtt.ws_port": -1, "http.port": 0, "grpc.port": 0}
    role = {"split.role": "store", "split.listen": "127.0.0.1:0"}
    node = StoreNode(load(None, {**ports, **role, "data_dir": tmp_path / "data", "store.segment_size": 4 << 20}, {}))
    address = (await node.start()).addresses["store"]
    remote = await RemoteStore.open(address, "g1/1", EventReceiver(), RemoteConfig())
    await remote.join_gateway(b"g1/1", None)
    assert node._engine is not None
    registry, is_clean = node._engine.gateway_registry, asyncio.Event()

    async def clean_up(_is_ended: Callable[[bytes], bool]) -> None:
        await is_clean.wait()

    monkeypatch.setattr(registry, "_clean_up", clean_up)
    leaving = asyncio.create_task(remote.leave_gateway(b"g1/1"))
    await until(lambda: not registry.figures)
    outliving = asyncio.create_task(node.outlive_gateways(3600))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not outliving.done()
    is_clean.set()
    await leaving
    await remote.close()
    await outliving
    await node.stop()
