"""Many inputs: `python -m tests.fuzz --seconds 60`. Exit code 1 when the node did what it may not do.

What failed is in a file, which `python -m tests.fuzz --replay FILE` plays again: first the batch alone, then what its
process had played before it.
"""

import argparse
import asyncio
import faulthandler
import json
import multiprocessing
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path

import uvloop

from tests.fuzz.inputs import PEERS, batch, from_json, to_json
from tests.fuzz.world import World

_BATCHES = 400  # that one world lives through
# What no batch takes, whatever else the machine has to do: seconds of the process's own CPU time, or of doing nothing.
_BUSY_S = 120
_IDLE_S = 900
_TELL_S = 60  # between lines about how far it is


async def _life(
    seed: int, first: int, last: int, tell: Connection | None, alone: list[list[bytes | str]] | None
) -> None:
    """The batches from `first` to before `last` in a world of their own, or one that is given."""
    async with World() as world:
        if alone is not None:
            await world.run(alone)
            return
        for number in range(first, last):
            if tell is not None:
                tell.send(("batch", number, world.messages))
            await world.run(batch(seed, number))


def _live(
    seed: int, first: int, last: int, tell: Connection | None, alone: list[list[bytes | str]] | None = None
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_life(seed, first, last, tell, alone))


def _work(seed: int, batches: int, tell: Connection) -> None:
    """One process: world after world."""
    faulthandler.enable()
    try:
        for first in range(0, batches, _BATCHES):
            _live(seed, first, min(first + _BATCHES, batches), tell)
        tell.send(("done", batches, 0))
    except BaseException:
        tell.send(("failed", 0, traceback.format_exc()))
        raise


class _Job:
    """A process, and how far it is."""

    def __init__(self, seed: int, batches: int) -> None:
        self.seed = seed
        self.batch = 0
        self.messages = 0  # delivered in worlds that ended
        self.of_world = 0
        self.why = ""  # it failed
        self.is_over = False
        self.tells, tell = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(target=_work, args=(seed, batches, tell))
        self.process.start()
        tell.close()
        self._note_time()

    def _note_time(self) -> None:
        self._heard, self._cpu = time.monotonic(), _cpu_seconds(self.process.pid)

    def look(self) -> None:
        """Whether its batch still goes on."""
        used = _cpu_seconds(self.process.pid) - self._cpu
        if used > _BUSY_S:
            self.is_over, self.why = True, f"the batch did not end with {used:.0f} s of CPU"
        elif used < 1 and time.monotonic() - self._heard > _IDLE_S:
            self.is_over, self.why = True, f"the process did nothing for {_IDLE_S} s"

    def hear(self) -> None:
        self._note_time()
        try:
            kind, number, more = self.tells.recv()
        except EOFError:
            self.is_over = True
            self.process.join()
            self.why = f"the process ended with {self.process.exitcode}"
            return
        if kind == "failed":
            self.is_over, self.why = True, more
        else:
            self.is_over = kind == "done"
            self.batch = number
            if more < self.of_world:
                self.messages += self.of_world
            self.of_world = more

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _watch(jobs: list[_Job], seconds: float) -> None:
    """Until all are through, one has failed, or time is up."""
    deadline, told = time.monotonic() + seconds, time.monotonic()
    while True:
        running = [job for job in jobs if not job.is_over]
        if not running or any(job.why for job in jobs) or time.monotonic() > deadline:
            return
        for ready in wait([job.tells for job in running], timeout=1.0):
            next(job for job in running if job.tells is ready).hear()
        for job in running:
            if not job.is_over:
                job.look()
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            print(_summary(jobs), flush=True)


def _cpu_seconds(pid: int | None) -> float:
    """That a process has used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summary(jobs: list[_Job]) -> str:
    inputs = sum(job.batch for job in jobs) * PEERS
    return f"{inputs} inputs, {sum(job.messages + job.of_world for job in jobs)} messages delivered"


def _write_down(job: _Job) -> Path:
    path = Path(f"fuzz-{job.seed}-{job.batch}.json")
    inputs = json.loads(to_json(batch(job.seed, job.batch)))
    found = {"seed": job.seed, "batch": job.batch, "first": job.batch // _BATCHES * _BATCHES, "peers": inputs}
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def _replay(path: Path) -> int:
    given = json.loads(path.read_text(encoding="utf-8"))
    try:
        _live(0, 0, 0, None, from_json(json.dumps(given["peers"])))
        print("the batch alone does no harm; now with all that came before it", flush=True)
        _live(given["seed"], given["first"], given["batch"] + 1, None)
    except Exception:  # noqa: BLE001  that is what it is for
        traceback.print_exc()
        return 1
    print("no harm done")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000, help="how many (default: 10 million)")
    parser.add_argument("--seconds", type=float, default=3600, help="at the most (default: an hour)")
    parser.add_argument("--seed", type=int, default=1, help="of the first process; each has its own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play what failed again")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return _replay(arguments.replay)
    started = time.monotonic()
    batches = -(-arguments.inputs // (PEERS * arguments.jobs))
    jobs = [_Job(arguments.seed + number, batches) for number in range(arguments.jobs)]
    try:
        _watch(jobs, arguments.seconds)
    finally:
        for job in jobs:
            job.end()
    seconds = time.monotonic() - started
    inputs = sum(job.batch for job in jobs) * PEERS
    print(f"{_summary(jobs)} in {seconds:.0f} s: {inputs / seconds:.0f} inputs a second")
    failed = [job for job in jobs if job.why]
    for job in failed:
        print(job.why, f"again: python -m tests.fuzz --replay {_write_down(job)}", sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
