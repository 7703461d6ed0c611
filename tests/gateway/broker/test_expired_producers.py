"""Producers that crashed leave no row behind for ever."""

import asyncio
from pathlib import Path
from time import time

import pytest

import record
from gateway.broker.append import append
from gateway.broker.expired_producers import KEPT_SECONDS, RETURNING_SECONDS, ExpiredProducers
from gateway.config.config import load
from gateway.node.node import Node
from gateway.node.store_node import StoreNode
from record.layout import Kind
from store import control
from store.config import StoreConfig
from store.engine import Engine

CLIENT, GATEWAY = b"sdk/abcd", b"x1/ab@cd"  # in the order of a look
NOW_MS = int(time() * 1000)


async def produce(engine: Engine, producer: bytes) -> None:
    message = record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", b"x")
    await append(engine, [control.Produced(1, 1).frame(producer), message])


async def known(engine: Engine) -> list[bytes]:
    return [row.producer for row in await engine.producers(None, 99)]


@pytest.mark.parametrize("accepts_gateways", [False, True])
async def test_only_idle_producers_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepts_gateways: bool
) -> None:
    monkeypatch.setattr("gateway.broker.expired_producers._PAGE", 2)
    now = [NOW_MS - KEPT_SECONDS * 1000 - 5000]
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20), clock=lambda: now[0])
    for producer in (GATEWAY, CLIENT, CLIENT + b"2", CLIENT + b"3"):
        await produce(engine, producer)
    now[0] = NOW_MS
    await produce(engine, CLIENT + b"2")
    await ExpiredProducers(engine, accepts_gateways).end_expired()
    kept = [GATEWAY] if accepts_gateways else []
    assert await known(engine) == [CLIENT + b"2", *kept]
    await ExpiredProducers(engine, accepts_gateways).end_expired()
    assert await known(engine) == [CLIENT + b"2", *kept]
    await engine.close()


async def test_a_producer_in_use_is_kept_longer(tmp_path: Path) -> None:
    now = [NOW_MS - RETURNING_SECONDS * 1000 - 5000]
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20), clock=lambda: now[0])
    await produce(engine, b"returning/01")
    now[0] = NOW_MS - KEPT_SECONDS * 1000 - 5000
    await produce(engine, b"returning/02")
    await produce(engine, CLIENT)
    await ExpiredProducers(engine, False).end_expired()
    assert await known(engine) == [b"returning/02"]
    await engine.close()


@pytest.mark.parametrize("role", ["both", "store"])
async def test_a_starting_node_ends_idle_producers(tmp_path: Path, role: str) -> None:
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=4 << 20))
    await produce(engine, GATEWAY)
    await produce(engine, CLIENT)
    await engine.close()
    free = {"mqtt.port": 0, "mqtt.ws_port": -1, "http.port": 0, "grpc.port": 0, "split.grace_s": 1}
    listen = {"split.role": role, "split.listen": "127.0.0.1:0" if role == "store" else ""}
    config = load(None, {**free, **listen, "data_dir": tmp_path / "data", "store.segment_size": 4 << 20}, {})
    node: Node | StoreNode = Node(config) if role == "both" else StoreNode(config)
    await node.start()
    assert node._engine is not None
    while await known(node._engine) != [CLIENT]:  # noqa: ASYNC110  of what has no events
        await asyncio.sleep(0.01)
    await node.stop()
