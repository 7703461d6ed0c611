"""The names view: topics that were ever published to, and their parents."""

from itertools import islice
from typing import Final

from matcher.names import parent_of
from record import crc32c
from store.api import TopicPage
from store.views.state import State

_TOPICS: Final = b"t"
_PARENTS: Final = b"p"


class Names:
    """Topics and parents, sorted."""

    __slots__ = ("_partitions", "_state")

    def __init__(self, state: State, partitions: int) -> None:
        self._state = state
        self._partitions = partitions

    def partition_of(self, topic: bytes, is_known: bool) -> tuple[bytes, int]:
        """(parent, partition) of a topic, which is entered if it is new. Stable: by the topic's CRC-32C."""
        parent = parent_of(topic)
        if not is_known and self._state.get(_TOPICS, topic) is None:
            self._state.put(_TOPICS, topic, b"")
            if self._state.get(_PARENTS, parent) is None:
                self._state.put(_PARENTS, parent, b"")
        return parent, crc32c(topic) % self._partitions

    def is_topic(self, topic: bytes) -> bool:
        return self._state.get(_TOPICS, topic) is not None

    def parents(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` parents behind `after`."""
        return [name for name, _ in islice(self._state.scan(_PARENTS, after=after), limit)]

    def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        """Up to `limit` topics that begin with `prefix`, behind `after`."""
        names: list[bytes] = []
        behind = after if after is not None and after >= prefix else None
        for name, _ in self._state.scan(_TOPICS, prefix, behind):
            if not name.startswith(prefix):
                break
            if len(names) == limit:
                return TopicPage(names, names[-1] if names else after)
            names.append(name)
        return TopicPage(names, None)
