"""Log and views without engine: every step happens when a test says so."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import record
from record.layout import FLAG_HELD, Kind
from store import control
from store.api import Commit
from store.config import StoreConfig
from store.log.disk import Disk
from store.log.recovery import recover, sound_batches
from store.log.segments import Segments
from store.log.writer import Writer
from store.views.database.database import Database
from store.views.fold import Views
from tests.store.images import copy_image

# A frame, or what makes one of the handles there are when it is written.
Frame = bytes | Callable[[list[int]], bytes]


def made(kind: type[control.ControlRecord]) -> Callable[..., bytes]:
    """A function that makes frames of a kind from their subject and fields."""
    return lambda subject, *fields: kind(*fields).frame(subject)


class BareStore:
    """A store whose time goes on by one second with each write."""

    def __init__(self, path: Path, config: StoreConfig, seconds: int = 0, handles: Sequence[int] = ()) -> None:
        self.path = path
        self.config = config
        self.seconds = seconds
        self.handles = list(handles)  # of all messages that ever were held
        self.segments = Segments(path / "log", config.segment_size, Disk())
        path.mkdir(exist_ok=True)
        self.segments.load()
        self.database = Database(path / "views", 1 << 20)
        recovered = recover(self.segments, self.database.checkpoint().position, self.database.checkpoint().durable)
        self.views = Views(self.database, config, recovered.begin, recovered.begin_time)
        if self.views.position < recovered.end:
            for batch in sound_batches(self.segments, self.views.position):
                self.views.fold(batch)
        self.writer = Writer(self.segments, recovered.end, self.views.store_time, 1, "fsync", self._clock)
        self.writer.open()

    def write(self, frames: Sequence[Frame]) -> list[Commit]:
        self.seconds += 1
        made = [frame if isinstance(frame, bytes) else frame(self.handles) for frame in frames]
        batches, positions = self.writer.write(made)
        for frame, position in zip(made, positions, strict=True):
            kind, flags, *_ = record.decode(frame, 0)
            if kind == Kind.MESSAGE and flags & FLAG_HELD:
                self.handles.append(position)
        return [self.views.fold(batch) for batch in batches]

    def crash(self) -> Self:
        """The files after a kill: RocksDB's newest rows are missing."""
        image = self.path.with_name(self.path.name + "x")
        copy_image(self.path, image)
        self.close()
        return type(self)(image, self.config, self.seconds, self.handles)

    def close(self) -> None:
        self.writer.close()
        self.segments.close()
        self.database.close()

    def dump(self) -> dict[bytes, bytes]:
        """All rows; the index by queue, since its groups may be cut differently."""
        self.views.checkpoint(self.writer.durable)
        rows: dict[bytes, bytes] = {}
        for key, value in self.database.scan(b"", b""):
            if key.startswith(b"q"):
                digest = key[5:21]
                assert int.from_bytes(key[21:], "big") == len(rows.get(digest, b"")) // 24, "offsets are not dense"
                rows[digest] = rows.get(digest, b"") + value
            elif not key.startswith(b"m"):
                rows[key] = value
        return rows

    def _clock(self) -> int:
        return 1000 * self.seconds
