"""`store.json`: the name of the log and its openings."""

from pathlib import Path

import pytest

from store.config import StoreConfig
from store.data_folder import _MAX_OPENINGS, Folder, Meta, Opening, read_meta
from store.log.disk import Disk

OPENINGS = [
    Opening("a", 0),
    Opening("b", 100),
    Opening("c", 100),
    Opening("d", 50),
]  # a backup of up to 50 was restored


@pytest.mark.parametrize(
    ("opening", "position", "expected"),
    [
        ("a", 0, True),
        ("a", 50, True),
        ("a", 51, False),  # "d" wrote from 50 on
        ("b", 100, False),
        ("c", 100, False),
        ("d", 50, True),
        ("d", 10**9, True),  # the newest opening
        ("e", 0, False),
        ("", 0, False),
    ],
)
def test_whether_a_log_is_what_a_reader_knows(opening: str, position: int, expected: bool):
    meta = Meta(log_id="x", epoch=4, partitions=1, segment_size=4096, generation_segments=16, openings=OPENINGS)
    assert meta.has_log_up_to(opening, position) is expected


def test_openings_are_recorded_and_bounded(tmp_path: Path):
    folder = Folder(tmp_path, Disk())
    created = meta = folder.read_or_create_meta(StoreConfig())
    assert (meta.epoch, meta.openings) == (0, [])
    for position in range(_MAX_OPENINGS + 2):
        meta = folder.begin_epoch(meta, position)
    folder.close()
    assert read_meta(tmp_path) == meta
    assert (meta.log_id, meta.epoch) == (created.log_id, _MAX_OPENINGS + 2)
    assert [each.begin for each in meta.openings] == list(range(2, _MAX_OPENINGS + 2))
    assert len({each.name for each in meta.openings}) == _MAX_OPENINGS
