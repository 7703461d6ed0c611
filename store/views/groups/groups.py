"""The groups view: who created each group, whether it is paused, and its committed offsets by partition of a parent
topic."""

from typing import Final

from store.api import GroupPause
from store.control import GroupOffsetsCommitted
from store.views.database.state import State, owned

_GROUPS: Final = b"g"
_CREATORS: Final = b"p"  # group → user
_PAUSES: Final = b"H"  # group → time of the pause (u64 ms) and user


class Groups:
    """Creators, pauses and committed offsets of groups."""

    __slots__ = ("_state", "pauses")

    def __init__(self, state: State) -> None:
        self._state = state
        # Of groups that are paused. In memory, because every pop asks for it.
        self.pauses: Final = {
            name: GroupPause(int.from_bytes(row[:8], "big"), row[8:]) for name, row in state.all(_PAUSES)
        }

    def committed(self, group: bytes, event: GroupOffsetsCommitted) -> None:
        table, prefix = owned(_GROUPS, group), owned(b"", event.parent)
        for partition, offset in event.offsets.items():
            self._state.put(table, prefix + partition.to_bytes(2, "big"), offset.to_bytes(8, "big"))

    def created(self, group: bytes, user: bytes) -> None:
        """Note the creator of a group that is new."""
        self._state.put(_CREATORS, group, user)

    def creator(self, group: bytes) -> bytes:
        """The user whose call created the group; b"" if there is none, or no such group."""
        return self._state.get(_CREATORS, group) or b""

    def paused(self, group: bytes, user: bytes, time: int) -> None:
        """Pause a group that is there, at a store time (ms)."""
        self.pauses[group] = GroupPause(time, user)
        self._state.put(_PAUSES, group, time.to_bytes(8, "big") + user)

    def resumed(self, group: bytes) -> bool:
        """Returns whether the group was paused."""
        if self.pauses.pop(group, None) is None:
            return False
        self._state.delete(_PAUSES, group)
        return True

    def has_offsets(self, group: bytes) -> bool:
        """Whether the group has committed offsets of any parent topic."""
        return any(True for _ in self._state.scan(owned(_GROUPS, group)))

    def remove(self, group: bytes) -> None:
        """Delete the group's creator, its pause, and its committed offsets of all parent topics."""
        self.resumed(group)
        if self.creator(group):
            self._state.delete(_CREATORS, group)
        table = owned(_GROUPS, group)
        for name in [name for name, _ in self._state.scan(table)]:
            self._state.delete(table, name)

    def offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Committed offset by partition."""
        prefix = owned(b"", parent)
        found: dict[int, int] = {}
        for name, row in self._state.scan(owned(_GROUPS, group), prefix):
            if not name.startswith(prefix):
                break
            found[int.from_bytes(name[-2:], "big")] = int.from_bytes(row, "big")
        return found
