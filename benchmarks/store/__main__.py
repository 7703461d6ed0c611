"""`python -m benchmarks.store`, which `make bench-store` calls."""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.comparison.report import flush_cost, processor
from benchmarks.store import groups, works

Work = Callable[[Path, float], works.Figures]

_PLAIN: Final = "10,000 topics"
_OF_PLAIN: Final = {f"cpu ÷ {_PLAIN}": "≤ 1.5"}
# What is put beside what, in how many of it: (works, figure, the other work).
COMPARED: Final = (
    (("10,000 topics, a filter queue", "10,000 topics, a key each", "1 M topics", "5 M topics"), "cpu", _PLAIN),
    (("log only", _PLAIN), "records", "RocksDB, a put and sync each"),
    (("log only", _PLAIN), "records", "RocksDB, a sync per 1,000"),
    (("log only", _PLAIN), "cpu", "RocksDB, a sync per 1,000"),
)
_FIGURES: Final = {"cpu": "cpu_us", "records": "records_per_second"}

# name: (work, whose folder it needs or "", targets by figure)
WORKS: Final[dict[str, tuple[Work, str, dict[str, str]]]] = {
    "log only": (works.log_only, "", {"records_per_second": "≥ 800,000", "p99_ms": "≤ 6"}),
    "10,000 topics": (
        works.dispatch(10_000, 0, 2_000_000),
        "",
        {"records_per_second": "≥ 200,000", "cpu_us": "≤ 4"},
    ),
    "10,000 topics, recovery": (
        works.recovery,
        "10,000 topics",
        {"scan_s_per_gib": "≤ 0.25", "decode_s_per_gib": "≤ 0.7", "dispatch_s_per_gib": "≤ 6"},
    ),
    "10,000 topics, index": (
        works.index_size,
        "10,000 topics",
        {"partition_bytes_per_reference": "≤ 8", "topic_bytes_per_reference": "≤ 20"},
    ),
    "10,000 topics, a filter queue": (works.dispatch(10_000, 1, 1_000_000), "", _OF_PLAIN),
    "10,000 topics, a key each": (works.dispatch(10_000, 0, 1_000_000, with_keys=True), "", {}),
    "1 M topics": (works.dispatch(1_000_000, 0, 1_000_000), "", _OF_PLAIN),
    "1 M topics, retention": (works.retention, "1 M topics", {"delete_range_ms": "one"}),
    "1 M topics, retention beside appends": (works.retention_beside, "", {"times": "< 2"}),
    "5 M topics": (works.dispatch(5_000_000, 0, 1_000_000), "", {**_OF_PLAIN, "rss_mb": "≤ 600"}),
    "5 M topics, restart": (works.restart, "5 M topics", {"open_s": "≤ 2"}),
    "fetch of 1 M queues": (
        works.fetch,
        "",
        {"references_1_us": "≤ 20", "references_32_us": "≤ 30", "references_256_us": "≤ 90"},
    ),
    "groups, 32 at a time": (groups.pops(32), "", {"cpu_us": "≤ 12.5"}),
    "groups, 256 at a time": (groups.pops(256), "", {"cpu_us": "≤ 12.5"}),
    "groups over gRPC, 32 at a time": (groups.consumers(32), "", {"cpu_us": "≤ 12.5"}),
    "groups over gRPC, 256 at a time": (groups.consumers(256), "", {"cpu_us": "≤ 12.5"}),
    "tree of 2 M topics": (works.tree, "", {}),
    "RocksDB, a put and sync each": (works.rocksdb(1), "", {}),
    "RocksDB, a sync per 1,000": (works.rocksdb(1000), "", {}),
}


def main() -> int:
    arguments = parse()
    if arguments.run:  # in the process of one measurement
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)  # as a node has it
        work = WORKS[arguments.run][0]
        print(json.dumps(work(arguments.folder, arguments.scale)))
        return 0
    chosen = [name for name in WORKS if arguments.only.lower() in name.lower()]
    if not chosen:
        print(f"no work has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    base = Path(tempfile.mkdtemp(prefix="bench-store-", dir=arguments.folder))
    results: dict[str, works.Figures] = {}
    try:
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
            "fdatasync_us": round(flush_cost(base) * 1e6, 1),
            "scale": arguments.scale,
        }
        for name in chosen:
            try:
                results[name] = measure(name, base, arguments.scale, results)
            except subprocess.CalledProcessError as error:
                print(f"{name} failed with status {error.returncode}", file=sys.stderr)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    compare(results)
    print(table(results))
    print("\n" + ", ".join(f"{name}: {value}" for name, value in facts.items()))
    path = arguments.json or Path(__file__).parents[1] / "results" / f"store-{facts['time'].replace(':', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"facts": facts, "figures": results}, indent=1) + "\n", encoding="utf-8")
    print(f"JSON: {path}")
    return 0 if len(results) == len(chosen) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-store",
        description="Measures the store alone, piece by piece, beside plain RocksDB.",
        epilog="example:\n  make bench-store ARGS='--only \"10,000\" --scale 0.1'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="works with this text in their name")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records and, below 1, of topics")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--run", choices=sorted(WORKS), help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(name: str, base: Path, scale: float, results: dict[str, works.Figures]) -> works.Figures:
    """Run one work in a process of its own, after the work whose folder it needs."""
    needs = WORKS[name][1]
    if needs and needs not in results and not (base / needs).exists():
        measure(needs, base, scale, results)
    folder = base / (needs or name)
    folder.mkdir(exist_ok=True)
    print(f"{name} …", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "benchmarks.store", "--run", name, "--scale", str(scale), "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    if not any(other[1] == folder.name for other in WORKS.values()):
        shutil.rmtree(folder)
    figures: works.Figures = json.loads(done.stdout)
    return figures


def compare(results: dict[str, works.Figures]) -> None:
    """Add the ratio of a figure to that of another work."""
    for names, figure, other in COMPARED:
        for name in names:
            if name in results and other in results:
                own, its = results[name][_FIGURES[figure]], results[other][_FIGURES[figure]]
                results[name][f"{figure} ÷ {other}"] = own / its


def table(results: dict[str, works.Figures]) -> str:
    """A row for each figure, with its target if it has one."""
    rows = [("work", "figure", "value", "target")]
    for name, figures in results.items():
        for figure, value in figures.items():
            rows.append((name, figure, f"{value:,.{0 if value >= 1000 else 2}f}", WORKS[name][2].get(figure, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
