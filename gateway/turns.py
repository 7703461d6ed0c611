"""Turns: what a client id is asked for is done by one task at a time."""

import asyncio
from types import TracebackType


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0  # that hold the lock or wait for it


class _Block:
    """A block of code of which one at a time runs for a client id."""

    __slots__ = ("_client_id", "_turns")

    def __init__(self, turns: dict[bytes, _Turn], client_id: bytes) -> None:
        self._turns = turns
        self._client_id = client_id

    async def __aenter__(self) -> bool:
        turn = self._turns.get(self._client_id)
        if turn is None:
            turn = self._turns[self._client_id] = _Turn()
        turn.users += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(turn)
            raise
        return True

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        turn = self._turns[self._client_id]
        turn.lock.release()
        self._leave(turn)

    def _leave(self, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[self._client_id]


class Turns:
    """The client ids that are being opened, ended or spoken for."""

    def __init__(self) -> None:
        self._turns: dict[bytes, _Turn] = {}  # bounded by the tasks that ask

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, client_id: bytes) -> bool:
        """Whether somebody has the client's turn, or waits for it."""
        return client_id in self._turns

    def of(self, client_id: bytes) -> _Block:
        """While the block runs, nobody else has the client's turn: the block is told so (True)."""
        return _Block(self._turns, client_id)
