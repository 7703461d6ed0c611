"""Turns: what a client id is asked for is done by one task at a time."""

import asyncio
from collections import deque
from types import TracebackType

_Waiting = deque[asyncio.Future[None]]


class _Block:
    """A block of code of which one at a time runs for a client id."""

    __slots__ = ("_client_id", "_turns")

    def __init__(self, turns: dict[bytes, _Waiting | None], client_id: bytes) -> None:
        self._turns = turns
        self._client_id = client_id

    async def __aenter__(self) -> bool:
        if self._client_id not in self._turns:
            self._turns[self._client_id] = None
        else:
            await self._wait()
        return True

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._hand_on()

    async def _wait(self) -> None:
        waiting = self._turns[self._client_id]
        if waiting is None:
            waiting = self._turns[self._client_id] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it had come
                self._hand_on()
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _hand_on(self) -> None:
        """Who has waited longest is next."""
        waiting = self._turns[self._client_id]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns[self._client_id]


class Turns:
    """The client ids that are being opened, ended or spoken for."""

    def __init__(self) -> None:
        # Who waits for a client id behind who has the turn; None: nobody has yet. Bounded by the tasks that ask.
        self._turns: dict[bytes, _Waiting | None] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, client_id: bytes) -> bool:
        """Whether somebody has the client's turn, or waits for it."""
        return client_id in self._turns

    def of(self, client_id: bytes) -> _Block:
        """While the block runs, nobody else has the client's turn: the block is told so (True)."""
        return _Block(self._turns, client_id)
