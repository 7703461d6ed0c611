"""`python -m benchmarks`, which `make bench` calls."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.comparison import chart, peers, report
from benchmarks.comparison.idle import IDLE, run_idle
from benchmarks.comparison.rounds import LOADER, run_rounds
from benchmarks.comparison.works import WORKS

HERE: Final = Path(__file__).parent


def main() -> int:
    arguments = parse()
    if not LOADER.exists():
        print("the load generator is not built: make bench builds it", file=sys.stderr)
        return 1
    if arguments.save and (arguments.only or arguments.brokers != peers.NAMES):
        print("--save keeps a whole result: leave out --only and --brokers", file=sys.stderr)
        return 2
    works = [work for work in WORKS if arguments.only.lower() in work.name.lower()]
    idle = [work for work in IDLE if arguments.only.lower() in work.name.lower()]
    if not works and not idle:
        print(f"no work has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.folder)).absolute()
    running: list[Broker] = []
    try:
        start(arguments.brokers, folder, running)
        facts = report.facts(running, folder)
        figures = run_rounds(works, running, arguments.rounds, arguments.scale, tell)
        if idle:
            figures += run_idle(idle, [broker.name for broker in running], folder, arguments.rounds, tell)
    except BrokerUnavailable as error:
        print(f"\nbench: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in running:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    tell("")
    print(report.tables(figures))
    print("\n" + ", ".join(f"{name}: {value}" for name, value in facts.items()))
    path = arguments.json or HERE / "results" / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"facts": facts, "figures": [figure.as_json() for figure in figures]}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"JSON: {path}")
    if arguments.save:
        chart.save(figures, facts)
        print(f"saved as {chart.RESULT} and drawn as {chart.CHART}")
    return 0 if all(figure.complete for figure in figures if figure.broker == report.OWN) else 1


def start(names: tuple[str, ...], folder: Path, running: list[Broker]) -> None:
    """Start the brokers into `running`. Raises `BrokerUnavailable` if a required one does not start."""
    for name in names:
        try:
            running.append(peers.start(name, folder / name))
        except BrokerUnavailable as error:
            if not peers.PEERS[name].optional:
                raise
            print(f"without {name}: {error}", file=sys.stderr)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench",
        description="Drives brokers with the same load, side by side, and prints what it cost them.",
        epilog="example:\n  make bench ARGS='--only fan-out --rounds 5 --brokers sluice,mosquitto'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", type=names, default=peers.NAMES, help="default: " + ",".join(peers.NAMES))
    parser.add_argument("--only", default="", metavar="TEXT", help="only works with this in their name")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (default: benchmarks/results)")
    parser.add_argument("--save", action="store_true", help="keep the result in docs/ and draw its chart")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in peers.PEERS:
            raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(peers.NAMES)}")
    return chosen


def tell(text: str) -> None:
    """Show progress on one line if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
