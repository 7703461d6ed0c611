"""Backlogs of subscriptions without a cursor: transient sessions, and QoS 0 in durable ones.

Such a session remembers one position of the log (`Session.behind`). The log is read from there, and what matches is
sent, until the session has come to the end.
"""

from collections.abc import Sequence
from time import time
from typing import Final

from gateway.delivery.released_messages import ReleasedMessages, may_release
from gateway.delivery.router import Router
from gateway.session.log_position import LogPosition
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from record import scan, store_time_of
from record.layout import FLAG_HELD, Kind
from store.api import Chunk, LogStore
from store.errors import OffsetOutOfRange

_READ_BYTES: Final = 256 * 1024  # of the log, at once


class LogCatchUp:
    """Reads the log for sessions that are behind."""

    def __init__(self, store: LogStore, router: Router, released: ReleasedMessages) -> None:
        self._store = store
        self._router = router
        self._released = released

    async def send(self, session: Session, backlog: LogPosition) -> None:
        """Read once, and send what matches as far as there is room. Raises StoreError."""
        chunk = await self._read(session, backlog)
        if chunk is None:
            return
        starts, kinds, flags, topics, _refs, _keyed = scan(chunk.data)
        for i in range(len(starts)):
            messages: Sequence[Message | None]
            if may_release(kinds[i], flags[i]):
                messages = await self._released.by_record(chunk.data, starts[i])
            elif kinds[i] == Kind.MESSAGE and not flags[i] & FLAG_HELD and session.route(topics[i]) is not None:
                messages = (Message(chunk.data, starts[i]),)
            else:
                continue
            store_time = store_time_of(chunk.data, starts[i])
            if not _send_entered(session, backlog, messages, chunk.position + starts[i], store_time):
                return
        backlog.read_on_from(chunk.next_position)
        if chunk.next_position >= self._router.delivered_end:
            session.caught_up()

    async def _read(self, session: Session, backlog: LogPosition) -> Chunk | None:
        """The log from where the session is. None: there is nothing to send of it. How many messages are lost where
        the log is damaged or reclaimed is not known: each such place counts as one."""
        if self._router.is_delivering:
            await self._router.delivered()
        position = backlog.position
        try:
            chunk = await self._store.read(position, _READ_BYTES)
        except OffsetOutOfRange as error:
            if position >= error.begin:
                raise
            session.dropped().add_reclaimed(1)
            backlog.read_on_from(error.begin)
            return None
        if session.closed or session.behind is not backlog or backlog.position != position:
            return None
        if chunk.damaged:
            session.dropped().add_reclaimed(1)
            backlog.read_on_from(position)
        return chunk


def _send_entered(
    session: Session, backlog: LogPosition, messages: Sequence[Message | None], position: int, store_time: int
) -> bool:
    """Send the messages that entered their queues with the record at `position`, but for those that were sent before.
    False: there was no room for all, and the session stays there; or it was closed."""
    if session.closed:
        return False
    now_ms = int(time() * 1000)
    seen = backlog.released_at(store_time)
    for number in range(backlog.sent, len(messages)):
        message = messages[number]
        if message is None or message.position in seen:
            continue
        if not _send(session, message, position, now_ms):
            backlog.read_on_from(position, number)
            return False
        if message.held:
            seen.add(message.position)
    backlog.read_on_from(backlog.position)
    return True


def _send(session: Session, message: Message, position: int, now_ms: int) -> bool:
    """Send a message that entered at `position`, if it is for a subscription without a cursor. False: there was no
    room."""
    route = session.route(message.topic)
    if route is None or position < route.start:
        return True
    if route.cursors:
        is_older = position < min([cursor.start_position for cursor in route.cursors])
        route = session.subscriptions.route_without_cursors(message.topic) if is_older else None
        if route is None:
            return True
    if route.no_local and message.publisher == session.client_id:
        return True
    if message.expired(now_ms):
        session.dropped().add_expired()
        return True
    if not session.exchanges.has_room or session.awaits_retained:
        return False
    qos = min(route.qos, message.qos)
    retain = message.retain and route.retain_as_published
    session.exchanges.send(message, qos, retain, False, route.identifiers, None, now_ms)
    return True
