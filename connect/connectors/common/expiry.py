"""How long a message still has."""

import time

from connect.api import SinkRecord


def seconds_left(record: SinkRecord) -> int | None:
    """The seconds until a message expires; 0: it has expired; None: it does not expire."""
    if record.message_expiry is None:
        return None
    age_s = max(0, int(time.time() * 1_000) - record.timestamp_ms) // 1_000
    return max(0, record.message_expiry - age_s)
