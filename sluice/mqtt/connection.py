"""Connecting to an MQTT broker, and the errors of a connection as texts for the user."""

import secrets
from typing import Final, Literal

from paho.mqtt import MQTTException
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.console import password
from sluice.console.command import Arguments, CommandError, UsageError
from sluice.mqtt.arguments import PACKETS, VERSION_5, endpoint

CONNECT_TIMEOUT: Final = 10.0  # seconds, from the first SYN to the CONNACK
_TYPES: Final = {
    "connect": PacketTypes.CONNECT,
    "publish": PacketTypes.PUBLISH,
    "subscribe": PacketTypes.SUBSCRIBE,
    "will": PacketTypes.WILLMESSAGE,
}
_TEXTS: Final = ("ContentType", "ResponseTopic")  # properties whose value is not a number


class BrokerError(CommandError):
    """The broker cannot be reached, refused the client, or closed the connection."""


def make_client(arguments: Arguments, session_expiry: int = 0) -> paho.Client:
    """Return an unconnected client. `session_expiry` is in seconds; 0 leaves no session. Raises `UsageError`."""
    where = endpoint(arguments)
    protocol = MQTTProtocolVersion.MQTTv5 if arguments.protocol == VERSION_5 else MQTTProtocolVersion.MQTTv311
    prefix = "" if arguments.username is None else f"{arguments.username}:"  # for nodes that bind client ids to users
    identifier = arguments.id or f"{prefix}sluice-{secrets.token_hex(6)}"
    # MQTT 3.1.1 has a clean session flag; MQTT 5.0 has the session expiry interval instead (section 3.1.2.11.2).
    clean = None if protocol is MQTTProtocolVersion.MQTTv5 else session_expiry == 0
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        identifier,
        clean_session=clean,
        protocol=protocol,
        transport="tcp" if where.path is None else "websockets",
    )
    if where.path is not None:
        client.ws_set_options(where.path)
    if where.uses_tls:
        _set_tls(client, arguments)
    secret = password.password_of(arguments)
    if arguments.username is not None:
        client.username_pw_set(arguments.username, secret)
    _set_will(client, arguments)
    client.connect_timeout = CONNECT_TIMEOUT
    return client


def properties_of(arguments: Arguments, packet: str) -> Properties | None:
    """Return the properties that --property names for a packet; None in MQTT 3.1.1. Raises `UsageError`."""
    if arguments.protocol != VERSION_5:
        if arguments.property:
            raise UsageError("--property needs --protocol 5")
        return None
    properties = Properties(_TYPES[packet])  # type: ignore[no-untyped-call]
    for kind, *words in arguments.property:
        if kind not in PACKETS:
            raise UsageError(f"--property: {kind!r} is not one of {', '.join(PACKETS)}")
        if kind == packet:
            _set_property(properties, words)
    return properties


def _set_property(properties: Properties, words: list[str]) -> None:
    """Set one property, such as `["user-property", "site", "north"]`. Raises `UsageError`."""
    name = words[0].title().replace("-", "") if words else ""
    values = words[1:]
    try:
        if name == "UserProperty":
            site, value = values
            properties.UserProperty = site, value
        else:
            (text,) = values
            is_text, is_binary = name in _TEXTS, name == "CorrelationData"
            setattr(properties, name, text if is_text else text.encode() if is_binary else int(text))
    except (MQTTException, ValueError, TypeError) as error:
        raise UsageError(f"--property: {' '.join(words)!r} is not a property with its value: {error}") from error


def _set_tls(client: paho.Client, arguments: Arguments) -> None:
    ca, certificate, key = (
        None if path is None else str(path) for path in (arguments.cafile, arguments.cert, arguments.key)
    )
    try:
        client.tls_set(ca, certificate, key)
    except OSError as error:
        raise UsageError(f"cannot use the files of --cafile, --cert and --key: {error}") from error


def _set_will(client: paho.Client, arguments: Arguments) -> None:
    if arguments.will_topic is None:
        if any(each is not None for each in (arguments.will_payload, arguments.will_qos, arguments.will_retain)):
            raise UsageError("--will-payload, --will-qos and --will-retain need --will-topic")
        if any(kind == "will" for kind, *_ in arguments.property):
            raise UsageError("--property will needs --will-topic")
        return
    properties = properties_of(arguments, "will")
    try:
        client.will_set(
            arguments.will_topic,
            arguments.will_payload,
            arguments.will_qos or 0,
            arguments.will_retain or False,
            properties,
        )
    except ValueError as error:
        raise UsageError(f"the will is invalid: {error}") from error


def start_connect(client: paho.Client, arguments: Arguments, session_expiry: int = 0) -> None:
    """Open the socket and send CONNECT. Raises `BrokerError`."""
    where, properties = endpoint(arguments), properties_of(arguments, "connect")
    clean_start: bool | Literal[3] = paho.MQTT_CLEAN_START_FIRST_ONLY
    if properties is not None:
        if hasattr(properties, "SessionExpiryInterval"):
            raise UsageError("--property connect session-expiry-interval: use --session of sluice sub")
        properties.SessionExpiryInterval = session_expiry
        clean_start = session_expiry == 0
    try:
        client.connect(where.host, where.port, arguments.keep_alive, clean_start=clean_start, properties=properties)
    except (OSError, ValueError) as error:
        raise BrokerError(f"cannot reach {where.host}:{where.port}: {error}") from error


def refused(reason: ReasonCode, properties: Properties | None = None) -> BrokerError:
    """Return the error for a CONNACK with a failure code."""
    return BrokerError(f"the broker refused the connection: {reason}{_why(properties)}")


def lost(code: MQTTErrorCode | ReasonCode, properties: Properties | None = None) -> BrokerError:
    """Return the error for a connection that the broker or the network ended."""
    reason = paho.error_string(code) if isinstance(code, MQTTErrorCode) else str(code)
    return BrokerError(f"lost the connection to the broker: {reason}{_why(properties)}")


def _why(properties: Properties | None) -> str:
    """What the broker says beside the code; only MQTT 5 can."""
    text = getattr(properties, "ReasonString", "")
    return f": {text}" if text else ""
