"""Bits that turn around on the disk of a history, while its store is down."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import record
from store.engine import Engine
from store.errors import LogCorrupt, StoreError
from store.log.segments import segment_name
from tests.store.simulation import checks

if TYPE_CHECKING:
    from tests.store.simulation.history import History


async def damage_record(history: "History") -> None:
    """A bit of a record turns around: it is told, or it was the torn tail. Then it is mended."""
    engine = await history.open()
    history.disk.full = False  # what this life writes is in the log when the next one opens
    await history.check_start(engine)
    await history.close(engine)
    history.keep_views(engine)
    frames = checks.there(engine, history.truth.behind(checks.log_begin(engine)))
    size = history.config.segment_size
    if history.objects is not None:  # those with a file here
        bases = {int(path.stem) for path in (history.path / "log").glob("*.log")}
        at = [record.position_of(frame, 0) for frame in frames]
        frames = [frame for frame, position in zip(frames, at, strict=True) if position - position % size in bases]
    if not frames:
        return
    history.counts["flips"] += 1
    hit = history.rng.randrange(len(frames))
    position = record.position_of(frames[hit], 0)
    base = position - position % size
    path = history.path / "log" / segment_name(base)
    at = position - base + history.rng.randrange(len(frames[hit]))
    bit = history.rng.randrange(8)
    history.disk.flip(path, at, bit)
    damaged = _log_bytes(history.path)
    proven = any(record.durable_of(frame, 0) > position for frame in frames[hit + 1 :])
    submitted = len(history.life.submitted)
    config = replace(history.config, retention_bytes=0, retention_free_bytes=0, retention_age_s=0, retention_parents={})
    config = replace(config, tier=replace(config.tier, retention_local_bytes=1 << 60))
    refusal: LogCorrupt | None = None
    try:
        engine = await Engine.open(history.path, config, history.disk, history.now, history.objects)
    except LogCorrupt as error:
        refusal = error
    if refusal is not None:
        assert refusal.position <= position, "damage is told behind where it is"
        assert _log_bytes(history.path) == damaged, "a log that does not open was changed"
        history.disk.flip(path, at, bit)
        return
    history.engine = engine
    if engine.stats().log_end <= position:
        assert not proven, "damage was taken for a torn tail"
        history.forget(position)
        del history.life.submitted[len(history.truth.behind(history.life.born)) : submitted]
        await history.close(engine)
        history.copies.lost()
        return
    await _check_told(engine, position)
    await history.close(engine)
    history.disk.flip(path, at, bit)


async def _check_told(engine: Engine, position: int) -> None:
    """The node opened behind the damage: who reads it hears of it."""
    try:
        await engine.read(position, 1)
    except StoreError:
        return
    raise AssertionError("a damaged record was read")


def _log_bytes(path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((path / "log").glob("*.log")))
