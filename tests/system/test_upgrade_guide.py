"""The steps of docs/upgrade.md, one after the other, on a node that a stand-in of systemd starts and stops."""

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sluice.demo.ports import lasting_ports
from tests.waiting import block_until

PAGE: Final = Path(__file__).parents[2] / "docs/upgrade.md"
_BLOCK: Final = re.compile(r"^( *)(<!-- not run: [^\n]*\n *)?```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SYSTEMCTL: Final = """#!/bin/bash
# Starts and stops the node as the unit does: {here}/opt/sluice leads to the version.
[ "$2" = sluice ] || exit 9
case $1 in
    start)
        : >{here}/ready
        nohup {here}/opt/sluice/bin/sluice serve --config {here}/etc/sluice.toml --data-dir {here}/var/lib/sluice \
            >{here}/ready 2>>{here}/log &
        echo $! >{here}/pid
        until grep -q ^ready {here}/ready; do [ -e /proc/$! ] || exit 1; sleep 0.1; done ;;
    stop)
        kill "$(cat {here}/pid)"
        state=/proc/$(cat {here}/pid)/status
        while [ -e "$state" ] && ! grep -q '^State:.Z' "$state"; do sleep 0.1; done ;;
    *) exit 9 ;;
esac
"""


def sections() -> dict[str, list[str]]:
    """The commands of each section that are run, by its heading."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^#+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0]
        found[heading] = [match[3] for match in _BLOCK.finditer(part) if match[2] is None]
    return found


class Machine:
    """A folder that is the root of the page's paths."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.mqtt, *others = lasting_ports(4)
        for name in ("etc", "var/lib", "mnt/backups", "bin", "opt/sluice-old/bin", "opt/sluice-new/bin"):
            (here / name).mkdir(parents=True)
        names = ("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port")
        lines = [f"{name} = {port}" for name, port in zip(names, (self.mqtt, *others), strict=True)]
        (here / "etc/sluice.toml").write_text("\n".join(lines) + "\n[store]\n")
        run = f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m sluice "$@"\n'
        for name in ("opt/sluice-old/bin/sluice", "opt/sluice-new/bin/sluice", "bin/sluice"):
            self._put(name, run)
        self._put("bin/systemctl", _SYSTEMCTL.format(here=here))
        (here / "opt/sluice").symlink_to(here / "opt/sluice-old")

    def _put(self, name: str, text: str) -> None:
        path = self.here / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, commands: str) -> str:
        """Run a block as it is, but for the root of its paths. Returns what it prints."""
        for name in ("/etc/sluice", "/var/lib", "/mnt/backups", "/opt"):
            commands = re.sub(rf"(?<![\w/]){name}\b", f"{self.here}{name.replace('/etc/sluice', '/etc')}", commands)
        told = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{self.here}/bin:{os.environ['PATH']}"},
        )
        log = self.here / "log"
        assert told.returncode == 0, (
            commands,
            told.stdout,
            told.stderr,
            log.read_text()[-4000:] if log.exists() else "",
        )
        return told.stdout

    def publish(self, topic: str) -> None:
        self.run(f"sluice pub --port {self.mqtt} --topic {topic} --message x --qos 1")

    def topics(self) -> set[str]:
        return set(self.run("sluice topic list --data-dir /var/lib/sluice").split())

    def end(self) -> None:
        path = self.here / "pid"
        if path.exists() and Path(f"/proc/{path.read_text().strip()}").exists():
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.end()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_steps_of_the_page(machine: Machine) -> None:
    (first, blocks), backup, upgrade, restore = sections().items()
    assert [name for name, _ in (backup, upgrade, restore)] == ["Back up", "Upgrade", "Restore"]
    assert [len(found) for found in (blocks, backup[1], upgrade[1], restore[1])] == [1, 3, 4, 4], first
    machine.run("systemctl start sluice")
    machine.publish("before/backup")
    for block in blocks:
        machine.run(block)

    shown = [machine.run(block) for block in backup[1]]
    assert "before/backup" in shown[1]

    machine.publish("after/backup")
    for block in upgrade[1]:
        machine.run(block)
    assert (machine.here / "opt/sluice").resolve().name == "sluice-new"
    pid = int((machine.here / "pid").read_text())
    assert str(machine.here / "var/lib/sluice").encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert machine.topics() == {"before/", "after/"}

    views = machine.here / "var/lib/sluice/views"
    for path in views.iterdir():  # the folder breaks; a backup on the same disk shares these files, and is left alone
        path.unlink()
        path.write_bytes(b"")
    *others, last = restore[1]
    for block in others:
        machine.run(block)
    assert machine.topics() == {"before/"}
    assert (machine.here / "var/lib/sluice.broken/store.json").exists()
    machine.run(last)
    assert not (machine.here / "var/lib/sluice.broken").exists()
    machine.publish("after/restore")
    assert machine.topics() == {"before/", "after/"}
    machine.run("systemctl stop sluice")
    block_until(lambda: (machine.here / "log").read_text().rstrip().endswith("stopping"))
