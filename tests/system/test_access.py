"""Users and rules as people meet them: the commands, mosquitto's and paho's clients, and nodes that are killed."""

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.gateway.authority import Authority
from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import PATIENCE_S


def sluice(data: Path, *words: str, given: str = "") -> str:
    command = [sys.executable, "-m", "sluice", *words, "--data-dir", str(data)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


@pytest.fixture
def guarded(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A node that asks who comes, with a user and rules."""
    node = make_node("guarded", "--auth", "password", "--auth", "scram")
    node.start()
    sluice(node.data_dir, "user", "add", "alice", given="wonderland\n")
    sluice(node.data_dir, "acl", "set", "--user", "alice", "allow both home/%u/#")
    sluice(node.data_dir, "acl", "set", "--everybody", "allow subscribe news/#")
    return node


def publish(node: NodeProcess, topic: str, password: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(program("mosquitto_pub"), "-p", str(node.mqtt_port), "-u", "alice", "-P", password),
            *("-t", topic, "-m", "x", "-q", "1", *flags),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_mosquitto_pub_with_a_user_name_and_a_password(guarded: NodeProcess) -> None:
    assert publish(guarded, "home/alice/x", "wonderland").returncode == 0
    assert publish(guarded, "home/alice/x", "wonderland", "-V", "5").returncode == 0
    wrong = publish(guarded, "home/alice/x", "guess")
    assert wrong.returncode == 4
    assert "bad user name or password" in wrong.stderr
    wrong = publish(guarded, "home/alice/x", "guess", "-V", "5")
    assert wrong.returncode != 0
    denied = publish(guarded, "home/bob/x", "wonderland", "-V", "5")
    assert "Not authorized" in denied.stderr + denied.stdout


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho_with_a_user_name_and_a_password(guarded: NodeProcess, version: MQTTProtocolVersion) -> None:
    """A user's permitted and forbidden subscriptions; then the user is removed."""
    told: list[object] = []
    client = Client(CallbackAPIVersion.VERSION2, "c", protocol=version)
    client.username_pw_set("alice", "wonderland")
    client.on_connect = lambda _c, _u, _f, reason, _p: told.append(str(reason))
    client.on_subscribe = lambda _c, _u, _m, reasons, _p: told.append([reason.value for reason in reasons])
    client.on_disconnect = lambda _c, _u, _f, reason, _p: told.append(reason.is_failure)
    client.connect("127.0.0.1", guarded.mqtt_port)

    def wait(count: int) -> None:
        while len(told) < count:
            client.loop(1)

    wait(1)
    client.subscribe([("home/alice/#", 1), ("home/#", 1), ("news/today", 0)])
    wait(2)
    assert told == ["Success", [1, 0x87 if version == MQTTProtocolVersion.MQTTv5 else 0x80, 0]]
    sluice(guarded.data_dir, "user", "remove", "alice")
    wait(3)
    assert told[2] is True
    assert publish(guarded, "home/alice/x", "wonderland").returncode == 4


def test_users_and_rules_survive_kills_and_changes_made_while_the_node_is_down(guarded: NodeProcess) -> None:
    for number in range(3):
        sluice(guarded.data_dir, "user", "add", f"user{number}", given="x\n")
        guarded.kill()
        guarded.start()
        names = sluice(guarded.data_dir, "user", "list").split()
        assert names == ["alice", *(f"user{n}" for n in range(number + 1))]
        assert publish(guarded, "home/alice/x", "wonderland").returncode == 0
    guarded.stop()
    sluice(guarded.data_dir, "user", "passwd", "alice", given="looking glass\n")
    sluice(guarded.data_dir, "acl", "set", "--user", "alice", "allow publish glass")
    guarded.start()
    assert publish(guarded, "glass", "wonderland").returncode == 4
    assert publish(guarded, "glass", "looking glass", "-V", "5").returncode == 0
    assert "Not authorized" in publish(guarded, "home/alice/x", "looking glass", "-V", "5").stderr


@pytest.fixture
def secured(
    make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[NodeProcess, Path]:
    """A running node whose gRPC port speaks TLS and asks who comes, and the authority of its certificate."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
    monkeypatch.setenv("SLUICE_GRPC_CERTIFICATE", str(certificate))
    monkeypatch.setenv("SLUICE_GRPC_KEY", str(key))
    monkeypatch.setenv("SLUICE_GRPC_AUTH", '["password"]')
    node = make_node()
    node.start()
    return node, authority.file


def test_failed_tls_handshakes_do_not_flood_the_log(secured: tuple[NodeProcess, Path]) -> None:
    node, authority = secured
    for _ in range(3):
        with suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", node.grpc_port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
        context = ssl.create_default_context(cafile=str(authority))
        with suppress(OSError), socket.create_connection(("127.0.0.1", node.grpc_port)) as stranger:
            context.wrap_socket(stranger, server_hostname="of.nobody")
    assert node.stop() == 0
    assert [line for line in node.log().splitlines() if "stopping" not in line] == []


def test_errors_of_certificates_passwords_and_rights_are_one_line(
    secured: tuple[NodeProcess, Path], tmp_path: Path
) -> None:
    node, authority = secured
    sluice(node.data_dir, "user", "add", "alice", given="wonderland\n")

    def said(*words: str, password: str = "wonderland") -> str:
        command = [sys.executable, "-m", "sluice", "topics", "--port", str(node.grpc_port)]
        environment = {**os.environ, "MQTT_PASSWORD": password}
        command += ["--username", "alice", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    trusted = ("--ca-file", str(authority))
    assert said(*trusted) == "sluice topics: # may not be listed, and this call requires it\n"
    assert said(*trusted, password="guess") == "sluice topics: wrong user name or password\n"
    untrusted = "sluice topics: the certificate of the node is not trusted: "
    other = Authority(tmp_path / "other").file
    assert said("--ca-file", str(other)) == f"{untrusted}unable to get local issuer certificate\n"
    assert said(*trusted, "--server-name", "x.example") == f"{untrusted}it is for another name\n"
    assert said("--ca-file", "nothing.pem") == "sluice topics: cannot read nothing.pem: No such file or directory\n"


def test_a_user_asks_for_access_with_the_command(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    settings = tmp_path / "sluice.toml"
    settings.write_text('[http]\nauth = ["password"]\n')
    node = make_node("asked", "--config", str(settings))
    node.start()
    sluice(node.data_dir, "user", "add", "alice", given="wonderland\n")

    def asks(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sluice", "acl", *words, "--host", f"http://127.0.0.1:{node.http_port}"]
        environment = os.environ | {"MQTT_PASSWORD": "wonderland"}
        return subprocess.run(
            [*command, "--username", "alice"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    asked = asks("request", "subscribe", "home/#", "--reason", "a report", "--json")
    number = str(json.loads(asked.stdout)["number"])
    assert "allow subscribe home/#: a report (open until" in asks("requests").stdout
    assert asks("approve", number).returncode == 1
    local = subprocess.run(
        [sys.executable, "-m", "sluice", "acl", "request", "SUB", "topic:x", "--data-dir", str(node.data_dir)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert local.returncode == 1
    assert "log in with a name" in local.stderr
    assert f"{number} of alice" in sluice(node.data_dir, "acl", "approve", number, "--why", "fine")
    assert sluice(node.data_dir, "acl", "requests") == ""
    assert ": fine)" in sluice(node.data_dir, "acl", "requests", "--decided")
    assert sluice(node.data_dir, "acl", "check", "--user", "alice", "subscribe", "home/x").startswith("allowed")
