"""The store of a clustered node: what it does when it cannot take part in its cluster, and its commands."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config.config import Config, load
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.clustered_node import ClusteredStoreNode
from gateway.node.supervisor import _store as store_of
from gateway.rpc.status import RequestError
from notify.event_receiver import EventReceiver
from sluice.demo.ports import lasting_ports
from store.cluster import clustered_store
from store.cluster.shared_log import SharedLog, SharedLogDamaged, SharedLogUnavailable
from store.remote.client.remote_store import RemoteStore
from store.remote.config import RemoteConfig
from store.remote.wire.layout import NodeFacts
from tests.waiting import patience, until


def failing_node(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> ClusteredStoreNode:
    """A node whose shared log cannot be opened because of `error`."""

    async def fail(_url: str, _options: Mapping[str, Any]) -> SharedLog:
        raise error

    monkeypatch.setattr(clustered_store, "open_shared_log", fail)
    return node(folder)


def node(folder: Path, name: str = "n1", data: str = "") -> ClusteredStoreNode:
    """A node whose shared log is in the folder, and so is its data, under its name or `data`. Nobody claims because of
    silence."""
    config = Config(data_dir=folder / (data or name))
    config.http.port = 0
    config.split.role, config.split.listen = "store", f"unix:{folder}/{data or name}.s"
    config.cluster.name, config.cluster.log = name, f"file://{folder}/log"
    config.cluster.listen = f"127.0.0.1:{lasting_ports(1)[0]}"
    config.cluster.leader_timeout_s = 300
    return ClusteredStoreNode(config)


@asynccontextmanager
async def running(*nodes: ClusteredStoreNode) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for each in nodes:
            await each.start()
            stack.push_async_callback(each.stop)
        yield


@asynccontextmanager
async def attached(store: ClusteredStoreNode, gateway: str, node: str = "") -> AsyncIterator[None]:
    """node: where the store of the gateway's node is."""
    address = store.config.cluster.listen
    remote = await RemoteStore.open(address, gateway, EventReceiver(), RemoteConfig(grace_s=1), node=NodeFacts(node))
    try:
        yield
    finally:
        await remote.close()


def leads(store: ClusteredStoreNode) -> bool:
    return store._served is not None and store._listener._server is not None


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
        figures = await asyncio.to_thread(metrics, ports.http)
        assert figures["sluice_cluster_leads"] == 1
        assert figures['sluice_connect_tasks{connector="+other",state="FAILED",task=""}'] == 0
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
        with pytest.raises(RequestError, match="node n9 cannot lead: the nodes that answer are none"):
            await alone._member.change_leader(pb.ChangeLeaderRequest(node="n9"), NODE_USER)
        assert alone._member.facts()["role"] == "leader"
    finally:
        await alone.stop()


async def test_a_node_that_stops_lets_a_node_lead_that_answers(tmp_path: Path) -> None:
    first, second = node(tmp_path), node(tmp_path, "n2")
    async with running(first):
        await until(lambda: leads(first))
        async with (
            running(second),
            attached(first, "n0.g1/1", f"127.0.0.1:{lasting_ports(1)[0]}"),
            attached(first, "n2.g1/1", second.config.cluster.listen),
        ):
            await until(lambda: second._member.facts()["leader"] == "n1")
            await first.stop()
            await until(lambda: leads(second))


async def test_of_the_nodes_that_could_lead_the_one_that_has_read_the_most_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_others() -> list[dict[str, Any]]:
        return [
            {"node": "n2", "slot": 3, "trouble": ""},
            {"node": "n3", "slot": 5, "trouble": "the shared log does not answer"},
            {"node": "n4", "slot": 4, "trouble": ""},
            {"node": "n1", "slot": 6, "trouble": ""},
            {"address": "n5:7071", "trouble": "the node at n5:7071 does not answer"},
        ]

    async with running(alone := node(tmp_path)):
        monkeypatch.setattr(alone._member, "_ask_others", ask_others)
        assert await alone._member.successor() == "n4"


async def test_a_node_does_not_wait_for_gateways_of_a_node_whose_name_begins_with_its_own(tmp_path: Path) -> None:
    alone = node(tmp_path)
    async with running(alone):
        await until(lambda: leads(alone))
        async with attached(alone, "n1.1.g1/1"):
            async with patience():
                await alone.outlive_gateways(3600)
            async with attached(alone, "n1.g1/1"):
                outliving = asyncio.create_task(alone.outlive_gateways(3600))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not outliving.done()
            await outliving


async def test_a_second_process_under_the_name_of_the_leader_does_not_take_part(tmp_path: Path) -> None:
    good, second = node(tmp_path), node(tmp_path, "n1", data="other")
    async with running(good):
        await until(lambda: leads(good))
        async with running(second):
            await until(lambda: second._member.damage)
            where = good.config.cluster.listen
            assert second._member.damage == f"a node n1 runs at {where} already: give each node a name of its own"
            assert second._member.leader()[0] == ""
            assert leads(good)
            assert good._member.facts()["epoch"] == 1


async def test_a_second_process_under_the_name_of_a_follower_does_not_take_part(tmp_path: Path) -> None:
    leader, good, second = node(tmp_path), node(tmp_path, "n2"), node(tmp_path, "n2", data="other")
    async with running(leader):
        await until(lambda: leads(leader))
        async with running(good), attached(leader, "n2.g1/1", good.config.cluster.listen), running(second):
            await until(lambda: second._member.damage)
            assert good.config.cluster.listen in second._member.damage
            await until(lambda: good._member.facts()["leader"] == "n1")
            assert not good._member.damage


@pytest.mark.parametrize("moves", [False, True])
async def test_a_node_that_starts_again_is_no_second_process(tmp_path: Path, moves: bool) -> None:
    async with running(before := node(tmp_path)):
        await until(lambda: leads(before))
    after = node(tmp_path, "n1", data="other")
    if not moves:
        after.config.cluster.listen = before.config.cluster.listen
    async with running(after):
        await until(lambda: leads(after))


async def test_a_node_takes_new_limits_of_retention(tmp_path: Path) -> None:
    path = tmp_path / "sluice.toml"
    text = f"data_dir = '{tmp_path}/n1'\n[http]\nport = 0\n[cluster]\nlog = 'file://{tmp_path}/log'\nname = 'n1'\n"
    text += f"listen = '127.0.0.1:{lasting_ports(1)[0]}'\n"
    path.write_text(text)
    changed = ClusteredStoreNode(store_of(load(path, None, {}), f"unix:{tmp_path}/n1.s"))
    async with running(changed):
        await until(lambda: leads(changed))
        path.write_text(f"{text}weight = 7\n[store]\nretention_bytes = 12345678\n")
        changes = await changed.reload()
        assert changes is not None
        assert (changes.live, changes.waiting) == (("store.retention_bytes",), ("cluster.weight",))
        assert changed._served is not None
        assert changed._served.engine._config.retention_bytes == 12_345_678
