"""`[connect] workers`: a node starts workers of connectors, and starts those again that end."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_sdk.blocking import Client
from tests.system.conftest import NodeProcess
from tests.waiting import PATIENCE_S, block_until

pytestmark = pytest.mark.slow


def workers(node: NodeProcess) -> list[int]:
    """The processes of workers, in their order."""
    return [int(pid) for pid in re.findall(r"connect\d+ is ready, process (\d+)", node.log())]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def metrics(node: NodeProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("flags", [(), ("--gateways", "1")], ids=["one process", "gateways"])
def test_workers_live_with_the_node(
    make_node: Callable[..., NodeProcess], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    config = tmp_path / "sluice.toml"
    config.write_text(f'[connect]\nworkers = 2\nname = "site"\nallowed_folders = ["{tmp_path}"]\n')
    node = make_node("node", "--config", str(config), *flags)
    node.start()
    block_until(lambda: "the worker cannot go on" in node.log())  # it has no rights yet
    rule = ("acl", "set", "--everybody", "allow PUB,SUB topic:$kv/connect/#", "--data-dir", str(node.data_dir))
    subprocess.run([sys.executable, "-m", "sluice", *rule], check=True)
    sink = {"connector.class": "file-sink", "topics": "home/#", "directory": str(out), "content": "value"}
    with Client(node.endpoint) as client:
        client.bucket("connect").put("connector/w", json.dumps({"config": sink}).encode())
        client.send("home/t", b"1")
        block_until(lambda: [path.read_text() for path in out.glob("*")] == ["1\n"])
        names = {each.key.partition("/")[2].rpartition("-")[0] for each in client.bucket("connect").entries("worker/")}
        assert names == {"site-1", "site-2"}
    block_until(lambda: 'sluice_connect_records_out_total{connector="w",task="0"} 1.0' in metrics(node))
    assert 'sluice_connect_tasks{connector="w",state="RUNNING",task="0"} 1.0' in metrics(node)
    assert 'sluice_connect_lag{connector="w"} 0.0' in metrics(node)
    first = workers(node)
    os.kill(first[-1], signal.SIGKILL)
    block_until(lambda: len(workers(node)) > len(first))
    assert node.stop() == 0
    assert not [pid for pid in workers(node) if is_there(pid)]
