"""A subscription of a persistent session that ended while others are behind it (`store.api`, `store.control`)."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Ended:
    """What came by a subscription that is no more: others that match it too, and are younger, are not to send it again.

    It is known by its filter and start, for there may be a new subscription with the same filter."""

    topic_filter: bytes
    start_position: int  # of the log
    offset: int  # in its queue: what lies before it was sent, or passed over
    open: list[int] = field(default_factory=list)  # the same goes for these, behind it: sent on an earlier connection
