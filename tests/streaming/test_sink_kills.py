"""Tasks and drivers that are killed between what they write and Spark's commit: each row is one message."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from streaming.java import JavaNotFound, java_home
from tests.streaming.test_sink import read_all
from tests.system.conftest import NodeProcess

SECONDS = 240  # for what Spark does on a busy machine
COUNT = 400
DRIVER = Path(__file__).with_name("sink_driver.py")
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * SECONDS)]


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """A node with messages of `sensors`."""
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    node = NodeProcess(tmp_path / "data")
    node.start()
    with Client(node.endpoint) as client:
        client.send_many([OutgoingMessage(f"sensors/{n % 7}", b"%d" % n) for n in range(COUNT)])
    yield node
    node.stop()


def start(node: NodeProcess, folder: Path, where: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(DRIVER), node.endpoint, str(folder), where]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def finish(driver: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        assert driver.wait(SECONDS) == 0, (folder / "driver.log").read_text()[-4000:]
    finally:
        end(driver)


def end(driver: subprocess.Popen[bytes]) -> None:
    """`kill -9` of the driver, its JVM and its workers."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def results(node: NodeProcess) -> Counter[bytes]:
    return Counter(each.payload for each in read_all(node.endpoint))


EXPECTED = Counter(b"%d" % n for n in range(COUNT))


@pytest.mark.nightly
def test_a_task_that_dies_is_done_again(filled: NodeProcess, tmp_path: Path) -> None:
    finish(start(filled, tmp_path, "task"), tmp_path)
    assert (tmp_path / "died").exists()
    assert results(filled) == EXPECTED


def test_a_driver_that_dies_before_the_commit_writes_nothing_twice(filled: NodeProcess, tmp_path: Path) -> None:
    driver = start(filled, tmp_path, "commit")
    try:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "written").exists():
            assert driver.poll() is None and time.monotonic() < deadline, (tmp_path / "driver.log").read_text()[-4000:]
            time.sleep(0.05)
    finally:
        end(driver)
    assert results(filled) == EXPECTED
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    finish(start(filled, tmp_path, "never"), tmp_path)
    assert list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert results(filled) == EXPECTED
