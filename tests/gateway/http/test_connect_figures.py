"""Figures of connectors, as workers tell them: records, states, lag, and what is beyond the limit."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cloud_sdk import Client
from connect.runtime.worker import Worker, WorkerSettings
from gateway.broker.append import append
from gateway.http import connect_metrics
from gateway.node.node import Node
from gateway.observe import connectors
from store.api import BucketEntry, entry_subject
from store.control import EntryPut, EntryRemoved
from tests.gateway.conftest import MakeNode
from tests.gateway.http.figures import samples, until_samples
from tests.gateway.management.world import engine_of
from tests.gateway.people import set_rules

NO_TASKS = {"+other,FAILED,": 0, "+other,PAUSED,": 0, "+other,RUNNING,": 0, "+other,UNASSIGNED,": 0}


async def put(node: Node, key: str, value: Any) -> None:
    """What nodes and workers write, or bytes that somebody else does."""
    change = EntryPut(
        value if isinstance(value, bytes) else json.dumps(value).encode(), token=b"%d" % time.monotonic_ns()
    )
    await append(engine_of(node), [change.frame(entry_subject(b"connect", key.encode()))])


async def remove(node: Node, key: str) -> None:
    change = EntryRemoved(token=b"%d" % time.monotonic_ns())
    await append(engine_of(node), [change.frame(entry_subject(b"connect", key.encode()))])


async def connector(node: Node, name: str, state: str = "RUNNING") -> None:
    await put(node, f"connector/{name}", {"config": {"topics": "home/#"}, "state": state})


async def beat(node: Node, worker: str, *tasks: Any) -> None:
    await put(node, f"worker/{worker}", {"tasks": tasks})


def task(name: str, number: int = 0, state: str = "RUNNING", **counts: Any) -> dict[str, Any]:
    return {"connector": name, "task": number, "state": state, **counts}


@pytest.mark.parametrize("kind", ["file-sink", "sqlite-sink"], ids=["group", "transactional"])
async def test_what_a_worker_does_is_shown(make_node: MakeNode, tmp_path: Path, kind: str) -> None:
    """Also the lag of a sink that reads by offset, and is in no group."""
    node = await make_node()
    await set_rules(node, "", "allow both topic:#", "allow both topic:$kv/connect/#", "allow * group:*")
    where = "directory" if kind == "file-sink" else "connection.path"
    config = {"connector.class": kind, "topics": "home/#", "tasks.max": "2", where: str(tmp_path / "out")}
    async with Client(f"127.0.0.1:{node.ports.grpc}", name="w") as client:
        bucket = client.bucket("connect")
        await bucket.put("connector/a", json.dumps({"config": {"name": "a", **config}}).encode())
        for number in range(4):
            await client.send("home/t", b'{"n":%d}' % number)
        settings = WorkerSettings("w", heartbeat_s=0.05, allowed_folders=[str(tmp_path)])
        worker = Worker(client, bucket, settings, "test")
        work = asyncio.create_task(worker.run())
        await until_samples(node, "sluice_connect_records_out_total", lambda found: sum(found.values()) == 4)
        assert sum((await samples(node, "sluice_connect_records_in_total")).values()) == 4
        assert sum((await samples(node, "sluice_connect_bytes_total")).values()) == 4 * 7
        states = await samples(node, "sluice_connect_tasks")
        assert states == {"a,RUNNING,0": 1, "a,RUNNING,1": 1, **NO_TASKS}
        await until_samples(node, "sluice_connect_lag", lambda found: found == {"a": 0})
        assert set(await samples(node, "sluice_connect_heartbeat_seconds")) == {"a,0", "a,1"}
        worker.stop()
        await work
        await client.send("home/t", b"{}")
        await until_samples(node, "sluice_connect_lag", lambda found: found == {"a": 1})
        assert await samples(node, "sluice_connect_tasks") == {"a,UNASSIGNED,": 1, **NO_TASKS}


async def test_all_counts_and_states_of_tasks(node: Node) -> None:
    for name, state in (("a", "RUNNING"), ("b", "PAUSED"), ("c", "STOPPED")):
        await connector(node, name, state)
    counts = {"records_in": 9, "records_out": 5, "bytes": 90, "dropped": 1, "failed": 3, "dead": 2, "retried": 7}
    await beat(node, "w1", task("a", **counts), task("a", 1, "FAILED"), task("c", records_in=5))
    await beat(node, "w2", task("b", state="PAUSED"))
    for name, key in (
        ("records_in", "records_in"),
        ("records_out", "records_out"),
        ("bytes", "bytes"),
        ("records_dropped", "dropped"),
        ("records_failed", "failed"),
        ("dead_letters", "dead"),
        ("retries", "retried"),
    ):
        found = await samples(node, f"sluice_connect_{name}_total")
        assert found == {"a,0": counts[key], "a,1": 0, "b,0": 0, "+other,": 0}
    states = await samples(node, "sluice_connect_tasks")
    assert states == {"a,RUNNING,0": 1, "a,FAILED,1": 1, "b,PAUSED,0": 1, **NO_TASKS}
    await beat(node, "w2", task("a", 1))  # took it over
    assert (await samples(node, "sluice_connect_tasks")).keys() - NO_TASKS == {
        "a,RUNNING,0",
        "a,RUNNING,1",
        "b,UNASSIGNED,",
    }
    await remove(node, "connector/a")
    assert await samples(node, "sluice_connect_tasks") == {"b,UNASSIGNED,": 1, **NO_TASKS}
    assert await samples(node, "sluice_connect_records_in_total") == {"+other,": 0}


async def test_tasks_of_a_worker_that_is_silent_have_none(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await connector(node, "a")
    await beat(node, "w", task("a", records_in=5))
    assert (await samples(node, "sluice_connect_tasks"))["a,RUNNING,0"] == 1
    monkeypatch.setattr(connect_metrics, "GONE_MS", -1_000)
    assert await samples(node, "sluice_connect_tasks") == {"a,UNASSIGNED,0": 1, **NO_TASKS}
    assert (await samples(node, "sluice_connect_records_in_total"))["a,0"] == 5
    assert (await samples(node, "sluice_connect_heartbeat_seconds"))["a,0"] >= 0


async def test_tasks_beyond_the_limit_are_one_sum(make_node: MakeNode) -> None:
    node = await make_node(http__metrics_tasks=1)
    await connector(node, "a")
    await beat(node, "w", task("a", records_in=100))
    assert await samples(node, "sluice_connect_records_in_total") == {"a,0": 100, "+other,": 0}
    for name in "bc":
        await connector(node, name)
    await beat(node, "w", task("a", records_in=101), task("b", records_in=5), task("c", state="FAILED", records_in=7))
    assert await samples(node, "sluice_connect_records_in_total") == {"a,0": 101, "+other,": 12}
    assert await samples(node, "sluice_connect_tasks") == {
        "a,RUNNING,0": 1,
        **NO_TASKS,
        "+other,RUNNING,": 1,
        "+other,FAILED,": 1,
    }
    # Another worker takes one of them, and counts from 0 again: the sum never falls.
    await beat(node, "w", task("a", records_in=101), task("b", records_in=2), task("c", records_in=8))
    assert await samples(node, "sluice_connect_records_in_total") == {"a,0": 101, "+other,": 12 + 2 + 1}


async def test_a_task_that_failed_gets_a_place(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.shown._HOLD_S", 0)
    node = await make_node(http__metrics_tasks=1)
    for name in "ab":
        await connector(node, name)
    await beat(node, "w", task("a", records_in=10), task("b"))
    await samples(node, "sluice_connect_tasks")
    await beat(node, "w", task("a", records_in=10_000), task("b", state="FAILED"))
    assert (await samples(node, "sluice_connect_tasks"))["b,FAILED,0"] == 1


async def test_entries_that_others_wrote_do_no_harm(node: Node) -> None:
    await connector(node, "a")
    await connector(node, "+other")
    await put(node, "connector/x", {"config": 5, "state": []})
    await put(node, "worker/v", [5])
    wrong = ({"connector": 5}, task("a", -1), task("a", 1, "DANCES"), task("no"), 5, task("a", 10**9), task("+other"))
    await beat(node, "w", *wrong, task("a", records_in=-5, records_out="x", bytes=1 << 70, retried=3))
    assert await samples(node, "sluice_connect_tasks") == {"a,RUNNING,0": 1, "x,UNASSIGNED,": 1, **NO_TASKS}
    assert (await samples(node, "sluice_connect_retries_total"))["a,0"] == 3
    assert (await samples(node, "sluice_connect_records_in_total"))["a,0"] == 0


async def test_entries_that_are_deep_or_long_do_no_harm(node: Node) -> None:
    deep = b"[" * 1_000 + b"]" * 1_000
    entry = b'{"config": {"topics": %s}, "state": %s, "by": %s, "restarts": {"0": %s}}'
    await put(node, "connector/a", entry.replace(b"%s", deep))
    await put(node, "connector/b", {"config": {"topics": "x" * 70_000 + ",a\0b,+/a,#,,"}})
    assert await samples(node, "sluice_connect_tasks") == {"a,UNASSIGNED,": 1, "b,UNASSIGNED,": 1, **NO_TASKS}


async def test_a_heartbeat_is_parsed_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def said_of(entry: BucketEntry) -> dict[str, Any]:
        parsed.append(entry.key)
        return connectors.said_of(entry)

    monkeypatch.setattr(connect_metrics, "said_of", said_of)
    await connector(node, "a")
    for worker in ("w1", "w2"):
        await beat(node, worker, task("a"))
    for _ in range(3):
        await samples(node, "sluice_connect_tasks")
    await beat(node, "w2", task("a"))
    await samples(node, "sluice_connect_tasks")
    assert parsed == [b"worker/w1", b"worker/w2", b"worker/w2"]
