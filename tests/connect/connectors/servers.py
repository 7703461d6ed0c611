"""Servers of other systems that tests start, on the loopback interface."""

import socket
from collections.abc import Sequence
from pathlib import Path

from sluice.demo.engine_servers import Server
from sluice.demo.ports import lasting_ports
from tests.system.tools import program
from tests.waiting import block_until


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Mosquitto(Server):
    """A broker of Debian's mosquitto. While `saves`, it writes its state to disk after each change."""

    def __init__(self, folder: Path, lines: Sequence[str] = ("allow_anonymous true",), *, saves: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = lasting_ports(1)
        config = folder / "mosquitto.conf"
        text = [
            f"listener {self.port} 127.0.0.1",
            "user root",
            "max_queued_messages 100000",
            f"persistence_location {folder}/",
            *(("persistence true", "autosave_on_changes true", "autosave_interval 1") if saves else ()),
            *lines,
        ]
        config.write_text("\n".join([*text, ""]), encoding="utf-8")
        super().__init__("mosquitto", [program("mosquitto"), "-c", str(config)], folder)

    def start(self) -> None:
        super().start()
        block_until(lambda: listens(self.port))


class RedisServer(Server):
    """A server of Debian's redis-server, which writes each command to disk before it answers."""

    def __init__(self, folder: Path, *lines: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = lasting_ports(1)
        text = [f"port {self.port}", "bind 127.0.0.1", f"dir {folder}", "appendonly yes", "appendfsync always", *lines]
        config = folder / "redis.conf"
        config.write_text("\n".join([*text, ""]), encoding="utf-8")
        super().__init__("redis", [program("redis-server"), str(config)], folder)

    def start(self) -> None:
        super().start()
        block_until(lambda: listens(self.port))
