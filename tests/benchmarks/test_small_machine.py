"""The simulation of a small machine: a process keeps to its share, and a node starts on a slow disk."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.brokers import Broker, Launch
from benchmarks.small_machine.__main__ import Governor
from benchmarks.small_machine.slow_disk import SlowDisk
from tests.waiting import block_until


@pytest.fixture
def busy() -> Iterator[Broker]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield Broker("busy", "", 0, 0, process, Launch([], ""))
    process.kill()
    process.wait()


def state(broker: Broker) -> str:
    return Path(f"/proc/{broker.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_a_process_that_has_used_its_share_is_stopped_and_continues(busy: Broker) -> None:
    governor = Governor(busy, 0.2)
    try:
        for _ in range(3):
            block_until(lambda: state(busy) == "T")
            block_until(lambda: state(busy) != "T")
    finally:
        governor.stop()
    block_until(lambda: state(busy) == "R")


def test_a_flush_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("benchmarks.small_machine.slow_disk.time.sleep", waited.append)
    with (tmp_path / "segment").open("wb+") as file:
        disk = SlowDisk(0.01)
        disk.write_durable(file.fileno(), b"data", 0)
        disk.sync(file.fileno())
    assert (tmp_path / "segment").read_bytes() == b"data"
    assert waited == [0.01, 0.01]


def test_the_command_is_that_of_sluice() -> None:
    command = [sys.executable, "-m", "benchmarks.small_machine.slow_disk", "10", "version"]
    assert "sluice" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
