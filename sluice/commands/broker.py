"""The connection to any MQTT broker that `pub` and `sub` share: its flags, and its errors in words."""

import argparse
import secrets
from typing import Final, Literal

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.commands import password
from sluice.commands.command import Arguments, port_number, within

VERSIONS: Final = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5": MQTTProtocolVersion.MQTTv5}
CONNECT_TIMEOUT: Final = 10.0  # seconds, from the first SYN to the CONNACK


class BrokerError(Exception):
    """The broker cannot be reached, refused, or went away; the text is for the user."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say which broker, and as whom."""
    group = parser.add_argument_group("broker")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=port_number, default=1883, help="default: 1883")
    group.add_argument("-V", "--protocol", choices=tuple(VERSIONS), default="3.1.1", help="default: 3.1.1")
    group.add_argument(
        "--id",
        type=client_id,
        metavar="CLIENT",
        help="client id (default: a random one, behind the user name and a colon)",
    )
    password.add_arguments(group, "user name")
    group.add_argument("--keep-alive", type=within(1, 0xFFFF), default=60, metavar="SECONDS", help="default: 60")


def client_id(text: str) -> str:
    """What fits into a CONNECT packet (MQTT-1.5.4)."""
    if len(text.encode()) > 0xFFFF:
        raise argparse.ArgumentTypeError("a client id has at most 65535 bytes")
    return text


def make_client(arguments: Arguments, session_expiry: int = 0) -> paho.Client:
    """An unconnected client. `session_expiry` in seconds: 0 leaves no session behind. Raises `BrokerError`."""
    protocol = VERSIONS[arguments.protocol]
    whose = "" if arguments.username is None else f"{arguments.username}:"  # for nodes that bind client ids to users
    identifier = arguments.id or f"{whose}sluice-{secrets.token_hex(6)}"
    # Only 3.1.1 says "clean session" with a flag of its own; in 5.0 it is the expiry interval (MQTT-3.1.2.11.2).
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
    if VERSIONS[arguments.protocol] is MQTTProtocolVersion.MQTTv5:
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
    """A CONNACK that says no, as an error."""
    return BrokerError(f"the broker refused the connection: {reason}")


def lost(code: MQTTErrorCode | ReasonCode) -> BrokerError:
    """A connection that ended without our asking, as an error."""
    reason = paho.error_string(code) if isinstance(code, MQTTErrorCode) else str(code)
    return BrokerError(f"lost the connection to the broker: {reason}")
