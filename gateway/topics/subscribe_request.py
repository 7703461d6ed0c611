"""One filter of a SUBSCRIBE, with its options and its outcome."""

from time import time
from typing import Final

from gateway.mqtt.packets import SubscriptionRequest
from gateway.mqtt.reasons import ReasonCode
from gateway.topics.browse import parent_levels
from gateway.topics.destination import ENTRIES_ARE_NO_TOPICS
from gateway.topics.replay_range import (
    NoSuchStart,
    ReplayPlace,
    is_bounded,
    parse_bounds,
    parse_start,
    resolve_bounds,
    resolve_start,
    split_replay,
)
from matcher.names import has_wildcard, split_shared
from matcher.reserved import (
    DELAYED,
    DOLLAR,
    INBOX,
    KV,
    REPLAY,
    SHARE,
    SYS,
    TOPICS,
    bounded_replay_name,
    inbox_of,
    is_below,
)
from store.api import MessageStore, StoredSubscription

_FORM: Final = (
    b"the forms are $replay/<from>/<filter> and $replay/<from>..<to>/<filter>, from earliest, a time, -<seconds>, or"
    b" offset:<n> of one topic, to a later one or now"
)
_WORDS: Final = (
    b"replay takes <from> or <from>..<to>: from earliest, a time, -<seconds>, or offset:<n> of one topic, to a later"
    b" one or now"
)
_BROWSING: Final = b"the forms are $topics/<levels>/+ and $topics/<levels>/#, and inboxes cannot be listed"
_NO_HISTORY: Final = b"shared subscriptions and topics of the node have nothing to replay"


class SubscribeRequest:
    """A requested subscription."""

    __slots__ = ("bounds", "end", "name", "now_ms", "reason", "start", "stored", "tells_place", "topic_filter", "why")

    def __init__(self, request: SubscriptionRequest, words: bytes, identifier: int, tells_place: bool = False) -> None:
        own, self.topic_filter = split_replay(request.topic_filter)
        self.reason = ReasonCode(request.qos)  # the reason code for SUBACK
        self.why = b""  # the reason string, if it is not granted
        self.now_ms = 0  # when it was asked for, if it has a replay
        self.start: ReplayPlace | None = None  # where its replay starts; None: there is none
        self.end: ReplayPlace | None = None  # where it ends; None: it does not
        self.tells_place = tells_place  # its replayed messages say when and where they were stored
        self.bounds: tuple[int, int] | None = None  # the places of a new replay with an end
        # By which the session knows it: the filter, unless it is a replay with an end.
        bounded = is_bounded(own or words)
        self.name = bounded_replay_name(self.topic_filter, own or words) if bounded else self.topic_filter
        if self.is_browsing:
            self.reason = ReasonCode.GRANTED_QOS_0
        self.stored = StoredSubscription(
            self.topic_filter,
            int(self.reason),
            request.no_local,
            request.retain_as_published,
            request.retain_handling,
            identifier,
            0,
            0,
        )
        if not self.topic_filter:
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, _FORM)
        elif own or words:
            self._set_start(own, words)

    @property
    def is_granted(self) -> bool:
        return self.reason < 0x80

    @property
    def is_log_replay(self) -> bool:
        """Whether its replay reads the log, because the filter may match many topics."""
        return self.start is not None and has_wildcard(self.topic_filter)

    @property
    def is_bounded(self) -> bool:
        """Whether it is a replay with an end, which becomes no subscription."""
        return self.name is not self.topic_filter

    def _set_start(self, own: bytes, words: bytes) -> None:
        self.now_ms = int(time() * 1000)
        if self.is_bounded:
            self.start, self.end = parse_bounds(own or words, self.topic_filter, self.now_ms) or (None, None)
        else:
            self.start = parse_start(own or words, self.topic_filter, self.now_ms)
        if self.start is None and own:
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, _FORM)
        elif self.start is None:
            self.refuse(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, _WORDS)
        elif not _has_history(self.topic_filter):
            self.refuse(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, _NO_HISTORY)

    @property
    def is_browsing(self) -> bool:
        """Whether it lists topics: it is answered once, and no subscription is made."""
        return is_below(self.topic_filter, TOPICS)

    @property
    def read_filter(self) -> bytes:
        """The filter that rules are checked for."""
        return (parent_levels(self.topic_filter) or b"") + b"#" if self.is_browsing else self.topic_filter

    def check_name(self, client_id: bytes) -> None:
        """Refuse a filter that begins with $ and is reserved, or is another client's inbox."""
        group, name = split_shared(self.topic_filter)
        if name[:1] != b"$":
            return
        if is_below(name, INBOX) and (group or name != inbox_of(client_id)):
            self.refuse(ReasonCode.NOT_AUTHORIZED, b"only its client may subscribe to an inbox")
        elif is_below(name, KV):
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, ENTRIES_ARE_NO_TOPICS)
        elif is_below(name, DELAYED):
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, b"a delayed message is delivered to its topic")
        elif self.is_browsing and parent_levels(name) is None:
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, _BROWSING)
        elif group and (is_below(name, SYS) or is_below(name, TOPICS)):
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, b"topics of the node cannot be shared")
        elif group and (is_below(name, REPLAY) or is_below(name, SHARE)):
            self.refuse(ReasonCode.TOPIC_FILTER_INVALID, b"a shared subscription cannot contain $replay or $share")

    def refuse(self, reason: ReasonCode, why: bytes) -> None:
        self.reason, self.why, self.start = reason, why, None

    async def find_start(self, store: MessageStore, delivered_end: int, is_durable: bool) -> None:
        """Find where the replay starts, and ends.

        A subscription that the log will not record gets its cursor here, as the record would give it. Raises
        StoreError.
        """
        if self.start is None:
            return
        try:
            if self.end is not None:
                self.bounds = await resolve_bounds(store, self.topic_filter, self.start, self.end, self.now_ms)
                return
            place, end = await resolve_start(store, self.topic_filter, self.start)
        except NoSuchStart as error:
            self.refuse(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(error).encode())
            return
        self.stored.replay = place
        if not has_wildcard(self.topic_filter) and not (is_durable and self.stored.qos):
            self.stored.offset, self.stored.replay, self.stored.start_position = place, end, delivered_end


def _has_history(topic_filter: bytes) -> bool:
    if topic_filter[0] != DOLLAR:
        return True
    return not any(is_below(topic_filter, first) for first in (SHARE, SYS, TOPICS, DELAYED, REPLAY))
