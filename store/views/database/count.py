"""The number of rows of a table, stored beside it so that reading it needs no scan."""

from typing import Final

from store.views.database.state import State

_COUNTS: Final = b"C"  # by table


class Count:
    """The number of rows of one table. `change` must follow each change of the table."""

    __slots__ = ("_state", "_table", "value")

    def __init__(self, state: State, table: bytes) -> None:
        """Read the count as of the checkpoint."""
        self._state = state
        self._table = table
        row = state.get(_COUNTS, table)
        self.value = 0 if row is None else int.from_bytes(row, "big")

    def change(self, by: int) -> None:
        self.value += by
        self._state.put(_COUNTS, self._table, self.value.to_bytes(8, "big"))
