"""The borders of segments, and what is on disk when the log says that it is."""

from collections.abc import Callable
from pathlib import Path

import record
from store.log.disk import Disk
from store.log.recovery import recover, sound_batches
from store.log.segments import Segments, segment_name
from store.log.writer import Writer

SIZE = 4096


def frame(length: int) -> bytes:
    """A frame of exactly so many bytes."""
    return record.frame(1, 0, 0, b"t", b"", b"", bytes(length - 49))


class LazyDisk(Disk):
    """Knows which files hold writes that nobody has synced."""

    __slots__ = ("dirty",)

    def __init__(self) -> None:
        self.dirty: set[int] = set()  # inodes

    def write(self, fd: int, data: bytes, offset: int) -> None:
        super().write(fd, data, offset)
        self.dirty.add(inode(fd))

    def create_zeroed(self, path: Path, size: int, is_stopped: Callable[[], bool]) -> bool:
        made = super().create_zeroed(path, size, is_stopped)  # syncs by itself
        self.dirty.discard(path.stat().st_ino)
        return made

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.dirty.discard(inode(fd))


def inode(fd: int) -> int:
    return Path(f"/proc/self/fd/{fd}").stat().st_ino


def write(path: Path, disk: Disk, *lengths: int) -> int:
    """Write frames of these lengths one by one under the interval policy, syncing nothing at the end."""
    segments = Segments(path, SIZE, disk)
    segments.load()
    writer = Writer(segments, 0, 0, 1, "interval", lambda: 1000)
    writer.open()
    for length in lengths:
        writer.write([frame(length)])
    writer.close()
    segments.close()
    return writer.position


def test_a_segment_that_is_full_to_the_last_byte_is_no_end_of_the_log(tmp_path: Path):
    disk = LazyDisk()
    end = write(tmp_path, disk, 1024, 1024, 1024, 1024, 100)
    segments = Segments(tmp_path, SIZE, disk)
    segments.load()
    found = recover(segments, 0, 0)
    assert (found.end, found.cut) == (end, 0)
    assert sum(len(batch.data) for batch in sound_batches(segments, 0)) == end
    segments.close()


def test_a_segment_that_is_left_holds_no_write_that_was_not_synced(tmp_path: Path):
    for lengths in ((2048, 2048, 100), (2048, 2000, 100)):
        disk = LazyDisk()
        write(tmp_path / str(lengths[1]), disk, *lengths)
        assert (tmp_path / str(lengths[1]) / segment_name(0)).stat().st_ino not in disk.dirty


def test_recovered_records_are_synced_before_use(tmp_path: Path):
    for lengths in ((100, 100), (2048, 2048)):
        disk = LazyDisk()
        path = tmp_path / str(lengths[0])
        write(path, disk, *lengths)
        segments = Segments(path, SIZE, disk)
        segments.load()
        assert disk.dirty
        recover(segments, 0, 0)
        assert not disk.dirty
        segments.close()
