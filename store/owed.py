"""What a session is still owed of retained values (`store.api`, `store.control`)."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Owed:
    """Retained values that a session is still to get, for a subscription that asked for them."""

    topic_filter: bytes
    since: int  # log position: younger values come as the messages they are
    after: bytes | None  # those up to this topic, in the order of levels, were sent; None: none was
    ahead: list[bytes] = field(default_factory=list)  # topics behind it whose values were sent as well
