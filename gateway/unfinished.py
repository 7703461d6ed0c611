"""What a session has to do besides handing on what comes. Most have nothing, and no place for it."""

from collections import deque

from gateway.inflight import Staged
from gateway.subscription import Subscription
from matcher.names import matches


class RetainedRequest:
    """Retained values that a new subscription is still to get, beginning behind topic `after`, in the order of levels.

    What is published meanwhile does not wait for all of them, but never overtakes the value of its own topic."""

    __slots__ = ("after", "ahead", "page", "since", "subscription")

    def __init__(self, subscription: Subscription, since: int) -> None:
        self.subscription = subscription
        self.since = since  # log position: younger values come, or came, as what they are: messages
        self.after: bytes | None = None
        self.ahead: set[bytes] = set()  # topics whose values went before their turn
        self.page: int = 8  # values to be read next

    def awaits(self, topic: bytes) -> bool:
        """Whether the value of the topic, if it has one, is still to be sent."""
        if topic in self.ahead or not matches(self.subscription.topic_filter, topic):
            return False
        return self.after is None or topic.replace(b"/", b"\0") > self.after.replace(b"/", b"\0")


class Unfinished:
    """What a session has to do besides handing on what comes."""

    __slots__ = (
        "is_paged",
        "late",
        "late_time",
        "received",
        "resends",
        "retained",
        "staged",
        "subscribing",
        "waiting",
    )

    def __init__(self) -> None:
        self.subscribing: set[bytes] = set()  # filters that were granted, and whose record is on its way to disk
        self.retained: dict[bytes, RetainedRequest] = {}  # by filter, in the order they are served
        self.waiting: bytes = b""  # topic of a message that waits for its retained value
        self.is_paged: bool = False  # retained values had the last turn
        self.resends: deque[int] = deque()  # packet ids of an earlier connection; bounded by its window
        self.staged: list[Staged] = []
        self.received: list[int] = []  # PUBREC came: recorded before PUBREL goes out
        self.late: set[int] = set()  # positions of messages that were held, entered at `late_time` and were read
        self.late_time: int = 0

    def __bool__(self) -> bool:
        return bool(self.subscribing or self.retained or self.resends or self.staged or self.received or self.late_time)
