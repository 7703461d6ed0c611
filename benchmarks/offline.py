"""Benchmarks of offline sessions: `python -m benchmarks.offline`, which `make bench-offline` calls.

All sessions have the same wildcard filter and are offline. For each number of sessions it measures what they cost, what
a message to all of them costs, and how fast they get their messages when they come back. The load generator checks
every message: none is missing, none is repeated without DUP, and those of each publisher are in order.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.comparison import peers
from benchmarks.comparison.report import aligned, facts

LOADER: Final = Path(__file__).parent / "load" / "mqttoffline"
OWN: Final = "sluice"
PUBLISHERS: Final = 10
INFLIGHT: Final = 100  # messages of a publisher
PROBE_SECONDS: Final = 0.005  # between two PINGREQs of the probe
Report = dict[str, Any]  # the load generator's JSON line


class LoadFailed(Exception):
    """The load generator ended without a result. Its stderr says why."""


@dataclass(slots=True, frozen=True)
class Scale:
    """The size of one measurement.

    `sessions` sessions each miss `missed` messages and come back, `at_once` at a time. Then `more` messages are
    published, and `late` sessions come back for those.
    """

    sessions: int
    missed: int
    at_once: int
    more: int
    late: int


SCALES: Final = (
    Scale(2_000, 500, 2_000, 200_000, 10),
    Scale(100_000, 20, 2_000, 200_000, 10),
    Scale(1_000_000, 2, 2_000, 200_000, 10),
)
PEER_SESSIONS: Final = 2_000  # beyond that they would take hours
PEER_MISSED: Final = 500
STORM: Final = Scale(20_000, 10, 19_000, 0, 0)

# What is wanted of Sluice: (part of a result, its figure, at least or at most, how much, how it is called).
TARGETS: Final = (
    ("publish more", "per_second", ">=", 100_000, "messages a second"),
    ("publish more", "cpu_us", "<=", 10, "µs a message"),
    ("drain", "per_second", ">=", 200_000, "deliveries a second, all sessions back"),
    ("drain", "first_ms", "<=", 1_000, "ms to the first message, the last session's"),
    ("", "offline / nobody", "<=", 1.2, "× the CPU of ingest, with a durable queue behind it"),
)


def main() -> int:
    arguments = parse()
    if not LOADER.exists():
        print("the load generator is not built: make bench-offline builds it", file=sys.stderr)
        return 1
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="offline-", dir=arguments.folder)).absolute()
    results: list[Report] = []
    try:
        for scale in SCALES:
            if scale.sessions in arguments.sessions:
                results.append(measure(OWN, scale, folder))
                show(results[-1])
        for name in arguments.peers:
            results.append(measure(name, Scale(PEER_SESSIONS, PEER_MISSED, PEER_SESSIONS, 0, 0), folder))
            show(results[-1])
        if not arguments.quick:
            results.append(measure_storm(folder))
            show(results[-1])
            results.append(measure_queue(folder, arguments.rounds))
            show(results[-1])
    except (BrokerUnavailable, LoadFailed) as error:
        print(f"bench-offline: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n" + targets(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(result["sound"] for result in results) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-offline",
        description="Publishes to sessions that are offline, and has them come back.",
        epilog="example:\n  make bench-offline ARGS='--sessions 2000 --peers mosquitto'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sessions", type=numbers, default=(2_000, 100_000), help="of 2000,100000,1000000 (default: 2000,100000)"
    )
    parser.add_argument("--peers", type=names, default=("mosquitto", "mosquitto-file"), help="the same at 2,000")
    parser.add_argument("--rounds", type=int, default=3, help="of the queue behind ingest (default: 3)")
    parser.add_argument("--quick", action="store_true", help="without the storm, and the queue behind ingest")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (default: nowhere)")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


# --- the works


def measure(name: str, scale: Scale, folder: Path) -> Report:
    """Measure a newly started broker with one number of sessions. Raises `LoadFailed` and `BrokerUnavailable`."""
    broker = peers.start(name, folder / f"{name}-{scale.sessions}")
    try:
        result = facts([broker], folder) if name == OWN else {}
        figures: Report = {"work": f"{scale.sessions:,} sessions", "broker": name, "facts": result}
        memory = broker.memory()
        made = load(broker, "create", sessions=scale.sessions)
        figures["create"] = cost(made, scale.sessions)
        figures["bytes_per_session"] = (broker.memory() - memory) / scale.sessions
        publish(broker, PUBLISHERS, 0)  # what the first connections leave in memory is no session's
        missed = scale.missed // PUBLISHERS * PUBLISHERS or scale.missed
        figures["publish"] = publish(broker, min(PUBLISHERS, missed), missed)
        figures["drain"] = drain(broker, scale.sessions, scale.at_once, missed)
        if scale.more:
            figures["publish more"] = publish(broker, PUBLISHERS, scale.more)
            figures["drain more"] = drain(broker, scale.late, scale.late, scale.more)
        figures["sound"] = all(each.get("sound", True) for each in figures.values() if isinstance(each, dict))
    finally:
        broker.stop()
    shutil.rmtree(folder / f"{name}-{scale.sessions}")
    return figures


def measure_storm(folder: Path) -> Report:
    """Measure how thousands of clients reconnect at once. PINGREQs of another client show how long the node is
    busy."""
    broker = peers.start(OWN, folder / "storm")
    try:
        load(broker, "create", sessions=STORM.sessions)
        publish(broker, PUBLISHERS, STORM.missed)
        figures: Report = {"work": f"storm of {STORM.sessions:,}", "broker": OWN}
        figures["drain"] = drain(broker, STORM.sessions, STORM.at_once, STORM.missed)
        figures["sound"] = figures["drain"]["sound"]
    finally:
        broker.stop()
    return figures


def measure_queue(folder: Path, rounds: int) -> Report:
    """Measure what a message costs without a subscriber, with one offline session and with one connected client."""
    costs: dict[str, list[Report]] = {"nobody": [], "offline": [], "connected": []}
    for number in range(rounds):
        for who, found in costs.items():
            broker = peers.start(OWN, folder / f"queue-{who}-{number}")
            try:
                if who != "nobody":
                    load(broker, "create", sessions=1)
                publish(broker, 100, 20_000, "other")
                if who != "connected":
                    found.append(publish(broker, 100, 200_000, inflight=20))
                    continue
                subscriber = start("drain", broker, sessions=1, each=200_000, publishers=100, window=1000)
                found.append(publish(broker, 100, 200_000, inflight=20, until=subscriber))
            finally:
                broker.stop()
            shutil.rmtree(folder / f"queue-{who}-{number}")
    medians = {who: statistics.median(each["cpu_us"] for each in found) for who, found in costs.items()}
    return {
        "work": "one durable queue behind ingest",
        "broker": OWN,
        **{f"{who}, cpu_us": cpu for who, cpu in medians.items()},
        "offline / nobody": medians["offline"] / medians["nobody"],
        "connected / nobody": medians["connected"] / medians["nobody"],
        "sound": all(each["sound"] for found in costs.values() for each in found),
    }


# --- the load generator


def start(mode: str, broker: Broker, **options: object) -> subprocess.Popen[str]:
    """A running load generator."""
    command = [str(LOADER), mode, "--port", str(broker.port)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ended(loader: subprocess.Popen[str]) -> Report:
    """Wait for the result. Raises `LoadFailed`."""
    output, _ = loader.communicate()
    if loader.returncode or not output:
        raise LoadFailed("the load generator gave no result")
    report: Report = json.loads(output.splitlines()[-1])
    return report


def load(broker: Broker, mode: str, **options: object) -> Report:
    """Wait for the result, and measure the broker's CPU seconds meanwhile. Raises `LoadFailed`."""
    before = broker.cpu_seconds()
    report = ended(start(mode, broker, **options))
    report["broker_cpu"] = broker.cpu_seconds() - before
    return report


def publish(
    broker: Broker,
    connections: int,
    count: int,
    topic: str = "offline",
    inflight: int = INFLIGHT,
    until: subprocess.Popen[str] | None = None,
) -> Report:
    """Publish, and see what each message costs: to the last acknowledgement, or until this subscriber has all. Raises
    `LoadFailed`."""
    options = {"connections": connections, "inflight": inflight, "count": count, "topic": topic}
    loader = start("publish", broker, **options)
    assert loader.stdin is not None
    assert loader.stdout is not None
    loader.stdout.readline()
    memory, cpu, written = broker.memory(), broker.cpu_seconds(), bytes_written(broker)
    loader.stdin.write("go\n")
    loader.stdin.flush()
    report = ended(loader)
    sound = report["complete"]
    if until is not None:
        heard = ended(until)
        sound = sound and is_sound(heard) and heard["received"] == count
    report["broker_cpu"] = broker.cpu_seconds() - cpu
    return {
        **cost(report, count),
        "memory_growth_mb": (broker.memory() - memory) / 1e6,
        "written_bytes_each": (bytes_written(broker) - written) / max(count, 1),
        "sound": sound,
    }


def drain(broker: Broker, sessions: int, at_once: int, each: int) -> Report:
    """Have sessions come back for the messages that they missed. Raises `LoadFailed`."""
    memory = broker.memory()
    probe = Probe(broker.port)
    options = {"sessions": sessions, "at_once": at_once, "each": each, "publishers": PUBLISHERS}
    report = load(broker, "drain", **options)
    probe.stop()
    growth = (broker.memory() - memory) / 1e6
    return {
        **cost(report, report["received"]),
        "first_ms": report["first_ms"],
        "memory_growth_mb": growth,
        "missing": report["missing"],
        "repeated": report["repeated"],
        "repeated_with_dup": report["repeated_with_dup"],
        "disordered": report["disordered"],
        "ping_ms": probe.latencies(),
        "sound": is_sound(report) and report["received"] == sessions * each,
    }


def is_sound(report: Report) -> bool:
    """Return whether nothing is missing, repeated or out of order, and every client found its session."""
    return report["complete"] and not any(
        report[key] for key in ("missing", "repeated", "disordered", "without_session")
    )


def cost(report: Report, count: int) -> Report:
    count = max(count, 1)
    return {"count": count, "per_second": count / report["seconds"], "cpu_us": report["broker_cpu"] / count * 1e6}


def bytes_written(broker: Broker) -> int:
    """Bytes that the broker has written to disks so far."""
    size = 0
    for pid in broker.pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
                if line.startswith("write_bytes:"):
                    size += int(line.split()[1])
    return size


class Probe:
    """A client that sends PINGREQs and records how long each answer takes."""

    def __init__(self, port: int) -> None:
        self._found: list[float] = []
        self._stopping = threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05probe")
        self._socket.recv(4)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def latencies(self) -> dict[str, float]:
        found = sorted(self._found)
        return {"p50": found[len(found) // 2], "p99": found[len(found) * 99 // 100], "max": found[-1]}

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.perf_counter()
            self._socket.sendall(b"\xc0\x00")
            self._socket.recv(2)
            self._found.append(round((time.perf_counter() - began) * 1000, 2))
            time.sleep(PROBE_SECONDS)


# --- what is said


def show(result: Report) -> None:
    """The results as text."""
    print(f"\n{result['work']}, {result['broker']}{'' if result['sound'] else ': NOT SOUND'}")
    for name, figures in result.items():
        if name in ("work", "broker", "sound", "facts"):
            continue
        if not isinstance(figures, dict):
            print(f"  {name:<22} {figures:,.2f}")
            continue
        line = f"  {name:<14} {figures['count']:>10,} {figures['per_second']:>10,.0f}/s {figures['cpu_us']:>9.2f} µs"
        if "memory_growth_mb" in figures:
            line += f"  {figures['memory_growth_mb']:+8.1f} MB"
        if "written_bytes_each" in figures:
            line += f"  {figures['written_bytes_each']:,.0f} bytes written each"
        if "first_ms" in figures:
            first, ping = figures["first_ms"], figures["ping_ms"]
            line += f"  first message {first['p50']:.0f} ms, last of them {first['max']:.0f} ms"
            line += f", ping p50 {ping['p50']:.1f} p99 {ping['p99']:.1f} max {ping['max']:.0f} ms"
        print(line, flush=True)


def targets(results: list[Report]) -> str:
    """The targets that were measured, each with whether it is met, as a Markdown table."""
    rows = [["targets", "wanted", "measured", ""]]
    for result in results:
        if result["broker"] != OWN:
            continue
        for part, name, sign, limit, text in TARGETS:
            figures = result.get(part) if part else result
            figure = figures.get(name) if isinstance(figures, dict) else None
            if isinstance(figure, dict):
                figure = figure["max"]
            if figure is None:
                continue
            met = figure >= limit if sign == ">=" else figure <= limit
            wanted = f"{'≥' if sign == '>=' else '≤'} {limit:,} {text}"
            rows.append(
                [result["work"], wanted, f"{figure:,.0f}" if limit > 100 else f"{figure:,.2f}", "✓" if met else "✗"]
            )
    return aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
