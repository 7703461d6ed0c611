"""Whole pages for what is written to a segment, and the page cache that they go past."""

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.log.disk import Disk
from store.log.pages import PAGE, Pages

SIZES = st.lists(st.sampled_from([1, 5, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, (1 << 20) - 1, 1 << 20, (1 << 20) + 7]))


@given(SIZES, st.integers(0, 2 * PAGE))
def test_pages_are_whole_and_hold_what_was_written_and_zeros(sizes: list[int], end: int):
    rng = Random(7)
    file = bytearray(rng.randbytes(end))
    pages = Pages()
    pages.begin(bytes(file[end - end % PAGE :]))

    def put(whole: memoryview, offset: int) -> None:
        assert offset % PAGE == len(whole) % PAGE == 0
        file[offset:] = whole

    for size in sizes:
        data = rng.randbytes(size)
        before = bytes(file[:end])
        pages.write(data, end, put)
        end += size
        assert file[:end] == before + data
        assert file[end:] == bytes(-end % PAGE)


@pytest.mark.parametrize("is_direct", [True, False])
def test_bytes_written_past_the_page_cache_are_read_by_others(tmp_path: Path, is_direct: bool):
    disk = Disk()
    assert disk.create_zeroed(tmp_path / "segment", 64 * PAGE, lambda: False)
    fd = os.open(tmp_path / "segment", os.O_RDWR)
    if is_direct:
        disk.write_past_cache(fd)
    pages, end, data = Pages(), 0, b""
    rng = Random(3)
    for _ in range(60):
        piece = rng.randbytes(rng.randint(1, 4000))
        pages.write(piece, end, lambda whole, offset: disk.write_durable(fd, whole, offset))
        end += len(piece)
        data += piece
        assert (tmp_path / "segment").read_bytes() == data + bytes(64 * PAGE - end)
    os.close(fd)


def test_a_file_system_without_a_way_past_the_page_cache_is_written_through_it():
    fd = os.memfd_create("segment")
    os.ftruncate(fd, 2 * PAGE)
    Disk().write_past_cache(fd)
    Disk().write_durable(fd, b"odd", 5)
    assert os.pread(fd, 8, 0) == bytes(5) + b"odd"
    os.close(fd)
