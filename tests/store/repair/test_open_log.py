"""Looking at a log that a node has open, and mending one that a backup shares files with."""

import os
import shutil
from pathlib import Path

import pytest

import record
from store.log.disk import Disk
from store.log.pinned_segments import PinnedSegments
from store.log.recovery import frames_behind
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch, Writer
from store.repair import verify as auditing
from store.repair.verify import audit, open_segments, pieces, repair

VECTOR = Path(__file__).parents[1] / "vectors" / "v1"
SIZE = 4096


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(VECTOR, tmp_path / "data")
    return tmp_path / "data"


def test_a_log_that_grows_while_it_is_read_is_not_damaged(data: Path, monkeypatch: pytest.MonkeyPatch):
    segments = Segments(data / "log", SIZE, Disk())
    segments.load()
    writer = Writer(segments, audit(data).end, 0, 9, "fsync", lambda: 1)

    def behind(own: Segments, position: int):
        while written:
            writer.write([written.pop()])  # each is durable before the next: what proves damage, were it not at the end
        return frames_behind(own, position)

    written = [record.frame(1, 0, 0, b"t", b"", b"", b"%d" % number) for number in range(3)]
    monkeypatch.setattr(auditing, "frames_behind", behind)
    found = audit(data)
    assert found.damage == []
    assert found.end == writer.position
    assert found.records == 26
    writer.close()
    segments.close()


def test_a_segment_that_retention_takes_meanwhile_is_still_read(data: Path):
    segments, damage = open_segments(data)
    assert damage is None
    (data / "log" / segment_name(0)).unlink()
    records = 0
    for piece in pieces(segments, 0):
        assert isinstance(piece, SealedBatch)
        records += len(record.split(piece.data))
    assert records == 23
    segments.close()
    assert open_segments(data)[0].bases[0] == SIZE


def test_segments_that_go_while_they_are_opened_are_looked_for_again(data: Path):
    class Busy(PinnedSegments):
        __slots__ = ()

        def _open(self, base: int) -> int:
            for path in sorted(self.folder.glob("*.log"))[: -1 if gone else 1]:
                if not gone:
                    path.unlink()
                    gone.append(path)
            return super()._open(base)

    gone: list[Path] = []
    segments = Busy(data / "log", SIZE, Disk())
    segments.find()
    assert segments.bases[0] == SIZE
    segments.close()


def test_a_repair_does_not_touch_a_file_that_a_backup_shares(data: Path, tmp_path: Path):
    (tmp_path / "backup").mkdir()
    for path in (data / "log").glob("*.log"):
        os.link(path, tmp_path / "backup" / path.name)
    with (data / "log" / segment_name(SIZE)).open("r+b") as file:
        file.seek(700)
        file.write(b"!!")
    before = {path.name: path.read_bytes() for path in (tmp_path / "backup").iterdir()}
    cut, _ = repair(data, Disk())
    assert cut is not None
    assert audit(data).end == cut.position
    assert {path.name: path.read_bytes() for path in (tmp_path / "backup").iterdir()} == before
