"""Records the progress of durable sessions: acknowledged offsets and packet ids.

Acknowledgements are recorded a few times a second. With many sessions, that happens less often, so that records take a
bounded share of the log and of the event loop. The packet id of a QoS 2 message and a PUBREC are recorded at once,
because the next packet of the exchange is sent when the record is committed.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from time import time
from typing import Final, TypeVar

from gateway.broker.append import pieces
from gateway.observe.throttled_log import log_failure
from gateway.session.session import Session
from matcher.reserved import replay_name
from store import control
from store.api import Appended, LogStore, PendingRetained, StoredSubscription
from store.control import ControlRecord
from store.errors import StoreError

_Item = TypeVar("_Item")
_Sent = tuple[int, bytes, int, int]  # a message in flight: packet id, filter, offset, QoS

log = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 0.1  # between a session's first acknowledgement and its record
_SOME: Final = 128  # sessions that are recorded in one turn of the loop
_PAUSE: Final = 0.01  # seconds until the next turn
_SIZE: Final = 1 << 18  # bytes of the largest record, roughly; a single filter may need more
_BESIDES: Final = 32  # bytes of a record for each filter, beside the filter itself, at most


class SessionCheckpoint:
    """Writes the progress of this node's durable sessions to the log."""

    def __init__(self, store: LogStore, on_failed: Callable[[Session, StoreError], None]) -> None:
        self._store = store
        self._on_failed = on_failed  # called when a record is not committed: the session cannot continue
        self._loop = asyncio.get_running_loop()
        self._changed: dict[Session, None] = {}  # open sessions only, the one that has waited longest first
        self._urgent: dict[Session, None] = {}  # sessions that are recorded in this turn of the loop
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False  # `_write_urgent` is scheduled

    def forget(self, session: Session) -> None:
        """Forget a session that is closed. `last_records` has the rest of its progress."""
        self._changed.pop(session, None)
        self._urgent.pop(session, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, session: Session, urgent: bool) -> None:
        """Schedule a record of the session. urgent: a packet to the client waits for it.

        Does nothing for a closed session, whose progress is in `last_records`.
        """
        if session.closed:
            return
        if urgent:
            self._changed.pop(session, None)
            self._urgent[session] = None
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._write_urgent)
        else:
            self._changed[session] = None
            if self._timer is None:
                self._timer = self._loop.call_later(PROGRESS_SECONDS, self._write)

    def _write(self) -> None:
        changed = self._changed
        for session in list(islice(changed, _SOME)):
            del changed[session]
            self._try_to_record(session)
        self._timer = self._loop.call_later(_PAUSE, self._write) if changed else None

    def _write_urgent(self) -> None:
        self._scheduled = False
        urgent, self._urgent = self._urgent, {}
        for session in urgent:
            self._try_to_record(session)

    def _try_to_record(self, session: Session) -> None:
        """Record a session. If that raises, only the connection of this session ends."""
        try:
            self._record(session)
        except Exception as error:
            log.exception("recording the progress of %r failed", session.client_id)
            self._on_failed(session, StoreError(str(error)))

    def _record(self, session: Session) -> None:
        """Record acknowledgements, then packet ids. Packets that wait for the record are sent after its commit."""
        exchanges = session.exchanges
        staged, received = exchanges.pop_staged()
        completed = exchanges.pop_completed()
        sent: list[_Sent] = []
        for waiting in staged:
            entry = waiting.entry
            if entry is not None and entry.waits_for_record:
                sent.append((waiting.packet_id, entry.topic_filter, entry.offset, entry.qos))
        pending, finished, is_changed = session.pop_retained_changes()
        if is_changed:  # a value that was sent is not pending any more: the log must have both facts or neither
            sent += exchanges.pop_unrecorded({b""})
        moved = session.begin_checkpoint()
        places = [cursor.committed for cursor in moved]
        records = _cursors({cursor.topic_filter: cursor.committed for cursor in moved})
        records += _exchanges([row for row in sent if row[1]], received, completed)
        records += _retained([row for row in sent if not row[1]], pending, finished)
        if not records and not staged:
            return
        frames = [each.frame(session.client_id) for each in records]

        def done(appended: Appended) -> None:
            if appended.error is not None:
                log_failure(
                    log, appended.error, "recording the progress of %r failed: %s", session.client_id, session.client_id
                )
                self._refused(session, frames, appended.error)
            elif not session.closed:
                for cursor, place in zip(moved, places, strict=True):
                    cursor.commit_done(place)
                if staged or received:
                    exchanges.send_staged(staged, received)
                if session.lagging:
                    session.catch_up()

        def ahead_done(appended: Appended) -> None:  # `done` must not refer to it: compiled, that would be a cycle
            if appended.error is not None:
                self._refused(session, frames, appended.error)

        *ahead, last = pieces(frames) if len(frames) > 1 else [frames]
        for piece in ahead:
            self._store.append(piece, ahead_done)
        self._store.append(last, done)

    def _refused(self, session: Session, frames: list[bytes], error: StoreError) -> None:
        if not session.closed:
            session.keep_unrecorded(frames, error)
            self._on_failed(session, error)


def last_records(session: Session) -> list[bytes]:
    """The records at the end of a connection: open exchanges, exact cursors and SESSION_CLOSED.

    Every message before a cursor's `next` is acknowledged or recorded as an exchange, so the cursor continues at
    `next`. The exchanges come first, so that a torn write loses cursors but no message.
    """
    client_id = session.client_id
    sent, received, completed = session.exchanges.at_close()
    pending, finished, _ = session.pop_retained_changes()
    records = [
        *_sent(sent),
        *_exchanges([], received, []),
        *_cursors(session.places_at_close()),
        *_exchanges([], [], completed),
        *_retained([], pending, finished),
        control.SessionClosed(session.epoch, session.expiry_interval, int(time() * 1000)),
    ]
    return [*session.unrecorded, *[each.frame(client_id) for each in records]]


def records_without(session: Session, filters: set[bytes]) -> list[bytes]:
    """The records of messages in flight from subscriptions that end, after which no cursor leads to them."""
    if not session.durable:
        return []
    names = {*filters, *map(replay_name, filters)}
    return [each.frame(session.client_id) for each in _sent(session.exchanges.pop_unrecorded(names))]


def records_of_subscribed(client_id: bytes, granted: list[StoredSubscription]) -> list[bytes]:
    """Records of granted subscriptions. The filters of one SUBSCRIBE may need several records."""
    return [control.subscribed(client_id, few) for few in _parts(granted, [len(each.topic_filter) for each in granted])]


def records_of_unsubscribed(client_id: bytes, filters: list[bytes]) -> list[bytes]:
    """Records of unsubscribed filters. The filters of one UNSUBSCRIBE may need several records."""
    return [control.Unsubscribed(few).frame(client_id) for few in _parts(filters, list(map(len, filters)))]


def _sent(sent: list[_Sent]) -> list[ControlRecord]:
    """Records of messages in flight, those of retained values last."""
    return _exchanges([row for row in sent if row[1]], [], []) + _retained([row for row in sent if not row[1]], [], [])


def _cursors(places: dict[bytes, int]) -> list[ControlRecord]:
    """CURSORS_COMMITTED of these places, by the cursors' names."""
    return [control.CursorsCommitted(dict(few)) for few in _parts(list(places.items()), list(map(len, places)))]


def _exchanges(sent: list[_Sent], received: list[int], completed: list[int]) -> list[ControlRecord]:
    """OUTBOUND_CHANGED of these exchanges, in one record if it has room."""
    if not (sent or received or completed):
        return []
    *ahead, last = _parts(sent, [len(row[1]) for row in sent]) or [[]]
    return [*map(control.OutboundChanged, ahead), control.OutboundChanged(last, received, completed)]


def _retained(sent: list[_Sent], pending: list[PendingRetained], finished: list[bytes]) -> list[ControlRecord]:
    """RETAINED_SENT, in one record if it fits. The last exchanges are in one record with what is pending after them."""
    if not (sent or pending or finished):
        return []
    rows = [(packet_id, position, qos) for packet_id, _, position, qos in sent]
    sizes = [len(each.topic_filter) + len(each.after or b"") for each in pending]
    *ahead, last = _parts(rows, [0] * len(rows)) or [[]]
    first, *rest = _parts(pending, sizes) or [[]]
    over, *behind = _parts(finished, list(map(len, finished))) or [[]]
    return [
        *[control.RetainedSent(few) for few in ahead],
        control.RetainedSent(last, first, over),
        *[control.RetainedSent(pending=few) for few in rest],
        *[control.RetainedSent(finished=few) for few in behind],
    ]


def _parts(items: list[_Item], sizes: list[int]) -> list[list[_Item]]:
    """Split the items into parts that fit into one record each. sizes: bytes of the items' filters."""
    parts: list[list[_Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        room -= size + _BESIDES
        if room < 0:
            parts.append([])
            room = _SIZE - size - _BESIDES
        parts[-1].append(item)
    return parts
