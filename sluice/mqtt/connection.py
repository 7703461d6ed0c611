"""Connecting to an MQTT broker, and the errors of a connection as texts for the user."""

import secrets
from typing import Final, Literal

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.console import password
from sluice.console.command import Arguments
from sluice.mqtt.arguments import VERSION_5

CONNECT_TIMEOUT: Final = 10.0  # seconds, from the first SYN to the CONNACK


class BrokerError(Exception):
    """The broker cannot be reached, refused the client, or closed the connection. The text is for the user."""


def make_client(arguments: Arguments, session_expiry: int = 0) -> paho.Client:
    """Return an unconnected client. `session_expiry` is in seconds; 0 leaves no session. Raises `BrokerError`."""
    protocol = MQTTProtocolVersion.MQTTv5 if arguments.protocol == VERSION_5 else MQTTProtocolVersion.MQTTv311
    prefix = "" if arguments.username is None else f"{arguments.username}:"  # for nodes that bind client ids to users
    identifier = arguments.id or f"{prefix}sluice-{secrets.token_hex(6)}"
    # MQTT 3.1.1 has a clean session flag; MQTT 5.0 has the session expiry interval instead (section 3.1.2.11.2).
    clean = None if protocol is MQTTProtocolVersion.MQTTv5 else session_expiry == 0
    client = paho.Client(CallbackAPIVersion.VERSION2, identifier, clean_session=clean, protocol=protocol)
    try:
        secret = password.password_of(arguments)
    except password.NoPassword as error:
        raise BrokerError(str(error)) from error
    if arguments.username is not None:
        client.username_pw_set(arguments.username, secret)
    client.connect_timeout = CONNECT_TIMEOUT
    return client


def start_connect(client: paho.Client, arguments: Arguments, session_expiry: int = 0) -> None:
    """Open the socket and send CONNECT. Raises `BrokerError`."""
    properties = None
    clean_start: bool | Literal[3] = paho.MQTT_CLEAN_START_FIRST_ONLY
    if arguments.protocol == VERSION_5:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = session_expiry
        clean_start = session_expiry == 0
    try:
        client.connect(
            arguments.host, arguments.port, arguments.keep_alive, clean_start=clean_start, properties=properties
        )
    except (OSError, ValueError) as error:
        raise BrokerError(f"cannot reach {arguments.host}:{arguments.port}: {error}") from error


def refused(reason: ReasonCode) -> BrokerError:
    """Return the error for a CONNACK with a failure code."""
    return BrokerError(f"the broker refused the connection: {reason}")


def lost(code: MQTTErrorCode | ReasonCode) -> BrokerError:
    """Return the error for a connection that the broker or the network ended."""
    reason = paho.error_string(code) if isinstance(code, MQTTErrorCode) else str(code)
    return BrokerError(f"lost the connection to the broker: {reason}")
