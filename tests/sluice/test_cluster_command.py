"""What `sluice cluster status` prints, `sluice cluster leave` and `sluice cluster found`."""

import asyncio
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.commands.node.cluster import clients_of, line_of_log, lines_of
from store.cluster.clustered_store import ClusteredStore, ClusteredStoreConfig
from store.engine import Engine
from tests.store.filled import SMALL, Filled
from tests.waiting import until

LEADER = {
    "node": "n1",
    "role": "leader",
    "leader": "n1",
    "leader_address": "10.0.0.1:7071",
    "epoch": 3,
    "slot": 9,
    "silence_s": 0.1,
    "position": 4096,
    "trouble": "",
    "unreached": "",
    "drained": False,
    "standby": "",
    "tier": None,
    "gateways": ["n1.g1", "n2.g1"],
    "clients": [
        {"node": "n1", "is_known": True, "devices": 3, "service_calls": 1},
        {"node": "n2", "is_known": False, "devices": 0, "service_calls": 0},
    ],
}


def test_a_leader_and_a_follower() -> None:
    assert lines_of(LEADER) == [
        "node n1 leads: epoch 3, slot 9 0.1 s ago, position 4096",
        "  gateways: n1.g1, n2.g1",
        "  clients of n1: 3 devices, 1 calls of cloud services",
        "  clients of n2: not known yet",
    ]
    answers = {"clients": [], "others": [{"node": "", "trouble": "no answer", "clients": []}, LEADER]}
    assert clients_of(answers, "n1") == LEADER["clients"][0]
    assert clients_of({"clients": [], "others": []}, "n1") is None
    follower = {**LEADER, "node": "n2", "role": "follower", "digest": "ab", "digest_at": 4096}
    follower |= {"drained": True, "trouble": "the node is drained"}
    assert lines_of(follower) == [
        "node n2 follows n1 at 10.0.0.1:7071: epoch 3, slot 9 0.1 s ago, position 4096",
        "  it is drained: its clients are sent to other nodes",
        "  digest of the views at position 4096: ab",
    ]
    assert lines_of({**follower, "trouble": ""})[1] == "  it is drained: it serves while no other node does"


def test_a_tier() -> None:
    tier = {"segments": 3, "local_begin": 3072, "waiting_bytes": 1024, "error": "refused"}
    assert lines_of({**LEADER, "tier": tier})[-2:] == [
        "  3 segments are in the tier, and files begin at 3072, 1024 bytes wait for it",
        "  the tier does not answer: refused",
    ]
    assert lines_of({**LEADER, "tier": {**tier, "waiting_bytes": 0, "error": ""}})[-1] == (
        "  3 segments are in the tier, and files begin at 3072"
    )


def test_what_is_the_matter() -> None:
    alone = {**LEADER, "role": "follower", "leader": "", "trouble": "no node leads"}
    assert lines_of(alone) == [
        "node n1 follows, and no node leads: epoch 3, slot 9 0.1 s ago, position 4096",
        "  no node leads",
    ]
    away = {**alone, "unreached": "timeout", "unreached_s": 4.5}
    assert lines_of(away)[-1] == "  the shared log does not answer since 4.5 s: timeout"
    assert lines_of({"node": "", "address": "a:1", "trouble": "the node at a:1 does not answer"}) == [
        "the node at a:1 does not answer"
    ]


def test_what_the_shared_log_has() -> None:
    assert line_of_log({"begin": 1, "snapshot": None}) == "the shared log begins with slot 1, and has no snapshot yet"
    snapshot = {
        "number": 4,
        "slot": 900,
        "position": 4096,
        "node": "n2",
        "time_ms": 1_700_000_000_123,
        "bytes": 5 << 20,
    }
    assert line_of_log({"begin": 700, "snapshot": snapshot}) == (
        "the shared log begins with slot 700; its newest snapshot is number 4 of node n2 at 2023-11-14T22:13:20Z: "
        "slot 900, position 4096, 5 MB"
    )


async def test_a_stopped_node_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "n1"
    store = await ClusteredStore.open(data, SMALL, ClusteredStoreConfig("n1", f"file://{tmp_path}/log", "n1:1"))
    running = asyncio.create_task(store.run())
    await until(lambda: store.engine is not None)
    running.cancel()
    await asyncio.wait([running])
    await store.close()
    assert await asyncio.to_thread(main, ["cluster", "leave", "--data-dir", str(data)]) == 0
    begun, then = capsys.readouterr().out.splitlines()
    assert begun.startswith(f"{data} is the folder of a single node: the log from 0 to ")
    assert then == "remove [cluster] from its configuration before you start it"
    await (await Engine.open(data, SMALL)).close()
    assert await asyncio.to_thread(main, ["cluster", "leave", "--data-dir", str(data)]) == 1
    assert "the folder of a single node already" in capsys.readouterr().err


async def test_a_stopped_single_node_founds_a_shared_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single = await Filled(tmp_path / "single").open()
    await single.fill(10)
    position = single.engine.stats().log_end
    await single.engine.close()
    log, file = f"file://{tmp_path}/log", tmp_path / "sluice.toml"
    words = ["cluster", "found", "--data-dir", str(single.path), "--config", str(file)]
    file.write_text("host = '127.0.0.1'\n")
    assert await asyncio.to_thread(main, words) == 1
    assert f"{file} has no [cluster]" in capsys.readouterr().err
    file.write_text(f"[cluster]\nlog = '{log}'\nname = 'n1'\nlisten = '127.0.0.1:7071'\n")
    assert await asyncio.to_thread(main, words) == 0
    assert capsys.readouterr().out.startswith(f"{log} is founded: the log from 0 to {position}, ")
    store = await ClusteredStore.open(tmp_path / "n1", SMALL, ClusteredStoreConfig("n1", log, "n1:1"))
    running = asyncio.create_task(store.run())
    await until(lambda: store.engine is not None)
    assert store.history.end >= position
    running.cancel()
    await asyncio.wait([running])
    await store.close()
    assert await asyncio.to_thread(main, words) == 1
    assert "the shared log has slots already" in capsys.readouterr().err
