"""How many rows a bucket has, kept beside it: reading a figure is not to cost a scan."""

from typing import Final

from store.views.state import State

_COUNTS: Final = b"C"  # by bucket


class Count:
    """Of one bucket. Whoever changes the bucket tells."""

    __slots__ = ("_bucket", "_state", "value")

    def __init__(self, state: State, bucket: bytes) -> None:
        """As of the checkpoint."""
        self._state = state
        self._bucket = bucket
        row = state.get(_COUNTS, bucket)
        # Views of an older version have no such row.
        self.value = sum(1 for _ in state.scan(bucket)) if row is None else int.from_bytes(row, "big")

    def change(self, by: int) -> None:
        self.value += by
        self._state.put(_COUNTS, self._bucket, self.value.to_bytes(8, "big"))
