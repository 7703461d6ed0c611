"""One life of a store: the appends between one opening and the next."""

from dataclasses import dataclass, field

import record


@dataclass(slots=True)
class Life:
    """Of one opening of a store, whose log ended at `born` then."""

    born: int = 0
    submitted: list[bytes] = field(default_factory=list)  # unsealed, that went to the disk, in order
    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by position, unsealed, that somebody was told of

    def check(self, frames: list[bytes]) -> None:
        """`frames` are what the log has of this life: what was submitted, in order, with all that was acknowledged."""
        assert len(frames) <= len(self.submitted), "there are records that nobody appended"
        for sealed, unsealed in zip(frames, self.submitted, strict=False):
            assert _is_same(sealed, unsealed), "not the record that was appended"
        by_position = {record.position_of(frame, 0): frame for frame in frames}
        for position, unsealed in self.acknowledged.items():
            assert position in by_position, "an acknowledged record is lost"
            assert _is_same(by_position[position], unsealed), "an acknowledged record is another"

    def forget(self, durable: int) -> None:
        """Forget promises from `durable` on: they need not survive the next crash."""
        self.acknowledged = {position: frame for position, frame in self.acknowledged.items() if position < durable}


def _is_same(sealed: bytes, unsealed: bytes) -> bool:
    """Whether the frames differ in nothing but what sealing fills in (docs/format.md)."""
    return all(sealed[part] == unsealed[part] for part in (slice(4, 12), slice(32, 44), slice(48, None)))
