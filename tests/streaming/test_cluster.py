"""Spark as users have it: a standalone master and two workers, `spark-submit`, and Spark Connect. All processes are
started here, on loopback."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
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
        self.listening(port)
        for number in range(2):
            worker = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0"]
            work = folder / f"worker-{number}"
            self._start(f"worker-{number}", f"{deploy}.worker.Worker", *worker, f"--work-dir={work}", self.master)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self.launch(name, [str(launcher), main, *(part for each in arguments for part in each.split("=", 1))])

    def launch(self, name: str, command: list[str]) -> None:
        """Start a process that ends with the test, and writes to `log(name)`."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
                )
            )

    def listening(self, port: int) -> None:
        """Wait until the process that was started last listens."""
        deadline = time.monotonic() + SECONDS
        while True:
            assert self.processes[-1].poll() is None and time.monotonic() < deadline, f"nothing listens at {port}"
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
    """With a hundred hourly readings of each of two devices, of which one jumps at the end."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    node = NodeProcess(tmp_path / "data")
    node.start()
    messages = []
    for number in range(100):
        for device in ("a", "b"):
            value = 20 + number % 3 + (50 if device == "b" and number >= 90 else 0)
            body = orjson.dumps({"device": device, "time": BEGIN_S + 3600 * number, "value": value})
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


_JOB = """
import sys
from pyspark.sql import SparkSession
from streaming.session import register
spark = register(SparkSession.builder.getOrCreate())
records = spark.read.format("sluice").options(endpoint=sys.argv[1], parent="sensors").load()
print("records", records.count(), records.where("topic = 'sensors/a'").count())
files = spark.range(4, numPartitions=4).rdd.map(lambda _: __import__("streaming").__file__).collect()
print("archives", sum(".zip/streaming/" in file for file in files))
rows = records.where("topic = 'sensors/b'").selectExpr("concat('copy/', levels[1]) AS topic", "payload")
rows.write.format("sluice").options(endpoint=sys.argv[1]).mode("append").save()
spark.stop()
"""


def test_spark_submit_with_an_archive_of_the_packages(
    cluster: Cluster, filled_node: NodeProcess, tmp_path: Path
) -> None:
    archive, job = tmp_path / "sluicemq.zip", tmp_path / "job.py"
    with zipfile.ZipFile(archive, "w") as packed:
        for package in ("cloud_sdk", "record", "streaming"):
            for path in sorted((ROOT / package).rglob("*.py")):
                packed.write(path, path.relative_to(ROOT))
    job.write_text(_JOB)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    flags = ["--master", cluster.master, "--executor-memory", "512m", "--py-files", str(archive)]
    environment = {name: value for name, value in cluster.environment.items() if name != "PYTHONPATH"}
    command = [str(submit), *flags, str(job), filled_node.endpoint]
    done = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, timeout=SECONDS)
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert "records 200 100" in shown
    assert "archives 4" in shown
    assert len(read_all(filled_node.endpoint, "copy")) == 100


_CONNECTED = """
import sys
from pyspark.sql import SparkSession
from streaming.session import register
spark = register(SparkSession.builder.remote(sys.argv[1]).getOrCreate())
options = {"endpoint": sys.argv[2], "parent": "sensors"}
records = spark.read.format("sluice").options(**options).load()
print("records", records.where("topic = 'sensors/a' AND levels[1] = 'a'").count())
stream = spark.readStream.format("sluice").options(**options).load()
writer = stream.groupBy("topic").count().writeStream.format("memory").queryName("counts").outputMode("complete")
writer.option("checkpointLocation", sys.argv[3]).trigger(availableNow=True).start().awaitTermination()
print("streamed", sorted(tuple(row) for row in spark.table("counts").collect()))
"""


def test_spark_connect(cluster: Cluster, filled_node: NodeProcess, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status")
    (port,) = lasting_ports(1)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    flags = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", cluster.master]
    for setting in (
        f"spark.connect.grpc.binding.port={port}",
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.executor.memory=512m",
        "spark.ui.enabled=false",
    ):
        flags += ["--conf", setting]
    cluster.launch("connect", [str(submit), *flags, "spark-internal"])
    cluster.listening(port)
    script = tmp_path / "connected.py"
    script.write_text(_CONNECTED)
    arguments = [f"sc://127.0.0.1:{port}", filled_node.endpoint, str(tmp_path / "checkpoint")]
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        command, check=False, env=cluster.environment, cwd=tmp_path, capture_output=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:] + cluster.log("connect")
    assert done.stdout.decode().split("\n")[:2] == ["records 100", "streamed [('sensors/a', 100), ('sensors/b', 100)]"]
