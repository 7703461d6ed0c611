"""What a session has to do besides passing on what is published. Most have nothing, and no place for it."""

from gateway.session.pending_subscriptions import PendingSubscriptions
from gateway.session.subscription import Subscription
from matcher.names import matches
from store.api import PendingRetained


class RetainedRequest:
    """Retained values that a new subscription is still to get: those behind topic `after`, in the order of levels.

    What is published meanwhile does not wait for all of them, but never overtakes the value of its own topic."""

    __slots__ = ("_noted", "after", "ahead", "ahead_size", "is_noted", "page", "since", "subscription")

    def __init__(self, subscription: Subscription, since: int, after: bytes | None = None) -> None:
        self.subscription = subscription
        self.since = since  # log position: younger values are delivered as messages
        self.after = after
        self.ahead: set[bytes] = set()  # topics whose values went before their turn
        self.ahead_size: int = 0  # bytes of their names
        self.page: int = 8  # values to be read next
        self.is_noted: bool = False  # the log has this request, or is about to have it…
        self._noted: tuple[bytes | None, int] | None = None  # …as of this: `after`, and how many are `ahead`

    def go_ahead(self, topic: bytes) -> None:
        """The value of the topic was sent before its turn, or there is none."""
        self.ahead.add(topic)
        self.ahead_size += len(topic)

    def go_on(self, topic: bytes) -> None:
        """Continue behind the topic."""
        self.after = topic
        if topic in self.ahead:
            self.ahead.remove(topic)
            self.ahead_size -= len(topic)

    def grow_page(self, limit: int) -> None:
        """Read twice as many values next, but no more than `limit`."""
        self.page = max(1, min(limit, 2 * self.page))

    def awaits(self, topic: bytes) -> bool:
        """Whether the value of the topic, if it has one, is still to be sent."""
        if topic in self.ahead or not matches(self.subscription.topic_filter, topic):
            return False
        return self.after is None or topic.replace(b"/", b"\0") > self.after.replace(b"/", b"\0")

    def note_progress(self) -> bool:
        """Take its state as recorded. Whether it has changed since the last record."""
        state = self.after, len(self.ahead)
        if self._noted == state:
            return False
        self.is_noted, self._noted = True, state
        return True

    def drop_progress(self) -> None:
        """The log has no record of it any more."""
        self.is_noted, self._noted = False, None


class PendingWork:
    """Subscriptions that are on their way to the log, and retained values that are on their way to the client."""

    __slots__ = ("_is_answered", "_is_paged", "_settled", "retained", "subscribing", "waiting")

    def __init__(self) -> None:
        self.subscribing = PendingSubscriptions()
        self.retained: dict[bytes, RetainedRequest] = {}  # by filter, in the order they are served
        self.waiting: bytes = b""  # topic of a message that waits for its retained value
        self._is_paged: bool = False  # retained values had the last turn
        self._settled: set[bytes] = set()  # filters of requests that the log has, though nothing is left of them
        self._is_answered: bool = False  # a request came to its end: only this node knows what is in flight of it

    @property
    def is_empty(self) -> bool:
        return not (self.subscribing.names or self.retained or self._settled or self._is_answered)

    def request(self, subscription: Subscription, since: int) -> None:
        """Queue the retained values of a subscription that were there at log position `since`. A request that there is
        already begins anew."""
        topic_filter = subscription.topic_filter
        old = self.retained.pop(topic_filter, None)
        request = RetainedRequest(subscription, since)
        request.is_noted = (old is not None and old.is_noted) or topic_filter in self._settled
        self._settled.discard(topic_filter)
        self.retained[topic_filter] = request

    def restore(self, subscription: Subscription, owed: PendingRetained) -> None:
        """Go on with a request of an earlier connection."""
        request = RetainedRequest(subscription, owed.since, owed.after)
        for topic in owed.ahead:
            request.go_ahead(topic)
        request.note_progress()
        self.retained[owed.topic_filter] = request

    def replace(self, subscription: Subscription) -> None:
        """A new subscription takes the place of another one with the same filter."""
        request = self.retained.get(subscription.topic_filter)
        if request is not None:
            request.subscription = subscription

    def finish(self, topic_filter: bytes, is_durable: bool) -> bool:
        """Remove a request that has come to its end, or whose subscription has. Whether that has to be recorded."""
        request = self.retained.pop(topic_filter, None)
        if request is None:
            return False
        if request.is_noted:
            self._settled.add(topic_filter)
        if is_durable and request.subscription.qos:
            self._is_answered = True
        return request.is_noted or self._is_answered

    def awaits(self, topic: bytes) -> bool:
        """Whether a message on this topic has to wait for the retained value of its topic."""
        for request in self.retained.values():
            if request.awaits(topic):
                self.waiting = topic
                return True
        return False

    def end_waiting(self) -> bytes:
        """Returns the topic whose message waited for its retained value. It does not count as waiting any more."""
        topic, self.waiting = self.waiting, b""
        return topic

    def is_turn_of_retained(self, has_messages: bool) -> bool:
        """Whether retained values are sent now: each second time, if there are messages to be sent too."""
        self._is_paged = not self._is_paged
        return self._is_paged or not has_messages

    def pop_changes(self) -> tuple[list[PendingRetained], list[bytes], bool]:
        """What a record that is written now says of retained values: requests, those under way first, and filters that
        have none any more. And whether some values may be in flight that nobody would send again."""
        owed: list[PendingRetained] = []
        for request in self.retained.values():
            name = request.subscription.topic_filter
            if request.subscription.qos:
                if request.note_progress():
                    owed.append(PendingRetained(name, request.since, request.after, sorted(request.ahead)))
            elif request.is_noted:
                request.drop_progress()
                self._settled.add(name)
        owed.sort(key=_is_new)
        settled, self._settled = sorted(self._settled), set()
        is_changed = bool(owed or settled or self._is_answered)
        self._is_answered = False
        return owed, settled, is_changed


def _is_new(owed: PendingRetained) -> bool:
    return owed.after is None and not owed.ahead
