"""The rates at which messages and their bytes may be published, of one connection or of all connections of a user."""

from gateway.net.token_bucket import TokenBucket


class PublishRates:
    """Two rates, either of which may have no limit. The time is an argument: seconds of a monotonic clock."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def set_limits(self, messages: int, size: int, now: float) -> None:
        """Take limits for a second; 0: none. A limit that is as before keeps what was counted."""
        self._messages = _bucket(self._messages, messages, now)
        self._bytes = _bucket(self._bytes, size, now)

    def spend(self, messages: int, size: int, now: float) -> float:
        """Count messages and their bytes. Returns the seconds until both are within the limits."""
        wait = self._messages.spend(messages, now) if self._messages is not None else 0.0
        return max(wait, self._bytes.spend(size, now)) if self._bytes is not None else wait


def _bucket(bucket: TokenBucket | None, rate: int, now: float) -> TokenBucket | None:
    if not rate:
        return None
    return bucket if bucket is not None and bucket.rate == rate else TokenBucket(rate, rate, now)
