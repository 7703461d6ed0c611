"""Commits whose events did not reach a gateway. Only their range in the log is known.

This happens when the store is a process of its own and was restarted, or when it committed more than it could send.
Events are only hints, so nothing is lost: cursors ask for the ends of their queues, and sessions without cursors read
the log.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from gateway.delivery.router import Router
from gateway.observe.throttled_log import log_failure
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from store.api import Rest
from store.errors import StoreError

log = logging.getLogger(__name__)

_AT_ONCE = 100  # sessions whose queues are asked for their ends at the same time
_SESSIONS = 1024  # that are told in one turn of the loop
_LearnEnds = Callable[[Session, list[QueueCursor]], Coroutine[object, None, None]]


class MissedCommits:
    """Makes every session read the commits that this gateway missed."""

    def __init__(
        self,
        router: Router,
        open_sessions: Mapping[bytes, tuple[Session, object]],
        learn_ends: _LearnEnds,
        open_inbox: Callable[[Session, int], None],
        start_catch_up: Callable[[Session], None],
        on_failure: Callable[[Session, StoreError], None],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._open_sessions = open_sessions
        self._learn_ends = learn_ends  # asks for the ends of a session's queues, and for its inbox
        self._open_inbox = open_inbox  # of a session whose inbox is not in the log
        self._start_catch_up = start_catch_up
        self._on_failure = on_failure  # closes the connection of a session
        self._spawn = spawn
        self._due: dict[Session, None] = {}  # durable sessions that have yet to ask
        self._is_asking = False
        self._untold: list[Session] = []  # of the commits that were missed last
        self._missed_from = 0
        self.times = 0
        router.on_missed = self.begin

    def begin(self, position: int) -> Rest | None:
        """Commits from `position` on were missed. Every session reads them before it gets what is committed next.
        Returns the rest, if there are more sessions than can be told in this turn of the loop."""
        self.times += 1
        self._missed_from = position
        self._untold = [session for session, _ in self._open_sessions.values()]
        return self._tell_some if self._tell_some() else None

    def _tell_some(self) -> bool:
        """Tell some sessions. Returns whether others are left."""
        some = self._untold[-_SESSIONS:]
        del self._untold[-_SESSIONS:]
        for session in some:
            if not session.closed:
                self._tell(session, self._missed_from)
        if self._due and not self._is_asking:
            self._is_asking = True
            self._spawn(self._run())
        return bool(self._untold)

    def _tell(self, session: Session, position: int) -> None:
        if not session.durable:
            self._open_inbox(session, position)
        if session.behind is None and _reads_log(session):
            session.fall_behind(position)
            self._start_catch_up(session)
        if session.durable:
            self._due[session] = None

    async def _run(self) -> None:
        try:
            while self._due:
                batch = [self._due.popitem() for _ in range(min(_AT_ONCE, len(self._due)))]
                await asyncio.gather(*(self._ask(session) for session, _ in batch))
        finally:
            self._is_asking = False

    async def _ask(self, session: Session) -> None:
        if session.closed:
            return
        cursors = [s.cursor for s in session.subscriptions.values() if s.cursor is not None]
        try:
            await self._learn_ends(session, cursors)
        except StoreError as error:
            log_failure(log, error, "what %r missed cannot be had: %s", session.client_id, session.client_id)
            self._on_failure(session, error)  # the session goes on from there when the client is back


def _reads_log(session: Session) -> bool:
    """Whether the session has subscriptions without a cursor."""
    return any(s.cursor is None for s in session.subscriptions.values())
