"""The cost of the subscription trie: `python -m benchmarks.matcher`, which `make bench-matcher` calls.

A fifth of the filters has each of five shapes that fleets use. Most filters share their first levels with many others,
and three in five have wildcards. Times are CPU time. Memory is the growth of the process, with the text of the filters.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from matcher.trie import Trie

_FEW: Final = 1000  # topics that are matched again and again
_TARGETS: Final = {"cached_us": 0.15, "uncached_us": 2.5, "bytes_a_filter": 300.0}
_PAGE: Final = 4096  # bytes

# A filter of each shape for a number, and a topic that it matches.
_SHAPES: Final[tuple[tuple[Callable[[int], bytes], Callable[[int], bytes]], ...]] = (
    (lambda n: b"home/%d/+/temp" % n, lambda n: b"home/%d/kitchen/temp" % n),
    (lambda n: b"plant/line%d/machine%d/#" % (n % 100, n), lambda n: b"plant/line%d/machine%d/a/b" % (n % 100, n)),
    (lambda n: b"fleet/+/vehicle%d/+/status" % n, lambda n: b"fleet/eu/vehicle%d/engine/status" % n),
    (lambda n: b"tower/%d/%d/room%d" % (n % 50, n % 20, n), lambda n: b"tower/%d/%d/room%d" % (n % 50, n % 20, n)),
    (lambda n: b"devices/%d/commands" % n, lambda n: b"devices/%d/commands" % n),
)


@dataclass(slots=True)
class Figures:
    """Microseconds of CPU a call, and bytes a filter with one subscriber."""

    filters: int
    add_us: float
    cached_us: float  # a match whose answer is known
    uncached_us: float  # one whose answer is not
    storm_us: float  # to unsubscribe and subscribe, while an answer is cached for every topic
    bytes_a_filter: float


class Subscriber:
    """A value in the trie, whose own memory does not count."""

    __slots__ = ()


def measure(count: int) -> Figures:
    """Fill a trie with this number of filters and measure its operations."""
    subscribers = [Subscriber() for _ in range(count)]
    topics = [_SHAPES[n % len(_SHAPES)][1](n) for n in range(count)]
    random.Random(1).shuffle(topics)
    gc.collect()
    gc.disable()
    trie: Trie[Subscriber] = Trie()
    before = resident()
    filters = [_SHAPES[n % len(_SHAPES)][0](n) for n in range(count)]
    start = time.process_time()
    for topic_filter, subscriber in zip(filters, subscribers, strict=True):
        trie.add(topic_filter, subscriber)
    add = time.process_time() - start
    grown = resident() - before
    start = time.process_time()
    for topic in topics:
        trie.match(topic)
    uncached = time.process_time() - start
    again = topics[:_FEW] * max(1, count // _FEW)
    for topic in topics[:_FEW]:
        if len(trie.match(topic)) != 1:
            raise AssertionError(f"{topic!r} matches more or less than its own filter")
    start = time.process_time()
    for topic in again:
        trie.match(topic)
    cached = time.process_time() - start
    start = time.process_time()
    for topic_filter, subscriber in zip(filters, subscribers, strict=True):
        trie.remove(topic_filter, subscriber)
        trie.add(topic_filter, subscriber)
    storm = time.process_time() - start
    gc.enable()
    each = 1e6 / count
    return Figures(count, add * each, cached * 1e6 / len(again), uncached * each, storm * each, grown / count)


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def table(rows: list[Figures]) -> str:
    """The figures with their targets."""
    lines = [
        "| filters | add µs | match cached µs | match uncached µs | storm µs | bytes a filter |",
        "| --- " * 6 + "|",
    ]
    lines += [
        f"| {row.filters:,} | {row.add_us:.2f} | {row.cached_us:.3f} | {row.uncached_us:.2f} | {row.storm_us:.2f} "
        f"| {row.bytes_a_filter:.0f} |"
        for row in rows
    ]
    targets = _TARGETS
    lines.append(
        f"| target | | {targets['cached_us']} | {targets['uncached_us']} | | {targets['bytes_a_filter']:.0f} |"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-matcher",
        description="Measures the subscription trie: time of a match, cost of a change, memory of a filter.",
        epilog="example:\n  make bench-matcher ARGS='--filters 1000000'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--filters", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3, of which the median time is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    rounds = [measure(arguments.filters) for _ in range(arguments.rounds)]
    shown = Figures(
        arguments.filters,
        median(each.add_us for each in rounds),
        median(each.cached_us for each in rounds),
        median(each.uncached_us for each in rounds),
        median(each.storm_us for each in rounds),
        rounds[0].bytes_a_filter,  # later rounds take theirs from what the first has left
    )
    print(table([shown]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(shown), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
