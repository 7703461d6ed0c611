"""CONNACK for a client that is served (section 3.2), with what it requested as far as this node grants it."""

from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientRefused
from gateway.config.mqtt import MqttConfig
from gateway.connection.connection import Connection
from gateway.mqtt.encode import ConnackProperties, connack
from gateway.mqtt.packets import MQTT_5, Connect
from gateway.mqtt.reasons import ReasonCode


class Connack:
    """Builds the CONNACKs of one node."""

    def __init__(self, config: MqttConfig) -> None:
        self._config = config
        # What a client gets that is granted all it asked for, by session present and largest packet. A few.
        self._usual: dict[tuple[bool, int], bytes] = {}

    def check(self, connection: Connection, packet: Connect, identity: Identity) -> None:
        """Check that CONNACK fits the client's maximum packet size (MQTT-3.1.2-24). Raises ClientRefused."""
        limit = packet.maximum_packet_size
        if limit and len(self.accept(connection, packet, identity, self.expiry(packet), True)) > limit:
            raise ClientRefused(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the maximum packet size is too small")

    def expiry(self, packet: Connect) -> int:
        """The session expiry interval that is granted, in seconds."""
        return min(packet.session_expiry_interval, self._config.max_session_expiry)

    def keep_alive(self, packet: Connect) -> int:
        """The keep-alive in seconds, 0 for none. 3.1.1 cannot tell a client another one than its own."""
        if packet.version < 5 or not packet.keep_alive:
            return packet.keep_alive
        return min(packet.keep_alive, self._config.max_keep_alive)

    def accept(self, connection: Connection, packet: Connect, identity: Identity, expiry: int, present: bool) -> bytes:
        if packet.version != MQTT_5:
            return connack(packet.version, ReasonCode.SUCCESS, present)
        keep_alive = self.keep_alive(packet)
        largest = connection.admission.max_packet_size
        is_usual = (
            expiry == packet.session_expiry_interval
            and keep_alive == packet.keep_alive
            and bool(packet.client_id)
            and not packet.request_response_information
            and identity.proof is None
        )
        usual = self._usual.get((present, largest)) if is_usual else None
        if usual is not None:
            return usual
        properties = ConnackProperties()
        if expiry != packet.session_expiry_interval:
            properties.session_expiry_interval = expiry
        if keep_alive != packet.keep_alive:
            properties.server_keep_alive = keep_alive
        if not packet.client_id:
            properties.assigned_client_id = identity.client_id
        if packet.request_response_information and self._config.response_information:
            properties.response_information = self._config.response_information.encode()
        if identity.proof is not None:
            properties.authentication_method = packet.authentication_method
            properties.authentication_data = identity.proof
        properties.receive_maximum = self._config.receive_maximum
        properties.maximum_packet_size = largest
        properties.topic_alias_maximum = self._config.topic_alias_maximum
        found = connack(packet.version, ReasonCode.SUCCESS, present, properties)
        if is_usual:
            self._usual[present, largest] = found
        return found
