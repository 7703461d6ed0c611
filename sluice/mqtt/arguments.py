"""The options of `pub` and `sub` about the broker, the client and its packets, named as mosquitto_pub names them."""

import argparse
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from sluice.console import password
from sluice.console.command import Arguments, UsageError, port_number, within

VERSION_3: Final = "3.1.1"
VERSION_5: Final = "5"
PACKETS: Final = ("connect", "publish", "subscribe", "will")
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}


class Endpoint(NamedTuple):
    """Where and how to connect."""

    host: str
    port: int
    uses_tls: bool
    path: str | None  # of a WebSocket; None: TCP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("broker")
    text = "mqtt, mqtts, ws or wss://HOST[:PORT][/PATH], instead of --host and --port (default path: /mqtt)"
    group.add_argument("-L", "--url", help=text)
    group.add_argument("--host", default="127.0.0.1", help="the address of the broker (default: 127.0.0.1)")
    group.add_argument("--port", type=port_number, help="the port of the broker (default: 1883, or 8883 with TLS)")
    group.add_argument("--cafile", type=Path, metavar="FILE", help="use TLS, and trust these authorities (PEM)")
    group.add_argument("--cert", type=Path, metavar="FILE", help="use TLS with this client certificate (PEM)")
    group.add_argument("--key", type=Path, metavar="FILE", help="the key of the client certificate (PEM)")
    password.add_arguments(group, "the user name")
    group = parser.add_argument_group("client")
    versions, text = (VERSION_3, VERSION_5), "the MQTT version (default: 3.1.1)"
    group.add_argument("-V", "--protocol", choices=versions, default=VERSION_3, help=text)
    text = "the client id (default: a random one, after the user name and a colon)"
    group.add_argument("--id", type=client_id, metavar="CLIENT", help=text)
    text = "the keep-alive interval (default: 60)"
    group.add_argument("--keep-alive", type=within(1, 0xFFFF), default=60, metavar="SECONDS", help=text)
    text = f"a property of MQTT 5, such as -D publish user-property NAME VALUE; PACKET is one of {', '.join(PACKETS)}; "
    text += "may be repeated"
    group.add_argument("-D", "--property", nargs="+", action="append", default=[], metavar="PACKET NAME", help=text)
    group.add_argument("--will-topic", metavar="TOPIC", help="let the broker publish a will if the connection breaks")
    group.add_argument("--will-payload", metavar="TEXT", help="the payload of the will (default: empty)")
    group.add_argument("--will-qos", type=int, choices=(0, 1, 2), help="the QoS of the will (default: 0)")
    group.add_argument("--will-retain", action="store_true", default=None, help="publish the will as retained message")


def endpoint(arguments: Arguments) -> Endpoint:
    """Return where to connect. Raises `UsageError`."""
    if (arguments.cert is None) != (arguments.key is None):
        raise UsageError("--cert and --key must be given together")
    uses_tls = arguments.cafile is not None or arguments.cert is not None
    if arguments.url is None:
        port = arguments.port or _PORTS["mqtts" if uses_tls else "mqtt"]
        return Endpoint(arguments.host, port, uses_tls, None)
    try:
        url = urlsplit(arguments.url)
        port = url.port
    except ValueError as error:
        raise UsageError(f"--url: {error}") from error
    if url.scheme not in _PORTS or not url.hostname or url.username is not None or url.query or url.fragment:
        raise UsageError(f"--url: {arguments.url!r} is not mqtt, mqtts, ws or wss://HOST[:PORT][/PATH]")
    if uses_tls and url.scheme in ("mqtt", "ws"):
        raise UsageError("--cafile and --cert need a URL with mqtts or wss")
    path = url.path or "/mqtt" if url.scheme in ("ws", "wss") else None
    return Endpoint(url.hostname, port or _PORTS[url.scheme], url.scheme in ("mqtts", "wss"), path)


def client_id(text: str) -> str:
    """Check that a client id fits into a CONNECT packet (MQTT 5.0, section 1.5.4)."""
    if len(text.encode()) > 0xFFFF:
        raise argparse.ArgumentTypeError("a client id must not be longer than 65535 bytes")
    return text
