"""What a peer can do wrong. Each error ends the connection and carries the reason code to say so with."""

from gateway.mqtt.reasons import ReasonCode


class ProtocolError(Exception):
    """The client broke the protocol or a limit of this server. Tell it `reason` (MQTT 5) and close."""

    def __init__(self, message: str, reason: ReasonCode = ReasonCode.PROTOCOL_ERROR, limit: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.limit = limit  # that was reached; 0: the error is no matter of a limit


class MalformedPacket(ProtocolError):
    """The bytes are no MQTT packet (section 4.13)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.MALFORMED_PACKET)


class PacketTooLarge(ProtocolError):
    """Larger than the Maximum Packet Size of its receiver: split it (MQTT-3.2.2-15)."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message, ReasonCode.PACKET_TOO_LARGE, limit)


class ReceiveMaximumExceeded(ProtocolError):
    """More QoS 1 and 2 messages in flight than the Receive Maximum of CONNACK (MQTT-3.3.4-7)."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, limit)


class TopicAliasInvalid(ProtocolError):
    """A topic alias of 0 or above the Topic Alias Maximum of CONNACK (MQTT-3.3.2-8, -9)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.TOPIC_ALIAS_INVALID)


class TopicNameInvalid(ProtocolError):
    """Nothing can be published to such a name (section 4.7)."""

    def __init__(self, message: str, limit: int = 0) -> None:
        super().__init__(message, ReasonCode.TOPIC_NAME_INVALID, limit)


class TopicFilterInvalid(ProtocolError):
    """A filter of a form that can not be subscribed to (section 4.7)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.TOPIC_FILTER_INVALID)


class UnsupportedProtocolVersion(ProtocolError):
    """Neither MQTT 3.1.1 nor 5.0 (MQTT-3.1.2-2)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)


class ClientIdentifierNotValid(ProtocolError):
    """The server can not use that client id (MQTT-3.1.3-8)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


class QuotaExceeded(ProtocolError):
    """More in one packet, or for the topic aliases of a connection, than this server accepts."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message, ReasonCode.QUOTA_EXCEEDED, limit)


class PayloadFormatInvalid(ProtocolError):
    """A payload that says it is UTF-8 and is not (section 3.3.2.3.2)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.PAYLOAD_FORMAT_INVALID)
