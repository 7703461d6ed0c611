"""Clusters of whole nodes as processes, over a folder that all of them share."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sluice.demo.ports import lasting_ports
from tests.system.conftest import NodeProcess
from tests.waiting import PATIENCE_S, block_until

LEADER_TIMEOUT_S = 1


class ClusterNode(NodeProcess):
    """One node of a cluster: a supervisor, a store and a gateway."""

    def __init__(self, data_dir: Path, log: str, settings: str) -> None:
        """settings: TOML behind those of [cluster]."""
        super().__init__(data_dir)
        self.name = data_dir.name
        (self.store_port,) = lasting_ports(1)
        config = data_dir.parent / f"{self.name}.toml"
        config.write_text(
            f"[cluster]\nname = '{self.name}'\nlog = '{log}'\nlisten = '127.0.0.1:{self.store_port}'\n"
            f"leader_timeout_s = {LEADER_TIMEOUT_S}\npoll_ms = 20\n{settings}"
            f"\n[grpc]\nadvertise = '{self.endpoint}'\n"
        )
        self.flags = ("--config", str(config))

    def processes(self) -> dict[str, int]:
        """The newest process of each kind that the log names: "store", "g1", …"""
        return {name: int(pid) for name, pid in re.findall(r"(\w+) is ready, process (\d+)", self.log())}

    def signal_store(self, number: signal.Signals) -> None:
        os.kill(self.processes()["store"], number)

    def signal_all(self, number: signal.Signals) -> None:
        """To the supervisor and all its processes."""
        assert self.process is not None
        for pid in (self.process.pid, *self.processes().values()):
            os.kill(pid, number)

    def kill_all(self) -> None:
        """The machine of this node is gone."""
        self.signal_all(signal.SIGKILL)
        self._wait()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def command_output(self, *arguments: str) -> str:
        """Of `sluice` with these arguments."""
        command = [sys.executable, "-m", "sluice", *arguments, "--data-dir", str(self.data_dir)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert not ran.returncode, ran.stderr
        return ran.stdout

    def status(self, *flags: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command_output("cluster", "status", "--json", *flags))
        return found

    def health(self) -> dict[str, Any]:
        """What `/health` says, whatever the status."""
        try:
            found: dict[str, Any] = json.loads(self.get("/health"))
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        except OSError:  # the store's process starts again
            found = {"leader": None, "position": -1}
        return found


class Cluster:
    """Three nodes, n1, n2 and n3, over one log: in a folder, or at `log`. settings: TOML behind those of [cluster]."""

    def __init__(self, folder: Path, log: str = "", settings: str = "") -> None:
        url = log or f"file://{folder}/shared"
        self.nodes = [ClusterNode(folder / f"n{number}", url, settings) for number in (1, 2, 3)]

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
