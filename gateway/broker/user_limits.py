"""The limits of clients and users in this process: connections and how often they are opened, publish rates,
subscriptions.

A user without a connection is forgotten, but for how often it has connected. Clients without a user have no limits but
those of their listener, and that on how often a client connects.
"""

from collections import Counter
from hashlib import blake2b
from time import monotonic
from typing import Final

from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientRefused
from gateway.config.mqtt import MqttConfig
from gateway.connection.connection import Connection
from gateway.mqtt.reasons import ReasonCode
from gateway.net.publish_rates import PublishRates
from gateway.net.token_bucket import TokenBucket
from gateway.observe.counters import Counters

_FULL: Final = "the user has as many connections as mqtt.max_user_connections allows"
_CLIENT_TOO_FAST: Final = "the client connects more often than mqtt.client_connect_rate allows"
_USER_TOO_FAST: Final = "the user connects more often than mqtt.user_connect_rate allows"
_MAX_KNOWN: Final = 65_536  # clients, and users, whose rate is known; the one that was away longest is forgotten


class UserLimits:
    """The limits of all clients and users. Does nothing where no limit is configured."""

    def __init__(self, config: MqttConfig, counters: Counters) -> None:
        self._max_connections = config.max_user_connections
        self._max_subscriptions = config.max_user_subscriptions
        self.counts_subscriptions = bool(self._max_subscriptions)
        self._rates = config.user_publish_rate, config.user_publish_rate_bytes
        self._is_on = bool(self._max_connections or self._max_subscriptions or any(self._rates))
        self._counters = counters
        self._users: dict[bytes, _User] = {}
        self._client_connects = _ConnectRates(config.client_connect_rate)
        self._user_connects = _ConnectRates(config.user_connect_rate)
        self._beginning: Counter[bytes] = Counter()  # sessions whose first record is on its way, by user

    def admit(self, connection: Connection, identity: Identity) -> None:
        """Count a CONNECT of a client that has authenticated. Raises ClientRefused when there are too many.

        Who has not proven to be the client does not count against it: a client without a user is told apart by its
        address as well.
        """
        user = identity.user_name
        whose = user or identity.source.encode() if self._client_connects.is_on else b""
        why = ""
        if not self._client_connects.may_connect(whose + b"\0" + identity.client_id):
            why = _CLIENT_TOO_FAST
        elif user and not self._user_connects.may_connect(user):
            why = _USER_TOO_FAST
        if why:
            self._counters.connects_too_fast += 1
            who = f"client id {identity.client_id[:64]!r} of user {user[:64]!r} from {connection.peer()}"
            connection.admission.warn("fast", f"refusing {who}: {why}", identity.client_id)
            raise ClientRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, why)

    def enter(self, connection: Connection, name: bytes) -> None:
        """Count a connection that a user is about to open. It has to `leave`. Raises ClientRefused above the limit."""
        if not self._is_on or not name:
            return
        user = self._users.get(name) or _User(self._rates)
        if self._max_connections and user.connections >= self._max_connections:
            self._counters.users_full += 1
            connection.admission.warn("user", f"refusing {name[:64]!r} from {connection.peer()}: {_FULL}")
            raise ClientRefused(ReasonCode.QUOTA_EXCEEDED, _FULL)
        self._users[name] = user
        user.connections += 1
        connection.counted_user = name
        connection.user_rates = user.rates

    def leave(self, connection: Connection) -> None:
        """Count a connection no more. It may not have been counted."""
        name = connection.counted_user
        if name:
            self.subscribed(connection, 0)
            connection.counted_user = b""
            user = self._users[name]
            user.connections -= 1
            if not user.connections:
                del self._users[name]

    def begin(self, user: bytes, change: int) -> None:
        """Count sessions of a user whose first record is on its way."""
        if user:
            self._beginning[user] += change
            if not self._beginning[user]:
                del self._beginning[user]

    def beginning(self, user: bytes) -> int:
        """The number of sessions of a user whose first record is on its way."""
        return self._beginning[user]

    def subscribed(self, connection: Connection, count: int) -> None:
        """Take the number of subscriptions that a connection has now."""
        name = connection.counted_user
        if name and self._max_subscriptions:
            self._users[name].subscriptions += count - connection.counted_subscriptions
            connection.counted_subscriptions = count

    def may_subscribe(self, connection: Connection, count: int) -> bool:
        """Whether a connection that would have `count` subscriptions may have one more."""
        name = connection.counted_user
        if not name or not self._max_subscriptions:
            return True
        others = self._users[name].subscriptions - connection.counted_subscriptions
        return others + count < self._max_subscriptions


class _User:
    """A user with connections."""

    __slots__ = ("connections", "rates", "subscriptions")

    def __init__(self, rates: tuple[int, int]) -> None:
        """rates: messages and bytes a second; 0: no limit."""
        self.connections = 0
        self.subscriptions = 0  # of its connections
        self.rates: PublishRates | None = None
        if any(rates):
            self.rates = PublishRates()
            self.rates.set_limits(*rates, monotonic())


class _ConnectRates:
    """How often some have connected. As many as a minute allows may come at once."""

    __slots__ = ("_buckets", "_per_minute", "is_on")

    def __init__(self, per_minute: int) -> None:
        """per_minute: 0 for no limit."""
        self.is_on = bool(per_minute)
        self._per_minute = per_minute
        self._buckets: dict[bytes, TokenBucket] = {}

    def may_connect(self, who: bytes) -> bool:
        """Count a CONNECT, unless it is one too many."""
        if not self.is_on:
            return True
        now = monotonic()
        who = blake2b(who, digest_size=16).digest()  # a client id may have 64 KiB
        bucket = self._buckets.pop(who, None) or TokenBucket(self._per_minute / 60, self._per_minute, now)
        self._buckets[who] = bucket
        if len(self._buckets) > _MAX_KNOWN:
            del self._buckets[next(iter(self._buckets))]
        return bucket.try_spend(now)
