"""Reads CONNECT (section 3.1)."""

from typing import Final

from gateway.mqtt.errors import (
    ClientIdentifierNotValid,
    MalformedPacket,
    PayloadFormatInvalid,
    TopicNameInvalid,
    UnsupportedProtocolVersion,
)
from gateway.mqtt.packets import MQTT_5, MQTT_311, Connect, PacketType, Will
from gateway.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAX_USER_PROPERTIES,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    REQUEST_RESPONSE_INFORMATION,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    read_properties,
    read_will_properties,
)
from gateway.mqtt.reader import Reader, is_utf8
from matcher.names import is_valid_topic

_RESERVED: Final = 0x01  # connect flags
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


def read_protocol_level(reader: Reader) -> int:
    """The protocol level, which may be one that this server does not speak (MQTT-3.1.2-1)."""
    name = reader.text()
    level = reader.u8()
    if name != b"MQTT" and (name, level) != (b"MQIsdp", 3):
        raise UnsupportedProtocolVersion("the protocol's name is not MQTT (MQTT-3.1.2-1)")
    return level


def read_connect(reader: Reader, version: int, max_user: int = MAX_USER_PROPERTIES) -> Connect:
    """What follows the protocol level. Raises `ProtocolError`.

    max_user: user properties of the packet, and of its will.
    """
    flags = reader.u8()
    _check_flags(flags, version)
    keep_alive = reader.u16()
    clean_start = flags & _CLEAN_START != 0
    connect = Connect(version, b"", clean_start, keep_alive)
    if version == MQTT_5:
        _read_connect_properties(reader, connect, max_user)
    connect.client_id = reader.text()
    if not connect.client_id and version == MQTT_311 and not clean_start:
        raise ClientIdentifierNotValid("a session that is kept needs a client id (3.1.1: MQTT-3.1.3-8)")
    if flags & _WILL:
        connect.will = _read_will(reader, flags, version, max_user)
    if flags & _USERNAME:
        connect.username = reader.text()
    if flags & _PASSWORD:
        connect.password = reader.binary()
    reader.expect_end()
    return connect


def _check_flags(flags: int, version: int) -> None:
    if flags & _RESERVED:
        raise MalformedPacket("the reserved connect flag is set (MQTT-3.1.2-3)")
    if not flags & _WILL and flags & (_WILL_QOS | _WILL_RETAIN):
        raise MalformedPacket("QoS or retain of a will that is not there (MQTT-3.1.2-11, -13)")
    if flags & _WILL_QOS == _WILL_QOS:
        raise MalformedPacket("a will of QoS 3 (MQTT-3.1.2-12)")
    if version == MQTT_311 and flags & _PASSWORD and not flags & _USERNAME:
        raise MalformedPacket("a password without a user name (3.1.1: MQTT-3.1.2-22)")


def _read_connect_properties(reader: Reader, connect: Connect, max_user: int) -> None:
    properties = read_properties(reader, PacketType.CONNECT.value, max_user)
    connect.session_expiry_interval = properties.number(SESSION_EXPIRY, 0)
    connect.receive_maximum = properties.number(RECEIVE_MAXIMUM, 0xFFFF)
    connect.maximum_packet_size = properties.number(MAXIMUM_PACKET_SIZE, 0)
    connect.topic_alias_maximum = properties.number(TOPIC_ALIAS_MAXIMUM, 0)
    connect.request_problem_information = properties.number(REQUEST_PROBLEM_INFORMATION, 1) == 1
    connect.request_response_information = properties.number(REQUEST_RESPONSE_INFORMATION, 0) == 1
    connect.authentication_method = properties.text(AUTHENTICATION_METHOD)
    connect.authentication_data = properties.text(AUTHENTICATION_DATA)
    connect.user_properties = properties.user


def _read_will(reader: Reader, flags: int, version: int, max_user: int) -> Will:
    block, delay, is_text = read_will_properties(reader, max_user) if version == MQTT_5 else (b"", 0, False)
    topic = reader.text()
    if not is_valid_topic(topic):
        raise TopicNameInvalid("the will's topic is not a topic name (section 3.1.3.3)")
    payload = reader.binary()
    if is_text and not is_utf8(payload):
        raise PayloadFormatInvalid("the will's payload is not UTF-8, as its properties say (section 3.1.3.2.3)")
    return Will(topic, payload, (flags & _WILL_QOS) >> 3, flags & _WILL_RETAIN != 0, block, delay)
