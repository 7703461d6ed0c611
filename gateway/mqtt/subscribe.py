"""Reads SUBSCRIBE and UNSUBSCRIBE (sections 3.8 and 3.10)."""

from typing import Final

from gateway.mqtt.errors import MalformedPacket, ProtocolError, QuotaExceeded, TopicFilterInvalid
from gateway.mqtt.packets import MQTT_5, PacketType, Subscribe, SubscriptionRequest, Unsubscribe
from gateway.mqtt.properties import MAX_USER_PROPERTIES, SUBSCRIPTION_IDENTIFIER, read_properties
from gateway.mqtt.reader import Reader
from matcher.names import is_valid_filter, split_shared

MAX_FILTERS: Final = 1024  # of a packet, unless the caller allows another number

_QOS: Final = 0x03  # subscription options
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RETAIN_HANDLING: Final = 0x30
_RESERVED_5: Final = 0xC0
_RESERVED_311: Final = 0xFC


def read_packet_id(reader: Reader) -> int:
    """A packet id, which is never 0 (MQTT-2.2.1-3)."""
    packet_id = reader.u16()
    if packet_id == 0:
        raise ProtocolError("a packet id of 0 (MQTT-2.2.1-3)")
    return packet_id


def read_subscribe(
    reader: Reader, version: int, max_user: int = MAX_USER_PROPERTIES, max_filters: int = MAX_FILTERS
) -> Subscribe:
    """SUBSCRIBE behind its fixed header. Raises `ProtocolError`."""
    packet_id = read_packet_id(reader)
    identifier = 0
    user: list[tuple[bytes, bytes]] = []
    if version == MQTT_5:
        properties = read_properties(reader, PacketType.SUBSCRIBE.value, max_user)
        identifier = properties.number(SUBSCRIPTION_IDENTIFIER, 0)
        user = properties.user
    requests: list[SubscriptionRequest] = []
    while not reader.is_at_end():
        _check_count(len(requests), max_filters)
        topic_filter = _read_filter(reader)
        requests.append(_request(topic_filter, reader.u8(), version))
    if not requests:
        raise ProtocolError("SUBSCRIBE without a filter (MQTT-3.8.3-2)")
    return Subscribe(packet_id, requests, identifier, user)


def read_unsubscribe(
    reader: Reader, version: int, max_user: int = MAX_USER_PROPERTIES, max_filters: int = MAX_FILTERS
) -> Unsubscribe:
    """UNSUBSCRIBE behind its fixed header. Raises `ProtocolError`."""
    packet_id = read_packet_id(reader)
    if version == MQTT_5:
        read_properties(reader, PacketType.UNSUBSCRIBE.value, max_user)
    topic_filters: list[bytes] = []
    while not reader.is_at_end():
        _check_count(len(topic_filters), max_filters)
        topic_filters.append(_read_filter(reader))
    if not topic_filters:
        raise ProtocolError("UNSUBSCRIBE without a filter (MQTT-3.10.3-2)")
    return Unsubscribe(packet_id, topic_filters)


def _read_filter(reader: Reader) -> bytes:
    topic_filter = reader.text()
    if not is_valid_filter(topic_filter):
        raise TopicFilterInvalid("not a topic filter, or one of too many levels (MQTT-4.7.1-1, -2, 4.7.3-1, 4.8.2-1)")
    return topic_filter


def _request(topic_filter: bytes, options: int, version: int) -> SubscriptionRequest:
    if options & (_RESERVED_5 if version == MQTT_5 else _RESERVED_311):
        raise MalformedPacket("a reserved bit of the subscription options is set (MQTT-3.8.3-5)")
    qos = options & _QOS
    if qos == 3:
        raise MalformedPacket("a subscription of QoS 3 (section 3.8.3.1)")
    retain_handling = (options & _RETAIN_HANDLING) >> 4
    if retain_handling == 3:
        raise ProtocolError("a retain handling of 3 (section 3.8.3.1)")
    no_local = options & _NO_LOCAL != 0
    if no_local and split_shared(topic_filter)[0]:
        raise ProtocolError("no local on a shared subscription (MQTT-3.8.3-4)")
    return SubscriptionRequest(topic_filter, qos, no_local, options & _RETAIN_AS_PUBLISHED != 0, retain_handling)


def _check_count(count: int, limit: int) -> None:
    if count == limit:
        raise QuotaExceeded(f"more than {limit} filters in one packet", limit)
