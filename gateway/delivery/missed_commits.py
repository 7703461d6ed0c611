"""What a gateway was not told of: commits between two positions of the log, of which nobody knows what was in them.

It happens where the store is another process: it was restarted, or more was committed than could be told. An event is a
hint, so nothing is lost: queues are asked for their ends, and sessions without cursors read the log from there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from gateway.connection.connection import Connection
from gateway.delivery.router import Router
from gateway.observe.throttled_log import tell_failure
from gateway.session.cursor import Cursor
from gateway.session.session import Session
from store.errors import StoreError

log = logging.getLogger(__name__)

_SLICE = 100  # sessions that are asked about at the same time
_Look = Callable[[Session, list[Cursor]], Coroutine[object, None, None]]


class MissedCommits:
    """Has every session look for itself."""

    def __init__(
        self,
        router: Router,
        held: Mapping[bytes, tuple[Session, Connection]],
        look: _Look,
        open_inbox: Callable[[Session, int], None],
        start_catch_up: Callable[[Session], None],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._held = held
        self._look = look  # asks for the ends of its queues, and for its inbox
        self._open_inbox = open_inbox  # of a session whose inbox the log does not know
        self._start_catch_up = start_catch_up
        self._spawn = spawn
        self._due: dict[Session, Connection] = {}  # that are to look
        self._is_looking = False
        self.times = 0
        router.on_missed = self.take

    def take(self, position: int) -> None:
        """Commits from `position` on were not told of. What is told from now on comes behind them in every session."""
        self.times += 1
        for session, connection in self._held.values():
            if not session.durable:
                self._open_inbox(session, position)
            if session.behind < 0 and _has_live(session):
                session.fall_behind(position)
                self._start_catch_up(session)
            if session.durable:
                self._due[session] = connection
        if self._due and not self._is_looking:
            self._is_looking = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._due:
                batch = [self._due.popitem() for _ in range(min(_SLICE, len(self._due)))]
                await asyncio.gather(*(self._ask(session, connection) for session, connection in batch))
        finally:
            self._is_looking = False

    async def _ask(self, session: Session, connection: Connection) -> None:
        if session.closed:
            return
        cursors = [s.cursor for s in session.subscriptions.values() if s.cursor is not None]
        try:
            await self._look(session, cursors)
        except StoreError as error:
            tell_failure(log, error, "what %r missed cannot be had: %s", session.client_id)
            connection.append_failed(error)  # it goes on from there when it comes back


def _has_live(session: Session) -> bool:
    """Whether it has subscriptions that only commits tell of."""
    return any(s.cursor is None for s in session.subscriptions.values())
