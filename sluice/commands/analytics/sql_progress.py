"""How far a query of `sluice sql` is, on a line of the terminal."""

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, Self, TextIO

if TYPE_CHECKING:
    from pyspark import StatusTracker

_EVERY_S: Final = 0.5
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """Writes to standard error while a query runs, if that is a terminal, and leaves nothing there."""

    def __init__(self) -> None:
        self._out: TextIO | None = None
        if sys.stderr.isatty():  # a copy: what Spark's processes write is hidden while they start
            self._out = os.fdopen(os.dup(sys.stderr.fileno()), "w")
        self._tracker: StatusTracker | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._out is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def watch(self, tracker: "StatusTracker") -> None:
        """Show the tasks of a session from now on."""
        self._tracker = tracker

    def end(self) -> None:
        """Clear the line. Nothing is asked of Spark after that."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._out is not None
        with self._out as out:
            while True:
                tracker = self._tracker
                out.write(_CLEAR + ("Spark starts" if tracker is None else tasks(tracker)))
                out.flush()
                if self._ended.wait(_EVERY_S):
                    break
            out.write(_CLEAR)


def tasks(tracker: "StatusTracker") -> str:
    """Return how many tasks of the running stages are done."""
    stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
    if not stages:
        return "Spark plans the query"
    return f"{sum(each.numCompletedTasks for each in stages):,} of {sum(each.numTasks for each in stages):,} tasks"
