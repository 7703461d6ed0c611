"""Sinks that a worker runs on a node: an HTTP endpoint that fails at times, files and tables of messages."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import deltalake
import pytest
from aiohttp import web
from pyiceberg.catalog.sql import SqlCatalog

from tests.connect.connectors.http_server import Server
from tests.connect.connectors.sqlite.test_sink import query
from tests.connect.runtime.conftest import Connect, connect, node
from tests.waiting import patience, until

__all__ = ["connect", "node"]  # the fixtures

LOOPBACK = ["127.0.0.0/8"]


async def publish(connect: Connect, begin: int, end: int) -> None:
    for number in range(begin, end):
        await connect.client.send(f"fleet/d{number % 5}/t", json.dumps({"n": number}).encode())


async def test_an_endpoint_gets_every_message(connect: Connect, server: Server) -> None:
    server.answer = lambda got: web.Response(status=503 if len(server.got) % 7 == 3 else 202)
    config = {"connector.class": "http-sink", "topics": "fleet/#", "http.api.url": server.url + "/${level2}"}
    await connect.set("hook", config | {"max.retries": "0", "errors.retry.delay.max.ms": "20"})
    await publish(connect, 0, 60)

    def accepted() -> list[int]:
        return sorted({json.loads(got.body)["n"] for number, got in enumerate(server.got, 1) if number % 7 != 3})

    async with connect.worker(allowed_networks=LOOPBACK) as worker:
        await until(lambda: accepted() == list(range(60)))
        await publish(connect, 60, 70)
        await until(lambda: accepted() == list(range(70)))
        await connect.until_state(worker, "hook", "RUNNING")
    assert {got.path for got in server.got} == {f"/d{number}" for number in range(5)}


async def test_an_endpoint_that_the_worker_does_not_allow(connect: Connect, server: Server) -> None:
    await connect.set("hook", {"connector.class": "http-sink", "topics": "fleet/#", "http.api.url": server.url})
    await publish(connect, 0, 1)
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "hook", "FAILED")
    assert "127.0.0.1" in fields["trace"]
    assert server.got == []


async def test_a_worker_that_lacks_a_library_says_so(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "connect.connectors.delta.sink_task", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    config = {"connector.class": "delta-sink", "topics": "fleet/#", "table.url": f"file://{connect.folder}"}
    await connect.set("lake", config)
    async with connect.worker() as worker:
        fields = await connect.until_state(worker, "lake", "FAILED")
    assert "deltalake" in fields["trace"]
    assert fields["trace"].endswith("the worker does not have what this connector needs, see docs/connectors.md")


def in_files(folder: Path) -> list[int]:
    found = [path for path in folder.rglob("*.jsonl") if "_offsets" not in path.parts]
    return [json.loads(line)["value"]["n"] for path in found for line in path.read_bytes().splitlines()]


def in_delta(folder: Path) -> list[int]:
    if not (folder / "table/_delta_log").exists():
        return []
    return [
        json.loads(each)["n"] for each in deltalake.DeltaTable(folder / "table").to_pyarrow_table()["value"].to_pylist()
    ]


def in_iceberg(folder: Path) -> list[int]:
    catalog = SqlCatalog("iceberg", uri=f"sqlite:///{folder}/catalog.db")
    if not catalog.table_exists("plant.messages"):
        return []
    return [
        json.loads(each)["n"] for each in catalog.load_table("plant.messages").scan().to_arrow()["value"].to_pylist()
    ]


def in_sqlite(folder: Path) -> list[int]:
    if not query(folder, "SELECT 1 FROM sqlite_master WHERE name = 'fleet'"):
        return []
    return [json.loads(value)["n"] for (value,) in query(folder, "SELECT value FROM fleet")]


KINDS: Mapping[str, tuple[Callable[[Path], list[int]], Callable[[Path], dict[str, str]]]] = {
    "object-store-sink": (
        in_files,
        lambda folder: {"store.url": f"file://{folder}", "flush.size": "7", "rotate.schedule.interval.ms": "50"},
    ),
    "delta-sink": (in_delta, lambda folder: {"table.url": f"file://{folder}/table", "commit.interval.ms": "50"}),
    "iceberg-sink": (
        in_iceberg,
        lambda folder: {
            "iceberg.tables": "plant.messages",
            "iceberg.catalog.type": "sql",
            "iceberg.catalog.uri": f"sqlite:///{folder}/catalog.db",
            "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
            "commit.interval.ms": "50",
        },
    ),
    "sqlite-sink": (in_sqlite, lambda folder: {"connection.path": f"{folder}/messages.db"}),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_message_is_stored_once_however_often_the_worker_stops(connect: Connect, kind: str) -> None:
    stored, given = KINDS[kind]
    await connect.set("lake", {"connector.class": kind, "topics": "fleet/#", "tasks.max": "2", **given(connect.folder)})
    await publish(connect, 0, 20)
    for end in (40, 60, 80):
        async with connect.worker() as worker:
            await publish(connect, end - 20, end)
            await connect.until_state(worker, "lake", "RUNNING", 1)
            await until(lambda: len(stored(connect.folder)) >= end - 30)
        await connect.until_no_lease()
    async with connect.worker(), patience():
        await until(lambda: len(stored(connect.folder)) >= 80)
        lag = -1
        while lag:
            lag = sum(each.lag for each in await connect.client.groups() if each.name == "connect-lake")
    assert sorted(stored(connect.folder)) == list(range(80))
