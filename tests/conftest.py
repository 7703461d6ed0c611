"""For all tests: hypothesis judges what is true, never how long it took; processes start as they should."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from store.log import flush_queue

# gRPC as of 1.81 ends a child between fork and exec (its issue 43055): once a test has used it, none gets a JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark")))

settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")


@pytest.fixture
def interpreted_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are opened write by `Disk.write_durable`, which tests patch. The native queue would write past it."""
    monkeypatch.setattr(flush_queue, "FlushQueue", None)


@pytest.fixture(autouse=True)
def _without_log_of_commands() -> Iterator[None]:
    """A node that a test starts in its process logs to standard error as that is now. Later tests have another one."""
    before = logging.root.handlers[:]
    yield
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            logging.root.removeHandler(handler)


_TESTS: Final = Path(__file__).parent
_HEAVY: Final = {"streaming", "system", "examples", "benchmarks"}  # folders of files that take long
# Folders whose files share servers or a JVM for a whole session: in one process they are started once.
_TOGETHER: Final = ("tests/store/cluster/engines/", "tests/connect/connectors/postgres/", "tests/streaming/")
_ALONE: Final = ("_kills.py", "_process.py")  # files there that start JVMs of their own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long go first, those of one folder beside those of another: Spark has work for every core, whole
    nodes mostly wait. One that begins last would keep one process busy and the others waiting."""
    places: dict[Path, int] = {}  # of files that take long, in their folder
    files = Counter[str]()
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if item.path not in places and (folder in _HEAVY or item.get_closest_marker("slow") is not None):
            places[item.path] = files[folder]
            files[folder] += 1
    last = len(items)
    items.sort(key=lambda item: places.get(item.path, last))


class _Scheduling(LoadFileScheduling):
    """One process for the tests of a file, and for all files of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if file.endswith(_ALONE):
            return file
        return next((folder for folder in _TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
