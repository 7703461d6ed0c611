"""The figures as a Markdown table for people and as JSON for machines."""

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers import Broker
from benchmarks.rounds import Figure


def table(figures: Sequence[Figure]) -> str:
    """One row per work and broker; `×` is the cost beside Sluice's, `*` marks a work that it did not complete."""
    own = {figure.work: figure.cpu_us for figure in figures if figure.broker == "sluice"}
    rows = [("work", "broker", "CPU µs", "low–high", "×", "per second", "p50 ms", "p99 ms")]
    for figure in figures:
        ratio = f"{figure.cpu_us / own[figure.work]:.2f}" if figure.cpu_us and own.get(figure.work) else "–"
        rows.append(
            (
                f"{figure.work}, a {figure.unit}",
                figure.broker + ("" if figure.complete else " *"),
                f"{figure.cpu_us:.2f}",
                f"{figure.cpu_us_low:.2f}–{figure.cpu_us_high:.2f}",
                ratio,
                f"{figure.per_second:,.0f}",
                milliseconds(figure.p50_us),
                milliseconds(figure.p99_us),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def milliseconds(microseconds: float | None) -> str:
    return "–" if microseconds is None else f"{microseconds / 1000:.2f}"


def facts(brokers: Sequence[Broker], disk: Path) -> dict[str, object]:
    """What a reader needs to judge the figures: machine, versions, and what one flush costs on this disk."""
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
    """Median seconds of an fdatasync behind 4 KiB written into a file that has its blocks already."""
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
