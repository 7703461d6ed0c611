"""What became of messages that a store was to hand over to sessions when it was killed before it answered.

The log of the restarted store says so: what was handed over is in a SHARE_HANDED_OVER record behind the position that
the gateway knew as the log's end when it asked. All open calls of a gateway fail at once, so one reading of the log
serves all of them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import record
from record.layout import Kind
from store.api import Handed, LogStore
from store.control import ShareHandedOver

_STEP: Final = 1 << 20  # bytes of log read at once
_KIND: Final = 11  # where a frame has its kind


class HandOvers:
    """Reads in the log of `store` what was handed over."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._waiting = 0  # callers
        self._opening = ""  # of the log that `_handed` is of
        self._begin = 0  # where the reading began
        self._handed: set[tuple[bytes, bytes, int, int]] = set()  # group, client id, packet id, offset

    async def refused(self, group: bytes, handed: Sequence[Handed], opening: str, position: int, end: int) -> list[int]:
        """The offsets of what is not handed over in the log between two positions. opening: of the restarted store.
        Raises `StoreError`."""
        self._waiting += 1
        try:
            async with self._lock:
                if opening != self._opening or position < self._begin:
                    self._handed = await self._read(position, end)
                    self._opening, self._begin = opening, position
            return sorted(
                each.offset
                for each in handed
                if (group, each.client_id, each.packet_id, each.offset) not in self._handed
            )
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._opening, self._handed = "", set()

    async def _read(self, position: int, end: int) -> set[tuple[bytes, bytes, int, int]]:
        found: set[tuple[bytes, bytes, int, int]] = set()
        while position < end:
            chunk = await self._store.read(position, _STEP)
            if not chunk.data:
                break
            position = chunk.next_position
            for start in record.split(chunk.data):
                if chunk.data[start + _KIND] == Kind.SHARE_HANDED_OVER:
                    _, _, _, group, _, _, payload = record.decode(chunk.data, start)
                    rows = ShareHandedOver.parse(payload).handed
                    found.update((group, client_id, packet_id, offset) for client_id, packet_id, offset in rows)
        return found
