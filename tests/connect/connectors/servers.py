"""Servers of other systems that tests start, on the loopback interface."""

import json
import re
import socket
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sluice.demo.engine_servers import Server
from sluice.demo.ports import lasting_ports
from tests.system.tools import module, program
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


class InfluxDb(Server):
    """A server of Debian's influxdb, which is InfluxDB 1.6, with the database `plant`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, backup = lasting_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "influxdb.conf"
        text = [
            "reporting-disabled = true",
            f'bind-address = "127.0.0.1:{backup}"',
            *("[meta]", f'dir = "{folder}/meta"', "[data]", f'dir = "{folder}/data"', f'wal-dir = "{folder}/wal"'),
            *("[http]", f'bind-address = "127.0.0.1:{self.port}"', "log-enabled = false"),
        ]
        config.write_text("\n".join([*text, ""]), encoding="utf-8")
        super().__init__("influxdb", [program("influxd"), "-config", str(config)], folder)

    def start(self) -> None:
        super().start()
        block_until(lambda: listens(self.port))
        self.query("CREATE DATABASE plant")

    def query(self, text: str) -> Any:
        """The series of the first result."""
        body = urlencode({"q": text, "db": "plant", "epoch": "ns"}).encode()
        with urllib.request.urlopen(f"{self.url}/query", body, timeout=30) as answer:
            return json.load(answer)["results"][0].get("series", [])


class RabbitMqServers:
    """A server of Debian's rabbitmq-server, with the port mapper of Erlang that it needs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, mapper, distribution = lasting_ports(3)
        program("rabbitmq-server")  # a script that must be started as root or rabbitmq; this is what it starts:
        command = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        settings = {
            "HOME": folder,  # for the cookie
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "sluice@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": distribution,
            "RABBITMQ_MNESIA_BASE": folder / "data",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_ALLOW_INPUT": "yes",  # the script is replaced by the server
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }
        environment = [f"{name}={value}" for name, value in settings.items()]
        self._mapper = Server("epmd", ["epmd", "-port", str(mapper), "-address", "127.0.0.1"], folder)
        self._server = Server("rabbitmq", ["env", *environment, command], folder)

    def start(self) -> None:
        if not self._mapper.is_running:
            self._mapper.start()
        self._server.start()
        with suppress(TimeoutError):  # a machine that is busy with much else keeps it waiting
            block_until(lambda: listens(self.port))
        block_until(lambda: listens(self.port))

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> None:
        self._server.stop()
        self._mapper.stop()


class MockKafka(Server):
    """The mock cluster of librdkafka, one broker that speaks Kafka's protocol and keeps records in memory.

    No real broker can be had from Debian, PyPI or npm.
    """

    _PROGRAM = """
import signal
from confluent_kafka.admin import AdminClient
client = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
for broker in client.list_topics(timeout=60).brokers.values():
    print(f"listens on {broker.port};", flush=True)
signal.pause()
"""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        module("confluent_kafka")
        self._log = folder / "kafka.log"
        super().__init__("kafka", [sys.executable, "-c", self._PROGRAM], folder)

    def start(self) -> None:
        super().start()
        block_until(self._port)

    def _port(self) -> str | None:
        found = re.search(r"listens on (\d+);", self._log.read_text(encoding="utf-8"))
        return None if found is None else found[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port()}"
