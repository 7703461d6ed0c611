"""Chunks: consecutive messages of a partition that are written together, in a file for each folder.

A chunk has a note in the store, which is named by the first offset, and written before the files:
`TOPICS.DIR/_offsets/CONNECTOR/PARENT+PARTITION/FIRST`. It says where the chunk ends and which files it has, and later
that all of them are written. So a task that continues after a crash makes the same chunk again, whatever has ended it,
and writes the files that are missing. Of two tasks at once, the second one finds the note of the first.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import orjson

from connect.api import ConnectError, Partition, RetriableError
from connect.connectors.object_store.store import Store

_KEPT: Final = 16  # notes of a partition: a task that is late by fewer chunks finds that it is


@dataclass(slots=True)
class Chunk:
    """Messages in memory."""

    first: int  # offset of the first message
    end: int  # the offset behind the last one
    begun_ms: int  # when the first message was stored
    begun_at: float  # when it came, loop time
    rows: dict[str, list[Any]] = field(default_factory=dict)  # by folder, as the format takes them
    count: int = 0
    size: int = 0  # bytes, about


@dataclass(slots=True, frozen=True)
class Note:
    """What the store knows of a chunk."""

    first: int
    end: int
    files: list[str]
    layout: str  # of the settings that decide about names and formats of files
    is_done: bool = False  # all files are written


class Notes:
    """The notes of one partition."""

    def __init__(self, store: Store, folder: str, connector: str, partition: Partition) -> None:
        """folder: `topics.dir`."""
        self._store = store
        self._folder = f"{folder}/_offsets/{connector}/{quote(partition.parent, safe='')}+{partition.number}"
        self._names: deque[str] = deque()  # sorted

    async def last(self) -> Note | None:
        """The note of the last chunk. Raises `ConnectError`."""
        self._names = deque(await self._store.names(self._folder))
        return await self._read(self._names[-1]) if self._names else None

    async def begin(self, note: Note) -> Note:
        """Write the note of a new chunk. Returns it, or that of the same chunk that is there already.

        Raises `RetriableError` if there is one that ends elsewhere."""
        name = f"{self._folder}/{note.first:020d}"
        if await self._store.put(name, _bytes(note), is_new=True):
            self._names.append(name)
            return note
        found = await self._read(name)
        if found.end != note.end:
            raise RetriableError(f"another task writes {name}")
        return found

    async def end(self, note: Note) -> None:
        """Note that all files of a chunk are written, and forget chunks long before."""
        await self._store.put(f"{self._folder}/{note.first:020d}", _bytes(note))
        while len(self._names) > _KEPT:
            await self._store.delete(self._names.popleft())

    async def _read(self, name: str) -> Note:
        try:
            found = orjson.loads(await self._store.get(name))
            first = int(name.rpartition("/")[2])
            return Note(first, int(found["end"]), list(found["files"]), str(found["layout"]), bool(found["done"]))
        except (ValueError, KeyError, TypeError):
            raise ConnectError(f"{name} is not a note of a chunk") from None


def _bytes(note: Note) -> bytes:
    return orjson.dumps({"end": note.end, "files": note.files, "layout": note.layout, "done": note.is_done})
