"""The destination of a message: a topic now or later (`$delayed`), or a client's inbox (`$inbox`)."""

from typing import Final

import record
from gateway.mqtt.reasons import ReasonCode
from matcher.names import is_valid_topic
from matcher.reserved import AUDIT, DELAYED, DOLLAR, INBOX, KV, REPLAY, SHARE, SYS, TOPICS, client_of, is_below
from record.layout import FLAG_ADDRESSED, FLAG_DELAYED, Kind

# Seconds, as with EMQX: 49 days. A larger number is a time in seconds since 1970, which is at most as far away.
MAX_DELAY: Final = 4_294_967

_FORM: Final = b"the form is $delayed/<seconds>/<topic>, of up to 4294967 seconds or a time that is not further away"
_INBOX_FORM: Final = b"the form is $inbox/<client id>, with %25, %2B and %23 for %, + and #"

ENTRIES_ARE_NO_TOPICS: Final = b"$kv/ names entries of buckets, which are no topics: use the SDK"


class InvalidDestination(Exception):
    """The topic of a message is not a valid destination."""

    def __init__(self, reason: ReasonCode, text: bytes) -> None:
        super().__init__(text.decode())
        self.reason = reason
        self.text = text


class Destination:
    """The destination of a message."""

    __slots__ = ("due_ms", "flags", "topic")

    def __init__(self, topic: bytes, flags: int, due_ms: int | None) -> None:
        self.topic = topic
        self.flags = flags  # flags to add to the record
        self.due_ms = due_ms  # None: now

    def redirect(self, topic: bytes) -> None:
        """Send the message to another topic, now."""
        self.topic = topic
        self.flags = 0
        self.due_ms = None


def parse_destination(topic: bytes, now_ms: int, is_checked: bool = False) -> Destination:
    """Parse the topic of a PUBLISH.

    is_checked: the topic was parsed before, at another time. A due time that is too far away is then the farthest one
    allowed: the clock may have been set meanwhile. Otherwise such a topic raises InvalidDestination, like any other
    form that has no destination.
    """
    if topic[0] != DOLLAR:
        return Destination(topic, 0, None)
    due_ms: int | None = None
    if is_below(topic, DELAYED):
        topic, due_ms = _delayed(topic, now_ms, is_checked)
        if is_below(topic, DELAYED):
            raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, _FORM)
    flags = 0 if due_ms is None else FLAG_DELAYED
    if is_below(topic, SYS) or is_below(topic, TOPICS) or is_below(topic, AUDIT):
        raise InvalidDestination(ReasonCode.NOT_AUTHORIZED, b"$SYS/, $topics/ and $audit/ are reserved for the node")
    if is_below(topic, KV):
        raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, ENTRIES_ARE_NO_TOPICS)
    if is_below(topic, SHARE) or is_below(topic, REPLAY):
        raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, b"$share/ and $replay/ are for subscriptions")
    if is_below(topic, INBOX):
        if client_of(topic) is None:
            raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, _INBOX_FORM)
        flags |= FLAG_ADDRESSED
    return Destination(topic, flags, due_ms)


def frame_to(
    where: Destination, flags: int, packet_id: int, publisher: bytes, properties: bytes, payload: bytes
) -> bytes:
    """Frame the record of a message to this destination, unsealed."""
    return record.frame(
        int(Kind.MESSAGE), flags | where.flags, packet_id, where.topic, publisher, properties, payload, where.due_ms
    )


def _delayed(topic: bytes, now_ms: int, is_checked: bool) -> tuple[bytes, int | None]:
    """Return the topic and when the message is due, None for now. Raises InvalidDestination."""
    number, _, inner = topic[len(DELAYED) + 1 :].partition(b"/")
    if not number.isdigit() or len(number) > 15 or not inner or not is_valid_topic(inner):
        raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, _FORM)
    seconds = int(number)
    due_ms = now_ms + seconds * 1000 if seconds <= MAX_DELAY else seconds * 1000
    if due_ms - now_ms > MAX_DELAY * 1000:
        if not is_checked:
            raise InvalidDestination(ReasonCode.TOPIC_NAME_INVALID, _FORM)
        due_ms = now_ms + MAX_DELAY * 1000
    return inner, due_ms if due_ms > now_ms else None
