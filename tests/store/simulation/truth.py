"""The truth about a log: every record, also removed ones, and the model of them."""

import record
from tests.store.simulation.model import Model


class Truth:
    """The records of a log, from position 0 on."""

    def __init__(self, partitions: int) -> None:
        self.frames: list[bytes] = []  # sealed
        self.model = Model(partitions)

    @property
    def end(self) -> int:
        """Position behind the last record."""
        return record.position_of(self.frames[-1], 0) + len(self.frames[-1]) if self.frames else 0

    def behind(self, position: int) -> list[bytes]:
        """The records at `position` and behind it."""
        return [frame for frame in self.frames if record.position_of(frame, 0) >= position]

    def grow(self, frames: list[bytes]) -> None:
        """These records follow."""
        for frame in frames:
            self.model.fold(frame)
        self.frames += frames

    def cut(self, position: int) -> None:
        """The records at `position` and behind it are gone."""
        kept = [frame for frame in self.frames if record.position_of(frame, 0) < position]
        if len(kept) < len(self.frames):
            self.frames, self.model = [], Model(self.model.partitions)
            self.grow(kept)
