"""Where subscriptions without a cursor read on from the log: those of transient sessions, or with QoS 0."""


class LogPosition:
    """A position of the log. A session has one only while it is behind."""

    __slots__ = ("_released", "_released_at", "position", "sent")

    def __init__(self, position: int) -> None:
        self.position = position  # of the record to read next
        self.sent: int = 0  # of the messages that entered their queues with this record
        # Two records of one store time may both name a released message. It is not known which one released it.
        self._released: set[int] = set()  # positions of messages that were held, entered at `_released_at` and are sent
        self._released_at: int = 0  # store time, in ms

    def read_on_from(self, position: int, sent: int = 0) -> None:
        """Read on from `position`, where the first `sent` messages are sent."""
        self.position = position
        self.sent = sent

    def released_at(self, store_time: int) -> set[int]:
        """Positions of the messages sent that were held and entered their queues at this store time."""
        if store_time != self._released_at:
            self._released_at = store_time
            self._released = set()
        return self._released
