"""The memory of one task in a process of its own: `python -m benchmarks.stream.memory ENDPOINT PARENT BYTES`."""

import sys
from pathlib import Path
from typing import Final

from streaming.source.columns import checked, schema_of
from streaming.source.options import SourceOptions
from streaming.source.stream import StreamReader

_MOST_BATCHES: Final = 100


def main(endpoint: str, parent: str, max_bytes: str) -> None:
    """Reads the log in micro-batches of `max_bytes`, all tasks of each one after the other as a worker of Spark's does.
    Prints the bytes of memory that this needed beyond those before it, and how many records the largest task and all of
    them had."""
    options = SourceOptions.parse({"endpoint": endpoint, "parent": parent, "maxBytesPerTrigger": max_bytes})
    stream = StreamReader(options, checked(schema_of(options.columns)))
    at, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    before = _peak()
    largest = rows = 0
    for _ in range(_MOST_BATCHES):
        reached = stream.latestOffset(at, limit)
        for partition in stream.partitions(at, reached):
            count = sum(batch.num_rows for batch in stream.read(partition))
            largest = max(largest, count)
            rows += count
        at = reached
    stream.stop()
    sys.stdout.write(f"{_peak() - before} {largest} {rows}\n")


def _peak() -> int:
    """The peak memory of this process in bytes. `getrusage` starts with that of the parent process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not tell the peak of memory")


if __name__ == "__main__":
    main(*sys.argv[1:])
