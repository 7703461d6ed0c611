"""What many small caches by topic may take together, such as one for each connection."""

from typing import Final, Generic, TypeVar

V = TypeVar("V")

ENTRY_BYTES: Final = 150  # of a dictionary's entry with its key, without the key's text


class CacheBudget(Generic[V]):
    """Adds entries to caches. When all of them have about `limit` bytes, it clears all.

    It refers to each cache that has entries, so the owner of a cache that is no more needed clears it.
    """

    __slots__ = ("_bytes", "_caches", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._caches: list[dict[bytes, V]] = []

    def add(self, cache: dict[bytes, V], topic: bytes, value: V, value_bytes: int) -> None:
        """Add an entry. `value_bytes`: what the value takes."""
        size = ENTRY_BYTES + len(topic) + value_bytes
        self._bytes += size
        if self._bytes > self._limit:
            for each in self._caches:
                each.clear()
            self._caches = []
            self._bytes = size
        if not cache:
            self._caches.append(cache)
        cache[topic] = value
