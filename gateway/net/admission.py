"""What a listener lets in: its limits, how many came, and what is known of a connection before CONNECT."""

import logging
from enum import Enum
from time import monotonic

from gateway.config.config import MqttConfig
from gateway.config.listeners import ListenerConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.net.token_bucket import TokenBucket
from gateway.observe.throttled_log import ThrottledLog

log = logging.getLogger(__name__)


class Capacity(Enum):
    """What there is for one more connection."""

    SERVE = "a place"
    REFUSE = "time to hear its CONNECT and to refuse it"
    CLOSE = "nothing"


class ConnectionInfo:
    """What is known of a connection beside its bytes. Most have none of this."""

    __slots__ = ("client_id", "is_certified", "peer", "refusal", "user_name", "why")

    def __init__(self, refusal: ReasonCode | None = None, why: str = "") -> None:
        self.peer: str = ""  # "host:port" as a proxy told it; "": the socket's own
        self.refusal = refusal  # the answer to its CONNECT
        self.why = why
        self.is_certified: bool = False  # it has shown a certificate that a trusted authority signed
        self.client_id: bytes | None = None  # from its certificate
        self.user_name: bytes | None = None  # the same


class Admission:
    """The limits of one listener, and what it counts."""

    def __init__(self, listener: ListenerConfig, mqtt: MqttConfig) -> None:
        now = monotonic()
        rate = listener.connect_rate or mqtt.connect_rate
        self.name = listener.name
        self.max_connections = listener.max_connections or mqtt.max_connections
        self.max_packet_size = listener.max_packet_size or mqtt.max_packet_size  # bytes
        self.publish_rate = listener.publish_rate or mqtt.publish_rate  # messages a second; 0: no limit
        self.connect_timeout = listener.connect_timeout or mqtt.connect_timeout  # seconds
        self.auth = frozenset(listener.auth or mqtt.auth)  # how clients may say who they are
        by_default = listener.acl_default or mqtt.acl_default
        self.allows_by_default = by_default == "allow" or (not by_default and self.auth == {"anonymous"})
        self.binds_client_ids = (listener.client_ids or mqtt.client_ids) == "user"
        self.client_id_from = listener.client_id_from
        self.user_name_from = listener.user_name_from
        self.asks_certificate = bool(listener.client_id_from or listener.user_name_from or "certificate" in self.auth)
        self.opening: int = 0  # accepted, and not yet an MQTT connection
        self.open: int = 0  # MQTT connections
        self.accepted: int = 0
        self.refused_full: int = 0
        self.refused_rate: int = 0
        self.refused_proxy: int = 0  # no header, a wrong one, or not from a trusted proxy
        self.refused_tls: int = 0  # the handshake failed
        self.refused_late: int = 0  # said nothing, or not enough, in time
        # Twice the rate is accepted: what is served, and what hears that it comes too fast. The rest waits in the
        # kernel, where it costs us nothing.
        self._served = TokenBucket(rate, rate, now) if rate else None
        self._answered = TokenBucket(rate, rate, now) if rate else None
        self._throttled_log = ThrottledLog(log, f"listener {listener.name}: ")

    def wait(self, now: float) -> float:
        """Seconds for which nothing is to be accepted."""
        if self._served is None or self._answered is None or not self._answered.wait(now):
            return 0.0
        return self._served.wait(now)

    def admit(self, now: float) -> bool:
        """One more was accepted: whether it is served. If not, it is to hear that it came too fast."""
        if self._served is None or self._answered is None or self._served.try_spend(now):
            return True
        self._answered.try_spend(now)
        return False

    def warn(self, kind: str, text: str) -> None:
        """Log a line about this listener, at most one a minute of each kind."""
        self._throttled_log.warning(kind, text)
