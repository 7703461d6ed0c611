"""The limits of a user: how many connections it has in this process, and how much they publish together.

A user without a connection is forgotten. Clients without a user have no limits but those of their listener.
"""

from time import monotonic
from typing import Final

from gateway.auth.refusal import ClientRefused
from gateway.config.mqtt import MqttConfig
from gateway.connection.connection import Connection
from gateway.mqtt.reasons import ReasonCode
from gateway.net.publish_rates import PublishRates
from gateway.observe.counters import Counters

_FULL: Final = "the user has as many connections as mqtt.max_user_connections allows"


class UserLimits:
    """The connections of all users. Does nothing where no limit is configured."""

    def __init__(self, config: MqttConfig, counters: Counters) -> None:
        self._max_connections = config.max_user_connections
        self._rates = config.user_publish_rate, config.user_publish_rate_bytes
        self._is_on = bool(self._max_connections or any(self._rates))
        self._counters = counters
        self._users: dict[bytes, _User] = {}

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
        name, connection.counted_user = connection.counted_user, b""
        if name:
            user = self._users[name]
            user.connections -= 1
            if not user.connections:
                del self._users[name]


class _User:
    """A user with connections."""

    __slots__ = ("connections", "rates")

    def __init__(self, rates: tuple[int, int]) -> None:
        """rates: messages and bytes a second; 0: no limit."""
        self.connections = 0
        self.rates: PublishRates | None = None
        if any(rates):
            self.rates = PublishRates()
            self.rates.set_limits(*rates, monotonic())
