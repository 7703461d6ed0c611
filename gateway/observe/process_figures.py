"""What the process takes of its machine, as the kernel tells it. Source: proc(5)."""

import gc
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/self/stat")
_FDS: Final = Path("/proc/self/fd")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGESIZE")


_more: list[Callable[[], Mapping[str, int]]] = []  # figures that only some processes have


def _fields() -> list[bytes]:
    """The fields of `/proc/self/stat` from the third on: the second may have blanks in it."""
    return _STAT.read_bytes().rpartition(b")")[2].split()


def _started_ms() -> int:
    """When the process started, ms since 1970-01-01."""
    booted = next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")
    )
    return booted * 1000 + int(_fields()[19]) * 1000 // _TICKS


_STARTED_MS: Final = _started_ms()


def process_figures() -> dict[str, int]:
    """CPU time and start in ms, memory in bytes, open files and their limit, collections of garbage cycles, and what
    `add_figures` was given."""
    fields = _fields()
    figures = {
        "cpu_ms": (int(fields[11]) + int(fields[12])) * 1000 // _TICKS,
        "resident_bytes": int(fields[21]) * _PAGE,
        "started_ms": _STARTED_MS,
    }
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY:
        figures["max_files"] = limit
    for generation, stats in enumerate(gc.get_stats()):
        figures[f"gc_collections:{generation}"] = stats["collections"]
    count = _FDS.stat().st_size  # since Linux 6.2; before, it takes a look at each of perhaps 100,000
    if count:
        figures["open_files"] = count
    for source in _more:
        figures |= source()
    return figures


def add_figures(source: Callable[[], Mapping[str, int]]) -> None:
    """Have `process_figures` tell these, too."""
    _more.append(source)


def remove_figures(source: Callable[[], Mapping[str, int]]) -> None:
    """Undo `add_figures`."""
    _more.remove(source)


def count_open_files() -> int:
    """The number of open files, in perhaps many milliseconds: not for a loop."""
    return sum(1 for _ in _FDS.iterdir())
