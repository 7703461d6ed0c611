"""Views of an older backup, for a log that has lost its beginning since: what they refer to there is in that backup."""

from pathlib import Path

import pytest

import record
from record.layout import FLAG_RETAIN
from store.api import topic_queue
from store.engine import Engine
from store.exports.backup import back_up_staged
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.snapshot import Snapshot
from store.exports.stage import stage
from store.exports.until import Until
from tests.store.held.test_release import CONFIG, HOUR, Clock, delayed, fill, frame, hold, payloads
from tests.store.test_engine import append


async def back_up(engine: Engine, target: Path) -> None:
    data = engine._folder.path
    with stage(data) as folder:
        back_up_staged(data, folder, await engine.stage(folder), target, CopyOptions())


@pytest.fixture
async def moment(tmp_path: Path) -> tuple[Until, int, Clock]:
    """A backup `newer`, without the log's beginning, and one `older` that has it: a moment in between, and the handle
    of a message that is held then."""
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    (handle,) = await hold(engine, delayed(b"late", clock.now + 5 * HOUR, b"held"))
    await append(engine, frame(b"kept", FLAG_RETAIN, payload=b"retained"))
    await fill(engine)
    clock.now += 2 * HOUR
    await fill(engine)
    await back_up(engine, tmp_path / "older")
    older = engine.stats().log_end
    await append(engine, frame(b"new", FLAG_RETAIN, payload=b"also"))
    until = Until(position=engine.stats().log_end)
    await fill(engine)
    await engine._retention.enforce()
    assert handle < engine.stats().log_begin < older
    await back_up(engine, tmp_path / "newer")
    await engine.close()
    return until, handle, clock


async def test_a_restored_store_has_what_they_refer_to(tmp_path: Path, moment: tuple[Until, int, Clock]):
    until, handle, clock = moment
    target = tmp_path / "restored"
    found = restore(tmp_path / "newer", target, until, [tmp_path / "older"], CopyOptions())
    assert found.begin > handle
    engine = await Engine.open(target, CONFIG, clock=clock)
    try:
        values = {value.topic: record.decode(value.frame, 0)[6] for value in await engine.retained(b"#", None, 9)}
        assert values == {b"kept": b"retained", b"new": b"also"}
        clock.now += 5 * HOUR
        await engine.release_due()
        assert await payloads(engine, topic_queue(b"late")) == [b"held"]
    finally:
        await engine.close()


async def test_a_snapshot_has_what_they_refer_to(tmp_path: Path, moment: tuple[Until, int, Clock]):
    until, handle, _ = moment
    snapshot = await Snapshot.open(tmp_path / "newer", until, [tmp_path / "older"])
    try:
        assert snapshot.begin > handle
        values = {value.topic: record.decode(value.frame, 0)[6] for value in await snapshot.retained(b"#", None, 9)}
        assert values == {b"kept": b"retained", b"new": b"also"}
        assert [held.handle for held in (await snapshot.timers(None, 9)).messages] == [handle]
    finally:
        await snapshot.close()
