"""The measurement of a device beside readers: they read all the time, and the figures are those of the rounds."""

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks import cold_readers
from benchmarks.comparison.figures import Sample
from benchmarks.comparison.rounds import LoadFailed
from tests.waiting import block_until


@pytest.mark.slow
def test_readers_read_their_partitions_again_and_again(tmp_path: Path) -> None:
    with cold_readers.running(tmp_path / "node", False) as node:
        asyncio.run(cold_readers.fill(node.endpoint, 500))
        with cold_readers.reading(node.endpoint, 2) as readers:
            block_until(lambda: all(reader.count > 500 for reader in readers))
        before = cold_readers.read_so_far(readers)
        assert not any(reader._thread.is_alive() for reader in readers)
        assert cold_readers.read_so_far(readers) == before


def test_readers_that_cannot_read_fail_the_measurement() -> None:
    with pytest.raises(LoadFailed), cold_readers.reading("127.0.0.1:1", 1):
        pass


def test_the_log_is_dropped_from_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []

    def advise(fd: int, _offset: int, _length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        dropped.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(cold_readers.os, "posix_fadvise", advise)
    for name in ("1.log", "2.log", "other"):
        (tmp_path / name).touch()
    with cold_readers.evicting(tmp_path):
        block_until(lambda: len(dropped) >= 4)
    assert set(dropped) == {"1.log", "2.log"}


@pytest.mark.parametrize(("p99_us", "said"), [(19_000.0, "1.9 ✓"), (21_000.0, "2.1 ✗")])
def test_the_goal_is_a_ratio_to_readers_of_another_node(p99_us: float, said: str) -> None:
    alone, others, beside = (Sample(True, 1, 1.0, 0.0, 0.0, 1_000.0, p99) for p99 in (5_000.0, 10_000.0, p99_us))
    last = cold_readers.table([cold_readers.Round(alone, others, beside, 5.0)]).splitlines()[-1]
    assert said in last
    assert f"{p99_us / 5_000:.1f}" in last  # and beside it the ratio to a device without readers
