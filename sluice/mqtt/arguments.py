"""The flags of `pub` and `sub` that name the broker and the client."""

import argparse
from typing import Final

from sluice.console import password
from sluice.console.command import port_number, within

VERSION_3: Final = "3.1.1"
VERSION_5: Final = "5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the broker and the client."""
    group = parser.add_argument_group("broker")
    group.add_argument("--host", default="127.0.0.1", help="the address of the broker (default: 127.0.0.1)")
    group.add_argument("--port", type=port_number, default=1883, help="the port of the broker (default: 1883)")
    group.add_argument(
        "-V", "--protocol", choices=(VERSION_3, VERSION_5), default=VERSION_3, help="the MQTT version (default: 3.1.1)"
    )
    group.add_argument(
        "--id",
        type=client_id,
        metavar="CLIENT",
        help="the client id (default: a random one, after the user name and a colon)",
    )
    password.add_arguments(group, "the user name")
    group.add_argument(
        "--keep-alive",
        type=within(1, 0xFFFF),
        default=60,
        metavar="SECONDS",
        help="the keep-alive interval (default: 60)",
    )


def client_id(text: str) -> str:
    """Check that a client id fits into a CONNECT packet (MQTT 5.0, section 1.5.4)."""
    if len(text.encode()) > 0xFFFF:
        raise argparse.ArgumentTypeError("a client id must not be longer than 65535 bytes")
    return text
