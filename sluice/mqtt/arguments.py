"""The flags of `pub` and `sub` that say which broker, and as whom."""

import argparse
from typing import Final

from sluice.console import password
from sluice.console.command import port_number, within

VERSION_3: Final = "3.1.1"
VERSION_5: Final = "5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say which broker, and as whom."""
    group = parser.add_argument_group("broker")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=port_number, default=1883, help="default: 1883")
    group.add_argument("-V", "--protocol", choices=(VERSION_3, VERSION_5), default=VERSION_3, help="default: 3.1.1")
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
