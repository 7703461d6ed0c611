"""Ports of servers that are killed and started again."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.demo import ports

TAKE = """
import sys
from sluice.demo.ports import lasting_ports
print(*lasting_ports(5000), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_reservations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Reservations that only this test and its processes see."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(ports, "_reserved", set())
    ports._reservations.cache_clear()
    yield
    ports._reservations.cache_clear()


@pytest.fixture
def neighbour(own_reservations: None) -> Iterator[list[int]]:
    """Ports that another process was given. It listens on none of them."""
    command = [sys.executable, "-c", TAKE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        yield [int(word) for word in process.stdout.readline().split()]
        process.stdin.close()


def test_two_processes_get_different_ports(neighbour: list[int]) -> None:
    assert len(neighbour) == 5000
    assert not set(neighbour) & set(ports.lasting_ports(5000))


def test_one_process_gets_a_port_once(own_reservations: None) -> None:
    assert not set(ports.lasting_ports(5000)) & set(ports.lasting_ports(5000))
