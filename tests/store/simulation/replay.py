"""The rows of the views are what views make that are folded from the log's first record on, in other pieces.

Retention changes rows in ways that a reader cannot see: index entries of dropped generations are gone, with the ends
of their queues written down, and a row may have the record itself in place of where it is. That is checked here, and
then undone, so that all other rows can be compared byte by byte.
"""

from pathlib import Path
from random import Random

import record
from store.engine import Engine
from store.views.database import Database
from store.views.fold import Views
from store.writer import Batch

REFERENCE = 24  # bytes


async def check_replay(engine: Engine, frames: list[bytes], folder: Path, rng: Random) -> None:
    """`frames` are all records from position 0 on, also those that are gone. `folder` is for the other views."""
    await engine._checkpoint()
    if engine.stats().failed or engine.stats().checkpoint != _end(frames):
        return
    fresh = Database(folder, 0)
    try:
        views = Views(fresh, engine._log._config, 0, 0)
        for batch in _batches(frames, engine._segments.size, rng):
            views.fold(batch)
            if rng.random() < 0.1:
                views.checkpoint(views.position)
        views.checkpoint(views.position)
        _compare(dict(engine._database.scan(b"", b"")), dict(fresh.scan(b"", b"")), frames)
    finally:
        fresh.close()


def _batches(frames: list[bytes], segment_size: int, rng: Random) -> list[Batch]:
    """The records in pieces, none of which goes on in another segment."""
    batches: list[Batch] = []
    piece: list[bytes] = []
    for frame in frames:
        position = record.position_of(frame, 0)
        if piece and (position % segment_size == 0 or rng.random() < 0.3):
            batches.append(_batch(piece))
            piece = []
        piece.append(frame)
    return [*batches, _batch(piece)] if piece else batches


def _batch(frames: list[bytes]) -> Batch:
    return Batch(record.position_of(frames[0], 0), b"".join(frames), record.store_time_of(frames[-1], 0))


def _end(frames: list[bytes]) -> int:
    return record.position_of(frames[-1], 0) + len(frames[-1]) if frames else 0


def _compare(found: dict[bytes, bytes], fresh: dict[bytes, bytes], frames: list[bytes]) -> None:
    records = {record.position_of(frame, 0): frame for frame in frames}
    oldest = int.from_bytes(found.get(b"moldest", b""), "big")
    _check_ends(found, fresh, oldest)
    kept = {key: _reference_to(value, records) for key, value in found.items() if key[:1] == b"r"}
    assert _queues(found, oldest) == _queues(fresh, oldest), "the index is not what a fresh replay makes"
    for key in [key for key in fresh if key[:1] == b"k" and int.from_bytes(key[1:5], "big") < oldest]:
        del fresh[key]
    for rows in (found, fresh):
        for key in [key for key in rows if key[:1] in b"qem"]:
            del rows[key]
    assert {**found, **kept} == fresh, "the views are not what a fresh replay makes"


def _queues(rows: dict[bytes, bytes], oldest: int) -> dict[bytes, tuple[int, bytes]]:
    """(first offset, references) by queue, of the generations from `oldest` on, however they were cut."""
    queues: dict[bytes, tuple[int, bytes]] = {}
    for key, value in sorted(rows.items()):
        if key[:1] == b"q" and int.from_bytes(key[1:5], "big") >= oldest:
            digest, offset = key[5:21], int.from_bytes(key[21:], "big")
            first, refs = queues.get(digest, (offset, b""))
            assert offset == first + len(refs) // REFERENCE, "offsets are not dense"
            queues[digest] = first, refs + value
    return queues


def _check_ends(found: dict[bytes, bytes], fresh: dict[bytes, bytes], oldest: int) -> None:
    """The end of each queue is written down that had entries before the `oldest` generation."""
    assert not any(key[:1] == b"q" and int.from_bytes(key[1:5], "big") < oldest for key in found), "not dropped"
    for digest, (first, refs) in _queues(fresh, 0).items():
        own = _queues(found, oldest).get(digest)
        before = own[0] if own else first + len(refs) // REFERENCE
        written = found.get(b"e" + digest)
        assert own or written == before.to_bytes(8, "big"), "a queue's end is lost"


def _reference_to(value: bytes, records: dict[bytes, bytes]) -> bytes:
    """A retained value as the fold made it: the reference of a record that is kept in its place."""
    if len(value) == REFERENCE:
        return value
    position = record.position_of(value, 0)
    assert records[position] == value, "what is kept is not the record that was"
    topic = record.decode(value, 0)[3]
    tag = record.crc32c(topic)
    return b"%b%b%b%b" % (
        position.to_bytes(8, "little"),
        len(value).to_bytes(4, "little"),
        tag.to_bytes(4, "little"),
        record.store_time_of(value, 0).to_bytes(8, "little"),
    )
