"""The object store that holds a tier: what is asked of it. For any thread."""

from collections.abc import Iterator, Sequence
from typing import Protocol


class Objects(Protocol):
    """Objects by name. Methods block, and raise `TierUnavailable` while the store does not answer."""

    def put(self, name: str, pieces: Iterator[bytes]) -> None:
        """Write an object whose name nobody has used before. It is there as a whole or not at all."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one of this name. Returns whether this call wrote it."""

    def get(self, name: str) -> bytes | None:
        """The bytes of a small object; None if there is none."""

    def read(self, name: str, begin: int, end: int) -> bytes | None:
        """The bytes [begin, end) of an object, fewer if it ends before; None if there is none."""

    def size(self, name: str) -> int | None:
        """The bytes of an object; None if there is none."""

    def list(self, folder: str) -> list[str]:
        """The names of all objects in a folder."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects that are there."""
