"""Subscriptions that are being recorded, and what is sent once: retained values, and replays with an end. Most sessions
have nothing of this."""

from gateway.session.pending_subscriptions import PendingSubscriptions
from gateway.session.replay_cursor import ReplayCursor
from gateway.session.subscription import Subscriber, Subscription
from store.api import PendingRetained, StoredSubscription


class RetainedRequest:
    """Retained values that a new subscription is still to get: those behind topic `after`, in the order of levels."""

    __slots__ = ("after", "has_progress", "is_recorded", "page", "since", "subscription")

    def __init__(self, subscription: Subscription, since: int, after: bytes | None = None) -> None:
        self.subscription = subscription
        self.since = since  # log position: younger values are delivered as messages
        self.after = after
        self.page: int = 8  # values to be read next
        self.is_recorded: bool = False  # the log has a request for this filter, or is about to have it
        self.has_progress: bool = True  # since the last record

    def go_on(self, topic: bytes) -> None:
        """Continue behind the topic."""
        self.after = topic
        self.has_progress = True

    def grow_page(self, limit: int) -> None:
        """Read twice as many values next, but no more than `limit`."""
        self.page = max(1, min(limit, 2 * self.page))

    def mark_recorded(self, is_recorded: bool) -> None:
        """The log has, or is about to have, the request as it is now, or (not `is_recorded`) nothing of it."""
        self.is_recorded = is_recorded
        self.has_progress = not is_recorded


class BoundedReplay(Subscription):
    """A replay with an end. It matches nothing that is published, and lasts as long as the connection at the most.

    Its cursor has offsets of the topic's queue, or log positions for a wildcard filter.
    """

    __slots__ = ("lost", "name", "sent")

    def __init__(
        self, session: Subscriber, name: bytes, asked: StoredSubscription, cursor: ReplayCursor, sent: int, lost: int
    ) -> None:
        super().__init__(
            session,
            asked.topic_filter,
            asked.qos,
            asked.no_local,
            asked.retain_as_published,
            asked.identifier,
            None,
            0,
            cursor,
        )
        self.name = name  # see `matcher.reserved.bounded_replay_name`
        self.sent = sent  # messages
        self.lost = lost  # places of the log, or messages of the queue, that retention or damage took

    def count_sent(self, messages: int) -> None:
        """So many messages of it were sent."""
        self.sent += messages

    def count_lost(self, messages: int) -> None:
        """So many messages of it are gone."""
        self.lost += messages


class PendingWork:
    """The pending work of one session. A part of `gateway.session.session.Session`."""

    __slots__ = ("_finished", "_is_answered", "replays", "retained", "subscribing")

    def __init__(self) -> None:
        self.subscribing = PendingSubscriptions()
        self.replays: dict[bytes, BoundedReplay] = {}  # by name, in the order they are served
        self.retained: dict[bytes, RetainedRequest] = {}  # by filter, in the order they are served
        self._finished: set[bytes] = set()  # filters of finished requests that the log still has
        self._is_answered: bool = False  # a request has finished whose values in flight are not recorded

    @property
    def is_empty(self) -> bool:
        has_answers = self._finished or self._is_answered
        return not (self.subscribing.names or self.retained or self.replays or has_answers)

    def replay(
        self, session: Subscriber, name: bytes, asked: StoredSubscription, bounds: tuple[int, int] | None
    ) -> BoundedReplay | None:
        """Begin a replay with an end. One with this name continues as is asked now (`bounds` None: if there is one)."""
        old = self.replays.get(name)
        if old is not None and old.replay_cursor is not None:
            replay = BoundedReplay(session, name, asked, old.replay_cursor, old.sent, old.lost)
        elif bounds is not None:
            replay = BoundedReplay(session, name, asked, ReplayCursor(asked.topic_filter, *bounds, False), 0, 0)
        else:
            return None
        self.replays[name] = replay
        return replay

    def end_replay(self, name: bytes) -> bool:
        """Remove a replay with an end. Whether there was one."""
        return self.replays.pop(name, None) is not None

    def request(self, subscription: Subscription, since: int) -> None:
        """Queue the retained values that a subscription finds at log position `since`. An unfinished request for the
        same filter begins anew."""
        topic_filter = subscription.topic_filter
        old = self.retained.pop(topic_filter, None)
        request = RetainedRequest(subscription, since)
        request.is_recorded = (old is not None and old.is_recorded) or topic_filter in self._finished
        self._finished.discard(topic_filter)
        self.retained[topic_filter] = request

    def restore(self, subscription: Subscription, stored: PendingRetained) -> None:
        """Go on with a request of an earlier connection."""
        request = RetainedRequest(subscription, stored.since, stored.after)
        request.mark_recorded(True)
        self.retained[stored.topic_filter] = request

    def replace(self, subscription: Subscription) -> None:
        """A new subscription takes the place of another one with the same filter."""
        request = self.retained.get(subscription.topic_filter)
        if request is not None:
            request.subscription = subscription

    def finish(self, topic_filter: bytes, is_durable: bool) -> bool:
        """Remove a request that is answered, or whose subscription has ended. Returns whether to record that."""
        request = self.retained.pop(topic_filter, None)
        if request is None:
            return False
        if request.is_recorded:
            self._finished.add(topic_filter)
        if is_durable and request.subscription.qos:
            self._is_answered = True
        return request.is_recorded or self._is_answered

    def pop_changes(self) -> tuple[list[PendingRetained], list[bytes], bool]:
        """What to record now: the requests that have made progress, filters whose requests are finished, and whether
        retained values in flight have to be recorded too. New requests come last."""
        pending: list[PendingRetained] = []
        for request in self.retained.values():
            name = request.subscription.topic_filter
            if request.subscription.qos:
                if request.has_progress:
                    request.mark_recorded(True)
                    pending.append(PendingRetained(name, request.since, request.after))
            elif request.is_recorded:  # since then, its subscription was granted QoS 0
                request.mark_recorded(False)
                self._finished.add(name)
        pending.sort(key=_is_new)
        finished, self._finished = sorted(self._finished), set()
        is_changed = bool(pending or finished or self._is_answered)
        self._is_answered = False
        return pending, finished, is_changed


def _is_new(pending: PendingRetained) -> bool:
    return pending.after is None
