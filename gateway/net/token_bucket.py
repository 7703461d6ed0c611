"""A token bucket, which limits a rate. The time is an argument."""


class TokenBucket:
    """Gains `rate` tokens a second, up to `burst` tokens."""

    __slots__ = ("_burst", "_then", "_tokens", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Start full. rate: above 0. now: seconds of a monotonic clock."""
        self.rate = rate
        self._burst = burst
        self._tokens = burst
        self._then = now

    def try_spend(self, now: float) -> bool:
        """Spend one token. Returns False if there is none."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def spend(self, count: int, now: float) -> float:
        """Spend `count` tokens, on credit if needed. Returns the seconds until the debt is paid."""
        self._fill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self.rate)

    def wait(self, now: float) -> float:
        """Seconds until `try_spend` succeeds."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self.rate)

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self.rate)
        self._then = now
