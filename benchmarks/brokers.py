"""The brokers under test, each a process of its own on a free port of the loopback interface."""

import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_TIMEOUT: Final = 30.0  # seconds
STOP_TIMEOUT: Final = 15.0
MOSQUITTO: Final = "/usr/sbin/mosquitto"  # Debian's place, which is not on everybody's PATH
NAMES: Final = ("sluice", "mosquitto", "amqtt")
# The share of a work's messages that a broker gets: one that costs 50 times as much needs fewer to be measured.
SHARE: Final = {"sluice": 1.0, "mosquitto": 1.0, "amqtt": 0.04}


class BrokerUnavailable(Exception):
    """The broker is not installed or does not start; the text says what to do."""


@dataclass(slots=True)
class Broker:
    """A running broker."""

    name: str
    version: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, all threads, user and system.

        The process's CPU clock: what utime + stime of /proc/PID/stat say, in nanoseconds rather than ticks.
        """
        clock = ~self.process.pid << 3 | 2  # clock_getcpuclockid(3): CPUCLOCK_SCHED of the whole process
        return time.clock_gettime(clock)

    def stop(self) -> None:
        """End the process: kindly, then firmly."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(name: str, folder: Path) -> Broker:
    """Start broker `name`, its files under `folder`. Raises `BrokerUnavailable`."""
    _allow_many_files()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    if name == "sluice":
        command, version = _sluice(folder, port)
    elif name == "mosquitto":
        command, version = _mosquitto(folder, port)
    else:
        command, version = [sys.executable, "-m", "benchmarks.amqtt_broker", str(port)], _installed("amqtt")
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    broker = Broker(name, version, port, process)
    try:
        _wait_until_it_accepts(broker, log)
    except BaseException:
        broker.stop()
        raise
    return broker


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _sluice(folder: Path, port: int) -> tuple[list[str], str]:
    command = [sys.executable, "-m", "sluice", "serve", "--data-dir", str(folder / "data")]
    command += ["--mqtt-port", str(port), "--ws-port", "0", "--grpc-port", "0", "--http-port", "0"]
    return [*command, "--log-level", "warning"], _installed("sluice")


def _mosquitto(folder: Path, port: int) -> tuple[list[str], str]:
    program = shutil.which("mosquitto") or MOSQUITTO
    if not Path(program).exists():
        raise BrokerUnavailable("mosquitto is not installed: apt-get install mosquitto")
    config = folder / "mosquitto.conf"
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", "set_tcp_nodelay true"]
    config.write_text("\n".join([*lines, "log_type none", ""]), encoding="utf-8")
    told = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout.split()
    return [program, "-c", str(config)], told[2] if len(told) > 2 else "unknown"


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except PackageNotFoundError as error:
        raise BrokerUnavailable(f"{package} is not installed: make install") from error


def _wait_until_it_accepts(broker: Broker, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if broker.process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", broker.port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise BrokerUnavailable(f"{broker.name} did not start:\n{tail}")


def _allow_many_files() -> None:
    """A thousand connections need more descriptors than the usual soft limit; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
