"""Wrong passwords, by where they come from (who sends too many waits) and by the name that they are meant for (which
becomes slow to come in with from new places). The clock is handed in."""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from gateway.net.token_bucket import TokenBucket

_MAX_SOURCES: Final = 16_384  # remembered; the one that failed first is forgotten first
_MAX_NAMES: Final = 16_384  # the same
_MINUTE: Final = 60.0
_SLOWER: Final = 10  # times as many wrong passwords as of a source may be meant for a name before it becomes slow
_LONGEST: Final = 3.0  # seconds: clients wait for CONNACK that long


class FailedLogins:
    """So many a minute and source, and as many at once."""

    __slots__ = ("_limit", "_sources")

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute; 0: any number."""
        self._limit = limit
        self._sources: dict[str, TokenBucket] = {}

    def may_try(self, source: str, now: float) -> bool:
        """Whether the next password from there is looked at. now: seconds of a clock that does not go back."""
        bucket = self._sources.get(source)
        return bucket is None or not bucket.wait(now)

    def count(self, source: str, now: float) -> None:
        """One was wrong."""
        if not self._limit:
            return
        bucket = self._sources.get(source)
        if bucket is None:
            if len(self._sources) >= _MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            bucket = TokenBucket(self._limit / _MINUTE, self._limit, now)
            self._sources[source] = bucket
        bucket.try_spend(now)


class LoginDelays:
    """How long somebody waits who says a name that is guessed at. Nobody is refused for the guesses of others."""

    __slots__ = ("_limit", "_names")

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute and source; 0: any number."""
        self._limit = limit
        self._names: dict[bytes, TokenBucket] = {}

    def delay(self, name: bytes, now: float) -> float:
        """Seconds until a password for the name is looked at."""
        bucket = self._names.get(name)
        return min(bucket.spend(0, now), _LONGEST) if bucket is not None else 0.0

    def count(self, name: bytes, now: float) -> None:
        """One was wrong. The delay grows with each."""
        if not self._limit:
            return
        bucket = self._names.get(name)
        if bucket is None:
            if len(self._names) >= _MAX_NAMES:
                del self._names[next(iter(self._names))]
            bucket = self._names[name] = TokenBucket(_SLOWER * self._limit / _MINUTE, _SLOWER * self._limit, now)
        if bucket.spend(0, now) < _LONGEST:
            bucket.spend(1, now)


def source_of(peer: str) -> str:
    """Whose failures are counted together: an address; of IPv6 the network of 64 bits, in which all are one's own.

    peer: "host:port", "[IPv6]:port", or some other name for who has no address."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return peer
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, 64), strict=False))
