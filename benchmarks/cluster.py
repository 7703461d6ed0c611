"""`python -m benchmarks.cluster`, which `make bench-cluster` calls: three nodes with one log beside single nodes.

The engine is measured by its plain client in the same rounds, and runs on this machine as `sluice.demo.engine_servers`
has it. Its servers' CPU time is not counted. CPU time of a node is that of all its processes.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, run
from benchmarks.comparison.rounds import LoadFailed
from benchmarks.engines import plain_client
from benchmarks.split import Setup, ingest
from benchmarks.store.load import percentile
from sluice.demo.engine_servers import NatsServers, SeaweedServers, ServerMissing
from sluice.demo.ports import lasting_ports

SIZES: Final = (2 << 10, 256 << 10)  # of payloads
IN_FLIGHT: Final = (1, 20)  # of each of 100 connections
LEADER_TIMEOUT_S: Final = 3.0
_NODES: Final = 3
_AROUND: Final = 170  # bytes that a slot has around a payload: its header, and what a record has beside its payload
_PUTS: Final = 50  # of each size in a round
_HAND_OVERS: Final = 10
_LIMIT_S: Final = 60.0
_LOOK_S: Final = 0.02
_TOPIC: Final = b"bench/cluster"

Options = Mapping[str, str | int | float | bool]
Report = dict[str, Any]


class Node:
    """A node of the cluster. It keeps its ports and its folder when it is started again."""

    def __init__(self, folder: Path, name: str, log: str, options: Options) -> None:
        self.name = name
        self.port, self._http, store = lasting_ports(3)
        self._folder = folder / name
        self._folder.mkdir()
        config = self._folder / "sluice.toml"
        lines = [f'[cluster]\nname = "{name}"\nlog = {json.dumps(log)}\nlisten = "127.0.0.1:{store}"']
        lines += [f"leader_timeout_s = {LEADER_TIMEOUT_S:g}\n[cluster.options]"]
        lines += [f"{option} = {json.dumps(value)}" for option, value in options.items()]
        config.write_text("\n".join([*lines, ""]), encoding="utf-8")
        self._command = _serve(self._folder, self.port, "--config", str(config), "--http-port", str(self._http))

    def start(self) -> None:
        """Raises `BrokerUnavailable`."""
        self.broker = run(self.name, Launch(self._command, ""), self.port, self._folder)

    def kill(self) -> None:
        """Kill all its processes."""
        for pid in self.broker.pids:
            os.kill(pid, 9)
        self.broker.process.wait()

    def health(self) -> dict[str, Any]:
        """What `/health` says; nothing if the node does not answer."""
        try:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/health", timeout=_LIMIT_S) as answer:
                    said = answer.read()
            except urllib.error.HTTPError as error:
                said = error.read()
            found: dict[str, Any] = json.loads(said)
        except OSError:
            found = {}
        return found

    def hand_over(self, to: str) -> None:
        command = [sys.executable, "-m", "sluice", "cluster", "lead", to, "--data-dir", str(self._folder / "data")]
        subprocess.run(command, check=True, capture_output=True)


class Publisher:
    """A client that publishes with QoS 1, one message at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> "Publisher":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
        await reader.readexactly(4)
        return cls(reader, writer)

    async def publish(self, payload: bytes) -> None:
        """Return when it is acknowledged."""
        body = len(_TOPIC).to_bytes(2) + _TOPIC + b"\0\1" + payload
        length, left = b"", len(body)
        while left >= 0x80:
            length, left = length + bytes([left & 0x7F | 0x80]), left >> 7
        self._writer.write(b"\x32" + length + bytes([left]) + body)
        async with asyncio.timeout(_LIMIT_S):
            await self._reader.readexactly(4)

    def close(self) -> None:
        self._writer.close()


def _serve(folder: Path, port: int, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "sluice", "serve", "--data-dir", str(folder / "data"), "--log-level", "warning"]
    return [*command, "--ws-port", "0", "--grpc-port", "0", *flags, "--mqtt-port", str(port)]


def _parts(broker: Broker) -> dict[str, Broker]:
    """The store and the gateway of a supervised node, to be measured on their own."""
    _, store, gateway = sorted(broker.pids)
    return {"store": replace(broker, pids=[store]), "gateway": replace(broker, pids=[gateway])}


def _single_nodes(folder: Path) -> list[Setup]:
    """One process, and a store with a gateway. Raises `BrokerUnavailable`."""
    found: list[Setup] = []
    try:
        for name, flags in (("one process", ()), ("a store and a gateway", ("--gateways", "1"))):
            own = folder / name.replace(" ", "-")
            own.mkdir()
            (port,) = lasting_ports(1)
            broker = run(name, Launch(_serve(own, port, "--http-port", "0", *flags), ""), port, own)
            found.append(Setup(name, _parts(broker) if flags else {"node": broker}, (port, port)))
    except BaseException:
        for setup in found:
            setup.stop()
        raise
    return found


async def _leader(nodes: Sequence[Node], but: Node | None = None) -> Node:
    """The node that leads, when all the others follow it."""
    async with asyncio.timeout(_LIMIT_S):
        while True:
            states = [await asyncio.to_thread(node.health) for node in nodes if node is not but]
            names = {state.get("leader") for state in states}
            if len(names) == 1 and names != {None} and any(state.get("role") == "leader" for state in states):
                return next(node for node in nodes if node.name in names)
            await asyncio.sleep(_LOOK_S)


async def _commits(url: str, options: Options, leader: Node, rounds: int) -> Report:
    """In ms: puts of the plain client, and PUBLISH to PUBACK at the leader, one after the other."""
    found: Report = {}
    async with plain_client(url, dict(options)) as put:
        publisher = await Publisher.connect(leader.port)
        number = 0
        for size in SIZES:
            payload, data = os.urandom(size), os.urandom(size + _AROUND)
            waits: dict[str, list[float]] = {"put": [], "publish": []}
            for _ in range(rounds + 1):
                for i in range(_PUTS):
                    begun = time.perf_counter()
                    await put(number := number + 1, data)
                    between = time.perf_counter()
                    await publisher.publish(payload)
                    if i >= _PUTS // 10:  # both are warm then
                        waits["put"].append((between - begun) * 1e3)
                        waits["publish"].append((time.perf_counter() - between) * 1e3)
            found[str(size)] = {
                f"{what}_p{part}_ms": percentile(times, part) for what, times in waits.items() for part in (50, 99)
            }
        publisher.close()
    return found


async def _ingests(single: Sequence[Setup], leader: Node, followers: Sequence[Node], rounds: int, count: int) -> Report:
    """Rate and CPU of ingest with QoS 1, 100 connections, in turns."""
    processes = _parts(leader.broker) | {node.name: node.broker for node in followers}
    cluster = Setup("cluster", processes, (leader.port, leader.port))
    setups = [*single, cluster]
    found: Report = {}
    for inflight in IN_FLIGHT:
        taken: dict[str, list[Report]] = {setup.name: [] for setup in setups}
        slots = 0
        for number in range(rounds):
            _say(f"ingest, 100 × {inflight}: round {number + 1} of {rounds}")
            for setup in setups[number % 3 :] + setups[: number % 3]:
                messages = count if inflight > 1 else count // 4
                before = leader.health()["slot"] if setup is cluster else 0
                taken[setup.name].append(await asyncio.to_thread(ingest, setup, messages, inflight))
                if setup is cluster:
                    slots += leader.health()["slot"] - before
        found[str(inflight)] = {
            name: {
                "per_second": statistics.median(each["per_second"] for each in reports),
                "cpu_us": {
                    part: statistics.median(each["cpu_us"][part] for each in reports) for part in reports[0]["cpu_us"]
                },
            }
            for name, reports in taken.items()
        }
        found[str(inflight)]["cluster"]["per_slot"] = rounds * messages * 1.1 / slots  # a tenth more warms up
    return found


async def _failovers(nodes: Sequence[Node], kills: int) -> list[float]:
    """Seconds from each kill of the leader to the first acknowledgement at another node of a message sent since."""
    found: list[float] = []
    for _ in range(kills):
        leader = await _leader(nodes)
        other = next(node for node in nodes if node is not leader)
        publisher = await Publisher.connect(other.port)
        await publisher.publish(b"before")
        await asyncio.to_thread(leader.kill)
        begun = time.perf_counter()
        await publisher.publish(b"after")
        found.append(time.perf_counter() - begun)
        _say(f"failover: {found[-1]:.2f} s")
        publisher.close()
        await _leader(nodes, but=leader)
        await asyncio.to_thread(leader.start)
    return found


async def _hand_overs(nodes: Sequence[Node]) -> list[float]:
    """Seconds of the longest wait for an acknowledgement, at a follower, while the leader hands over."""
    found: list[float] = []
    for _ in range(_HAND_OVERS):
        leader = await _leader(nodes)
        to, third = (node for node in nodes if node is not leader)
        publisher = await Publisher.connect(third.port)
        handing = asyncio.ensure_future(asyncio.to_thread(leader.hand_over, to.name))
        longest, after = 0.0, 0
        while after < 20:
            begun = time.perf_counter()
            await publisher.publish(b"x")
            longest = max(longest, time.perf_counter() - begun)
            after += handing.done()
        found.append(longest)
        _say(f"hand-over: {longest:.2f} s")
        publisher.close()
    return found


@asynccontextmanager
async def _engine(name: str, folder: Path) -> AsyncIterator[tuple[str, Options]]:
    """The address of a log, and the options of its service. Raises `ServerMissing`."""
    if name == "file":
        yield f"file://{folder}/shared", {}
        return
    servers = NatsServers(folder / name) if name == "nats" else SeaweedServers(folder / name)
    try:
        await asyncio.to_thread(servers.start)
        yield servers.url("log"), servers.options
    finally:
        await asyncio.to_thread(servers.stop)


async def measure(engine: str, rounds: int, count: int, kills: int) -> Report:
    """All rows of one engine. Raises `BrokerUnavailable`, `LoadFailed`, `ServerMissing` and TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as place:
        folder = Path(place)
        async with _engine(engine, folder) as (url, options):
            nodes = [Node(folder, f"n{number + 1}", url, options) for number in range(_NODES)]
            single: list[Setup] = []
            started: list[Node] = []
            try:
                for node in nodes:
                    await asyncio.to_thread(node.start)
                    started.append(node)
                leader = await _leader(nodes)
                _say(f"{engine}: {leader.name} leads; latency")
                found: Report = {"load": os.getloadavg()[0]}
                found["commit"] = await _commits(url, options, leader, rounds)
                single = await asyncio.to_thread(_single_nodes, folder)
                followers = [node for node in nodes if node is not leader]
                found["ingest"] = await _ingests(single, leader, followers, rounds, count)
                while single:
                    single.pop().stop()
                found["hand_over_s"] = await _hand_overs(nodes)
                found["failover_s"] = await _failovers(nodes, kills)
            finally:
                for setup in single:
                    setup.stop()
                for node in started:
                    await asyncio.to_thread(node.broker.stop)
    return found


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _total(row: Report) -> float:
    """CPU time of the node that serves, per message."""
    cpu_us: dict[str, float] = row["cpu_us"]
    return sum(cpu_us.get(part, 0.0) for part in ("node", "store", "gateway"))


def table(reports: Mapping[str, Report]) -> list[str]:
    """The lines of the report, one row for each figure and a column for each engine."""

    def line(what: str, goal: str, cell: Callable[[Report], str]) -> str:
        return f"| {what} | {' | '.join(map(cell, reports.values()))} | {goal} |"

    def commit(size: int) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            row = report["commit"][str(size)]
            put, publish = row["put_p50_ms"], row["publish_p50_ms"]
            return f"{publish:.2f} ms, put {put:.2f} ms: {publish / put:.2f} ×"

        return cell

    def rate(inflight: int) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            rows = report["ingest"][str(inflight)]
            rates = {name: row["per_second"] for name, row in rows.items()}
            own = rates.pop("cluster")
            rest = ", ".join(f"{own / each:.2f} × {name}" for name, each in rates.items())
            return f"{own:,.0f}/s, {rows['cluster']['per_slot']:.0f} in a slot: {rest}"

        return cell

    def cpu(inflight: int) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            rows = dict(report["ingest"][str(inflight)])
            leader = rows.pop("cluster")
            own = _total(leader)
            parts = f"{leader['cpu_us']['store']:.1f} + {leader['cpu_us']['gateway']:.1f}"
            rest = ", ".join(f"{own / _total(row):.2f} × {name} ({_total(row):.1f})" for name, row in rows.items())
            return f"{parts} µs: {rest}"

        return cell

    def seconds(name: str) -> Callable[[Report], str]:
        def cell(report: Report) -> str:
            times = report[name]
            if not times:
                return "–"
            return f"{percentile(times, 50):.2f}, {percentile(times, 99):.2f}, {max(times):.2f} s of {len(times)}"

        return cell

    return [
        f"| | {' | '.join(reports)} | goal |",
        "| --- |" + " --- |" * (len(reports) + 1),
        *(line(f"PUBLISH → PUBACK, {size >> 10} KiB, p50", "≤ 1.5 × put", commit(size)) for size in SIZES),
        *(line(f"ingest QoS 1, 100 × {each}", "≥ 0.6 × single node", rate(each)) for each in IN_FLIGHT),
        *(line(f"CPU a message, 100 × {each}, store + gateway", "≤ 1.3 × single", cpu(each)) for each in IN_FLIGHT),
        line("hand-over: longest wait, p50, p99, max", "< 1 s", seconds("hand_over_s")),
        line("failover, p50, p99, max", f"p99 ≤ {LEADER_TIMEOUT_S + 2:g} s", seconds("failover_s")),
        line("load of the machine at the start", "", lambda report: f"{report['load']:.1f}"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--engines", nargs="+", choices=("file", "nats", "seaweed"), default=["file"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200_000, help="messages of a round of ingest")
    parser.add_argument("--kills", type=int, default=20, help="of the leader")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    arguments = parser.parse_args()
    reports: dict[str, Report] = {}
    for engine in arguments.engines:
        try:
            reports[engine] = asyncio.run(measure(engine, arguments.rounds, arguments.count, arguments.kills))
        except (BrokerUnavailable, LoadFailed, ServerMissing) as error:
            print(f"benchmarks.cluster: {error}", file=sys.stderr)
            return 1
    print("\n".join(table(reports)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
