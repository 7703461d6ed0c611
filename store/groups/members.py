"""Which members of groups have asked for messages lately: how many a group has, as far as the store can tell."""

from typing import Final

_LATELY_MS: Final = 150_000  # a member that waits for messages asks again within a minute
_LIMIT: Final = 65_536  # members of all groups


class Members:
    """The members of each group that asked lately. Beyond a limit, those of the group that began first are forgotten
    until they ask again."""

    def __init__(self) -> None:
        self._groups: dict[bytes, dict[bytes, int]] = {}  # by group: when each member asked last, ms
        self._count = 0

    def asked(self, group: bytes, member: bytes, now: int) -> None:
        """A member asks for messages. now: ms. Whoever has no name is no member, such as a shared subscription."""
        if not member:
            return
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = {}
        if member not in members:
            if self._count >= _LIMIT:
                self._forget(next(iter(self._groups)))
                members = self._groups.setdefault(group, {})
            self._count += 1
        members[member] = now

    def count(self, group: bytes, now: int) -> int:
        """How many members of a group asked lately. Forgets the others."""
        members = self._groups.get(group)
        if members is None:
            return 0
        self._forget(group)
        lately = {member: at for member, at in members.items() if at > now - _LATELY_MS}
        if lately:
            self._groups[group] = lately
            self._count += len(lately)
        return len(lately)

    def _forget(self, group: bytes) -> None:
        self._count -= len(self._groups.pop(group))
