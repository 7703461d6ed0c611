"""Segments that are missing at the log's begin: damage, unless retention removed them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.cli import main
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt
from store.exports.backup import back_up_stopped
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.until import Until
from store.log.segments import segment_name
from store.repair import verify
from store.repair.verify import audit, repair
from store.views.database.database import Database
from tests.store.log.test_damaged import SEGMENT, TOLD, append, check_queues, intact, log_of, make, message

CONFIG = StoreConfig(segment_size=SEGMENT, partitions=1, generation_segments=2, retention_check_s=3600)
REMOVING = replace(CONFIG, retention_bytes=3 * SEGMENT)
OPTIONS = CopyOptions(disk=verify.Disk(), may_link=False)


async def fill(path: Path, count: int = 80, config: StoreConfig = CONFIG) -> int:
    """Append messages of a tenth of a segment, let retention remove segments, and return where the log begins."""
    engine = await Engine.open(path, config)
    for number in range(0, count, 5):
        await append(engine, *map(message, range(number, number + 5)))
    await engine._retention.enforce()
    begin = engine.stats().log_begin
    await engine.close()
    return begin


def remove_first(path: Path, count: int) -> int:
    """Remove the first segments of the log, and return where the rest begins."""
    files = sorted((path / "log").glob("*.log"))
    for file in files[:count]:
        file.unlink()
    return int(files[count].stem)


@pytest.mark.parametrize(("count", "what"), [(1, "the segment is missing"), (2, "2 segments are missing")])
@pytest.mark.parametrize("config", [CONFIG, REMOVING], ids=["kept", "retention"])
async def test_missing_first_segments_are_refused_and_named(tmp_path: Path, config: StoreConfig, count: int, what: str):
    data = tmp_path / "data"
    begin = await fill(data, config=config)
    assert bool(begin) == bool(config.retention_bytes)
    assert audit(data).damage == []
    resumes = remove_first(data, count)
    with pytest.raises(LogCorrupt, match=f"{what} in segment {segment_name(begin)} at position {begin}"):
        await Engine.open(data, config)
    (damage,) = audit(data).damage
    assert (damage.segment, damage.position, damage.what) == (segment_name(begin), begin, what)
    assert (damage.resumes, damage.is_known) == (resumes, False)
    with pytest.raises(LogCorrupt, match=what):
        back_up_stopped(data, tmp_path / "backup", OPTIONS)
    with pytest.raises(LogCorrupt, match=what):
        restore(data, tmp_path / "restored", Until(), [], OPTIONS)


async def test_log_verify_reports_a_missing_first_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await fill(tmp_path)
    assert main(["log", "verify", "--data-dir", str(tmp_path)]) == 0
    remove_first(tmp_path, 1)
    capsys.readouterr()
    assert main(["log", "verify", "--data-dir", str(tmp_path)]) == 1
    assert "DAMAGED: the segment is missing in segment 00000000000000000000.log" in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 2])
async def test_the_rest_is_served_after_missing_first_segments(tmp_path: Path, count: int):
    frames = await make(tmp_path)
    resumes = remove_first(tmp_path, count)
    whole = intact(tmp_path, frames)
    assert len(whole) < len(frames)
    engine = await Engine.open(tmp_path, TOLD)
    assert engine.stats().log_begin == 0
    assert engine.stats().damaged_bytes == resumes
    assert await log_of(engine) == whole
    await check_queues(engine, frames, whole)
    await engine.close()
    engine = await Engine.open(tmp_path, CONFIG)
    await engine.close()
    (known,) = audit(tmp_path).damage
    assert (known.position, known.resumes, known.is_known) == (0, resumes, True)


async def test_repair_cuts_at_missing_first_segments(tmp_path: Path):
    await fill(tmp_path)
    kept = len(list((tmp_path / "log").glob("*.log"))) - 1
    remove_first(tmp_path, 1)
    cut, copies = repair(tmp_path, verify.Disk())
    assert cut is not None
    assert cut.position == 0
    assert copies is not None
    assert len(list(copies.iterdir())) == kept
    assert audit(tmp_path).damage == []
    engine = await Engine.open(tmp_path, CONFIG)
    assert engine.stats().log_end == 0
    await engine.close()


async def test_every_copy_of_a_log_cut_by_retention_opens(tmp_path: Path):
    """Also when its views come from an older backup, which knew an earlier begin."""
    data = tmp_path / "data"
    assert await fill(data, config=REMOVING) > 0
    back_up_stopped(data, tmp_path / "older", OPTIONS)
    begin = await fill(data, 40, REMOVING)
    made = back_up_stopped(data, tmp_path / "newer", OPTIONS).manifest
    restore(tmp_path / "newer", tmp_path / "whole", Until(), [], OPTIONS)
    until = Until(position=made.position - 1)
    restore(tmp_path / "newer", tmp_path / "cut", until, [tmp_path / "older"], OPTIONS)
    for copy in ("data", "newer", "whole", "cut"):
        assert audit(tmp_path / copy).damage == []
        engine = await Engine.open(tmp_path / copy, CONFIG)
        assert engine.stats().log_begin == begin
        await engine.close()


async def test_views_of_an_older_version_take_the_begin_of_the_log_as_it_is(tmp_path: Path):
    """They have no row that says where the log begins."""
    begin = await fill(tmp_path, config=REMOVING)
    database = Database(tmp_path / "views", 1 << 20)
    database.delete_ranges([(b"mbegin", b"mbegin\0")], b"moldest", b"\0\0\0\0")
    database.close()
    assert audit(tmp_path).damage == []
    engine = await Engine.open(tmp_path, CONFIG)
    assert engine.stats().log_begin == begin
    await engine.close()
    remove_first(tmp_path, 1)
    with pytest.raises(LogCorrupt):
        await Engine.open(tmp_path, CONFIG)


async def test_segments_that_retention_removes_during_a_verification_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await fill(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "later")
    await fill(tmp_path / "later", 5, REMOVING)
    open_segments = verify.open_segments

    def open_late(path: Path):
        return open_segments(tmp_path / "later")

    seen = [tmp_path / "data", tmp_path / "later"]
    checkpoint = verify.seen_checkpoint
    monkeypatch.setattr(verify, "open_segments", open_late)
    monkeypatch.setattr(verify, "seen_checkpoint", lambda _: checkpoint(seen.pop(0) / "views"))
    assert audit(tmp_path / "data").damage == []
    assert seen == []
