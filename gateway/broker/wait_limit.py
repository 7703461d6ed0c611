"""Ends the wait of clients that have left."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from gateway.auth.refusal import ClientGone

_CHECK_SECONDS: Final = 0.5

HasLeft = Callable[[], bool]


class WaitLimit:
    """Runs work that clients wait for, and cancels it when its client has left."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, tuple[HasLeft, asyncio.Timeout]] = {}  # by client
        self._is_checking = False

    async def run(self, client_id: bytes, has_left: HasLeft, work: Coroutine[object, None, None]) -> None:
        """Run the work of a client, one at a time for each client. Raises ClientGone, and cancels the work, when the
        client leaves or has left before."""
        if has_left():
            work.close()
            raise ClientGone
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting[client_id] = has_left, limit
                if not self._is_checking:
                    self._is_checking = True
                    self._loop.call_later(_CHECK_SECONDS, self._check)
                await work
        except TimeoutError as error:
            raise ClientGone from error
        finally:
            del self._waiting[client_id]

    def _check(self) -> None:
        self._is_checking = bool(self._waiting)
        if not self._is_checking:
            return
        for has_left, limit in self._waiting.values():
            if limit.when() is None and has_left():
                limit.reschedule(self._loop.time())
        self._loop.call_later(_CHECK_SECONDS, self._check)
