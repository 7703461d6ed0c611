"""A node whose disk takes longer for each flush: `python -m benchmarks.small_machine.slow_disk MS serve --config FILE`.

It waits so many milliseconds in each durable write and each sync of the log. The rest is what `sluice` does.
"""

import runpy
import sys
import time
from functools import partial

from store.engine import Engine
from store.log.disk import Disk


class SlowDisk(Disk):
    """Waits in each flush, in addition to what the real disk takes."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().write_durable(fd, data, offset)
        time.sleep(self._seconds)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        time.sleep(self._seconds)


if __name__ == "__main__":
    Engine.open = partial(Engine.open, disk=SlowDisk(float(sys.argv.pop(1)) / 1000))  # type: ignore[method-assign]
    runpy.run_module("sluice", run_name="__main__", alter_sys=True)
