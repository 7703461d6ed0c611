"""Where the CPU time of a node goes under one of the works: `python -m benchmarks.profile`, which `make profile` calls.

Writes a flame graph (SVG) and prints the functions that took most of it themselves. Both are py-spy's samples of Python
and native code of the threads that run; it has to be allowed to trace the node (root, or kernel.yama.ptrace_scope 0).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.comparison import peers
from benchmarks.comparison.rounds import LOADER, STALL_LIMIT
from benchmarks.comparison.works import WORKS, Work

_RATE: Final = 499  # samples a second
_ENDLESS: Final = 100_000_000  # messages: the load ends with the recording
_WARM: Final = 2_000  # messages
_TOP: Final = 25  # functions that are printed
# Threads in these wait, though py-spy takes them for running.
_WAITING: Final = ("PyThread_acquire_lock_timed", "pthread_cond_timedwait", "pthread_cond_wait", "epoll_pwait")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make profile", description=str(__doc__).splitlines()[0])
    parser.add_argument("--work", default="ingest", help="the first work with this in its name (default: ingest)")
    parser.add_argument("--seconds", type=int, default=10, help="of the recording (default: 10)")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="of the node's data and the flame graph")
    arguments = parser.parse_args()
    found = [work for work in WORKS if arguments.work.lower() in work.name.lower() and work.mode != "connect"]
    if not found:
        print(f"no work has {arguments.work!r} in its name", file=sys.stderr)
        return 2
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=arguments.folder)).absolute()
    try:
        broker = peers.start("sluice", folder)
        try:
            text = record(found[0], broker, arguments.seconds, folder)
        finally:
            broker.stop()
        name = "-".join("".join(each if each.isalnum() else " " for each in arguments.work.lower()).split())
        graph = arguments.folder / f"profile-{name}.svg"
        shutil.move(folder / "graph.svg", graph)
    except (BrokerUnavailable, subprocess.CalledProcessError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{found[0].name}: share of the samples in which a function itself was running\n\n{text}\n")
    print(f"flame graph: {graph}")
    return 0


def record(work: Work, broker: Broker, seconds: int, folder: Path) -> str:
    """Load the broker with `work` and record it. Writes `graph.svg` in the folder, and returns the top list as text."""
    command = [str(LOADER), "--mode", work.mode, "--port", str(broker.port), "--qos", str(work.qos), *work.options]
    command += ["--connections", str(work.connections), "--inflight", str(work.inflight), "--count", str(_ENDLESS)]
    command += ["--warmup", str(_WARM), "--limit", str(4 * seconds + 60), "--stall", str(STALL_LIMIT)]
    command += ["--rate", str(work.rate)] if work.rate else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None
        try:
            if loader.stdout.readline() != "warm\n":
                raise BrokerUnavailable(f"{work.name}: the load generator did not get warm")
            loader.stdin.write("go\n")
            loader.stdin.flush()
            spy = [str(Path(sys.executable).parent / "py-spy"), "record", "--native", "--rate", str(_RATE)]
            spy += ["--pid", str(broker.process.pid), "--duration", str(seconds)]
            raw = folder / "stacks.txt"
            for kind, path in (("flamegraph", folder / "graph.svg"), ("raw", raw)):
                subprocess.run([*spy, "--format", kind, "--output", str(path)], check=True, stdout=subprocess.DEVNULL)
        finally:
            loader.kill()
    return top(raw.read_text(encoding="utf-8"))


def top(stacks: str) -> str:
    """The functions at the end of the stacks, those with most samples first, without those that wait. `stacks`: lines
    of frames with ";" between them, and the number of samples."""
    own: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        if not any(frame.startswith(_WAITING) for frame in frames.split(";")):
            own[frames.rpartition(";")[2]] += int(count)
    total = sum(own.values()) or 1
    return "\n".join(f"{count / total:6.1%}  {name}" for name, count in own.most_common(_TOP))


if __name__ == "__main__":
    sys.exit(main())
