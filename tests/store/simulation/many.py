"""Runs many histories in several processes and says what became of them."""

import argparse
import os
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.store.simulation.simulator import Lived

LONG_S = 120  # that no history takes


def run_many(description: str | None, simulate: Callable[[int], Lived], again: str) -> int:
    """Simulate the seeds that the command line names. Returns the exit code: 1 on a violation.

    `again` is the make target that repeats one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (default: 200)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    counts: Counter[str] = Counter()
    digest = 0
    violations: list[int] = []
    started = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for seed, lived, violation in pool.map(partial(_run_seed, simulate), seeds, chunksize=4):
            counts.update(lived.counts)
            digest = zlib.crc32(lived.digest.to_bytes(4, "big"), digest)
            if violation:
                violations.append(seed)
                print(violation, file=sys.stderr, flush=True)
    happened = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{len(seeds)} seeds in {time.monotonic() - started:.1f} s, digest {digest:08x}: {happened}")
    print(f"{len(violations)} violations", *(f"make {again} SEEDS=1 FIRST={seed}" for seed in violations), sep="\n  ")
    return 1 if violations else 0


def _run_seed(simulate: Callable[[int], Lived], seed: int) -> tuple[int, Lived, str]:
    """(seed, what became of it, what was violated or nothing)."""
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.alarm(LONG_S)
    try:
        return seed, simulate(seed), ""
    except Exception:  # noqa: BLE001  whatever it was, the other histories go on
        return seed, Lived({}, 0), traceback.format_exc()
    finally:
        signal.alarm(0)


def _on_alarm(*_: object) -> None:
    raise AssertionError(f"the history does not end within {LONG_S} s")
