"""Compactions, each killed at another step: `python -m tests.streaming.killed_compaction FOLDER COPIES`.

A step is the moment before or after a call that changes the disk. FOLDER is copied for each of them to COPIES/number,
and compacted and cleaned there by a process that ends itself at that step, with SIGKILL.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streaming.history import commit, file_writer, folder
from streaming.history.compaction import Compactor, clean_up
from streaming.history.file_writer import FileWriter
from streaming.history.folder import HistoryFolder

MOST = 200


class Steps:
    """Counts, and kills this process at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def wrap(self, owner: Any, name: str) -> None:
        made: Callable[..., Any] = getattr(owner, name)

        def stepped(*given: Any, **named: Any) -> Any:
            self.step()
            result = made(*given, **named)
            self.step()
            return result

        setattr(owner, name, stepped)


def compact(place: Path, last: int) -> None:
    steps = Steps(last)
    steps.wrap(FileWriter, "__init__")
    steps.wrap(FileWriter, "write")
    steps.wrap(FileWriter, "close")
    steps.wrap(file_writer, "_sync")
    steps.wrap(folder, "create_file")
    steps.wrap(commit.tempfile, "mkstemp")
    steps.wrap(commit.Path, "hardlink_to")
    steps.wrap(commit.Path, "unlink")
    steps.wrap(HistoryFolder, "remove")
    history = HistoryFolder(str(place))
    Compactor(history, "sensors", 1 << 30).run()
    clean_up(history, "sensors", -1.0)


def main(source: str, copies: str) -> int:
    for number in range(MOST):
        place = Path(copies, str(number))
        shutil.copytree(source, place)
        child = os.fork()
        if child == 0:
            compact(place, number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return 0 if os.WEXITSTATUS(status) == 0 else 1
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
