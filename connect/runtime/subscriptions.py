"""What a sink reads: the filters of its setting `topics`, by parent topic."""

from collections.abc import Iterable
from dataclasses import dataclass

from matcher.names import matches


@dataclass(slots=True, frozen=True)
class Subscription:
    """The filters below one parent topic."""

    parent: str
    filters: tuple[bytes, ...]

    @property
    def selected(self) -> str:
        """What the node selects: the one filter. A group selects by one alone, so with several the node sends all that
        is below the parent topic, and `wants` says what of it is meant; "": everything."""
        if len(self.filters) > 1 or self.filters[0] == self.parent.encode() + b"/#":
            return ""
        return self.filters[0].decode()

    def wants(self, topic: str) -> bool:
        """Whether a filter matches a topic below the parent."""
        if len(self.filters) == 1:
            return True  # the node has selected
        return any(matches(each, topic.encode()) for each in self.filters)


def subscriptions_of(topics: Iterable[str]) -> list[Subscription]:
    """The subscriptions for topic filters."""
    parents: dict[str, list[bytes]] = {}
    for each in dict.fromkeys(topics):
        parents.setdefault(each.partition("/")[0], []).append(each.encode())
    return [Subscription(parent, tuple(filters)) for parent, filters in parents.items()]
