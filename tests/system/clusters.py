"""Clusters of whole nodes as processes, over a folder that all of them share."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloud_sdk import PartitionBounds
from sluice.demo.ports import lasting_ports
from tests.system.conftest import NodeProcess
from tests.waiting import PATIENCE_S, block_until

LEADER_TIMEOUT_S = 1


class ClusterNode(NodeProcess):
    """One node of a cluster: a supervisor, a store and a gateway."""

    def __init__(self, data_dir: Path, log: str, settings: str, store_port: int = 0) -> None:
        """settings: TOML behind those of [cluster]. store_port: where gateways reach it; 0: any."""
        super().__init__(data_dir)
        self.name = data_dir.name
        self.store_port = store_port or lasting_ports(1)[0]
        config = data_dir.parent / f"{self.name}.toml"
        config.write_text(
            f"[cluster]\nname = '{self.name}'\nlog = '{log}'\nlisten = '127.0.0.1:{self.store_port}'\n"
            f"leader_timeout_s = {LEADER_TIMEOUT_S}\npoll_ms = 20\n{settings}"
            f"\n[grpc]\nadvertise = '{self.endpoint}'\n"
        )
        self.flags = ("--config", str(config))

    def processes(self) -> dict[str, int]:
        """The processes that run and have been ready, by kind: "store", "g1"."""
        ready = re.findall(r"(\w+) is ready, process (\d+)", self.log_path.read_text(errors="replace"))
        running = self._children()
        return {name: int(pid) for name, pid in ready if int(pid) in running}

    def signal_process(self, kind: str, number: signal.Signals) -> bool:
        """False: that process does not run, or has not been ready."""
        pid = self.processes().get(kind)
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def signal_store(self, number: signal.Signals) -> None:
        assert self.signal_process("store", number)

    def signal_all(self, number: signal.Signals) -> None:
        """To the supervisor and all its processes."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts nothing meanwhile
        for pid in self._children():
            os.kill(pid, number)
        self.process.send_signal(number)

    def kill_all(self) -> None:
        """The machine of this node is gone."""
        self.signal_all(signal.SIGKILL)
        self._wait()

    def _children(self) -> list[int]:
        """The supervisor's processes, also those that have ended and that it does not know of yet."""
        assert self.process is not None
        return list(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))

    def get(self, path: str, timeout: float = PATIENCE_S) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=timeout) as answer:
            return str(answer.read().decode())

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`sluice` with these arguments."""
        command = [sys.executable, "-m", "sluice", *arguments, "--data-dir", str(self.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def command_output(self, *arguments: str) -> str:
        ran = self.run_command(*arguments)
        assert not ran.returncode, ran.stderr
        return ran.stdout

    def status(self, *flags: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command_output("cluster", "status", "--json", *flags))
        return found

    def health(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """What `/health` says, whatever the status."""
        try:
            found: dict[str, Any] = json.loads(self.get("/health", timeout))
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        except OSError:  # the store's process starts again
            found = {"leader": None, "position": -1}
        return found


class Cluster:
    """Nodes over one log."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.nodes = nodes

    @classmethod
    def of_three(cls, folder: Path, log: str = "", settings: str = "") -> "Cluster":
        """n1, n2 and n3 over a log in a folder, or at `log`. settings: TOML behind those of [cluster]."""
        url = log or f"file://{folder}/shared"
        return cls([ClusterNode(folder / f"n{number}", url, settings) for number in (1, 2, 3)])

    def start(self) -> None:
        """Start all nodes at once."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(ClusterNode.start, self.nodes))

    def stop(self) -> None:
        """Stop the nodes that run."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(ClusterNode.stop, [node for node in self.nodes if node.process is not None]))

    def leader(self, *, but: ClusterNode | None = None) -> ClusterNode:
        """The node that leads, as all others say. `but`: another one than this, which need not know."""
        others = [node for node in self.nodes if node is not but and node.process is not None]
        found: list[object] = []

        def agree() -> bool:
            found[:] = [node.health()["leader"] for node in others]
            return len(set(found)) == 1 and found[0] not in {None, but.name if but is not None else ""}

        block_until(agree)
        return next(node for node in self.nodes if node.name == found[0])

    def digests(self) -> dict[str, str]:
        """Of the views of all nodes at one position, when they agree who leads and have the log up to now."""
        self.leader()
        end = max(node.health()["position"] for node in self.nodes)
        block_until(lambda: all(node.health()["position"] >= end for node in self.nodes))
        position = min(node.health()["position"] for node in self.nodes)
        return {node.name: node.status("--position", str(position))["digest"] for node in self.nodes}


def rows_of_tasks(endpoint: str, parent: str, planned: Sequence[PartitionBounds]) -> dict[int, list[Any]]:
    """What tasks of Spark get of each partition, all columns. Skips the test without PySpark."""
    pytest.importorskip("pyspark")
    from streaming.source.columns import SCHEMA, checked
    from streaming.source.options import SourceOptions
    from streaming.source.planning import LogRange
    from streaming.source.reading import read_piece

    options = SourceOptions.parse({"endpoint": endpoint, "parent": parent, "pagebytes": "65536"})
    rows: dict[int, list[Any]] = {}
    for each in planned:
        piece = LogRange(parent, each.partition, each.begin, each.end)
        rows[each.partition] = [row for page in read_piece(options, checked(SCHEMA), piece) for row in page.to_pylist()]
        assert len(rows[each.partition]) == each.end - each.begin
    return rows
