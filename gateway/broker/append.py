"""Appends to the log from a task, waiting for the commit; the last records of a connection wait for a busy store."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from gateway.observe.throttled_log import log_failure
from store.api import Appended, LogStore
from store.errors import StoreBusy

log = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 0.1  # until a busy store is tried again
_SIZE: Final = 1 << 20  # bytes of a session's records in one append, unless one record is larger


async def append(store: LogStore, frames: list[bytes]) -> Sequence[int]:
    """Append records and wait for the commit. Returns their positions. Raises StoreError."""
    if not frames:
        return ()
    future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()

    def done(appended: Appended) -> None:
        if future.done():
            return
        if appended.error is not None:
            future.set_exception(appended.error)
        else:
            future.set_result(appended.positions)

    store.append(frames, done)
    return await future


class LastRecords:
    """The last records of connections that have ended. They wait while the store is busy: without them a will would be
    lost, or a dropped one be sent."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[bytes, asyncio.Future[None]] = {}  # by client id; one connection each

    def get(self, client_id: bytes) -> asyncio.Future[None] | None:
        """Return a future that is done when the last records of the client are committed. None: nothing is being
        appended."""
        return self._under_way.get(client_id)

    def all(self) -> Iterable[asyncio.Future[None]]:
        return list(self._under_way.values())

    def record(
        self,
        client_id: bytes,
        frames: list[bytes],
        on_recorded: Callable[[], None],
        on_ended: Callable[[bytes], None],
    ) -> None:
        """Append the last records of the client's connection in order, in pieces of a bounded size. Call `on_recorded`
        when they are committed, and `on_ended` in any case."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._under_way[client_id] = future
        left = pieces(frames)
        piece = next(left)

        def done(appended: Appended) -> None:
            nonlocal piece
            if isinstance(appended.error, StoreBusy):
                self._loop.call_later(_BUSY_SECONDS, self._store.append, piece, done)
                return
            if appended.error is None:
                piece = next(left, [])
                if piece:
                    self._store.append(piece, done)
                    return
                on_recorded()
            else:
                log_failure(
                    log, appended.error, "recording the end of the connection of %r failed: %s", client_id, client_id
                )
            del self._under_way[client_id]
            future.set_result(None)
            on_ended(client_id)

        self._store.append(piece, done)


def pieces(frames: list[bytes]) -> Iterator[list[bytes]]:
    """The records in order, in appends of a bounded size. At least one append, which may be empty."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        if piece and size + len(frame) > _SIZE:
            yield piece
            piece, size = [], 0
        piece.append(frame)
        size += len(frame)
    yield piece
