"""The groups view: what each cloud group has committed, by partition of a parent topic."""

from typing import Final

from store.views.state import State, owned

_GROUPS: Final = b"g"


class Groups:
    """Committed offsets of groups."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def fold(self, group: bytes, parent: bytes, offsets: dict[int, int]) -> None:
        bucket = owned(owned(_GROUPS, group), parent)
        for partition, offset in offsets.items():
            self._state.put(bucket, partition.to_bytes(2, "big"), offset.to_bytes(8, "big"))

    def offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Committed offset by partition."""
        bucket = owned(owned(_GROUPS, group), parent)
        return {int.from_bytes(name, "big"): int.from_bytes(row, "big") for name, row in self._state.scan(bucket)}
