"""Turns: what a client id is asked for is done by one task at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0  # that hold the lock or wait for it


class Turns:
    """The client ids that are being opened, ended or spoken for."""

    def __init__(self) -> None:
        self._turns: dict[bytes, _Turn] = {}  # bounded by the tasks that ask

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, client_id: bytes) -> bool:
        """Whether somebody has the client's turn, or waits for it."""
        return client_id in self._turns

    @asynccontextmanager
    async def of(self, client_id: bytes) -> AsyncIterator[bool]:
        """While the block runs, nobody else has the client's turn: the block is told so (True)."""
        turn = self._turns.setdefault(client_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield True
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[client_id]
