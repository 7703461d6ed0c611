"""Figures as Markdown tables beside their targets, and as JSON."""

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers import Broker
from benchmarks.comparison.figures import Figure
from benchmarks.comparison.works import Target

OWN = "sluice"
_NONE = "–"


def tables(figures: Sequence[Figure]) -> str:
    """Costs, then pace and latency. `*` marks a work that a broker did not complete, `✗` a target that is missed."""
    brokers = list(dict.fromkeys(figure.broker for figure in figures))
    works = list(dict.fromkeys(figure.work for figure in figures))
    found = {(figure.work, figure.broker): figure for figure in figures}
    costs = [["CPU µs", *brokers, "÷ mosquitto", "÷ amqtt", "targets"]]
    paces = [["per second; p50 / p99 ms", *brokers]]
    memory = [["bytes each", *brokers, "targets"]]
    for work in works:
        row = {name: found[work, name] for name in brokers if (work, name) in found}
        unit = f"{work}, a {next(iter(row.values())).unit}"
        if any(each.bytes_each is not None for each in row.values()):
            memory.append([unit, *(_memory(row.get(name)) for name in brokers), verdicts(row)])
            continue
        ratios = [_ratio(row, peer) for peer in ("mosquitto", "amqtt")]
        costs.append([unit, *(_cost(row.get(name)) for name in brokers), *ratios, verdicts(row)])
        paces.append([work, *(_pace(row.get(name)) for name in brokers)])
    return "\n\n".join(aligned(rows) for rows in (costs, paces, memory) if len(rows) > 1)


def verdicts(row: dict[str, Figure]) -> str:
    """The targets of a work. Each is marked as met or missed, or has no mark if the peer was not measured."""
    own = row.get(OWN)
    return ", ".join(_verdict(target, row) for target in own.targets) if own is not None and own.targets else _NONE


def _verdict(target: Target, row: dict[str, Figure]) -> str:
    met = is_met(target, row)
    name = {"p50_ms": "p50 ms ", "p99_ms": "p99 ms "}.get(target.measure, "")
    return f"{name}{target.text}" + ("" if met is None else " ✓" if met else " ✗")


def is_met(target: Target, row: dict[str, Figure]) -> bool | None:
    """Whether Sluice meets the target in a row (broker → figure); None without the figures."""
    own = row[OWN].measured(target.measure)
    limit = target.limit
    if target.peer:
        other = row[target.peer].measured(target.measure) if target.peer in row else None
        if other is None:
            return None
        limit *= other
    if own is None:
        return None
    return own >= limit if target.measure == "per_second" else own <= limit


def _ratio(row: dict[str, Figure], peer: str) -> str:
    own, other = row.get(OWN), row.get(peer)
    return f"{own.cpu_us / other.cpu_us:.2f}" if own and other and own.cpu_us and other.cpu_us else _NONE


def _cost(figure: Figure | None) -> str:
    if figure is None or not figure.cpu_us:
        return _NONE
    return f"{figure.cpu_us:.3g}" + ("" if figure.complete else " *")


def _pace(figure: Figure | None) -> str:
    if figure is None or not figure.per_second:
        return _NONE
    text = f"{figure.per_second:,.0f}"
    if figure.p50_us is not None and figure.p99_us is not None:
        text += f"; {figure.p50_us / 1000:.3g} / {figure.p99_us / 1000:.3g}"
    return text + ("" if figure.complete else " *")


def _memory(figure: Figure | None) -> str:
    return _NONE if figure is None or figure.bytes_each is None else f"{figure.bytes_each:,.0f}"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def facts(brokers: Sequence[Broker], disk: Path) -> dict[str, object]:
    """What the figures depend on: the machine, the versions, and the cost of a flush on this disk."""
    from sluice.kernel import compiled_modules  # noqa: PLC0415

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiled_modules": len(compiled_modules()),
        "fdatasync_us": round(flush_cost(disk) * 1e6, 1),
        "brokers": {broker.name: broker.version for broker in brokers},
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def flush_cost(folder: Path) -> float:
    """Median seconds of fdatasync after 4 KiB were written into a file whose blocks are allocated."""
    path = folder / "flush.probe"
    costs = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(1 << 20), 0)
        os.fsync(descriptor)
        for number in range(64):
            os.pwrite(descriptor, os.urandom(4096), number * 4096)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            costs.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(costs)
