"""Reading a session's backlog: what it missed, what is retained, what an earlier connection left open.

One coroutine per session, alive only while there is something to read and room to send it. It stops when
the window or the socket is full; acknowledgements start it again (`Session.on_room`).
"""

import asyncio
import logging
from collections.abc import Sequence
from time import time
from typing import Final

from gateway.cursor import Cursor
from gateway.late import LateMessages, lets_in
from gateway.message import Message
from gateway.router import Router
from gateway.session import WAITING, Route, Session
from matcher.names import has_wildcard
from record import scan, split, store_time_of
from record.layout import FLAG_HELD, Kind
from store.api import Store, filter_queue, topic_queue
from store.errors import OffsetOutOfRange, StoreError

log = logging.getLogger(__name__)

_BATCH: Final = 256  # records a fetch
_BATCH_BYTES: Final = 256 * 1024
_RETAINED_PAGE: Final = 64


class Pump:
    """Starts and runs the pumps of a node's sessions."""

    def __init__(self, store: Store, router: Router) -> None:
        self._store = store
        self._router = router
        self._late = LateMessages(store)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, session: Session) -> None:
        """Have the session's backlog read; what is under way looks once more before it ends."""
        session.nudged = True
        if session.pumping or session.closed:
            return
        session.pumping = True
        task = asyncio.get_running_loop().create_task(self._run(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End all pumps."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._late.stop()

    async def _run(self, session: Session) -> None:
        try:
            while not session.closed and session.has_room:
                session.nudged = False
                if not await self._step(session) and not session.nudged:
                    break
                # Lets the gathered packets reach the socket, so that `congested` is true when it is.
                await asyncio.sleep(0)
        except StoreError as error:
            # The backlog stays in the log: the session goes on from there when it is opened again.
            log.error("reading the backlog of %r failed: %s", session.client_id, error)
        finally:
            session.pumping = False
            session.lagging = self._has_work(session)

    def _has_work(self, session: Session) -> bool:
        if session.behind >= 0 or session.retained or session.resends:
            return True
        return any(s.cursor is not None and s.cursor.lagging for s in session.subscriptions.values())

    async def _step(self, session: Session) -> bool:
        """Read and send one batch of whatever comes first. False: nothing is left, or it has to wait."""
        if session.resends:
            await self._resend(session)
            return True
        if session.retained:
            await self._retained(session)
            return True
        if session.behind >= 0:
            await self._read_log(session)
            return True
        moved = False
        for subscription in list(session.subscriptions.values()):
            cursor = subscription.cursor
            if cursor is not None and cursor.lagging and not cursor.stretched and not session.closed:
                moved |= await self._read_queue(session, cursor)
        return moved

    # --- durable sessions

    async def _read_queue(self, session: Session, cursor: Cursor) -> bool:
        """Whether the cursor came forward."""
        room = max(1, session.window - session.in_window)
        asked = cursor.next
        try:
            fetched = await self._store.fetch(cursor.queue, asked, min(room, _BATCH), _BATCH_BYTES)
        except OffsetOutOfRange as error:
            session.counters.dropped_reclaimed += max(0, error.begin - cursor.next)
            self._forget_lost(session, cursor.jump(error.begin))
            return True
        cursor.end = max(cursor.end, fetched.bounds.end)
        if session.closed or cursor.next != asked:
            return not session.closed
        if fetched.offset > asked:
            self._forget_lost(session, cursor.skip(fetched.offset))
            session.counters.dropped_reclaimed += cursor.next - asked
            if cursor.next < fetched.offset:
                return True
        now_ms = int(time() * 1000)
        offset = fetched.offset
        for start in split(fetched.data):
            message = Message(fetched.data, start)
            route = session.route(message.topic)
            if offset in cursor.open:
                if not session.has_room:
                    break
                cursor.read(offset, message)
                self._resend_here(session, cursor.open.pop(offset), message, route, now_ms)
            else:
                owner = _owner(route, message) if route is not None else None
                if owner is cursor and route is not None:
                    if not session.take(cursor, offset, message, route, now_ms):
                        break
                elif owner is None or owner.has_read(message):
                    cursor.pass_over(offset, message)
                    session.note_change()
                else:
                    break
            offset += 1
        return offset > asked

    def _forget_lost(self, session: Session, packet_ids: list[int]) -> None:
        """Messages that a cursor had open since an earlier connection are gone from the log."""
        for packet_id in packet_ids:
            entry = session.inflight.get(packet_id)
            if entry is not None and entry.phase == WAITING and not entry.released:
                session.forget(packet_id, entry)
        session.note_change()

    def _resend_here(
        self, session: Session, packet_id: int, message: Message, route: Route | None, now_ms: int
    ) -> None:
        """Send again what is open since an earlier connection, unless PUBREL was sent for it or is to be."""
        entry = session.inflight.get(packet_id)
        if entry is not None and entry.phase == WAITING and not entry.released:
            session.resend(packet_id, entry, message, route, now_ms)

    async def _resend(self, session: Session) -> None:
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
            session.counters.dropped_reclaimed += 1
            session.forget(packet_id, entry)
        else:
            session.resend(packet_id, entry, message, session.route(message.topic), int(time() * 1000))

    async def _find(self, topic_filter: bytes, offset: int) -> Message | None:
        """The message that an exchange was about; None when it is gone from the log."""
        try:
            if not topic_filter:
                chunk = await self._store.read(offset, 1)
                return Message(chunk.data, 0) if chunk.data and chunk.position == offset else None
            queue = filter_queue(topic_filter) if has_wildcard(topic_filter) else topic_queue(topic_filter)
            fetched = await self._store.fetch(queue, offset, 1, 1)
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
            session.counters.dropped_reclaimed += 1
            session.behind, session.behind_sent = error.begin, 0
            return
        if session.closed or session.behind != behind:
            return
        if chunk.damaged:  # how many messages were there, nobody can tell either
            session.counters.dropped_reclaimed += 1
            session.behind_sent = 0
        starts, kinds, flags, topics, _refs, _keyed = scan(chunk.data)
        for i in range(len(starts)):
            messages: Sequence[Message | None]
            if lets_in(kinds[i], flags[i]):
                messages = await self._late.of(chunk.data, starts[i])
            elif kinds[i] == Kind.MESSAGE and not flags[i] & FLAG_HELD and session.route(topics[i]) is not None:
                messages = (Message(chunk.data, starts[i]),)
            else:
                continue
            store_time = store_time_of(chunk.data, starts[i])
            if not self._send_behind(session, messages, chunk.position + starts[i], store_time):
                return
        session.behind = chunk.next_position
        if session.behind >= self._router.delivered_end:
            session.behind = -1

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
        if route is None or route.cursors or position < route.start:
            return True
        if route.no_local and message.publisher == session.client_id:
            return True
        if message.expired(now_ms):
            session.counters.dropped_expired += 1
            return True
        if not session.has_room:
            return False
        qos = min(route.qos, message.qos)
        retain = message.retain and route.retain_as_published
        session.send(message, qos, retain, False, route.identifiers, None, now_ms)
        return True

    # --- retained messages

    async def _retained(self, session: Session) -> None:
        request = next(iter(session.retained.values()))
        subscription = request.subscription
        topic_filter = subscription.topic_filter
        page = await self._store.retained(topic_filter, request.after, _RETAINED_PAGE)
        if session.closed or session.retained.get(topic_filter) is not request:
            return
        now_ms = int(time() * 1000)
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        for value in page:
            if not session.has_room:
                return
            message = Message(value.frame, 0)
            qos = min(subscription.qos, message.qos)
            if message.expired(now_ms):
                session.counters.dropped_expired += 1
            elif not (subscription.no_local and message.publisher == session.client_id):
                session.send(message, qos, True, False, identifiers, None, now_ms)
            request.after = value.topic
        if len(page) < _RETAINED_PAGE:
            del session.retained[topic_filter]


def _owner(route: Route, message: Message) -> Cursor | None:
    """The cursor that sends this message: the oldest, unless even that is younger than the message."""
    if route.cursors and (message.held or route.cursors[0].start_position <= message.position):
        return route.cursors[0]
    return None
