"""Reading sessions' backlogs: what they missed, what is retained, what earlier connections left open.

A session is in line here while it has something to read and room to send it. It leaves when its window or its socket
is full; acknowledgements bring it back (`Session.on_room`).

However many come back at once, each gets its turn soon, and the loop is not held up: turns are taken in slices of
time, and a turn is one stretch of one backlog. What all of them have on the way is bounded: the more are behind, the
smaller is the part of its window that each may use.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Final, cast

from gateway.delivery.backlog import deliver, forget_lost
from gateway.delivery.released_messages import ReleasedMessages, may_release
from gateway.delivery.replay import Replays
from gateway.delivery.retained import RetainedPages
from gateway.delivery.router import Router
from gateway.delivery.shared_reads import BLOCK, BLOCK_BYTES, QueueRange, SharedReads, room_in_block
from gateway.observe.throttled_log import tell_failure
from gateway.session.cursor import Cursor
from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from gateway.session.subscription import Route
from matcher.names import matches
from matcher.reserved import filter_of
from record import scan, store_time_of
from record.layout import FLAG_HELD, Kind
from store.api import Store, subscription_queue
from store.errors import OffsetOutOfRange, StoreError

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 256 * 1024  # of the log, read at once
_SLICE: Final = 0.002  # seconds of turns before others on the loop have theirs
_LONGEST_SLICE: Final = 0.01  # where the others take long: turns are half as long as they are
_WORKERS: Final = 16  # turns that may wait for the disk at the same time
_MOST_OUT: Final = 1 << 17  # messages on the way to all sessions that are behind, as long as each may have
_LEAST_OUT: Final = 16  # of its own


class CatchUp:
    """Reads the backlogs of a node's sessions."""

    def __init__(self, store: Store, router: Router, on_failed: Callable[[Session, StoreError], None]) -> None:
        self._store = store
        self._router = router
        self._on_failed = on_failed  # what it missed cannot be read: the session cannot go on
        self._late = ReleasedMessages(store)
        self._retained = RetainedPages(store)
        self._replays = Replays(store, router, self._late, self.start, on_failed)
        self._shared_reads = SharedReads()
        self._behind: set[Session] = set()  # that have a backlog, in line or not; held sessions only
        self._due: deque[Session] = deque()  # in line for this slice of time
        self._served: list[Session] = []  # had their turn in it, and go on in the next one
        self._slice_end = 0.0  # monotonic seconds; 0: the next turn begins a slice
        self._paused_at = 0.0  # when the last one ended
        self._pause: asyncio.Future[None] | None = None  # between two slices
        self._workers: set[asyncio.Task[None]] = set()
        self._busy = 0  # of them, in a turn
        self.most_out = _MOST_OUT
        self.least_out = _LEAST_OUT

    def start(self, session: Session) -> None:
        """Have the session's backlog read; what is under way looks once more before it ends."""
        session.nudged = True
        if session.catching_up or session.closed:
            return
        session.catching_up = True
        self._behind.add(session)
        self._due.append(session)
        if not self._workers:
            self._slice_end, self._paused_at = 0.0, monotonic()
        self._find_worker()

    def forget(self, session: Session) -> None:
        """The session is closed."""
        self._behind.discard(session)
        if not self._behind:
            self._shared_reads.clear()

    async def stop(self) -> None:
        """End all turns."""
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._replays.stop()
        await self._late.stop()

    def _find_worker(self) -> None:
        """Have somebody at hand for who is in line, though all others may wait for the disk."""
        if self._due and self._busy == len(self._workers) < _WORKERS:
            self._workers.add(asyncio.get_running_loop().create_task(self._work()))

    async def _work(self) -> None:
        try:
            await self._take_turns()
        finally:
            # At once: who comes in line from now on is served by another.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _take_turns(self) -> None:
        """Until nobody is in line."""
        while self._due or self._served:
            now = monotonic()
            if self._slice_end == 0.0:
                self._slice_end = now + min(max(_SLICE, (now - self._paused_at) / 2), _LONGEST_SLICE)
            if not self._due or now >= self._slice_end:
                await self._breathe()
                continue
            session = self._due.popleft()
            goes_on = False
            self._busy += 1
            self._find_worker()
            try:
                goes_on = await self._turn(session)
            except StoreError as error:
                # The backlog stays in the log: the session goes on from there when it is opened again.
                tell_failure(log, error, "reading the backlog of %r failed: %s", session.client_id)
                self._on_failed(session, error)
            except Exception:
                log.exception("reading the backlog of %r failed", session.client_id)  # the others go on
            finally:
                self._busy -= 1
            if goes_on:
                self._served.append(session)
            else:
                self._leave(session)

    async def _breathe(self) -> None:
        """Let others on the loop have their turn: sockets too, so that who was served is congested when it is."""
        if self._pause is None:
            self._paused_at = monotonic()
            loop = asyncio.get_running_loop()
            self._pause = loop.create_future()
            loop.call_soon(self._begin_slice, self._pause)
        await self._pause

    def _begin_slice(self, pause: asyncio.Future[None]) -> None:
        self._pause = None
        self._due.extend(self._served)
        self._served = []
        self._slice_end = 0.0
        if not pause.done():
            pause.set_result(None)

    async def _turn(self, session: Session) -> bool:
        """Read and send one stretch. Whether the session stays in line."""
        if not _may_send(session):
            return False
        session.window = min(session.full_window, max(self.least_out, self.most_out // len(self._behind)))
        session.nudged = False
        moved = await self._step(session)
        return (moved or session.nudged) and _may_send(session)

    def _leave(self, session: Session) -> None:
        session.catching_up = False
        session.lagging = self._has_work(session)
        if session.closed or not session.lagging:
            session.window = session.full_window
            self.forget(session)
        self._replays.start(session)  # what is older comes when there is nothing else to read
        session.tidy()

    def _has_work(self, session: Session) -> bool:
        if session.retained or session.resends or self._replays.has_work(session):
            return True
        return self._has_messages(session)

    def _has_messages(self, session: Session) -> bool:
        if session.behind >= 0:
            return True
        return any(s.cursor is not None and s.cursor.lagging for s in session.subscriptions.values())

    async def _step(self, session: Session) -> bool:
        """Read and send one batch of whatever comes first. False: nothing is left, or it has to wait."""
        if session.resends:
            await self._resend(session)
            return True
        moved = False
        if session.retained:
            moved = True
            await self._retained.send(session, self._has_messages(session))
            if not _may_send(session):
                return True
        if session.behind >= 0:
            await self._read_log(session)
            return True
        for subscription in list(session.subscriptions.values()):
            cursor = subscription.cursor
            if cursor is not None and cursor.lagging and not cursor.stretched:
                if session.closed or not session.has_room:
                    break
                moved |= await self._read_queue(session, cursor)
        return moved

    # --- durable sessions

    async def _read_queue(self, session: Session, cursor: Cursor) -> bool:
        """Whether the cursor came forward."""
        stretch = self._shared_reads.find(cursor.queue, cursor.next)
        if stretch is None:
            asked = cursor.next
            try:
                fetched = await self._store.fetch(cursor.queue, asked, room_in_block(asked), BLOCK_BYTES)
            except OffsetOutOfRange as error:
                session.dropped().add_reclaimed(max(0, error.begin - cursor.next))
                forget_lost(session, cursor.jump(error.begin))
                return True
            cursor.end = max(cursor.end, fetched.bounds.end)
            stretch = QueueRange(asked, fetched)
            if stretch.messages:
                self._shared_reads.keep(cursor.queue, stretch)
            if session.closed or cursor.next != asked:
                return not session.closed
            subscription = session.subscriptions.get(cursor.topic_filter)
            if subscription is None or subscription.cursor is not cursor:
                return False  # unsubscribed meanwhile: it is nobody's
        room = max(1, session.window - session.in_window)
        return deliver(session, cursor, stretch, room, int(time() * 1000))

    async def _resend(self, session: Session) -> None:
        for _ in range(BLOCK):
            if not session.resends or not session.has_room or session.closed:
                return
            await self._resend_first(session)

    async def _resend_first(self, session: Session) -> None:
        packet_id = session.resends[0]
        entry = session.inflight.get(packet_id)
        if entry is None:
            session.resends.popleft()
            return
        if entry.released:
            session.resends.popleft()
            session.resend_release(packet_id, entry)
            return
        message = await self._find(entry.topic_filter, entry.offset)
        if session.closed or not session.resends or session.resends[0] != packet_id:
            return
        session.resends.popleft()
        if message is None:
            session.dropped().add_reclaimed(1)
            session.forget(packet_id, entry)
        elif not _may_have(session, entry, message):
            session.forget(packet_id, entry)
        else:
            session.resend(packet_id, entry, message, session.route(message.topic), int(time() * 1000))

    async def _find(self, topic_filter: bytes, offset: int) -> Message | None:
        """The message that an exchange was about; None when it is gone from the log."""
        try:
            if not topic_filter or filter_of(topic_filter):
                chunk = await self._store.read(offset, 1)
                return Message(chunk.data, 0) if chunk.data and chunk.position == offset else None
            fetched = await self._store.fetch(subscription_queue(topic_filter), offset, 1, 1)
        except OffsetOutOfRange:
            return None
        return Message(fetched.data, 0) if fetched.count and fetched.offset == offset else None

    # --- what has no cursor: transient sessions, and the QoS 0 subscriptions of durable ones

    async def _read_log(self, session: Session) -> None:
        behind = session.behind
        try:
            chunk = await self._store.read(behind, _BATCH_BYTES)
        except OffsetOutOfRange as error:
            if behind >= error.begin:
                raise
            # Reclaimed while the session was behind. How many of its messages that were, nobody can tell now.
            session.dropped().add_reclaimed(1)
            session.behind, session.behind_sent = error.begin, 0
            return
        if session.closed or session.behind != behind:
            return
        if chunk.damaged:  # how many messages were there, nobody can tell either
            session.dropped().add_reclaimed(1)
            session.behind_sent = 0
        starts, kinds, flags, topics, _refs, _keyed = scan(chunk.data)
        for i in range(len(starts)):
            messages: Sequence[Message | None]
            if may_release(kinds[i], flags[i]):
                messages = await self._late.of(chunk.data, starts[i])
            elif kinds[i] == Kind.MESSAGE and not flags[i] & FLAG_HELD and session.route(topics[i]) is not None:
                messages = (Message(chunk.data, starts[i]),)
            else:
                continue
            store_time = store_time_of(chunk.data, starts[i])
            position = chunk.position + starts[i]
            while not self._send_behind(session, messages, position, store_time):
                if not session.unfinished.waiting or not await self._retained.send_ahead(session):
                    return
        session.behind = chunk.next_position
        if session.behind >= self._router.delivered_end:
            session.caught_up()

    def _send_behind(
        self, session: Session, messages: Sequence[Message | None], position: int, store_time: int
    ) -> bool:
        """Send the messages that entered their queues with the record at `position`, from where it was left. False:
        there was no room for all, and the session stays there; or it was closed."""
        if session.closed:
            return False
        now_ms = int(time() * 1000)
        seen = session.late_at(store_time)
        for number in range(session.behind_sent, len(messages)):
            message = messages[number]
            if message is None or message.position in seen:
                continue
            if not self._send_one_behind(session, message, position, now_ms):
                session.behind, session.behind_sent = position, number
                return False
            if message.held:
                seen.add(message.position)
        session.behind_sent = 0
        return True

    def _send_one_behind(self, session: Session, message: Message, position: int, now_ms: int) -> bool:
        route = session.route(message.topic)
        if route is None or position < route.start:
            return True
        if route.cursors:
            is_older = position < min([cursor.start_position for cursor in route.cursors])
            route = _without_cursors(session, message.topic) if is_older else None
            if route is None:
                return True
        if route.no_local and message.publisher == session.client_id:
            return True
        if message.expired(now_ms):
            session.dropped().add_expired()
            return True
        if not session.has_room or session.waits(message.topic):
            return False
        qos = min(route.qos, message.qos)
        retain = message.retain and route.retain_as_published
        session.send(message, qos, retain, False, route.identifiers, None, now_ms)
        return True


def _may_send(session: Session) -> bool:
    return session.has_room and not session.closed


def _may_have(session: Session, entry: Inflight, message: Message) -> bool:
    """Whether the client may read what an earlier connection, perhaps another user's, left on its way. Rules may have
    changed since the session was opened; of a retained value there is the topic alone to go by."""
    name = filter_of(entry.topic_filter) or entry.topic_filter
    if name and session.write_buffer.may_receive(name):
        return True
    return session.write_buffer.may_receive(message.topic)


def _without_cursors(session: Session, topic: bytes) -> Route | None:
    """The route of a message that is older than the cursors of its topic: theirs it is not."""
    subscriptions = session.subscriptions.values()
    found = [s for s in subscriptions if s.cursor is None and s.is_live and matches(s.topic_filter, topic)]
    return Route(session, found) if found else None
