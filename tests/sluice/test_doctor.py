"""`sluice doctor`: what each check finds, on machines and folders that have something wrong, and on a running node."""

import asyncio
import json
import os
import resource
import shutil
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.config import load
from gateway.node.node import Node
from sluice.cli import main
from sluice.doctor import addresses, certificates, folder, machine
from sluice.doctor.findings import Finding, State
from store.data_folder import RESTORING
from store.log.damaged_ranges import write_damaged
from store.log.disk import Disk
from store.log.ranges import Ranges
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.management.world import store_messages

__all__ = ["make_node"]  # the fixture


def states(findings: Iterable[Finding]) -> dict[str, State]:
    """The worst state of each check."""
    order = list(State)
    found: dict[str, State] = {}
    for each in findings:
        found[each.check] = max(each.state, found.get(each.check, State.OK), key=order.index)
        assert bool(each.advice) == (each.state is not State.OK), each
    return found


def checked(data: Path, is_running: bool = False, **settings: object) -> dict[str, State]:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return states(folder.check_folder(load(None, {"data_dir": data, **given}, {}), is_running))


class Doctor:
    """Runs the command, and reads what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
        assert main(["doctor", "--json", *words]) == code
        rows = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return {
            check: [row for row in rows if row["check"] == check] for check in dict.fromkeys(r["check"] for r in rows)
        }


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


async def test_a_running_node(make_node: MakeNode, doctor: Doctor) -> None:
    node: Node = await make_node()
    await store_messages(node, (b"home/a", b"x"))
    found = await asyncio.to_thread(doctor, "--data-dir", str(node.config.data_dir))
    assert found["node"][0]["text"] == f"process {os.getpid()} runs and takes messages"
    assert found["ports"][0]["text"] == "the node listens"
    assert found["data folder"][0]["text"].endswith("opened 1 times; a node runs on it")
    assert not [row for rows in found.values() for row in rows if row["state"] == "error"]
    await node.stop()
    found = await asyncio.to_thread(doctor, "--data-dir", str(node.config.data_dir))
    assert found["node"][0]["text"].startswith("no node runs on")
    assert "the newest record is of" in found["clock"][-1]["text"]


async def test_a_folder_that_is_damaged(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await make_node(store__segment_size=4 << 20)
    await store_messages(node, *[(b"home/a", b"x" * 1_000_000)] * 9)
    await node.stop()
    data = node.config.data_dir
    assert State.ERROR not in checked(data).values()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000 * 10**9)
    assert checked(data)["clock"] is State.WARNING  # the newest record is later than that
    write_damaged(data / "log", Ranges([(0, 64)]), Disk())
    assert checked(data)["damage"] is State.WARNING
    sorted((data / "log").glob("*.log"))[0].unlink()
    sorted((data / "log").glob("*.log"))[0].rename(data / "log" / "00000000000000000007.log")
    assert checked(data)["data folder"] is State.ERROR
    assert checked(data, is_running=True)["data folder"] is State.OK  # the node would say so itself
    (data / "store.json").write_text("{}")
    assert checked(data)["data folder"] is State.ERROR


def test_folders_without_a_log(tmp_path: Path) -> None:
    assert checked(tmp_path / "none") == {"data folder": State.OK}
    (tmp_path / "file").write_text("")
    assert checked(tmp_path / "file") == {"data folder": State.ERROR}
    (tmp_path / "data" / RESTORING).mkdir(parents=True)
    assert checked(tmp_path / "data")["data folder"] is State.ERROR
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data/log").mkdir(parents=True)
    assert checked(tmp_path / "data")["data folder"] is State.OK
    (tmp_path / "data/log/00000000000000000000.log").write_text("")
    assert checked(tmp_path / "data")["data folder"] is State.ERROR


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_kind_of_mount", lambda _: "ext4")
    assert checked(tmp_path, store__segment_size=4 << 20)["disk"] is State.OK
    assert checked(tmp_path, store__retention_free_bytes=1 << 60)["disk"] is State.WARNING
    monkeypatch.setattr(folder, "_SLOW_MS", -1.0)
    assert checked(tmp_path)["flush"] is State.WARNING
    free = os.statvfs_result((4096, 4096, 1000, 10, 10, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    assert checked(tmp_path)["disk"] is State.ERROR
    for kind, state in (("nfs4", State.WARNING), ("tmpfs", State.ERROR)):
        monkeypatch.setattr(folder, "_kind_of_mount", lambda _, kind=kind: kind)
        assert checked(tmp_path)["file system"] is state


def test_limits_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(None, {}, {})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(machine, "_machine_memory", lambda: 1 << 28)
    found = {each.check: each for each in machine.check_machine(config, 0)}
    assert "enough for 2560 of 100000 connections" in found["open files"].text
    assert found["memory"].state is State.WARNING
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    monkeypatch.setattr(machine, "_machine_memory", lambda: 1 << 34)
    found = {each.check: each for each in machine.check_machine(config, 0)}
    assert found["open files"].state is found["memory"].state is State.OK
    assert found.keys() == {"open files", "memory", "kernel", "clock"}


def test_the_limit_of_a_running_node_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    found = next(machine.check_machine(load(None, {"mqtt.max_connections": 1}, {}), os.getpid()))
    assert found.text.startswith(f"the node may open {soft}" if soft > 1024 else "the node may open")


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    file, key = authority.issue("node", "node", "DNS:localhost")

    def check(at: float, **names: str) -> dict[str, State]:
        monkeypatch.setattr(certificates.time, "time", lambda: at)
        settings = {f"http.{name}": value for name, value in names.items()}
        return states(certificates.check_certificates(load(None, settings, {})))

    now, day = time.time(), 86_400
    pair = {"certificate": str(file), "key": str(key), "client_ca": str(authority.file)}
    assert check(now) == {"certificates": State.OK}
    assert check(now - 100 * day, **pair) == {"certificates": State.OK}
    assert check(now, **pair) == {"certificates": State.WARNING}  # two days are left
    assert check(now + 3 * day, **pair) == {"certificates": State.ERROR}
    expired = list(
        certificates.check_certificates(load(None, {f"http.{name}": each for name, each in pair.items()}, {}))
    )
    assert f"http: {file} has expired: it was valid until " in expired[0].text
    assert check(now - 100 * day, **{**pair, "key": str(authority.key)}) == {"certificates": State.ERROR}
    assert check(now - 100 * day, **{**pair, "client_ca": str(key)}) == {"certificates": State.ERROR}
    assert check(now - 100 * day, **{**pair, "certificate": "/none"}) == {"certificates": State.ERROR}


def test_times_of_certificates_after_2049(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority._openssl(
        *("req", "-x509", "-key", str(authority.key), "-subj", "/CN=late", "-days", "12000"),
        *("-out", str(authority.file)),
    )
    (part,) = certificates._parts(authority.file)
    end = certificates.not_after(certificates.ssl.PEM_cert_to_DER_cert(f"{part}{certificates._END}"))
    assert abs(end - time.time() - 12000 * 86_400) < 86_400


def test_ports_that_others_have() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = load(
            None, {"mqtt.port": taken.getsockname()[1], "mqtt.ws_port": 0, "grpc.port": -1, "http.port": 0}, {}
        )
        (found,) = addresses.check_ports(config, is_running=False)
        assert found.state is State.ERROR
        assert "mqtt.port" in found.advice
    assert states(addresses.check_ports(config, is_running=False)) == {"ports": State.OK}


def test_services_that_a_node_needs(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    clustered = {"cluster.log": f"file://{tmp_path}/log", "cluster.name": "a", "cluster.listen": "127.0.0.1:7071"}
    tier = {"tier.store": f"file://{tmp_path}/tier"}
    assert states(addresses.check_services(load(None, {**clustered, **tier}, {}))) == {
        "cluster": State.OK,
        "tier": State.OK,
    }
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    clustered["cluster.log"] = f"nats://127.0.0.1:{port}/stream"
    assert states(addresses.check_services(load(None, clustered, {}))) == {"cluster": State.ERROR}
    gateway = {"split.role": "gateway", "split.store": f"127.0.0.1:{port}"}
    assert states(addresses.check_services(load(None, gateway, {}))) == {"store": State.ERROR}
    traces = {"otel.endpoint": f"http://127.0.0.1:{port}"}
    (found,) = addresses.check_services(load(None, traces, {}))
    assert (found.state, found.text) == (State.WARNING, f"nobody answers at 127.0.0.1:{port}: Connection refused")
    with socket.create_server(("127.0.0.1", port)):
        assert states(addresses.check_services(load(None, gateway, {}))) == {"store": State.OK}
        assert states(addresses.check_services(load(None, traces, {}))) == {"traces": State.OK}


def test_a_configuration_that_is_wrong(tmp_path: Path, doctor: Doctor) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[mqtt]\nprot = 1\nport = 'x'\n")
    found = doctor("--config", str(path), code=1)
    assert [row["text"].partition(": ")[0] for row in found["configuration"]] == [f"{path}:2", f"{path}:3"]
    found = doctor("--config", str(tmp_path / "none.toml"), code=1)
    assert found["configuration"][0]["state"] == "error"
    path.write_text(f"data_dir = '{tmp_path}/d'\n[mqtt]\nport = 0\nws_port = -1\n[grpc]\nport = -1\n[http]\nport = 0\n")
    assert f"{tmp_path}/d is not there yet" in doctor("--config", str(path))["data folder"][0]["text"]


async def test_a_running_node_says_which_file_it_has_read(
    make_node: MakeNode, tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await make_node()
    path = tmp_path / "c.toml"
    path.write_text("[mqtt]\nprot = 1\n")
    node.config.sources["mqtt.port"] = str(path)
    found = await asyncio.to_thread(doctor, "--data-dir", str(node.config.data_dir), code=1)
    assert found["configuration"][0]["text"].startswith(f"{path}:2: unknown setting")


def test_the_report_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--data-dir", str(tmp_path / "file")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error    node: ")
    assert lines[1].startswith("         → ")
