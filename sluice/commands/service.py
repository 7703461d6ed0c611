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
    from cloud_sdk import Credentials, Tls  # noqa: PLC0415
    from cloud_sdk.blocking import Client  # noqa: PLC0415

    secret = _secret(arguments)
    credentials = None if arguments.username is None else Credentials(arguments.username, secret)
    tls = None if arguments.ca_file is None else Tls(arguments.ca_file)
    return Client(_endpoint(arguments), retry_seconds=PATIENCE_S, credentials=credentials, tls=tls)


def source_options(arguments: Arguments) -> dict[str, str]:
    """The same node as options of Spark's `format("sluice")`. Raises `InvalidArgument`."""
    options = {"endpoint": _endpoint(arguments)}
    if arguments.username is not None:
        options |= {"user": arguments.username, "password": _secret(arguments)}
    if arguments.ca_file is not None:
        options["caFile"] = str(arguments.ca_file.absolute())
    return options


def _endpoint(arguments: Arguments) -> str:
    return f"{arguments.host}:{arguments.port}"


def _secret(arguments: Arguments) -> str:
    from cloud_sdk import InvalidArgument  # noqa: PLC0415

    try:
        arguments.password = password.password_of(arguments)  # who is asked for it is asked once
    except password.NoPassword as error:
        raise InvalidArgument(str(error)) from error
    return arguments.password or ""
