"""The files in deploy/: Kubernetes accepts the manifests, the node accepts their configuration, and all that one file
names is in another."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.config import Config, load
from tests.system.conftest import NodeProcess
from tests.system.tools import module
from tests.waiting import PATIENCE_S, block_until

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROMTOOL = Path("/usr/bin/promtool")  # Debian's package prometheus
VERSIONS = ("1.29", "1.31", "1.34")  # of Kubernetes: ReadWriteOncePod is stable since 1.29
FIELDS = {"metadata.name": "sluice-0", "metadata.namespace": "default"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = [each for each in found if each["kind"] == kind]
    return document


def pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = one(found, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables of a container, as Kubernetes expands them."""
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        value = each["value"] if "value" in each else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return {name: value for name, value in found.items() if name.startswith("SLUICE_")}


def configuration(found: list[dict[str, Any]], folder: Path) -> Config:
    """What the node of a manifest reads, with the files of its Secrets below a folder."""
    (container,) = pod(found)["containers"]
    text = one(found, "ConfigMap")["data"]["sluice.toml"].replace("file:/etc/", f"file:{folder}/")
    for path in re.findall(r"\$\{file:([^}]+)\}", text):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("secret\n")
    file = folder / "sluice.toml"
    file.write_text(text)
    assert container["args"] == ["serve", "--config", "/etc/sluice/sluice.toml"]
    return load(file, None, environment(container))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_a_manifest(path: Path, version: str) -> None:
    validator = module("kubernetes_validate")
    for document in documents(path):
        validator.validate(document, version, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    validator = module("kubernetes_validate")
    document = one(documents(MANIFESTS[0]), "StatefulSet")
    document["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_node_accepts_its_configuration(path: Path, tmp_path: Path) -> None:
    found = documents(path)
    config = configuration(found, tmp_path)
    (container,) = pod(found)["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    listening = {
        "mqtt": config.mqtt.port,
        "ws": config.mqtt.ws_port,
        "grpc": config.grpc.port,
        "http": config.http.port,
    }
    if config.cluster.log:
        listening["store"] = int(config.cluster.listen.rpartition(":")[2])
    assert ports == listening
    assert "anonymous" not in config.mqtt.auth + config.grpc.auth  # other pods reach them
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    named = [
        str(config.data_dir),
        "/etc/sluice/sluice.toml",
        config.split.certificate,
        config.split.key,
        config.split.ca,
    ]
    named += re.findall(r"\$\{file:([^}]+)\}", one(found, "ConfigMap")["data"]["sluice.toml"])
    assert [each for each in named if each and not any(each.startswith(f"{mount}/") for mount in mounts)] == []


def test_nodes_of_a_cluster_reach_each_other(tmp_path: Path) -> None:
    found = documents(DEPLOY / "kubernetes/cluster.yaml")
    config = configuration(found, tmp_path)
    state = one(found, "StatefulSet")["spec"]
    assert config.cluster.name == "sluice-0"
    assert config.cluster.advertise == f"sluice-0.{state['serviceName']}.default.svc:7071"
    assert config.cluster.options["secret_access_key"] == "secret"
    (headless,) = [each for each in found if each["metadata"]["name"] == state["serviceName"]]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"]  # a node is ready when another one leads


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_names_within_a_manifest_lead_somewhere(path: Path) -> None:
    found = documents(path)
    spec, labels = pod(found), one(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    (container,) = spec["containers"]
    ports = {each["name"] for each in container["ports"]}
    for service in [each for each in found if each["kind"] == "Service"]:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    volumes = {each["name"] for each in spec["volumes"]}
    volumes |= {each["metadata"]["name"] for each in one(found, "StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        about = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert about["port"] in ports
        assert about.get("path", "/health") == "/health"
    claimed = int(re.search(r"useradd .*--uid (\d+)", (DEPLOY / "Containerfile").read_text())[1])  # type: ignore[index]
    assert spec["securityContext"]["runAsUser"] == claimed


def test_all_that_the_compose_file_mounts_is_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert all(each.startswith("127.0.0.1:") for each in service["ports"])
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
    build = compose["services"]["node"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["node:8080"]}]
    assert job["job_name"] == "sluice"  # the alerts and the dashboard name it
    assert scraped["rule_files"] == ["/etc/prometheus/sluice-alerts.yml"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/sluice.yml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/sluice.json" in mounted
    variables = compose["services"]["node"]["environment"]
    load(None, None, variables)


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    if not PROMTOOL.exists():
        pytest.skip("promtool is not installed: Debian's package prometheus has it")
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus", str(DEPLOY / "prometheus")))
    told = subprocess.run([PROMTOOL, "check", "config", path], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--gateways", "1")])
def test_a_node_tells_systemd_when_it_serves_and_when_it_stops(
    make_node: Callable[..., NodeProcess], tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\nType=notify\n" in (DEPLOY / "sluice.service").read_text()
    address = os.path.relpath(tmp_path / "notify")  # the path of a socket may have 107 bytes at most
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        node = make_node("node", *flags)
        node.start()
        assert manager.recv(100) == b"READY=1"
        assert node.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.slow
def test_a_node_tells_systemd_that_its_loop_runs(
    make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\nWatchdogSec=60\n" in (DEPLOY / "sluice.service").read_text()
    address = os.path.relpath(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        node = make_node("node")
        node.start()
        told = [manager.recv(100) for _ in range(4)]
        assert told == [b"READY=1", *[b"WATCHDOG=1"] * 3]
        assert node.stop() == 0
        while (last := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"


@pytest.mark.slow
def test_a_supervisor_ends_a_process_that_hangs(
    make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on, and so does the service: systemd need not end all of it."""
    address = os.path.relpath(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "5000000")
        node = make_node("node", "--gateways", "1")
        node.start()
        assert manager.recv(100) == b"READY=1"
        before = dict(re.findall(r"(\w+) is ready, process (\d+)", node.log()))
        os.kill(int(before["g1"]), signal.SIGSTOP)
        block_until(lambda: "g1 was ended by signal" in node.log())
        block_until(lambda: dict(re.findall(r"(\w+) is ready, process (\d+)", node.log()))["g1"] != before["g1"])
        after = dict(re.findall(r"(\w+) is ready, process (\d+)", node.log()))
        assert after["store"] == before["store"]
        assert re.search(r"CRITICAL \S+: g1 has not answered for \d+ seconds: it is ended", node.log())
        assert manager.recv(100) == b"WATCHDOG=1"
        assert node.stop() == 0
