"""The groups view: the committed offsets of each cloud group, by partition of a parent topic."""

from typing import Final

from store.control import GroupOffsetsCommitted
from store.views.database.state import State, owned

_GROUPS: Final = b"g"


class Groups:
    """Committed offsets of groups."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def committed(self, group: bytes, event: GroupOffsetsCommitted) -> None:
        bucket, prefix = owned(_GROUPS, group), owned(b"", event.parent)
        for partition, offset in event.offsets.items():
            self._state.put(bucket, prefix + partition.to_bytes(2, "big"), offset.to_bytes(8, "big"))

    def remove(self, group: bytes) -> None:
        """Delete the group's committed offsets of all parent topics."""
        bucket = owned(_GROUPS, group)
        for name in [name for name, _ in self._state.scan(bucket)]:
            self._state.delete(bucket, name)

    def offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Committed offset by partition."""
        prefix = owned(b"", parent)
        found: dict[int, int] = {}
        for name, row in self._state.scan(owned(_GROUPS, group), prefix):
            if not name.startswith(prefix):
                break
            found[int.from_bytes(name[-2:], "big")] = int.from_bytes(row, "big")
        return found
