"""`python -m benchmarks.split`, which `make bench-split` calls: one process against a store and two gateways.

Ingest is loaded by two load generators at once, one for each gateway, or both for the one process. Latency is that of
messages from a client of the first gateway to one of the second, 2,000 a second. CPU time is reported by process.
"""

import argparse
import json
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.comparison.rounds import LOADER, PHASE_LIMIT, STALL_LIMIT, LoadFailed, settled_cpu

RATE: Final = 2_000  # messages a second, of the latency
_CONNECTIONS: Final = 50  # of each load generator
_INFLIGHT: Final = 20
_TIMEOUT: Final = 10.0
_TOPIC: Final = b"split/latency"
_SIZE: Final = 256  # bytes of a payload; it begins with the time

Report = dict[str, Any]


@dataclass(slots=True)
class Setup:
    """Processes, and the ports of those that take clients: two, which may be the same."""

    name: str
    processes: dict[str, Broker]
    ports: tuple[int, int]

    def cpu(self) -> dict[str, float]:
        return {name: settled_cpu(broker) for name, broker in self.processes.items()}

    def stop(self) -> None:
        for broker in reversed(self.processes.values()):
            broker.stop()


def one_process(folder: Path) -> Setup:
    """Raises `BrokerUnavailable`."""
    broker = _start("node", folder, "--mqtt-port", port := free_port())
    return Setup("one process", {"node": broker}, (port, port))


def split(folder: Path) -> Setup:
    """Raises `BrokerUnavailable`."""
    place = f"unix:{folder / 's'}"
    store = _start("store", folder, "--roles", "store", "--store-listen", place, "--grpc-port", free_port())
    found = Setup("store and 2 gateways", {"store": store}, (free_port(), free_port()))
    try:
        for name, own in zip(("gateway 1", "gateway 2"), found.ports, strict=True):
            flags = ("--roles", "gateway", "--store", place, "--place", name.replace(" ", "-"), "--mqtt-port", own)
            found.processes[name] = _start(name.replace(" ", "-"), folder, *flags)
    except BaseException:
        found.stop()
        raise
    return found


def _start(name: str, folder: Path, *flags: str | int) -> Broker:
    """The last of the flags is the port that answers when it serves."""
    own = folder / name
    own.mkdir()
    command = [sys.executable, "-m", "sluice", "serve", "--data-dir", str(own / "data"), "--log-level", "warning"]
    command += ["--ws-port", "0", "--http-port", "0", *map(str, flags)]
    if "--grpc-port" not in flags:
        command += ["--grpc-port", "0"]
    return run(name, Launch(command, ""), int(flags[-1]), own)


def ingest(setup: Setup, count: int, inflight: int = _INFLIGHT) -> Report:
    """Messages of QoS 1 taken in, by 2 × 50 connections. `inflight` of each. Raises `LoadFailed`."""
    command = [str(LOADER), "--mode", "ingest", "--qos", "1", "--connections", str(_CONNECTIONS)]
    command += ["--inflight", str(inflight), "--count", str(count // 2), "--warmup", str(count // 20)]
    command += ["--limit", str(PHASE_LIMIT), "--stall", str(STALL_LIMIT)]
    loaders = [
        subprocess.Popen([*command, "--port", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for port in setup.ports
    ]
    try:
        for loader in loaders:
            assert loader.stdout is not None
            if loader.stdout.readline() != "warm\n":
                raise LoadFailed("a load generator did not get warm")
        before, started = setup.cpu(), time.monotonic()
        for loader in loaders:
            assert loader.stdin is not None
            loader.stdin.write("go\n")
            loader.stdin.flush()
        lines = [loader.stdout.readline() for loader in loaders if loader.stdout is not None]
        seconds = time.monotonic() - started
        if not all(lines):
            raise LoadFailed("a load generator gave no result")
        used = {name: cpu - before[name] for name, cpu in setup.cpu().items()}
    finally:
        for loader in loaders:
            loader.kill()
            loader.wait()
    reports = [json.loads(line) for line in lines]
    messages = sum(each["acked"] for each in reports)
    cpu_us = {name: cpu * 1e6 / messages for name, cpu in used.items()}
    return {"per_second": messages / seconds, "cpu_us": cpu_us, "loader_cpu_s": sum(e["cpu_seconds"] for e in reports)}


def latency(setup: Setup, seconds: float) -> Report:
    """From PUBLISH at the first port to PUBLISH at the second, QoS 1, in ms."""
    publisher, subscriber = (_connected(port, name) for port, name in zip(setup.ports, (b"in", b"out"), strict=True))
    subscriber.sendall(b"\x82" + bytes([5 + len(_TOPIC)]) + b"\0\1" + len(_TOPIC).to_bytes(2) + _TOPIC + b"\0")
    subscriber.recv(5, socket.MSG_WAITALL)
    taken: list[float] = []
    before = setup.cpu()
    begin = due = time.perf_counter()
    sent, rest = 0, b""
    size = 3 + 2 + len(_TOPIC) + _SIZE  # of a PUBLISH of QoS 0, with a length of two bytes
    while time.perf_counter() - begin < seconds or (len(taken) < sent and time.perf_counter() - due < _TIMEOUT):
        now = time.perf_counter()
        if now >= due and now - begin < seconds:
            publisher.sendall(_publish(sent % 65_535 + 1, now))
            sent, due = sent + 1, due + 1 / RATE
        wait = max(0.0, min(due - time.perf_counter(), 0.01))
        readable, _, _ = select.select([subscriber, publisher], [], [], wait)
        if publisher in readable:
            publisher.recv(65_536)
        if subscriber in readable:
            rest += subscriber.recv(65_536)
            now = time.perf_counter()
            while len(rest) >= size:
                stamp = float(rest[size - _SIZE : size].split(b" ", 1)[0])
                taken.append((now - stamp) * 1e3)
                rest = rest[size:]
    used = {name: (cpu - before[name]) * 1e6 / max(sent, 1) for name, cpu in setup.cpu().items()}
    subscriber.close()
    publisher.close()
    taken.sort()
    found = {f"p{part}_ms": taken[len(taken) * part // 100] for part in (50, 99)} if taken else {}
    return {**found, "sent": sent, "received": len(taken), "cpu_us": used}


def _publish(packet_id: int, now: float) -> bytes:
    payload = (b"%.9f " % now).ljust(_SIZE, b".")
    body = len(_TOPIC).to_bytes(2) + _TOPIC + packet_id.to_bytes(2) + payload
    return b"\x32" + bytes([len(body) & 0x7F | 0x80, len(body) >> 7]) + body


def _connected(port: int, client_id: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), _TIMEOUT)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client_id).to_bytes(2) + client_id
    found.sendall(bytes([0x10, len(body)]) + body)
    found.recv(4, socket.MSG_WAITALL)
    return found


def _costs(cpu_us: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {cpu:.1f}" for name, cpu in cpu_us.items())


def _print_report(ingests: Mapping[str, Sequence[Report]], latencies: Mapping[str, Report]) -> None:
    print("| setup | ingest QoS 1, 100 × 20 | CPU a message, µs | in → out at 2,000/s, p50, p99 | CPU a message, µs |")
    print("| --- | ---: | --- | --- | --- |")
    for name, rounds in ingests.items():
        best = max(rounds, key=lambda report: report["per_second"])
        rate = statistics.median([report["per_second"] for report in rounds])
        found = latencies[name]
        times = f"{found.get('p50_ms', 0):.2f} ms, {found.get('p99_ms', 0):.2f} ms"
        print(f"| {name} | {rate:,.0f}/s | {_costs(best['cpu_us'])} | {times} | {_costs(found['cpu_us'])} |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.split", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200_000, help="messages of a round")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the latency")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    arguments = parser.parse_args()
    ingests: dict[str, list[Report]] = {}
    latencies: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        setups: list[Setup] = []
        try:
            for make in (one_process, split):
                place = Path(folder) / make.__name__
                place.mkdir()
                setups.append(make(place))
            for number in range(arguments.rounds):
                for setup in setups[number % 2 :] + setups[: number % 2]:
                    ingests.setdefault(setup.name, []).append(ingest(setup, arguments.count))
            for setup in setups:
                latencies[setup.name] = latency(setup, arguments.seconds)
        except (BrokerUnavailable, LoadFailed) as error:
            print(f"benchmarks.split: {error}", file=sys.stderr)
            return 1
        finally:
            for setup in setups:
                setup.stop()
    _print_report(ingests, latencies)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"ingest": ingests, "latency": latencies}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
