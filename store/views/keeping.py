"""What views whose rows refer to records do before retention takes these: the record itself goes into the row."""

from typing import Protocol


class Page:
    """Rows that refer to records which will go."""

    __slots__ = ("after", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, int]] = []  # (name, position and length of the record)
        self.after: bytes | None = None  # the name to go on behind; None at the end


class Keeper(Protocol):
    """A view that keeps records."""

    def to_keep(self, below: int, after: bytes | None, limit: int) -> Page:
        """Those of up to `limit` rows behind the name `after` that refer to a record before `below`."""

    def keep(self, name: bytes, frame: bytes) -> None:
        """Put the sealed frame in place of the reference to it, unless the row refers to it no more."""
