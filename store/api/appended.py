"""What an append came to. Made for every read of every connection: compiled."""

from collections.abc import Sequence

from store.errors import StoreError


class Appended:
    """`error` is set when it is not committed, and then nothing may be acknowledged."""

    __slots__ = ("error", "positions", "store_time")

    def __init__(self, positions: Sequence[int] = (), store_time: int = 0, error: StoreError | None = None) -> None:
        self.positions = positions  # of each frame, in the order given
        self.store_time = store_time  # ms
        self.error = error
