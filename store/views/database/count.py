"""The number of rows of a bucket, stored beside it so that reading it needs no scan."""

from typing import Final

from store.views.database.state import State

_COUNTS: Final = b"C"  # by bucket


class Count:
    """The number of rows of one bucket. `change` must follow each change of the bucket."""

    __slots__ = ("_bucket", "_state", "value")

    def __init__(self, state: State, bucket: bytes) -> None:
        """Read the count as of the checkpoint."""
        self._state = state
        self._bucket = bucket
        row = state.get(_COUNTS, bucket)
        self.value = 0 if row is None else int.from_bytes(row, "big")

    def change(self, by: int) -> None:
        self.value += by
        self._state.put(_COUNTS, self._bucket, self.value.to_bytes(8, "big"))
