"""A bucket in memory, for workers in tests."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from cloud_sdk import RevisionConflict


@dataclass(slots=True, frozen=True)
class MemoryEntry:
    key: str
    value: bytes
    revision: int


class MemoryBucket:
    """What the SDK's bucket does, as far as workers use it."""

    def __init__(self) -> None:
        self.now: dict[str, MemoryEntry] = {}
        self._revision = 0

    async def get(self, key: str) -> MemoryEntry | None:
        return self.now.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        self._expect(key, revision)
        self._revision += 1
        self.now[key] = MemoryEntry(key, value, self._revision)
        return self._revision

    async def remove(self, key: str, *, revision: int | None = None) -> None:
        self._expect(key, revision)
        self.now.pop(key, None)

    async def entries(self, prefix: str = "") -> AsyncIterator[MemoryEntry]:
        for key in sorted(self.now):
            if key.startswith(prefix) and key in self.now:
                yield self.now[key]

    def _expect(self, key: str, revision: int | None) -> None:
        entry = self.now.get(key)
        found = 0 if entry is None else entry.revision
        if revision is not None and revision != found:
            raise RevisionConflict("connect", key, revision, found)
