"""`python -m benchmarks`, which `make bench` calls."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks import brokers, report
from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.rounds import LOADER, LoadFailed, run_rounds
from benchmarks.works import WORKS

HERE: Final = Path(__file__).parent


def main() -> int:
    arguments = parse()
    if not LOADER.exists():
        print("the load generator is not built: make bench builds it", file=sys.stderr)
        return 1
    works = [work for work in WORKS if arguments.only.lower() in work.name.lower()]
    if not works:
        print(f"no work has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.folder))
    running: list[Broker] = []
    try:
        for name in arguments.brokers:
            running.append(brokers.start(name, folder / name))
        facts = report.facts(running, folder)
        figures = run_rounds(works, running, arguments.rounds, arguments.scale, tell)
    except (BrokerUnavailable, LoadFailed) as error:
        print(f"\nbench: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in running:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    tell("")
    print(report.table(figures))
    print("\n" + ", ".join(f"{name}: {value}" for name, value in facts.items()))
    path = arguments.json or HERE / "results" / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"facts": facts, "figures": [figure.as_json() for figure in figures]}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"JSON: {path}")
    return 0 if all(figure.complete for figure in figures) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench",
        description="Drives brokers with the same load, side by side, and prints what it cost them.",
        epilog="example:\n  make bench ARGS='--only fan-out --rounds 5'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", type=names, default=brokers.NAMES, help="default: " + ",".join(brokers.NAMES))
    parser.add_argument("--only", default="", metavar="TEXT", help="only works with this in their name")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (default: benchmarks/results)")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in brokers.NAMES:
            raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(brokers.NAMES)}")
    return chosen


def tell(text: str) -> None:
    """Progress on one line, where somebody is watching."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
