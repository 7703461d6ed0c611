"""Processes of the brokers under test, on free ports of the loopback interface: start, CPU time, memory and end.

`peers` has the configuration of each broker.
"""

import resource
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

START_TIMEOUT: Final = 60.0  # seconds
STOP_TIMEOUT: Final = 15.0


class BrokerUnavailable(Exception):
    """The broker is not installed or does not start. The message says what to do."""


@dataclass(slots=True)
class Launch:
    """The command that starts a broker."""

    command: list[str]
    version: str
    environment: dict[str, str] | None = None  # None: this process's own
    tls_port: int = 0  # 0: TLS is not measured
    end: list[str] = field(default_factory=list)  # a command that ends what the broker leaves running


@dataclass(slots=True)
class Broker:
    """A running broker."""

    name: str
    version: str
    port: int
    tls_port: int  # 0: none
    process: subprocess.Popen[bytes]
    launch: Launch
    pids: list[int] = field(default_factory=list)  # the process and those that it started

    def cpu_seconds(self) -> float:
        """CPU time of the processes so far: all threads, user and system.

        It is read from the processes' CPU clocks, which have nanoseconds. /proc/PID/stat has only ticks.
        """
        seconds = 0.0
        for pid in self.pids or [self.process.pid]:
            with suppress(OSError):  # one of those that it started has ended
                seconds += time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3): CPUCLOCK_SCHED of all threads
        return seconds

    def memory(self) -> int:
        """Bytes of anonymous memory of the processes (RssAnon), without mapped files and kernel memory."""
        size = 0
        for pid in self.pids or [self.process.pid]:
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
                    if line.startswith("RssAnon:"):
                        size += int(line.split()[1]) * 1024
        return size

    def stop(self) -> None:
        """End the process: SIGTERM first, SIGKILL if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.launch.end:
            subprocess.run(self.launch.end, env=self.launch.environment, capture_output=True, check=False)


def run(name: str, launch: Launch, port: int, folder: Path) -> Broker:
    """Run `launch` and wait until it accepts connections at `port`. Raises `BrokerUnavailable`."""
    _allow_many_files()
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=launch.environment,
        )
    broker = Broker(name, launch.version, port, launch.tls_port, process, launch)
    try:
        _wait_until_it_accepts(broker, log)
    except BaseException:
        broker.stop()
        raise
    broker.pids = family(process.pid)
    return broker


def family(pid: int) -> list[int]:
    """The ids of a process and of all its descendants."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (thread / "children").read_text(encoding="ascii").split()]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    """Raise the soft limit of descriptors: a thousand connections need more. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
