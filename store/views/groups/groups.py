"""The groups view: who created each group, and its committed offsets by partition of a parent topic."""

from typing import Final

from store.control import GroupOffsetsCommitted
from store.views.database.state import State, owned

_GROUPS: Final = b"g"
_CREATORS: Final = b"p"  # group → user


class Groups:
    """Creators and committed offsets of groups."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def committed(self, group: bytes, event: GroupOffsetsCommitted) -> None:
        bucket, prefix = owned(_GROUPS, group), owned(b"", event.parent)
        for partition, offset in event.offsets.items():
            self._state.put(bucket, prefix + partition.to_bytes(2, "big"), offset.to_bytes(8, "big"))

    def created(self, group: bytes, user: bytes) -> None:
        """Note the creator of a group that is new."""
        self._state.put(_CREATORS, group, user)

    def creator(self, group: bytes) -> bytes:
        """The user whose call created the group; b"" if there is none, or no such group."""
        return self._state.get(_CREATORS, group) or b""

    def has_offsets(self, group: bytes) -> bool:
        """Whether the group has committed offsets of any parent topic."""
        return any(True for _ in self._state.scan(owned(_GROUPS, group)))

    def remove(self, group: bytes) -> None:
        """Delete the group's creator, and its committed offsets of all parent topics."""
        if self.creator(group):
            self._state.delete(_CREATORS, group)
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
