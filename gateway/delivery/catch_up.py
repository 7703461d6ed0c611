"""Catching up: sessions read from the store what they could not be sent when it was committed.

A session is in line for turns (`gateway.delivery.turn_queue`) while it has something to read and room to send it. It
leaves when its window or its socket is full, and comes back when there is room (`Session.on_room`). A turn reads what
comes first:

1. what an earlier connection left unacknowledged (`gateway.delivery.resends`);
2. retained values of new subscriptions (`gateway.delivery.retained`);
3. the log, for subscriptions without a cursor (`gateway.delivery.log_catch_up`);
4. the queues of cursors, each once (`gateway.delivery.backlog`);
5. what is older than a subscription, from a line of its own when nothing else is left (`gateway.delivery.replay`).

What all sessions in line have in flight is bounded: the more are behind, the smaller is the part of its window that
each may use.
"""

import asyncio
import logging
from collections.abc import Callable
from time import time
from typing import Final

from gateway.delivery.backlog import deliver
from gateway.delivery.log_catch_up import LogCatchUp
from gateway.delivery.released_messages import ReleasedMessages
from gateway.delivery.replay import Replays
from gateway.delivery.resends import Resends
from gateway.delivery.retained import send_page
from gateway.delivery.router import Router
from gateway.delivery.shared_reads import BLOCK_BYTES, QueueRange, SharedReads, room_in_block
from gateway.delivery.turn_queue import TurnQueue
from gateway.observe.throttled_log import log_failure
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from store.api import MessageStore
from store.errors import OffsetOutOfRange, StoreError, TierUnavailable

log = logging.getLogger(__name__)

_MOST_IN_FLIGHT: Final = 1 << 17  # messages, of all sessions that are behind
_KEEP_READS_S: Final = 10.0  # that shared reads are kept after the last session has caught up
_TIER_RETRY_S: Final = 1.0  # after a read of old messages that the tier did not answer
_LEAST_WINDOW: Final = 16  # messages that each may have in flight in any case


class CatchUp:
    """Reads the backlogs of a node's sessions."""

    def __init__(self, store: MessageStore, router: Router, on_failed: Callable[[Session, StoreError], None]) -> None:
        self._store = store
        self._router = router
        self._on_failed = on_failed  # the session's backlog cannot be read: it cannot go on
        self._turns = TurnQueue(self._run_turn, self._left)
        self._behind: set[Session] = set()  # that have a backlog, in line or not; open sessions only
        self._away: set[Session] = set()  # that wait for the tier
        self._released = ReleasedMessages(store)
        self._resends = Resends(store)
        self._log_catch_up = LogCatchUp(store, router, self._released)
        self._shared_reads = SharedReads()
        self._replays = Replays(store, router, self._released, self.start, on_failed)
        self.most_in_flight = _MOST_IN_FLIGHT
        self.least_window = _LEAST_WINDOW
        self.keep_reads_s: float = _KEEP_READS_S
        self._caught_up_at = 0.0  # loop time when the last session had caught up
        self._drop_timer: asyncio.TimerHandle | None = None  # set while there are shared reads

    def start(self, session: Session) -> None:
        """Have the session's backlog read. If it is in line already, it has at least one turn more."""
        if session.begin_catch_up():
            self._behind.add(session)
            self._turns.add(session)

    def forget(self, session: Session) -> None:
        """The session is closed, or has caught up."""
        self._behind.discard(session)
        if not self._behind and self._shared_reads.size:
            loop = asyncio.get_running_loop()
            self._caught_up_at = loop.time()
            if self._drop_timer is None:
                self._drop_timer = loop.call_later(self.keep_reads_s, self._drop_reads)

    async def stop(self) -> None:
        """End all turns."""
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        await self._turns.stop()
        await self._replays.stop()
        await self._released.stop()

    def _drop_reads(self) -> None:
        """Drop the shared reads if nobody has needed them for a while. Sessions that come back one after another, as
        after a power cut, have shared them until then."""
        self._drop_timer = None
        if self._behind:
            return  # `forget` sets the timer again
        loop = asyncio.get_running_loop()
        at = self._caught_up_at + self.keep_reads_s
        if loop.time() < at:
            self._drop_timer = loop.call_at(at, self._drop_reads)
        else:
            self._shared_reads.clear()

    async def _run_turn(self, session: Session) -> bool:
        """Read and send once. Whether the session stays in line."""
        if not _may_send(session):
            return False
        session.begin_turn(max(self.least_window, self.most_in_flight // len(self._behind)))
        try:
            has_read = await self._read(session)
        except TierUnavailable:
            self._wait_for_tier(session)
            return False
        except StoreError as error:
            # The backlog stays in the log: the session goes on from there when it is opened again.
            log_failure(log, error, "reading the backlog of %r failed: %s", session.client_id, session.client_id)
            self._on_failed(session, error)
            return False
        except Exception:
            log.exception("reading the backlog of %r failed", session.client_id)  # other sessions go on
            return False
        return (has_read or session.has_news) and _may_send(session)

    def _wait_for_tier(self, session: Session) -> None:
        """Read again in a moment: others go on meanwhile."""
        if session not in self._away:
            self._away.add(session)
            asyncio.get_running_loop().call_later(_TIER_RETRY_S, self._read_again, session)

    def _read_again(self, session: Session) -> None:
        self._away.discard(session)
        self.start(session)

    def _left(self, session: Session) -> None:
        """The session is out of the line: it has caught up, has no room, or is closed."""
        has_work = not session.closed and self._has_work(session)
        session.end_catch_up(has_work)
        if not has_work:
            self.forget(session)
        self._replays.start(session)
        session.shrink()

    def _has_work(self, session: Session) -> bool:
        if session.exchanges.resends or session.retained:
            return True
        return _has_messages(session) or self._replays.has_work(session)

    async def _read(self, session: Session) -> bool:
        """Read and send what comes first. False: nothing is left, or it has to wait."""
        if session.exchanges.resends:
            await self._resends.send(session)
            return True
        if session.retained:
            await send_page(self._store, session)
            return True
        if session.behind is not None:
            await self._log_catch_up.send(session, session.behind)
            return True
        return await self._read_queues(session)

    async def _read_queues(self, session: Session) -> bool:
        """Read once for each cursor that is behind. Whether one came forward."""
        has_moved = False
        for subscription in list(session.subscriptions.values()):
            cursor = subscription.cursor
            if cursor is not None and cursor.is_lagging and not cursor.must_wait:
                if not _may_send(session):
                    break
                has_moved |= await self._read_queue(session, cursor)
        return has_moved

    async def _read_queue(self, session: Session, cursor: QueueCursor) -> bool:
        """Send what comes next in the cursor's queue. Whether the cursor came forward."""
        if self._router.is_delivering:
            await self._router.delivered()
            if not _is_read(session, cursor):
                return False
        offset = cursor.next
        messages = self._shared_reads.find(cursor.queue, offset)
        if messages is None:
            try:
                messages = await self._fetch(cursor)
            except OffsetOutOfRange as error:
                session.dropped().add_reclaimed(max(0, error.begin - cursor.next))
                session.exchanges.forget_lost(cursor.jump(error.begin))
                return True
            if not _is_read(session, cursor):
                return False
            if cursor.next != offset:
                return True
        room = max(1, session.exchanges.window - session.exchanges.in_window)
        return deliver(session, cursor, messages, room, int(time() * 1000))

    async def _fetch(self, cursor: QueueCursor) -> QueueRange:
        """Read the queue from where the cursor is, to the end of a block, for other cursors too. Raises StoreError."""
        offset = cursor.next
        fetched = await self._store.fetch(cursor.queue, offset, room_in_block(offset), BLOCK_BYTES)
        cursor.extend(fetched.bounds.end)
        messages = QueueRange(offset, fetched)
        if messages.messages:
            self._shared_reads.keep(cursor.queue, messages)
        return messages


def _may_send(session: Session) -> bool:
    return not session.closed and session.exchanges.has_room


def _is_read(session: Session, cursor: QueueCursor) -> bool:
    """Whether the session is open, and the client has not unsubscribed meanwhile."""
    subscription = None if session.closed else session.subscriptions.get(cursor.topic_filter)
    return subscription is not None and subscription.cursor is cursor


def _has_messages(session: Session) -> bool:
    """Whether messages wait in the log or in a queue."""
    return session.behind is not None or any(cursor.is_lagging for cursor in session.cursors)
