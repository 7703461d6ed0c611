"""The connection to a node's gRPC port that commands for its data share: the flags, and the client."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.commands import password
from sluice.commands.command import Arguments, port_number

if TYPE_CHECKING:
    from cloud_sdk.blocking import Client

PATIENCE_S: Final = 5.0  # so long a node may be away


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say which node."""
    group = parser.add_argument_group("node")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=port_number, default=7070, help="its gRPC port (default: 7070)")
    password.add_arguments(group, "who calls, where the node asks (grpc.auth)")
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="speak TLS, and trust these authorities (PEM)")


def connect(arguments: Arguments) -> "Client":
    """A client of the node, to be closed. Raises `SluiceError`."""
    from cloud_sdk import Credentials, InvalidArgument, Tls  # noqa: PLC0415
    from cloud_sdk.blocking import Client  # noqa: PLC0415

    try:
        secret = password.password_of(arguments)
    except password.NoPassword as error:
        raise InvalidArgument(str(error)) from error
    credentials = None if arguments.username is None else Credentials(arguments.username, secret or "")
    tls = None if arguments.ca_file is None else Tls(arguments.ca_file)
    return Client(f"{arguments.host}:{arguments.port}", retry_seconds=PATIENCE_S, credentials=credentials, tls=tls)
