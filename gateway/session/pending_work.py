"""What a session has to do besides handing on what comes. Most have nothing, and no place for it."""

from collections import deque

from gateway.session.inflight import Staged
from gateway.session.pending_subscriptions import PendingSubscriptions
from gateway.session.subscription import Subscription
from matcher.names import matches
from store.api import Owed


class RetainedRequest:
    """Retained values that a new subscription is still to get, beginning behind topic `after`, in the order of levels.

    What is published meanwhile does not wait for all of them, but never overtakes the value of its own topic."""

    __slots__ = ("after", "ahead", "ahead_size", "is_noted", "noted", "page", "since", "subscription")

    def __init__(self, subscription: Subscription, since: int, after: bytes | None = None) -> None:
        self.subscription = subscription
        self.since = since  # log position: younger values come, or came, as what they are: messages
        self.after = after
        self.ahead: set[bytes] = set()  # topics whose values went before their turn
        self.ahead_size: int = 0  # bytes of their names
        self.page: int = 8  # values to be read next
        self.is_noted: bool = False  # the log knows, or is about to know, of this request…
        self.noted: tuple[bytes | None, int] | None = None  # …as of this: `after`, and how many are `ahead`

    def grow_page(self, limit: int) -> None:
        """Read twice as many values next, but no more than `limit`."""
        self.page = max(1, min(limit, 2 * self.page))

    def go_ahead(self, topic: bytes) -> None:
        """The value of the topic was sent, or there is none, before its turn."""
        self.ahead.add(topic)
        self.ahead_size += len(topic)

    def go_on(self, topic: bytes) -> None:
        """It is the turn of what comes behind the topic."""
        self.after = topic
        if topic in self.ahead:
            self.ahead.remove(topic)
            self.ahead_size -= len(topic)

    def awaits(self, topic: bytes) -> bool:
        """Whether the value of the topic, if it has one, is still to be sent."""
        if topic in self.ahead or not matches(self.subscription.topic_filter, topic):
            return False
        return self.after is None or topic.replace(b"/", b"\0") > self.after.replace(b"/", b"\0")


class PendingWork:
    """What a session has to do besides handing on what comes."""

    __slots__ = (
        "is_answered",
        "is_paged",
        "late",
        "late_time",
        "received",
        "resends",
        "retained",
        "settled",
        "staged",
        "subscribing",
        "waiting",
    )

    def __init__(self) -> None:
        self.subscribing = PendingSubscriptions()
        self.retained: dict[bytes, RetainedRequest] = {}  # by filter, in the order they are served
        self.settled: set[bytes] = set()  # filters of whose requests the log knows, though nothing is left of them
        self.is_answered: bool = False  # a request came to its end: what is on its way of it, only this node knows
        self.waiting: bytes = b""  # topic of a message that waits for its retained value
        self.is_paged: bool = False  # retained values had the last turn
        self.resends: deque[int] = deque()  # packet ids of an earlier connection; bounded by its window
        self.staged: list[Staged] = []
        self.received: list[int] = []  # PUBREC came: recorded before PUBREL goes out
        self.late: set[int] = set()  # positions of messages that were held, entered at `late_time` and were read
        self.late_time: int = 0

    def __bool__(self) -> bool:
        is_sending = self.retained or self.settled or self.resends or self.staged or self.received
        return bool(self.subscribing.names or is_sending or self.late_time or self.is_answered)

    def is_turn_of_retained(self, has_messages: bool) -> bool:
        """Whether retained values are sent now: each second time, if there are messages to be sent too."""
        self.is_paged = not self.is_paged
        return self.is_paged or not has_messages

    def end_waiting(self) -> bytes:
        """Returns the topic whose message waited for its retained value. It does not count as waiting any more."""
        topic, self.waiting = self.waiting, b""
        return topic

    def take_owed(self) -> tuple[list[Owed], list[bytes], bool]:
        """What has changed of the retained values that a persistent session is owed, for a record that is written now:
        requests, those under way first, and filters of which there is none any more. And whether some may be on their
        way that nobody would send again."""
        owed: list[Owed] = []
        for request in self.retained.values():
            state = request.after, len(request.ahead)
            if request.subscription.qos and request.noted != state:
                request.is_noted, request.noted = True, state
                name = request.subscription.topic_filter
                owed.append(Owed(name, request.since, request.after, sorted(request.ahead)))
            elif request.is_noted and not request.subscription.qos:
                request.is_noted, request.noted = False, None
                self.settled.add(request.subscription.topic_filter)
        owed.sort(key=_is_new)
        settled, self.settled = sorted(self.settled), set()
        is_changed = bool(owed or settled or self.is_answered)
        self.is_answered = False
        return owed, settled, is_changed


def _is_new(owed: Owed) -> bool:
    return owed.after is None and not owed.ahead
