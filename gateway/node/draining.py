"""Sends the clients of a gateway to other nodes of its cluster, a few at a time."""

import asyncio
import logging
from contextlib import suppress
from itertools import islice
from typing import Final

from gateway.broker.sessions import Sessions
from gateway.connection.connection import Connection
from gateway.mqtt.encode import Explanation
from gateway.mqtt.reasons import ReasonCode

log = logging.getLogger(__name__)

_TURN_S: Final = 0.1
_LAST_S: Final = 2.0  # for the acknowledgements of what a client has sent
_WHY: Final = "the node is drained"


class Draining:
    """Closes the connections of devices while the node is drained. What a client has sent is acknowledged before, so
    that it need not send it again. Sessions stay, and wills are sent as with any other end (MQTT-3.1.2-8)."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._task: asyncio.Task[None] | None = None

    def begin(self, rate: int) -> None:
        """Close so many connections a second from now on, and refuse new ones."""
        self.end()
        self._sessions.redirection.why = _WHY
        self._task = asyncio.get_running_loop().create_task(self._run(rate))

    def end(self) -> None:
        """Serve clients again."""
        self._sessions.redirection.why = ""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, rate: int) -> None:
        log.info("the node is drained: %d clients are sent to other nodes", len(self._sessions.open_sessions))
        pause = max(_TURN_S, 1 / rate)
        count = max(1, round(rate * pause))
        had_clients = True
        leaving: set[asyncio.Task[None]] = set()
        try:
            while True:
                for connection in self._next(count):
                    task = asyncio.get_running_loop().create_task(self._move(connection))
                    leaving.add(task)
                    task.add_done_callback(leaving.discard)
                if had_clients and not self._sessions.open_sessions:
                    log.info("the node is drained: all clients of this gateway have left")
                had_clients = bool(self._sessions.open_sessions)
                await asyncio.sleep(pause)
        finally:
            for task in leaving:
                task.cancel()

    def _next(self, count: int) -> list[Connection]:
        """Those that have been here the longest and are not leaving."""
        staying = (connection for _, connection in self._sessions.open_sessions.values() if not connection.leaving)
        return list(islice(staying, count))

    async def _move(self, connection: Connection) -> None:
        connection.leave()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    while connection.uncommitted and not connection.is_closed():  # noqa: ASYNC110
                        await asyncio.sleep(_TURN_S / 5)
        finally:
            reference = self._sessions.redirection.reference()
            connection.close(ReasonCode.USE_ANOTHER_SERVER, Explanation(_WHY.encode()), reference)
