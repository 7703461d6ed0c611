"""Reads histories: what is older than subscriptions that began in the past, from the log, until they meet the present.

A session is in line here while nothing younger waits for it (`gateway.delivery.catch_up`) and it has room. One is
served at a time, by one read of the log, and a rest follows as long as that took: all replays of a node get half of the
loop at the most.
Source: `docs/decisions/0013-replay.md`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic, time

from gateway.delivery.next_position import next_place
from gateway.delivery.released_messages import ReleasedMessages, may_release
from gateway.delivery.router import Router
from gateway.observe.throttled_log import tell_failure
from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.qos_exchanges import MAX_HELD, MAX_STAGED
from gateway.session.replay_cursor import FOLLOW, ReplayCursor
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import parent_of
from record import scan, store_time_of
from record.layout import FLAG_HELD, Kind
from store.api import Chunk, Store
from store.errors import OffsetOutOfRange, StoreError

log = logging.getLogger(__name__)


class Replays:
    """The histories of a node's sessions."""

    def __init__(
        self,
        store: Store,
        router: Router,
        released: ReleasedMessages,
        on_arrived: Callable[[Session], None],
        on_failed: Callable[[Session, StoreError], None],
    ) -> None:
        self._store = store
        self._router = router
        self._released = released
        self._on_arrived = on_arrived  # the session's cursors may go on
        self._on_failed = on_failed  # the log cannot be read: the session cannot go on
        self._line: dict[Session, None] = {}
        self._task: asyncio.Task[None] | None = None

    def has_work(self, session: Session) -> bool:
        return any(s.history is not None and s.history.lagging for s in session.subscriptions.values())

    def start(self, session: Session) -> None:
        """Have the session served, if it has a history to read and room for it."""
        if session.closed or not _has_room(session) or _next(session) is None:
            return
        self._line[session] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End what is under way."""
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
                except StoreError as error:
                    # It stays where it is: the session goes on from there when it is opened again.
                    tell_failure(log, error, "reading the past for %r failed: %s", session.client_id)
                    self._on_failed(session, error)
                except Exception:
                    log.exception("reading the past for %r failed", session.client_id)  # the others go on
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _serve(self, session: Session) -> None:
        """Read on in one history of the session."""
        subscription = _next(session)
        history = subscription.history if subscription is not None else None
        if subscription is None or history is None or session.closed or session.catching_up or not _has_room(session):
            return  # it is put in line again when catch-up is over, or when there is room
        if history.looks_ahead:
            await self._look_ahead(history)
        place = history.next
        chunk = await self._chunk(session, history)
        began = monotonic()
        if _is_wanted(session, subscription, history):
            if chunk is None:
                self._arrive(session, subscription, history)  # retention may have taken all that was left of it
            elif history.next == place:
                await self._send(session, subscription, history, chunk)
        session.note_change()
        if not history.lagging or subscription.history is None:
            self._on_arrived(session)
        await asyncio.sleep(monotonic() - began)
        if not session.catching_up:
            self.start(session)

    async def _look_ahead(self, history: ReplayCursor) -> None:
        """Go on where the next message of the history may be."""
        place, parent = history.next, history.parent
        limit = min(history.end, self._router.delivered_end)
        if parent is None or place >= limit:
            return
        try:
            found = await next_place(self._store, parent, place, limit)
        except OffsetOutOfRange:
            return  # to be counted
        if history.next == place:
            history.looked(found - place)
            if found > place:
                history.move(found)

    async def _chunk(self, session: Session, history: ReplayCursor) -> Chunk | None:
        try:
            chunk = await self._store.read(history.next, history.size)
        except OffsetOutOfRange as error:
            if history.next >= error.begin:
                raise
            session.dropped().add_reclaimed(1)  # how many of its messages were there, nobody can tell
            history.move(min(error.begin, history.end))
            return None
        if chunk.damaged:
            session.dropped().add_reclaimed(1)
        return chunk

    async def _send(self, session: Session, subscription: Subscription, history: ReplayCursor, chunk: Chunk) -> None:
        starts, kinds, flags, topics, _refs, _keyed = scan(chunk.data)
        floors: dict[bytes, int] = {}
        is_barren = True
        wanted = {topic for topic in set(topics) if history.wants(topic)}
        for i in [i for i, topic in enumerate(topics) if topic in wanted or kinds[i] != Kind.MESSAGE]:
            place = chunk.position + starts[i]
            if place >= history.end:
                break
            messages: Sequence[Message | None]
            if may_release(kinds[i], flags[i]):
                messages = await self._released.by_record(chunk.data, starts[i])
                if not _is_wanted(session, subscription, history):
                    return
            elif kinds[i] == Kind.MESSAGE and not flags[i] & FLAG_HELD:
                messages = (Message(chunk.data, starts[i]),)
            else:
                continue
            is_barren = False
            if place != history.next:
                history.move(place)
            entered = store_time_of(chunk.data, starts[i])
            for message in messages[history.sent :]:
                if message is not None and history.wants(message.topic):
                    parent = parent_of(message.topic)
                    if parent not in floors:
                        floors[parent] = await self._store.retention_floor(parent)
                        if not _is_wanted(session, subscription, history):
                            return
                    if entered >= floors[parent] and not self._send_one(session, subscription, history, message):
                        history.found_much(True)
                        return
                history.pass_message()
        history.read_through(is_barren)
        history.found_much(False)
        history.move(min(chunk.next_position, history.end))
        self._arrive(session, subscription, history)

    def _send_one(self, session: Session, subscription: Subscription, history: ReplayCursor, message: Message) -> bool:
        """Send the history's next message, or pass over it. False: no room for it."""
        if not _has_room(session):
            return False
        now_ms = int(time() * 1000)
        if message.expired(now_ms):
            session.dropped().add_expired()
            return True
        if subscription.no_local and message.publisher == session.client_id:
            return True
        # In a session that comes back, a past that is not recorded is one of QoS 0.
        qos = min(subscription.qos, message.qos) if history.recorded or not session.durable else 0
        entry = None
        if qos and history.recorded:
            history.sending(message)
            entry = Inflight(history, history.topic_filter, message.position, qos)
        retain = message.retain and subscription.retain_as_published
        # A node that died may have sent it, under the same packet id (MQTT-3.3.1-1). With QoS 2 a record would say so.
        dup = qos == 1 and history.sent_before >= 0
        counters = session.counters
        sent = counters.messages_sent
        session.send(message, qos, retain, dup, subscription.route.identifiers, entry, now_ms)
        counters.messages_replayed += counters.messages_sent - sent
        return True

    def _arrive(self, session: Session, subscription: Subscription, history: ReplayCursor) -> None:
        """Go over to the present, where the history has come to it."""
        if history.end == FOLLOW:
            if history.next < self._router.delivered_end:
                return
            subscription.go_live(history.next)
            session.subscribe(subscription)
            self._router.add(subscription)
        elif history.next >= history.end and subscription.cursor is not None:
            subscription.end_replay()


def _next(session: Session) -> Subscription | None:
    """The subscription whose history is read next."""
    for subscription in session.subscriptions.values():
        history = subscription.history
        if history is not None and history.lagging:
            return subscription
    return None


def _is_wanted(session: Session, subscription: Subscription, history: ReplayCursor) -> bool:
    """Whether the history still belongs to a subscription of the session."""
    known = session.subscriptions.get(subscription.topic_filter)
    return not session.closed and known is subscription and subscription.history is history


def _has_room(session: Session) -> bool:
    """As for any cursor: what an earlier connection left open goes first, and packet ids and records are bounded."""
    if session.resends or not session.has_room:
        return False
    return session.staging < MAX_STAGED and len(session.inflight) < MAX_HELD
