"""The packets a server receives, as data. All names and texts are the bytes of the wire (checked UTF-8)."""

from enum import IntEnum
from typing import Final

from gateway.mqtt.reasons import ReasonCode

MQTT_311: Final = 4  # protocol levels, as CONNECT carries them
MQTT_5: Final = 5

NEVER: Final = 0xFFFF_FFFF  # a session expiry interval: the session does not expire


class PacketType(IntEnum):
    """The upper half of a packet's first byte (section 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Packet:
    """Base of all packets."""

    __slots__ = ()


class Will:
    """The message to publish when the connection ends without a DISCONNECT (section 3.1.2.5)."""

    __slots__ = ("delay_interval", "payload", "properties", "qos", "retain", "topic")

    def __init__(
        self, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes = b"", delay_interval: int = 0
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties  # as `Publish.properties`
        self.delay_interval = delay_interval  # seconds

    def add_properties(self, block: bytes) -> None:
        """Add encoded properties."""
        self.properties += block

    def redirect(self, topic: bytes) -> None:
        """Publish it to another topic, not retained."""
        self.topic = topic
        self.retain = False


class Connect(Packet):
    """CONNECT (section 3.1). For 3.1.1, the fields of MQTT 5 hold what 3.1.1 implies."""

    __slots__ = (
        "authentication_data",
        "authentication_method",
        "clean_start",
        "client_id",
        "keep_alive",
        "maximum_packet_size",
        "password",
        "receive_maximum",
        "request_problem_information",
        "request_response_information",
        "session_expiry_interval",
        "topic_alias_maximum",
        "user_properties",
        "username",
        "version",
        "will",
    )

    def __init__(self, version: int, client_id: bytes, clean_start: bool, keep_alive: int) -> None:
        self.version = version  # MQTT_311 or MQTT_5
        self.client_id = client_id  # may be empty: the server assigns one
        self.clean_start = clean_start
        self.keep_alive = keep_alive  # seconds, 0: off
        self.username: bytes | None = None
        self.password: bytes | None = None
        self.will: Will | None = None
        self.session_expiry_interval = 0 if clean_start or version == MQTT_5 else NEVER  # seconds
        self.receive_maximum = 0xFFFF
        self.maximum_packet_size = 0  # bytes, 0: no limit
        self.topic_alias_maximum = 0
        self.request_problem_information = True
        self.request_response_information = False
        self.authentication_method: bytes | None = None
        self.authentication_data: bytes | None = None
        self.user_properties: list[tuple[bytes, bytes]] = []


class Publish(Packet):
    """PUBLISH (section 3.3), its topic alias resolved."""

    __slots__ = ("dup", "is_text", "packet_id", "payload", "properties", "qos", "retain", "topic")

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        properties: bytes,
        is_text: bool,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id  # 0 with QoS 0
        # A property block without its length prefix, of only what is forwarded: payload format, message
        # expiry, content type, response topic, correlation data, user properties, in the publisher's order.
        self.properties = properties
        self.is_text = is_text  # the payload says that it is UTF-8, and nobody has looked yet

    def add_properties(self, block: bytes) -> None:
        """Add encoded properties."""
        self.properties += block

    def redirect(self, topic: bytes) -> None:
        """Publish it to another topic, not retained."""
        self.topic = topic
        self.retain = False


class Ack(Packet):
    """What the four acknowledgements of a PUBLISH have (sections 3.4 to 3.7)."""

    __slots__ = ("packet_id", "reason")

    def __init__(self, packet_id: int, reason: ReasonCode = ReasonCode.SUCCESS) -> None:
        self.packet_id = packet_id
        self.reason = reason


class PubAck(Ack):
    """PUBACK: the client has a QoS 1 message."""

    __slots__ = ()


class PubRec(Ack):
    """PUBREC: the client has a QoS 2 message."""

    __slots__ = ()


class PubRel(Ack):
    """PUBREL: the client forgets a QoS 2 message that it published."""

    __slots__ = ()


class PubComp(Ack):
    """PUBCOMP: the client forgot the packet id of a QoS 2 message that it received."""

    __slots__ = ()


class SubscriptionRequest:
    """One filter of a SUBSCRIBE with its options (section 3.8.3.1)."""

    __slots__ = ("no_local", "qos", "retain_as_published", "retain_handling", "topic_filter")

    def __init__(
        self,
        topic_filter: bytes,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter  # valid; shared ones still with their $share/group/
        self.qos = qos  # the maximum that the client wants
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling  # 0: send retained, 1: only if new, 2: never


class Subscribe(Packet):
    """SUBSCRIBE (section 3.8)."""

    __slots__ = ("identifier", "packet_id", "requests", "user_properties")

    def __init__(
        self,
        packet_id: int,
        requests: list[SubscriptionRequest],
        identifier: int = 0,
        user_properties: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.requests = requests  # at least one
        self.identifier = identifier  # 0: none
        self.user_properties: list[tuple[bytes, bytes]] = user_properties or []


class Unsubscribe(Packet):
    """UNSUBSCRIBE (section 3.10)."""

    __slots__ = ("packet_id", "topic_filters")

    def __init__(self, packet_id: int, topic_filters: list[bytes]) -> None:
        self.packet_id = packet_id
        self.topic_filters = topic_filters  # at least one


class PingReq(Packet):
    """PINGREQ (section 3.12)."""

    __slots__ = ()


class Disconnect(Packet):
    """DISCONNECT (section 3.14)."""

    __slots__ = ("reason", "session_expiry_interval")

    def __init__(
        self, reason: ReasonCode = ReasonCode.NORMAL_DISCONNECTION, session_expiry_interval: int | None = None
    ) -> None:
        self.reason = reason
        self.session_expiry_interval = session_expiry_interval  # seconds, None: as CONNECT said


class Auth(Packet):
    """AUTH (section 3.15)."""

    __slots__ = ("authentication_data", "authentication_method", "reason")

    def __init__(self, reason: ReasonCode, authentication_method: bytes, authentication_data: bytes | None) -> None:
        self.reason = reason
        self.authentication_method = authentication_method
        self.authentication_data = authentication_data
