"""Messages that a group has leased and nobody has yet; and those of them that only members take who have no room."""

from typing import Final

from gateway.session.message_encoding import Message
from gateway.shared.member import Member

_MOST: Final = 64


class Waiting:
    """A message that is leased and nobody has yet."""

    __slots__ = ("deliveries", "least", "message", "offset", "renewed", "since")

    def __init__(self, message: Message, offset: int, deliveries: int, now: int) -> None:
        self.message = message
        self.offset = offset
        self.deliveries = deliveries
        self.renewed: int = now
        self.since: int = now  # round in which it came
        self.least: int = 0  # bytes that it has at least, whoever gets it; 0: not known yet


class Aside:
    """Messages that nobody takes who has room: they hold up no others."""

    __slots__ = ("_least", "items")

    def __init__(self) -> None:
        self.items: list[Waiting] = []
        self._least = 0  # bytes of the smallest

    def add(self, item: Waiting, now_ms: int) -> None:
        head, tail = item.message.parts(4, 0, False, False, (), now_ms)
        item.least = len(head) + len(tail)
        self._least = min(self._least, item.least) if self.items else item.least
        self.items.append(item)

    def take(self, member: Member | None, now_ms: int) -> list[Waiting]:
        """Take out what this member takes; None: everything."""
        if not self.items or (member is not None and 0 < member.maximum < self._least):
            return []
        taken = [item for item in self.items if member is None or member.takes(item.message, now_ms)]
        self._keep([item for item in self.items if item not in taken] if member is not None else [])
        return taken

    def take_excess(self) -> list[Waiting]:
        """Take out what is more than may stay here: the youngest."""
        excess = self.items[_MOST:]
        if excess:
            self._keep(self.items[:_MOST])
        return excess

    def take_older(self, now: int, rounds: int) -> list[Waiting]:
        """Take out what has been with this group for more than so many rounds."""
        old = [item for item in self.items if now - item.since > rounds]
        if old:
            self._keep([item for item in self.items if now - item.since <= rounds])
        return old

    def drop(self, offsets: set[int]) -> None:
        """Forget those of these offsets."""
        self._keep([item for item in self.items if item.offset not in offsets])

    def _keep(self, items: list[Waiting]) -> None:
        self.items = items
        self._least = min([item.least for item in items], default=0)
