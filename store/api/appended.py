"""The result of an append. One is made for each read of each connection, so this module is compiled."""

from collections.abc import Sequence

from store.errors import StoreError


class Appended:
    """The result of an append. If `error` is set, it is not committed, and nothing may be acknowledged."""

    __slots__ = ("error", "positions", "store_time")

    def __init__(self, positions: Sequence[int] = (), store_time: int = 0, error: StoreError | None = None) -> None:
        self.positions = positions  # of the frames, in their order
        self.store_time = store_time  # ms
        self.error = error
