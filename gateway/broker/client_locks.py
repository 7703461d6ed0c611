"""A lock for each client id: one task at a time opens, ends or speaks for a client."""

import asyncio
from collections import deque
from types import TracebackType

_Waiting = deque[asyncio.Future[None]]


class _ClientLock:
    """The lock of one client id, as a context manager."""

    __slots__ = ("_client_id", "_locked")

    def __init__(self, locked: dict[bytes, _Waiting | None], client_id: bytes) -> None:
        self._locked = locked
        self._client_id = client_id

    async def __aenter__(self) -> bool:
        if self._client_id not in self._locked:
            self._locked[self._client_id] = None
        else:
            await self._wait()
        return True

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._release()

    async def _wait(self) -> None:
        waiting = self._locked[self._client_id]
        if waiting is None:
            waiting = self._locked[self._client_id] = deque()
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(acquired)
        try:
            await acquired
        except BaseException:
            if acquired.done() and not acquired.cancelled():  # cancelled just after the lock was handed over
                self._release()
            elif acquired in waiting:
                waiting.remove(acquired)
            raise

    def _release(self) -> None:
        """Hand the lock to the task that has waited longest."""
        waiting = self._locked[self._client_id]
        while waiting:
            acquired = waiting.popleft()
            if not acquired.done():
                acquired.set_result(None)
                return
        del self._locked[self._client_id]


class ClientLocks:
    """The client ids that are locked. An unlocked one takes no memory."""

    def __init__(self) -> None:
        # The tasks that wait for a locked client id; None: there were none yet. Bounded by the tasks that ask.
        self._locked: dict[bytes, _Waiting | None] = {}

    def __len__(self) -> int:
        return len(self._locked)

    def __contains__(self, client_id: bytes) -> bool:
        """Whether a task has the client's lock."""
        return client_id in self._locked

    def lock(self, client_id: bytes) -> _ClientLock:
        """Lock the client id while the block runs. The block is given True (`gateway.broker.wills.LockClient`)."""
        return _ClientLock(self._locked, client_id)
