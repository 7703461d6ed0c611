"""`sluice stream` on a real cluster: a standalone master and two workers, started here, all on loopback."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

pytest.importorskip("pyspark")

import pyspark

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from sluice.demo.ports import lasting_ports
from streaming.java import JavaNotFound, java_home
from tests.streaming.test_sink import read_all
from tests.system.conftest import NodeProcess

ROOT = Path(__file__).parents[2]
SECONDS = 600  # for what Spark does on a busy machine
BEGIN_S = 1_767_225_600

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3 * SECONDS)]


class Cluster:
    """Spark's own daemons, as processes of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port, web = lasting_ports(2)
        self.master = f"spark://127.0.0.1:{port}"
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        deploy = "org.apache.spark.deploy"
        self._start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", f"--port={port}", f"--webui-port={web}")
        self._listening(port)
        for number in range(2):
            worker = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0"]
            work = folder / f"worker-{number}"
            self._start(f"worker-{number}", f"{deploy}.worker.Worker", *worker, f"--work-dir={work}", self.master)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        flags = [argument for each in arguments for argument in each.split("=", 1)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(launcher), main, *flags],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def _listening(self, port: int) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            assert self.processes[0].poll() is None and time.monotonic() < deadline, self.log("master")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    started = Cluster(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def filled_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """With a hundred readings of each of two devices, of which one jumps at the end."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    node = NodeProcess(tmp_path / "data")
    node.start()
    messages = []
    for number in range(100):
        for device in ("a", "b"):
            value = 20 + number % 3 + (50 if device == "b" and number >= 90 else 0)
            body = orjson.dumps({"device": device, "time": BEGIN_S + 60 * number, "value": value})
            messages.append(OutgoingMessage(f"sensors/{device}", body))
    with Client(node.endpoint) as client:
        client.send_many(messages)
    yield node
    node.stop()


def test_anomalies_on_a_cluster_until_sigterm(cluster: Cluster, filled_node: NodeProcess, tmp_path: Path) -> None:
    flags = [
        "--parent",
        "sensors",
        "--to",
        "alerts",
        "--warm-up",
        "50",
        "--warm-up-time",
        "60",
        "--port",
        str(filled_node.grpc_port),
    ]
    flags += ["--master", cluster.master, "--checkpoint", str(tmp_path / "checkpoint"), "--every", "1 second"]
    for setting in ("spark.executor.memory=512m", "spark.sql.shuffle.partitions=2"):
        flags += ["--conf", setting]
    log = tmp_path / "stream.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "sluice", "stream", "anomalies", *flags]
        job = subprocess.Popen(command, env=cluster.environment, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + SECONDS
        while not re.search(r"batch \d+: 200 rows in, .* lag 0", log.read_text()):
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:] + cluster.log("worker-0")
            time.sleep(0.1)
        job.terminate()
        assert job.wait(SECONDS) == 0, log.read_text()[-3000:]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert log.read_text().rstrip().endswith("stopped")
    (alert,) = read_all(filled_node.endpoint, "alerts")
    assert alert.topic == "alerts/b" and alert.publisher == "sluice-stream"
    assert orjson.loads(alert.payload)["value"] >= 70
    workers = [path for path in tmp_path.glob("worker-*/app-*/*") if path.is_dir()]
    assert len({path.parts[-3] for path in workers}) == 2, "both workers had an executor"
