"""Replays: subscriptions to wildcard filters that began in the past read the log until they reach the present, and
replays with an end read the log, or the queue of their topic, up to that.

A session is in line here while nothing younger waits for it (`gateway.delivery.catch_up`) and it has room. One read of
the log is done at a time, and a pause follows that is as long as the read took. So all replays of a node have half of
the loop at most. Source: `docs/decisions/0013-replay.md`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Final

import orjson

import record
from gateway.delivery.next_position import find_next_position
from gateway.delivery.released_messages import ReleasedMessages, may_release
from gateway.delivery.router import Router
from gateway.observe.throttled_log import log_failure
from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message, PlacedMessage
from gateway.session.pending_work import BoundedReplay
from gateway.session.replay_cursor import FOLLOW, ReplayCursor
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import has_wildcard, parent_of
from matcher.reserved import REPLAY, REPLAY_END, words_of
from record import scan, split, store_time_of
from record.layout import FLAG_HELD, Kind
from store.api import Chunk, MessageStore, topic_queue
from store.errors import OffsetOutOfRange, StoreError, TierUnavailable

log = logging.getLogger(__name__)

_TIER_RETRY_S: Final = 1.0  # after a read that the tier did not answer
_MOST_FETCHED: Final = 256  # messages of a queue that are read at once


class Replays:
    """The replays of a node's sessions."""

    def __init__(
        self,
        store: MessageStore,
        router: Router,
        released: ReleasedMessages,
        on_arrived: Callable[[Session], None],
        on_failed: Callable[[Session, StoreError], None],
    ) -> None:
        self._store = store
        self._router = router
        self._released = released
        self._on_arrived = on_arrived  # a replay is over: the session's other cursors may go on
        self._on_failed = on_failed  # the log cannot be read: the session cannot go on
        self._line: dict[Session, None] = {}
        self._task: asyncio.Task[None] | None = None

    def has_work(self, session: Session) -> bool:
        return _next(session) is not None

    def start(self, session: Session) -> None:
        """Put the session in line, if it has a replay and room for it."""
        if session.closed or not _has_room(session) or _next(session) is None:
            return
        self._line[session] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the read that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._line:
                session = next(iter(self._line))
                del self._line[session]
                try:
                    await self._serve(session)
                except TierUnavailable:
                    asyncio.get_running_loop().call_later(_TIER_RETRY_S, self.start, session)
                except StoreError as error:
                    # The replay goes on from where it is when the session is opened again.
                    log_failure(log, error, "reading the past for %r failed: %s", session.client_id, session.client_id)
                    self._on_failed(session, error)
                except Exception:
                    log.exception("reading the past for %r failed", session.client_id)  # other sessions go on
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _serve(self, session: Session) -> None:
        """Read once, for one replay of the session."""
        subscription = _next(session)
        cursor = subscription.replay_cursor if subscription is not None else None
        if subscription is None or cursor is None or session.closed or session.catching_up or not _has_room(session):
            return  # it is put in line again when catch-up is over, or when there is room
        if not cursor.is_lagging:
            began = monotonic()
            self._end_if_done(session, subscription, cursor)  # there was nothing to read
        elif isinstance(subscription, BoundedReplay) and not has_wildcard(subscription.topic_filter):
            began = await self._serve_queue(session, subscription, cursor)
        else:
            began = await self._serve_log(session, subscription, cursor)
        session.note_change(False)
        if not cursor.is_lagging or subscription.replay_cursor is None:
            self._on_arrived(session)
        await asyncio.sleep(monotonic() - began)
        if not session.catching_up:
            self.start(session)

    async def _serve_log(self, session: Session, subscription: Subscription, cursor: ReplayCursor) -> float:
        """Read the log once. Returns when sending began."""
        if cursor.may_skip:
            await self._skip_ahead(cursor)
        place = cursor.next
        chunk = await self._read(session, subscription, cursor)
        began = monotonic()
        if _is_wanted(session, subscription, cursor):
            if chunk is None:
                self._end_if_done(session, subscription, cursor)  # retention may have taken all that was left
            elif cursor.next == place:
                await self._send(session, subscription, cursor, chunk)
        return began

    async def _serve_queue(self, session: Session, subscription: Subscription, cursor: ReplayCursor) -> float:
        """Read the queue of a topic once. Returns when sending began."""
        place = cursor.next
        queue = topic_queue(subscription.topic_filter)
        try:
            fetched = await self._store.fetch(queue, place, min(_MOST_FETCHED, cursor.end - place), cursor.size)
            first, data = fetched.offset if fetched.count else cursor.end, fetched.data
        except OffsetOutOfRange as error:
            if place >= error.begin:
                raise
            first, data = error.begin, b""
        began = monotonic()
        if not _is_wanted(session, subscription, cursor) or cursor.next != place:
            return began
        first = min(first, cursor.end)
        if first > place:
            _count_lost(session, subscription, first - place)
            cursor.move(first)
        for start in split(data):
            if not self._send_one(session, subscription, cursor, Message(data, start), cursor.next):
                cursor.resize_reads(True)
                return began
            cursor.move(cursor.next + 1)
        cursor.resize_reads(False)
        self._end_if_done(session, subscription, cursor)
        return began

    async def _skip_ahead(self, cursor: ReplayCursor) -> None:
        """Move to where the next message of the filter's parent topic may be."""
        place, parent = cursor.next, cursor.parent
        limit = min(cursor.end, self._router.delivered_end)
        if parent is None or place >= limit:
            return
        try:
            found = await find_next_position(self._store, parent, place, limit)
        except OffsetOutOfRange:
            return  # reading there counts what retention took
        if cursor.next == place:
            cursor.skipped(found - place)
            if found > place:
                cursor.move(found)

    async def _read(self, session: Session, subscription: Subscription, cursor: ReplayCursor) -> Chunk | None:
        """The log from where the cursor is. None: it was moved over a part that retention took. How many messages are
        lost there, or where the log is damaged, is not known: each such place counts as one."""
        try:
            chunk = await self._store.read(cursor.next, cursor.size)
        except OffsetOutOfRange as error:
            if cursor.next >= error.begin:
                raise
            _count_lost(session, subscription, 1)
            cursor.move(min(error.begin, cursor.end))
            return None
        if chunk.damaged:
            _count_lost(session, subscription, 1)
        return chunk

    async def _send(self, session: Session, subscription: Subscription, cursor: ReplayCursor, chunk: Chunk) -> None:
        starts, kinds, flags, topics, _refs, _keyed = scan(chunk.data)
        floors: dict[bytes, int] = {}
        is_empty = True
        wanted = {topic for topic in set(topics) if cursor.wants(topic)}
        for i in [i for i, topic in enumerate(topics) if topic in wanted or kinds[i] != Kind.MESSAGE]:
            place = chunk.position + starts[i]
            if place >= cursor.end:
                break
            messages: Sequence[Message | None]
            if may_release(kinds[i], flags[i]):
                messages = await self._released.by_record(chunk.data, starts[i])
                if not _is_wanted(session, subscription, cursor):
                    return
            elif kinds[i] == Kind.MESSAGE and not flags[i] & FLAG_HELD:
                messages = (Message(chunk.data, starts[i]),)
            else:
                continue
            is_empty = False
            if place != cursor.next:
                cursor.move(place)
            entered = store_time_of(chunk.data, starts[i])
            for message in messages[cursor.sent :]:
                if message is not None and cursor.wants(message.topic):
                    parent = parent_of(message.topic)
                    if parent not in floors:
                        floors[parent] = await self._store.retention_floor(parent)
                        if not _is_wanted(session, subscription, cursor):
                            return
                    if entered >= floors[parent] and not self._send_one(session, subscription, cursor, message, -1):
                        cursor.resize_reads(True)
                        return
                cursor.pass_message()
            # At once: if the connection ends while the next record is looked up, this one does not come again.
            behind = chunk.position + starts[i + 1] if i + 1 < len(starts) else chunk.next_position
            cursor.move(min(behind, cursor.end))
        cursor.note_read(is_empty)
        cursor.resize_reads(False)
        cursor.move(min(chunk.next_position, cursor.end))
        self._end_if_done(session, subscription, cursor)

    def _send_one(
        self, session: Session, subscription: Subscription, cursor: ReplayCursor, message: Message, offset: int
    ) -> bool:
        """Send a message, unless it is not to be sent. False: there is no room for it. `offset`: in the topic's queue;
        -1: it is not known."""
        if not _has_room(session):
            return False
        now_ms = int(time() * 1000)
        if message.expired(now_ms):
            session.dropped().add_expired()
            return True
        if subscription.no_local and message.publisher == session.client_id:
            return True
        if subscription.tells_place:
            message = PlacedMessage(message, offset)
        # In a durable session, a replay of a subscription that is not recorded has QoS 0.
        is_bounded = isinstance(subscription, BoundedReplay)
        qos = min(subscription.qos, message.qos) if cursor.recorded or is_bounded or not session.durable else 0
        entry = None
        if qos and is_bounded:  # nothing but the exchange is recorded
            entry = Inflight(None, cursor.topic_filter, message.position, qos)
        elif qos and cursor.recorded:
            cursor.sending(message)
            entry = Inflight(cursor, cursor.topic_filter, message.position, qos)
        retain = message.retain and subscription.retain_as_published
        # A node that died may have sent it under the same packet id (MQTT-3.3.1-1). With QoS 2 a record would say so.
        dup = qos == 1 and cursor.sent_before >= 0
        counters = session.counters
        sent = counters.messages_sent
        session.exchanges.send(message, qos, retain, dup, subscription.route.identifiers, entry, now_ms)
        counters.messages_replayed += counters.messages_sent - sent
        if isinstance(subscription, BoundedReplay):
            subscription.count_sent(counters.messages_sent - sent)
        return True

    def _end_if_done(self, session: Session, subscription: Subscription, cursor: ReplayCursor) -> None:
        """Go over to the present, or end, if the cursor has reached that."""
        if isinstance(subscription, BoundedReplay):
            if cursor.next >= cursor.end:
                session.end_bounded_replay(subscription.name)
                end = Message(_end_of(subscription, cursor), 0)
                session.exchanges.send(end, 0, False, False, subscription.route.identifiers, None, int(time() * 1000))
        elif cursor.end == FOLLOW:
            if cursor.next < self._router.delivered_end:
                return
            subscription.go_live(cursor.next)
            session.subscribe(subscription)
            self._router.add(subscription)
        elif cursor.next >= cursor.end and subscription.cursor is not None:
            subscription.end_replay()


def _next(session: Session) -> Subscription | None:
    """The subscription whose replay is read next."""
    for subscription in session.subscriptions.values():
        cursor = subscription.replay_cursor
        if cursor is not None and cursor.is_lagging:
            return subscription
    return next(iter(session.bounded_replays.values()), None)


def _is_wanted(session: Session, subscription: Subscription, cursor: ReplayCursor) -> bool:
    """Whether the client has not unsubscribed meanwhile."""
    if isinstance(subscription, BoundedReplay):
        return not session.closed and session.bounded_replays.get(subscription.name) is subscription
    known = session.subscriptions.get(subscription.topic_filter)
    return not session.closed and known is subscription and subscription.replay_cursor is cursor


def _has_room(session: Session) -> bool:
    """Whether one more message may go out. Resends go first; packet ids and waiting records are bounded."""
    return session.exchanges.has_room_in_order


def _count_lost(session: Session, subscription: Subscription, count: int) -> None:
    """Count what retention or damage took of a replay."""
    session.dropped().add_reclaimed(count)
    if isinstance(subscription, BoundedReplay):
        subscription.count_lost(count)


def _end_of(replay: BoundedReplay, cursor: ReplayCursor) -> bytes:
    """The frame of the message that ends a replay."""
    name = b"/".join((REPLAY, words_of(replay.name), replay.topic_filter))
    what: dict[str, object] = {"replay": name.decode(), "messages": replay.sent, "lost": replay.lost}
    if not has_wildcard(replay.topic_filter):
        what["next"] = f"offset:{cursor.end}"
    return record.frame(int(Kind.MESSAGE), 0, 0, REPLAY_END, b"", b"", orjson.dumps(what))
