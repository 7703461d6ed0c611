"""Signals to a whole node."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.authority import Authority
from tests.system.conftest import NodeProcess


@pytest.mark.slow
def test_sighup_reads_the_certificates_again(
    make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    file, key = tmp_path / "node.pem", tmp_path / "node.key"

    def put(name: str) -> None:
        for source, target in zip(authority.issue(name, name, "DNS:localhost"), (file, key), strict=True):
            shutil.copy(source, target)

    def shown() -> str:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            authority.client().wrap_socket(plain, server_hostname="localhost") as client,
        ):
            return dict(rdn[0] for rdn in client.getpeercert()["subject"])["commonName"]

    put("old")
    listener = {"name": "tls", "address": "127.0.0.1:0", "protocol": "mqtts"}
    certificates = [{"file": str(file), "key": str(key)}]
    monkeypatch.setenv("SLUICE_MQTT_LISTENERS", json.dumps([{**listener, "certificates": certificates}]))
    node = make_node()
    ready = dict(field.split("=") for field in node.start().split()[1:])
    port = int(ready["tls"].rpartition(":")[2])
    assert shown() == "old"
    put("new")
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGHUP)
    while shown() != "new":
        pass
    assert node.stop() == 0
