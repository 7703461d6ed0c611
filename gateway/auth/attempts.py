"""Limits on guessing passwords: failed logins by source address, and delays by user name. The time is an argument."""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, TypeVar

from gateway.net.token_bucket import TokenBucket

_Key = TypeVar("_Key")

_MAX_BUCKETS: Final = 16_384  # sources or user names that are remembered; the oldest is forgotten first
_MINUTE: Final = 60.0
_SLOWER: Final = 10  # failures of a name before it is delayed, as a multiple of the limit of a source
_LONGEST: Final = 3.0  # seconds of delay; clients wait longer for CONNACK


class FailedLogins:
    """Counts wrong passwords by source, and refuses further ones above a limit."""

    __slots__ = ("_limit", "_sources")

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute; 0: any number."""
        self._limit = limit
        self._sources: dict[str, TokenBucket] = {}

    def may_try(self, source: str, now: float) -> bool:
        """Whether the next password from the source is checked. now: seconds of a monotonic clock."""
        bucket = self._sources.get(source)
        return bucket is None or not bucket.wait(now)

    def count(self, source: str, now: float) -> None:
        """Count a wrong password."""
        if self._limit:
            _bucket(self._sources, source, self._limit, now).try_spend(now)


class LoginDelays:
    """Delays logins with a user name that is being guessed at. Nobody is refused because of the guesses of others."""

    __slots__ = ("_limit", "_names")

    def __init__(self, limit: int) -> None:
        """limit: wrong passwords a minute and source; 0: any number."""
        self._limit = limit
        self._names: dict[bytes, TokenBucket] = {}

    def delay(self, name: bytes, now: float) -> float:
        """Seconds until a password for the name is checked."""
        bucket = self._names.get(name)
        return min(bucket.spend(0, now), _LONGEST) if bucket is not None else 0.0

    def count(self, name: bytes, now: float) -> None:
        """Count a wrong password. The delay grows with each."""
        if self._limit:
            bucket = _bucket(self._names, name, _SLOWER * self._limit, now)
            if bucket.spend(0, now) < _LONGEST:
                bucket.spend(1, now)


def _bucket(buckets: dict[_Key, TokenBucket], key: _Key, limit: int, now: float) -> TokenBucket:
    """The bucket of a key. A new one may replace the oldest one."""
    bucket = buckets.get(key)
    if bucket is None:
        if len(buckets) >= _MAX_BUCKETS:
            del buckets[next(iter(buckets))]
        bucket = buckets[key] = TokenBucket(limit / _MINUTE, limit, now)
    return bucket


def source_of(peer: str) -> str:
    """Return the source that failures are counted by: an IPv4 address, or an IPv6 network of 64 bits.

    peer: "host:port", "[IPv6]:port", or another name for a peer without an address.
    """
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
