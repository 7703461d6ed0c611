"""Interest of a gateway: the filters of its subscriptions, each once."""

from collections.abc import Sequence
from typing import Final

from matcher.trie import Trie
from record.layout import FLAG_ADDRESSED

_MAX_KNOWN: Final = 1 << 16  # topics whose answer is kept
_MAX_REMEMBERED: Final = 256  # bytes of such a topic


class Interest:
    """Filters, and which topics match one of them."""

    __slots__ = ("_filters", "_known", "_trie")

    def __init__(self) -> None:
        self._filters: set[bytes] = set()
        self._trie: Trie[bytes] = Trie()
        self._known: dict[bytes, bool] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def change(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        for name in removed:
            if name in self._filters:
                self._filters.remove(name)
                self._trie.remove(name, name)
        for name in added:
            if name not in self._filters:
                self._filters.add(name)
                self._trie.add(name, name)
        self._known.clear()

    def wants(self, topic: bytes) -> bool:
        known = self._known.get(topic)
        if known is None:
            known = bool(self._trie.match(topic))
            if len(topic) <= _MAX_REMEMBERED:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[topic] = known
        return known

    def chosen(self, topics: Sequence[bytes], flags: Sequence[int]) -> list[int]:
        """Indexes of the messages that the gateway gets. Every gateway gets those that are addressed to a client."""
        if not self._filters:
            return [i for i, each in enumerate(flags) if each & FLAG_ADDRESSED]
        wants = self.wants
        return [i for i, topic in enumerate(topics) if wants(topic) or flags[i] & FLAG_ADDRESSED]
