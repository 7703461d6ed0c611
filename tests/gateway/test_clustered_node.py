"""The store of a clustered node: what it does when it cannot take part in its cluster, and its commands."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.queries import WrongRequest
from gateway.config.config import Config
from gateway.node.clustered_node import ClusteredStoreNode
from sluice.demo.ports import lasting_ports
from store.cluster import clustered_store
from store.cluster.shared_log import SharedLog, SharedLogDamaged, SharedLogUnavailable
from tests.waiting import patience, until


def failing_node(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> ClusteredStoreNode:
    """A node whose shared log cannot be opened because of `error`."""

    async def fail(_url: str, _options: Mapping[str, Any]) -> SharedLog:
        raise error

    monkeypatch.setattr(clustered_store, "open_shared_log", fail)
    return node(folder)


def node(folder: Path) -> ClusteredStoreNode:
    """The node n1, whose shared log is in the folder."""
    config = Config(data_dir=folder / "n1")
    config.http.port = 0
    config.split.role, config.split.listen = "store", f"unix:{folder}/s"
    config.cluster.name, config.cluster.log = "n1", f"file://{folder}/log"
    config.cluster.listen = f"127.0.0.1:{lasting_ports(1)[0]}"
    return ClusteredStoreNode(config)


def health(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def test_health_says_why_a_node_never_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = failing_node(tmp_path, monkeypatch, SharedLogDamaged("slot 7 is no slot"))
    ports = await stopped.start()
    try:
        await until(lambda: stopped._member.damage)
        status, facts = await asyncio.to_thread(health, ports.http)
        assert status == 503
        assert facts["status"] == "slot 7 is no slot"
        assert not stopped.ended.is_set()
    finally:
        await stopped.stop()


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


async def test_a_node_without_a_log_has_the_metrics_of_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = failing_node(tmp_path, monkeypatch, SharedLogUnavailable("it is away"))
    ports = await waiting.start()
    try:
        await until(lambda: waiting._member.trouble() == "the shared log does not answer")
        figures = await asyncio.to_thread(metrics, ports.http)
        assert figures["sluice_cluster_slot"] == 0
        assert figures["sluice_cluster_unreached_seconds"] > 0
    finally:
        await waiting.stop()


async def test_a_leader_whose_shared_log_is_damaged_keeps_the_metrics_of_its_cluster(tmp_path: Path) -> None:
    damaged = node(tmp_path)
    ports = await damaged.start()
    try:
        await until(lambda: damaged._served is not None)
        assert (await asyncio.to_thread(metrics, ports.http))["sluice_cluster_leads"] == 1
        assert damaged._store is not None
        assert damaged._store._member is not None
        assert damaged._store._member._leadership is not None
        damaged._store._member._leadership._end(SharedLogDamaged("slot 7 is no slot"))
        await until(lambda: damaged._member.damage and damaged._served is None)
        figures = await asyncio.to_thread(metrics, ports.http)
        assert (figures["sluice_cluster_leads"], figures["sluice_cluster_epoch"]) == (0, 1)
        assert (await asyncio.to_thread(health, ports.http))[0] == 503
    finally:
        await damaged.stop()


async def test_a_node_ends_when_something_unforeseen_ends_its_part_in_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = failing_node(tmp_path, monkeypatch, RuntimeError("unforeseen"))
    await failed.start()
    try:
        async with patience():
            await failed.ended.wait()
    finally:
        await failed.stop()
    assert "RuntimeError: unforeseen" in caplog.text


async def test_a_leader_goes_on_if_the_node_that_is_to_lead_is_not_there(tmp_path: Path) -> None:
    alone = node(tmp_path)
    await alone.start()
    try:
        await until(lambda: alone._member.facts()["role"] == "leader")
        with pytest.raises(WrongRequest, match="node n9 cannot lead: the nodes that answer are none"):
            await alone._member.answer("lead", {"node": "n9"})
        assert alone._member.facts()["role"] == "leader"
    finally:
        await alone.stop()
