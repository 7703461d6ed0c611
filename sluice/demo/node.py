"""The node, as a process of its own: started, killed in the middle of its work, started again."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.demo.ports import lasting_ports
from sluice.demo.process import Child, DemoError

_READY_SECONDS: Final = 30
_SEGMENT_SIZE: Final = 4 << 20  # bytes: small, so that a run of the demo fills several
_FRONTS: Final = ("mqtt", "ws", "grpc", "http")


@dataclass(slots=True, frozen=True)
class Ports:
    """Where the node listens on loopback."""

    mqtt: int
    ws: int
    grpc: int
    http: int


class NodeProcess:
    """`sluice serve` over one data folder and, however often it is started, on the same ports."""

    def __init__(self, data_dir: Path, log: Path) -> None:
        self.data_dir = data_dir
        self.ports = Ports(*lasting_ports(len(_FRONTS)))
        self._child = Child("the node", log)

    async def start(self) -> float:
        """Start, or start again. Returns how many seconds it took until it was ready."""
        began = time.monotonic()
        flags = [f"--{front}-port={getattr(self.ports, front)}" for front in _FRONTS]
        arguments = ["serve", "--data-dir", str(self.data_dir), "--log-level=warning", *flags]
        await self._child.start("sluice", arguments, SLUICE_STORE_SEGMENT_SIZE=str(_SEGMENT_SIZE))
        self.ports = _parse_ready(await self._child.line(_READY_SECONDS))
        return time.monotonic() - began

    async def kill(self) -> None:
        """`kill -9`: no goodbye, no flush."""
        await self._child.kill()

    async def stop(self) -> int:
        """SIGTERM. Returns the exit code: 0 when it stopped cleanly."""
        return await self._child.stop()

    async def leave(self) -> None:
        """Whatever state it is in, afterwards it does not run."""
        if self._child.running:
            await self.stop()

    def tail(self) -> str:
        """The end of its log."""
        return self._child.tail()

    def disk_bytes(self) -> int:
        """What log and views occupy on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self.data_dir.rglob("*") if path.is_file())


def _parse_ready(line: str) -> Ports:
    """From `ready mqtt=127.0.0.1:1883 ws=… grpc=… http=…`."""
    word, *fields = line.split()
    if word != "ready":
        raise DemoError(f"the node said {line.strip()!r} instead of being ready")
    found = dict(field.split("=", 1) for field in fields)
    try:
        return Ports(**{front: int(found[front].rpartition(":")[2]) for front in _FRONTS})
    except (KeyError, ValueError):
        raise DemoError(f"the node's ready line lacks a port: {line.strip()!r}") from None
