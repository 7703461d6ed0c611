"""`sluice pub` and `sluice sub` against brokers that are not ours."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.brokers import Broker, BrokerUnavailable, free_port
from benchmarks.comparison import peers

SLUICE = [sys.executable, "-m", "sluice"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        running = peers.start("mosquitto", tmp_path_factory.mktemp("mosquitto"))
    except BrokerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield running
    running.stop()


def sluice(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*SLUICE, *words], input=stdin, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_retained_message_goes_through(broker: Broker, protocol: str, qos: str) -> None:
    common = ["--port", str(broker.port), "-V", protocol, "--qos", qos, "--topic", f"house/{protocol}/{qos}"]
    sent = sluice("pub", *common, "--message", "21.5", "--retain", "--json")
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout) | {"seconds": 0} == {"sent": 1, "acknowledged": 1, "seconds": 0}
    got = sluice("sub", *common, "--count", "1", "--timeout", "30", "--json")
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout)
    assert (told["payload"], told["qos"], told["retain"]) == ("21.5", int(qos), True)


class Panel:
    """A durable session `name` that subscribes to `name/#`; leaves before the constructor returns."""

    def __init__(self, broker: Broker, name: str, protocol: str = "3.1.1") -> None:
        self.words = ["sub", "--port", str(broker.port), "-V", protocol, "--qos", "1", "--session", "600", "--id", name]
        self.words += ["--timeout", "30", "--payload-only", "--topic", f"{name}/#"]
        # A retained value of another topic comes when the subscription stands.
        retained = ["--topic", f"ready/{name}", "--message", "ready", "--retain", "--qos", "1"]
        assert sluice("pub", "--port", str(broker.port), *retained).returncode == 0
        assert sluice(*self.words, "--topic", f"ready/{name}", "--count", "1").stdout == b"ready\n"

    def receive(self, count: int) -> bytes:
        return sluice(*self.words, "--count", str(count)).stdout


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_lines_reach_a_session_that_was_away(broker: Broker, protocol: str) -> None:
    panel = Panel(broker, f"away-{protocol}", protocol)
    publish = ["pub", "--port", str(broker.port), "-V", protocol, "--topic", f"away-{protocol}/x", "--qos", "1"]
    assert sluice(*publish, stdin=b"one\r\ntwo\n\xff\nfour\n").returncode == 0
    assert panel.receive(3) == b"one\ntwo\n\xff\n"
    assert panel.receive(1) == b"four\n", "what was shown is acknowledged, and nothing else"


def test_more_than_a_window_in_order(broker: Broker) -> None:
    panel = Panel(broker, "many")
    lines = b"".join(b"%d\n" % number for number in range(500))
    sent = sluice("pub", "--port", str(broker.port), "--topic", "many/x", "--qos", "1", "--json", stdin=lines)
    assert json.loads(sent.stdout)["acknowledged"] == 500
    assert panel.receive(500) == lines


def test_sub_ends_after_its_time_limit(broker: Broker) -> None:
    result = sluice("sub", "--port", str(broker.port), "--topic", "silence", "--timeout", "0.1")
    assert result.returncode == 124


def test_a_broker_that_is_not_there() -> None:
    for command in (["pub", "--message", "x"], ["sub"]):
        result = sluice(*command, "--topic", "t", "--port", str(free_port()))
        assert result.returncode == 1
        assert b"cannot reach" in result.stderr
        assert b"Traceback" not in result.stderr


def test_wildcards_cannot_be_published_to(broker: Broker) -> None:
    result = sluice("pub", "--topic", "a/#", "--message", "x", "--port", str(broker.port))
    assert result.returncode == 1
    assert b"wildcard" in result.stderr


def test_a_session_needs_an_id() -> None:
    assert sluice("sub", "--topic", "t", "--session", "60").returncode == 2


class Named:
    """A listener that notes what CONNECT says, and refuses it (3.1.1: return code 5)."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.connect = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        with client:
            self.connect = client.recv(1000)
            client.sendall(b"\x20\x02\x00\x05")
            client.recv(1)

    def close(self) -> None:
        self._thread.join()
        self._listening.close()


@pytest.mark.parametrize("way", ["file", "environment", "argument", "none"])
@pytest.mark.parametrize("command", ["pub", "sub"])
def test_sources_of_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, way: str) -> None:
    (tmp_path / "secret").write_text("from the file\nand more\n")
    words = {"file": ["--password-file", str(tmp_path / "secret")], "argument": ["--password", "from the argument"]}
    if way == "environment":
        monkeypatch.setenv("MQTT_PASSWORD", "from the environment")
    listener = Named()
    payload = ["--message", "x"] if command == "pub" else []
    given = ["--port", str(listener.port), "--topic", "t", *payload, "--username", "alice", *words.get(way, [])]
    assert sluice(command, *given).returncode == 1
    listener.close()
    password = b"" if way == "none" else b"from the " + way.encode()
    assert listener.connect.endswith(b"\0\5alice" + (len(password).to_bytes(2, "big") + password if password else b""))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--password", "x"), b"needs --username"),
        (("--password-file", "/nowhere"), b"needs --username"),
        (("--username", "a", "--password-file", "/nowhere"), b"cannot read the password from /nowhere"),
        (("--username", "a", "--password-file", "x", "--password", "y"), b"not allowed with"),
    ],
)
@pytest.mark.parametrize("command", ["pub", "sub"])
def test_a_password_without_a_name_or_a_source(command: str, words: tuple[str, ...], says: bytes) -> None:
    ended = sluice(command, "--topic", "t", "--port", str(free_port()), *words)
    assert ended.returncode == 2
    assert says in ended.stderr
