"""Admission of connections: the limits and counters of a listener, and facts about a connection before CONNECT."""

import logging
from enum import Enum
from time import monotonic

from gateway.config.listeners import ListenerConfig
from gateway.config.mqtt import MqttConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.net.token_bucket import TokenBucket
from gateway.observe.throttled_log import ThrottledLog

log = logging.getLogger(__name__)


class Capacity(Enum):
    """What happens to one more connection."""

    SERVE = "it is served"
    REFUSE = "its CONNECT is answered with a refusal"
    CLOSE = "it is closed at once"


class ConnectionInfo:
    """Facts about a connection beside its bytes. Most connections have none."""

    __slots__ = ("client_id", "is_certified", "peer", "refusal", "user_name", "why")

    def __init__(self, refusal: ReasonCode | None = None, why: str = "") -> None:
        self.peer: str = ""  # "host:port" as a proxy reported it; "": the socket's own
        self.refusal = refusal  # reason code for its CONNACK; None: it is served
        self.why = why
        self.is_certified: bool = False  # it has shown a certificate of a trusted authority
        self.client_id: bytes | None = None  # from its certificate
        self.user_name: bytes | None = None  # from its certificate


class Admission:
    """The limits and counters of one listener."""

    def __init__(self, listener: ListenerConfig, mqtt: MqttConfig) -> None:
        self.name = listener.name
        self.max_packet_size = listener.max_packet_size or mqtt.max_packet_size  # bytes
        self.auth = frozenset(listener.auth or mqtt.auth)  # ways to authenticate
        by_default = listener.acl_default or mqtt.acl_default
        self.allows_by_default = by_default == "allow" or (not by_default and self.auth == {"anonymous"})
        self.binds_client_ids = (listener.client_ids or mqtt.client_ids) == "user"
        self.client_id_from = listener.client_id_from
        self.user_name_from = listener.user_name_from
        self.asks_certificate = bool(listener.client_id_from or listener.user_name_from or "certificate" in self.auth)
        self.opening: int = 0  # accepted, and not an MQTT connection yet
        self.open: int = 0  # MQTT connections
        self.accepted: int = 0
        self.refused_full: int = 0
        self.refused_rate: int = 0
        self.refused_proxy: int = 0  # no valid PROXY header from a trusted proxy
        self.refused_tls: int = 0  # the handshake failed
        self.refused_late: int = 0  # no CONNECT in time
        self._rate = -1  # connections a second, of the two buckets
        self.set_limits(listener, mqtt)
        self._throttled_log = ThrottledLog(log, f"listener {listener.name}: ")

    def set_limits(self, listener: ListenerConfig, mqtt: MqttConfig) -> None:
        """Take the limits that can change while the node runs."""
        self.max_connections = listener.max_connections or mqtt.max_connections
        self.publish_rate = listener.publish_rate or mqtt.publish_rate  # messages a second; 0: no limit
        self.publish_rate_bytes = listener.publish_rate_bytes or mqtt.publish_rate_bytes
        of_user = mqtt.user_publish_rate or mqtt.user_publish_rate_bytes
        self.paces = bool(self.publish_rate or self.publish_rate_bytes or of_user)  # some rate has a limit
        self.max_in_flight = listener.max_in_flight or mqtt.max_in_flight  # messages
        self.max_subscriptions = listener.max_subscriptions or mqtt.max_subscriptions  # of a session
        self.connect_timeout = listener.connect_timeout or mqtt.connect_timeout  # seconds
        rate, now = listener.connect_rate or mqtt.connect_rate, monotonic()
        if rate == self._rate:
            return
        self._rate = rate
        # Twice the rate is accepted: one half is served, the other is told that it comes too fast. The rest waits in
        # the kernel, where it costs nothing.
        self._served = TokenBucket(rate, rate, now) if rate else None
        self._answered = TokenBucket(rate, rate, now) if rate else None

    def wait(self, now: float) -> float:
        """Seconds during which nothing is to be accepted."""
        if self._served is None or self._answered is None or not self._answered.wait(now):
            return 0.0
        return self._served.wait(now)

    def admit(self, now: float) -> bool:
        """Count a connection that was accepted. Returns False if it is to be refused because of the rate."""
        if self._served is None or self._answered is None or self._served.try_spend(now):
            return True
        self._answered.try_spend(now)
        return False

    def warn(self, kind: str, text: str, client: bytes = b"") -> None:
        """Log a line about this listener, at most one a minute of each kind. client: whom it is about, if that is
        known."""
        self._throttled_log.warning(kind, text, client)
