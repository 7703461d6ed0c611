"""What users install: the wheel in empty environments, the container file, the unit of systemd.

`make wheel` builds the wheel, and `make nightly` does that first.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = {"google-crc32c", "grpcio", "protobuf", "sluicemq", "typing-extensions"}  # of a plain installation, with pip
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SLUICE_PURE"}}


class Installed:
    """An environment with the wheel and some of its extras; commands run in `folder`, out of reach of this tree."""

    def __init__(self, folder: Path, extras: str) -> None:
        wheels = list(ROOT.glob("dist/sluicemq-*.whl"))
        if not wheels:
            pytest.skip("make wheel was not run")
        assert len(wheels) == 1, wheels
        self.folder = folder / "work"
        self.folder.mkdir()
        self._bin = folder / "env" / "bin"
        venv.create(folder / "env", with_pip=True)
        assert self.run("python", "-m", "pip", "install", "-q", f"{wheels[0]}{extras}", seconds=900).returncode == 0

    def command(self, *words: str) -> list[str]:
        return [str(self._bin / words[0]), *words[1:]]

    def run(self, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            check=False,
            cwd=self.folder,
            env=ENVIRONMENT,
            text=True,
            timeout=seconds,
        )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_plain_installation_is_the_sdk(tmp_path: Path) -> None:
    installed = Installed(tmp_path, "")
    packages = installed.run("python", "-m", "pip", "list", "--format=freeze").stdout
    names = set(re.findall(r"^([\w-]+)==", packages.replace("_", "-"), re.MULTILINE))
    assert names - {"pip", "setuptools"} == BASE
    code = "import cloud_sdk, cloud_sdk.blocking, record._frames"
    assert installed.run("python", "-c", code).stderr == ""
    assert "kernel: compiled" in installed.run("sluice", "version").stdout
    for command, extra in (("serve", "node"), ("demo", "demo"), ("history show /nowhere", "history")):
        told = installed.run("sluice", *command.split())
        assert told.returncode == 2
        assert re.fullmatch(rf"sluice \w+: \w+ is not installed: pip install 'sluicemq\[{extra}\]'\n", told.stderr)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_node_serves_and_publishes(tmp_path: Path) -> None:
    installed = Installed(tmp_path, "[node]")
    command = ["sluice", "serve", "--mqtt-port", "0", "--ws-port", "-1", "--http-port", "0", "--grpc-port", "0"]
    node = subprocess.Popen(
        installed.command(*command), cwd=installed.folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert node.stdout is not None
        mqtt, grpc = re.findall(r"(?:mqtt|grpc)=127\.0\.0\.1:(\d+)", node.stdout.readline())
        sent = installed.run("sluice", "pub", "-t", "a/b", "-m", "hello", "-q", "1", "-r", "--port", mqtt)
        assert (sent.returncode, sent.stderr) == (0, "")
        got = installed.run("sluice", "sub", "-t", "a/#", "--count", "1", "--timeout", "20", "--port", mqtt)
        assert (got.returncode, got.stdout) == (0, "a/b hello\n")
        assert "a" in installed.run("sluice", "topics", "--port", grpc).stdout
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_steps_of_the_container_file(tmp_path: Path) -> None:
    """Without a container engine: what it installs is installed, its command serves, and its health check says so."""
    steps = container_steps()
    (extras,) = {found for word, rest in steps if word == "RUN" for found in re.findall(r"whl\)(\[[\w,]+\])", rest)}
    installed = Installed(tmp_path, extras)
    by_word = dict(steps)  # the last of each is that of the image
    (check,) = re.findall(r"CMD (\[.+\])", by_word["HEALTHCHECK"])
    command = [*json.loads(by_word["ENTRYPOINT"]), *json.loads(by_word["CMD"])]
    command = [str(tmp_path / "data") if word == "/data" else word.replace("0.0.0.0", "127.0.0.1") for word in command]
    mqtt, ws, grpc, http = by_word["EXPOSE"].split()
    settings = {"SLUICE_MQTT_PORT": "0", "SLUICE_MQTT_WS_PORT": "0", "SLUICE_GRPC_PORT": "0", "SLUICE_HTTP_PORT": "0"}
    node = subprocess.Popen(
        installed.command(*command),
        cwd=installed.folder,
        env=ENVIRONMENT | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        ports = dict(re.findall(r"(\w+)=127\.0\.0\.1:(\d+)", node.stdout.readline()))
        healthy = [word.replace(f":{http}/", f":{ports['http']}/") for word in json.loads(check)]
        assert healthy != json.loads(check)
        told = installed.run(*healthy)
        assert (told.returncode, told.stderr) == (0, "")
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
    assert installed.run(*healthy).returncode == 1
    defaults = installed.run("sluice", "config", "reference").stdout
    for port in (mqtt, ws, grpc, http):
        assert re.search(rf"^#(ws_)?port = {port}$", defaults, re.MULTILINE), port


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_the_demo_runs(tmp_path: Path) -> None:
    installed = Installed(tmp_path, "[demo]")
    told = installed.run("sluice", "demo", seconds=900)
    assert told.returncode == 0, told.stdout + told.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (ROOT / "deploy/sluice.service").read_text(encoding="utf-8")
    unit = tmp_path / "sluice.service"
    unit.write_text(text.replace("/opt/sluice/bin/sluice", sys.executable), encoding="utf-8")
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, check=False, text=True)
    assert [line for line in told.stderr.splitlines() if str(unit) in line or "sluice" in line] == []
    assert told.returncode == 0, told.stderr
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]  # an exposure of 2.0 of 10
    told = subprocess.run(security, capture_output=True, check=False, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def container_steps() -> list[tuple[str, str]]:
    """The instructions of the container file, and their arguments."""
    text = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, rest in lines]


def test_the_container_file_copies_what_exists() -> None:
    steps = container_steps()
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in steps} == known
    for word, rest in steps:
        if word == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0, rest
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line.startswith("!")}
    assert [name for name in kept if not (ROOT / name).exists()] == []
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks", "tests", "examples"}
    assert packages <= kept, "a package that the image would lack"
