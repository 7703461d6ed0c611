"""The interface of views whose rows refer to records. Before retention removes a record, it is put into the row."""

from typing import Protocol


class Page:
    """Rows that refer to records that retention is about to remove."""

    __slots__ = ("after", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, int]] = []  # (name, position and length of the record)
        self.after: bytes | None = None  # the name to continue after; None at the end


class Keeper(Protocol):
    """A view that can keep records in its rows."""

    def to_keep(self, below: int, after: bytes | None, limit: int) -> Page:
        """Of the next `limit` rows after the name `after`, those that refer to a record before `below`."""

    def keep(self, name: bytes, frame: bytes) -> None:
        """Replace the reference by the sealed frame if the row still refers to it."""
