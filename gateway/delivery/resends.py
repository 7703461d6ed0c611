"""Messages that an earlier connection left unacknowledged, and that no cursor comes by again (MQTT-4.4.0-1)."""

from time import time
from typing import Final

from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from matcher.reserved import filter_of
from store.api import MessageStore, subscription_queue
from store.errors import OffsetOutOfRange

_MOST: Final = 256  # resent in one turn


class Resends:
    """Sends them again, in the order of `Session.resends`."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def send(self, session: Session) -> None:
        """Send what there is room for. Raises StoreError."""
        for _ in range(_MOST):
            if session.closed or not session.exchanges.resends or not session.exchanges.has_room:
                return
            await self._send_first(session)

    async def _send_first(self, session: Session) -> None:
        packet_id = session.exchanges.resends[0]
        entry = session.exchanges.inflight.get(packet_id)
        if entry is None:
            session.exchanges.end_resend()
            return
        if entry.released:
            session.exchanges.end_resend()
            session.exchanges.resend_release(packet_id, entry)
            return
        message = await self._message_of(entry)
        if session.closed or not session.exchanges.resends or session.exchanges.resends[0] != packet_id:
            return
        if not session.exchanges.has_room:  # a shared subscription has used it meanwhile (MQTT-3.3.4-9)
            return
        session.exchanges.end_resend()
        if message is None:
            session.dropped().add_reclaimed(1)
            session.exchanges.forget(packet_id, entry)
        elif not _may_have(session, entry, message):
            session.exchanges.forget(packet_id, entry)
        else:
            session.resend(packet_id, entry, message, session.route(message.topic), int(time() * 1000))

    async def _message_of(self, entry: Inflight) -> Message | None:
        """The message of an exchange. None: it is gone from the log."""
        offset = entry.offset
        try:
            if not entry.topic_filter or filter_of(entry.topic_filter):  # of no queue: a position of the log
                chunk = await self._store.read(offset, 1)
                return Message(chunk.data, 0) if chunk.data and chunk.position == offset else None
            fetched = await self._store.fetch(subscription_queue(entry.topic_filter), offset, 1, 1)
        except OffsetOutOfRange:
            return None
        return Message(fetched.data, 0) if fetched.count and fetched.offset == offset else None


def _may_have(session: Session, entry: Inflight, message: Message) -> bool:
    """Whether the client may read the message. Rules may have changed since it was sent, and another user may have the
    session. Of a retained value only the topic is known."""
    name = filter_of(entry.topic_filter) or entry.topic_filter
    if name and session.write_buffer.may_receive(name):
        return True
    return session.write_buffer.may_receive(message.topic)
