"""Whole nodes as processes of their own: started on free ports, killed and started again, never left behind."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.demo.ports import lasting_ports
from tests.waiting import PATIENCE_S

READY_SECONDS = 120.0  # a machine that is busy with much else keeps it waiting


class NodeProcess:
    """`sluice serve` as a process. The ports stay the same over restarts."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self.flags = flags
        self.mqtt_port, self.ws_port, self.grpc_port, self.http_port = lasting_ports(4)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "sluice", "serve", "--data-dir", str(self.data_dir)),
            *("--mqtt-port", str(self.mqtt_port), "--ws-port", str(self.ws_port)),
            *("--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port), *self.flags),
        ]

    def start(self) -> str:
        """Start and wait for the ready line, which is returned."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        assert self.process is None
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_until_ready(self) -> str:
        """Wait for the ready line, which is returned."""
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, left))
            assert readable, f"no ready line; the node wrote:\n{self.log()}"
            chunk = os.read(self.process.stdout.fileno(), 4096)
            assert chunk, f"the node ended before it was ready:\n{self.log()}"
            line += chunk
        return line.decode()

    def kill(self) -> None:
        """SIGKILL: no chance to write anything more."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-8000:]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Makes nodes that are gone when the test ends."""
    nodes: list[NodeProcess] = []

    def make(name: str = "node", *flags: str) -> NodeProcess:
        node = NodeProcess(tmp_path / name, *flags)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        if node.process is not None:
            node.kill()


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A running node."""
    started = make_node()
    started.start()
    return started
