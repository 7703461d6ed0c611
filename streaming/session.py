"""A Spark session with the `sluice` format. A local one uses loopback only and downloads nothing."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from streaming.java import java_home
from streaming.source import SluiceDataSource
from streaming.worker_python import worker_python

_HERE: Final = re.compile(r"local(-cluster)?(\[|$)|spark://(127\.0\.0\.1|localhost)(:|$)")
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# For a session that ends soon: the JVM compiles less, and collects garbage in one thread.
_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_HIDDEN: Final = 64 << 10  # bytes of what a failed start wrote
_JVM_SECONDS: Final = 20.0  # for its shutdown hooks on a busy machine


def spark_session(
    app_name: str,
    *,
    master: str = "local[2]",
    shuffle_partitions: int = 2,
    config: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Start Spark in this process, or use the running session, and register the data source.

    `config` adds to the settings below or replaces them. With a master on this machine, Spark uses loopback only. The
    executors of another master must reach the driver, so Spark chooses its address (`spark.driver.host`). `quiet`
    hides what Spark's processes write to standard error, for ever, unless Spark does not start. Raises `JavaNotFound`.
    """
    _prepare_environment(master)
    settings = {
        **(_LOOPBACK if is_here(master) else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),  # Spark's default of 200 is for clusters
        "spark.sql.session.timeZone": "UTC",
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with interrupts_as_before(), _hidden_errors() if quiet else nullcontext():
        return register(builder.getOrCreate())


def quick_start(java_options: str = "") -> dict[str, str]:
    """Return settings for a session that ends soon, with further options of the JVM."""
    options = f"{_QUICK_JAVA} {java_options}".rstrip()
    return {"spark.driver.extraJavaOptions": options, "spark.ui.enabled": "false"}


def is_here(master: str) -> bool:
    """Return whether a master uses this machine only."""
    return _HERE.match(master) is not None


def register(spark: SparkSession) -> SparkSession:
    """Register `format("sluice")` with a session, with filter pushdown. Return the session."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # Spark refuses a source with pushdown otherwise
    spark.dataSource.register(SluiceDataSource)
    return spark


def stop(spark: SparkSession, *, patience_s: float = _JVM_SECONDS) -> None:
    """Stop the session and its JVM, and wait until the JVM has ended. Kill it after `patience_s`.

    `SparkSession.stop` alone leaves the JVM running until the Python process ends.
    """
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its input is closed
        try:
            gateway.proc.wait(patience_s)
        except TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


@contextmanager
def _hidden_errors() -> Iterator[None]:
    """Give standard error of processes that are started now to a file without a name. If that fails, copy it."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(before, hidden.read(_HIDDEN))
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)


@contextmanager
def interrupts_as_before() -> Iterator[None]:
    """Restore the SIGINT handler of the program. Spark replaces it by one that cancels its jobs and raises
    `KeyboardInterrupt`."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (None, signal.default_int_handler, signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, before)


def _prepare_environment(master: str) -> None:
    """Set the environment that the JVM and its Python workers inherit: the Java, this Python and the path of Sluice.
    `PYSPARK_PYTHON` may name another Python for workers on other machines."""
    os.environ["JAVA_HOME"] = str(java_home())
    python = worker_python() if master.startswith("local") else sys.executable
    if is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ["PYSPARK_DRIVER_PYTHON"] = python  # of the planner's processes, which run beside the driver
    here = str(Path(__file__).resolve().parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *paths])
