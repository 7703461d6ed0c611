"""`sluice stream` as a process: what its operator sees of wrong words, of a node that is away, and of SIGTERM."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

pytest.importorskip("pyspark")

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from streaming.java import JavaNotFound, java_home
from tests.streaming.test_sink import read_all
from tests.system.conftest import NodeProcess

SECONDS = 500  # for what Spark does on a busy machine
BEGIN_S = 1_767_225_600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * SECONDS)]


class Job:
    """The command, in a group of processes of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / f"job{len(list(folder.glob('job*')))}.log"
        command = [sys.executable, "-m", "sluice", "stream", *words]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, cwd=folder)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.log):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log[-4000:]
            time.sleep(0.1)

    def code(self) -> int:
        return self.process.wait(SECONDS)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    jobs: list[Job] = []

    def start(*words: str) -> Job:
        jobs.append(Job(tmp_path, *words))
        return jobs[-1]

    yield start
    for each in jobs:
        each.end()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """It does not run yet."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    made = NodeProcess(tmp_path / "data")
    yield made
    if made.process is not None:
        made.stop()


def publish(node: NodeProcess, first: int, last: int) -> None:
    bodies = [{"device": "a", "time": BEGIN_S + number, "value": number} for number in range(first, last)]
    with Client(node.endpoint) as client:
        client.send_many([OutgoingMessage("sensors/a", orjson.dumps(body)) for body in bodies])


def values(node: NodeProcess) -> Counter[int]:
    return Counter(int(orjson.loads(each.payload)["value"]) for each in read_all(node.endpoint, "known"))


@pytest.mark.nightly
def test_a_pipeline_waits_for_its_node_stops_on_request_and_resumes(
    job: Callable[..., Job], node: NodeProcess, tmp_path: Path
) -> None:
    (tmp_path / "devices.csv").write_text("device,room\na,bath\n")
    words = ("enrich", "--registry", "devices.csv", "--parent", "sensors", "--to", "known")
    words += ("--port", str(node.grpc_port), "--every", "1 second")
    first = job(*words)
    first.until("waiting for the node 127.0.0.1")
    node.start()
    publish(node, 0, 20)
    first.until(r"batch \d+: 20 rows in, [\d,]+ rows/s, lag 0")
    node.stop()
    node.start()  # a restart is not noticed
    publish(node, 20, 30)
    first.until(r"batch \d+: 10 rows in, [\d,]+ rows/s, lag 0")
    os.killpg(first.process.pid, signal.SIGINT)  # Ctrl-C: the terminal tells the whole group
    assert first.code() == 0, first.log
    assert first.log.rstrip().endswith("stopped")
    assert "Traceback" not in first.log and "\tat " not in first.log
    publish(node, 30, 40)
    second = job(*words)
    second.until(r"batch \d+: 10 rows in, [\d,]+ rows/s, lag 0")
    os.killpg(second.process.pid, signal.SIGTERM)  # as some supervisors do: Spark's processes hear it
    assert second.code() == 0, second.log
    assert "Traceback" not in second.log
    publish(node, 40, 45)
    third = job(*words, "--once")
    assert third.code() == 0, third.log
    assert third.log.rstrip().endswith("done")
    assert values(node) == Counter(range(45))


@pytest.mark.nightly
def test_a_killed_pipeline_keeps_each_reject_once(job: Callable[..., Job], node: NodeProcess) -> None:
    """Killed with all that it started, before and while batches are written."""
    node.start()
    words = ("windows", "--parent", "sensors", "--to", "known", "--rejects", "rejects", "--max-records", "7")
    words += ("--port", str(node.grpc_port), "--every", "0 seconds")
    texts = [f"no reading {number}".encode() for number in range(60)]
    for kill in range(2):
        with Client(node.endpoint) as client:
            client.send_many([OutgoingMessage("sensors/a", text) for text in texts[30 * kill : 30 * (kill + 1)]])
        killed = job(*words)
        killed.until(r"batch \d+: \d+ rows in(?:.|\n)*batch \d+: \d+ rows in")
        killed.end()
    last = job(*words, "--once")
    assert last.code() == 0, last.log
    assert Counter(bytes(each.payload) for each in read_all(node.endpoint, "rejects")) == Counter(texts)


@pytest.mark.parametrize(
    ("words", "line", "code"),
    [
        pytest.param(
            ["windows", "--schema", "device strin"], r"(?i)sluice stream: .*strin.*", 1, marks=pytest.mark.nightly
        ),
        pytest.param(
            ["windows", "--value", "valeu"], r"sluice stream: .* no field .valeu.: .*", 1, marks=pytest.mark.nightly
        ),
        pytest.param(["windows", "--window", "often"], r"sluice stream: .*often.*", 1, marks=pytest.mark.nightly),
        (["liveness", "--master", "nowhere"], r"sluice stream liveness: error: .*nowhere.*", 2),
        (["enrich", "--registry", "none.csv"], r"sluice stream: .*none.csv.*", 1),
    ],
)
def test_errors_are_one_line(
    job: Callable[..., Job], node: NodeProcess, words: list[str], line: str, code: int
) -> None:
    node.start()
    started = job(*words, "--parent", "sensors", "--port", str(node.grpc_port))
    assert started.code() == code, started.log
    told = [each for each in started.log.splitlines() if each.startswith("sluice stream")]
    assert len(told) == 1 and re.fullmatch(line, told[0]), started.log
    for stack in ("Traceback", "\tat ", '"stacktrace"'):
        assert stack not in started.log, started.log


def test_a_job_for_cron_does_not_wait_for_a_node_that_is_away(job: Callable[..., Job], node: NodeProcess) -> None:
    started = job("windows", "--parent", "sensors", "--port", str(node.grpc_port), "--once")
    assert started.code() == 1
    assert re.fullmatch(r"sluice stream: [^\n]+\n", started.log), started.log


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["windows", "--parent", "sensors/a"], "a parent is the first level of topics"),
        (
            ["liveness", "--parent", "a", "--forget-after", "60"],
            r"forget_after_s \(60.0\) must be above silent_after_s",
        ),
        (["anomalies", "--parent", "a", "--spike", "-1"], "spike"),
    ],
)
def test_a_wrong_option_is_an_error_before_spark_starts(job: Callable[..., Job], words: list[str], told: str) -> None:
    started = job(*words)
    assert started.code() == 2
    assert re.fullmatch(rf"sluice stream: {told}[^\n]+\n", started.log), started.log
