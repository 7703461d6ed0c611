"""A token bucket: how often something may happen. The clock is handed in."""


class TokenBucket:
    """`rate` tokens a second come in, and at most `burst` are kept."""

    __slots__ = ("_burst", "_rate", "_then", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """It begins full. rate: above 0. now: seconds of any clock that does not go back."""
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._then = now

    def try_spend(self, now: float) -> bool:
        """Take a token if there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def spend(self, count: int, now: float) -> float:
        """Take `count` tokens, on credit where there are not enough. Returns the seconds until the debt is paid."""
        self._fill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)

    def wait(self, now: float) -> float:
        """Seconds until `try_spend` finds a token."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate)
        self._then = now
