"""TLS, WebSocket, wills and properties of `sluice pub` and `sluice sub`, against a node."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.authority import Authority
from tests.sluice.test_pub_sub import SLUICE, sluice
from tests.system.secure import SecureNode, secure_node

TRANSPORTS = ["mqtt", "mqtts", "ws", "wss"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("secure")) as running:
        yield running


def broker(node: SecureNode, transport: str) -> list[str]:
    """The options that name a listener of the node."""
    trust = ["--cafile", str(node.ca)] if transport in ("mqtts", "wss") else []
    return ["--url", node.url(transport), *trust]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_session_acknowledges_what_it_printed(node: SecureNode, transport: str, protocol: str) -> None:
    where, topic = [*broker(node, transport), "-V", protocol], f"sessions/{transport}/{protocol}"
    session = ["sub", *where, "-t", topic, "--qos", "1", "--id", f"{transport}-{protocol}", "--session", "600"]
    session += ["--payload-only"]
    assert sluice(*session, "--timeout", "5", "--count", "1", stdin=b"").returncode == 124
    sent = sluice("pub", *where, "-t", topic, "--qos", "1", stdin=b"one\ntwo\nthree\nfour\n")
    assert sent.returncode == 0, sent.stderr
    assert sluice(*session, "--count", "3", "--timeout", "30").stdout == b"one\ntwo\nthree\n"
    assert sluice(*session, "--count", "1", "--timeout", "30").stdout == b"four\n"


def test_cafile_alone_uses_tls(node: SecureNode) -> None:
    where = ["--host", "localhost", "--port", str(node.port("mqtts"))]
    message = ["-t", "tls", "-m", "x", "--qos", "1"]
    assert sluice("pub", *where, "--cafile", str(node.ca), *message).returncode == 0
    refused = sluice("pub", "--url", node.url("mqtts"), *message)
    assert refused.returncode == 1
    assert b"certificate verify failed" in refused.stderr


def test_a_client_certificate_is_sent_with_its_key(node: SecureNode, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "authority").issue("device", "device", "DNS:device")
    files = ["--cert", str(certificate), "--key", str(key)]
    sent = sluice("pub", *broker(node, "mqtts"), *files, "-t", "tls", "-m", "x", "--qos", "1")
    assert sent.returncode == 0, sent.stderr


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_client_leaves_its_will(node: SecureNode, transport: str) -> None:
    where, topic = broker(node, transport), f"wills/{transport}"
    assert sluice("pub", *where, "-t", f"ready/{transport}", "-m", "ready", "-r", "--qos", "1").returncode == 0
    will = ["--will-topic", topic, "--will-payload", "gone", "--will-qos", "1", "--will-retain"]
    will += ["-V", "5", "-D", "will", "user-property", "site", "north"]
    words = ["sub", *where, "-t", f"ready/{transport}", "--payload-only", *will]
    watching = ["sub", *where, "-V", "5", "-t", topic, "--count", "1", "--timeout", "30", "--json"]
    with subprocess.Popen([*SLUICE, *words], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        with subprocess.Popen([*SLUICE, *watching], stdout=subprocess.PIPE) as watcher:
            client.kill()
            assert watcher.stdout is not None
            received = json.loads(watcher.stdout.readline())
    assert (received["payload"], received["topic"]) == ("gone", topic)
    assert received["properties"]["UserProperty"] == [["site", "north"]]


def test_properties_arrive(node: SecureNode) -> None:
    where = [*broker(node, "mqtt"), "-V", "5", "-t", "properties"]
    given = ["-D", "publish", "user-property", "key", "order-17", "-D", "publish", "user-property", "site", "north"]
    given += ["-D", "publish", "content-type", "text/plain", "-D", "publish", "message-expiry-interval", "1000"]
    given += ["-D", "connect", "user-property", "by", "test", "-D", "publish", "correlation-data", "17"]
    sent = sluice("pub", *where, *given, "-m", "x", "-r", "--qos", "1")
    assert sent.returncode == 0, sent.stderr
    subscribe = ["-D", "subscribe", "subscription-identifier", "7"]
    received = json.loads(sluice("sub", *where, *subscribe, "--count", "1", "--timeout", "30", "--json").stdout)
    assert received["properties"]["UserProperty"] == [["key", "order-17"], ["site", "north"]]
    assert received["properties"]["ContentType"] == "text/plain"
    assert received["properties"]["SubscriptionIdentifier"] == [7]
    assert received["properties"]["CorrelationData"] == "3137"
    assert 0 < received["properties"]["MessageExpiryInterval"] <= 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cert", "x.pem"], b"--cert and --key must be given together"),
        (["--cafile", "/nowhere"], b"cannot use the files of --cafile"),
        (["--url", "http://localhost"], b"is not mqtt, mqtts, ws or wss://"),
        (["--url", "mqtt://a:b@localhost"], b"is not mqtt, mqtts, ws or wss://"),
        (["--url", "mqtt://localhost:99999"], b"Port out of range"),
        (["--url", "ws://localhost", "--cafile", "x"], b"need a URL with mqtts or wss"),
        (["--will-qos", "1"], b"need --will-topic"),
        (["--will-topic", ""], b"the will is invalid"),
        (["-D", "publish", "user-property", "a", "b"], b"--property needs --protocol 5"),
        (["-V", "5", "-D", "publish", "user-property", "a"], b"is not a property with its value"),
        (["-V", "5", "-D", "publish", "content-type"], b"is not a property with its value"),
        (["-V", "5", "-D", "publish", "colour", "red"], b"is not a property with its value"),
        (["-V", "5", "-D", "publish", "message-expiry-interval", "soon"], b"is not a property with its value"),
        (["-V", "5", "-D", "deliver", "content-type", "x"], b"'deliver' is not one of"),
        (["-V", "5", "-D", "will", "content-type", "x"], b"--property will needs --will-topic"),
        (["-V", "5", "-D", "connect", "session-expiry-interval", "60"], b"use --session of sluice sub"),
    ],
)
def test_options_that_cannot_be_used_are_2(words: list[str], message: bytes) -> None:
    ended = sluice("pub", "-t", "t", "-m", "x", *words)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert message in ended.stderr
    assert b"Traceback" not in ended.stderr
