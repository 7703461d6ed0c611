"""The node as a process of its own, which the demo starts, kills and starts again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.demo.ports import lasting_ports
from sluice.demo.process import ChildProcess, DemoError

_READY_SECONDS: Final = 180  # on a busy machine
_SEGMENT_SIZE: Final = 4 << 20  # bytes; small, so that a run of the demo fills several segments
_FRONTS: Final = ("mqtt", "ws", "grpc", "http")


@dataclass(slots=True, frozen=True)
class NodePorts:
    """Where the node listens on loopback."""

    mqtt: int
    ws: int
    grpc: int
    http: int


class NodeProcess:
    """`sluice serve` with one data folder, and with the same ports after every start."""

    def __init__(
        self,
        data_dir: Path,
        log: Path,
        name: str = "the node",
        flags: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """settings: variables of the environment with settings of the node."""
        self.data_dir = data_dir
        self.name = name
        self.ports = NodePorts(*lasting_ports(len(_FRONTS)))
        self._child = ChildProcess(name, log)
        self._flags = flags
        self._settings = settings or {}

    async def start(self) -> float:
        """Start the node. Return the seconds until it was ready."""
        began = time.monotonic()
        flags = [f"--{front}-port={getattr(self.ports, front)}" for front in _FRONTS]
        arguments = ["serve", "--data-dir", str(self.data_dir), "--log-level=warning", *flags, *self._flags]
        await self._child.start("sluice", arguments, SLUICE_STORE_SEGMENT_SIZE=str(_SEGMENT_SIZE), **self._settings)
        self.ports = _parse_ready(await self._child.line(_READY_SECONDS))
        return time.monotonic() - began

    async def kill(self) -> None:
        """Kill the node with SIGKILL, without a DISCONNECT or a flush."""
        await self._child.kill()

    async def stop(self) -> int:
        """Stop the node with SIGTERM. Return the exit code, 0 after a clean stop."""
        return await self._child.stop()

    async def ensure_stopped(self) -> None:
        """Stop the node if it runs."""
        if self._child.running:
            await self.stop()

    def tail(self) -> str:
        """Return the end of the log output of the node."""
        return self._child.tail()

    def disk_bytes(self) -> int:
        """Return the bytes that the log and the views occupy on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self.data_dir.rglob("*") if path.is_file())


def _parse_ready(line: str) -> NodePorts:
    """Parse `ready mqtt=127.0.0.1:1883 ws=… grpc=… http=…`."""
    word, *fields = line.split()
    if word != "ready":
        raise DemoError(f"the node printed {line.strip()!r} instead of its ready line")
    found = dict(field.split("=", 1) for field in fields)
    try:
        return NodePorts(**{front: int(found[front].rpartition(":")[2]) for front in _FRONTS})
    except (KeyError, ValueError):
        raise DemoError(f"the node's ready line lacks a port: {line.strip()!r}") from None
