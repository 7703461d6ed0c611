"""The client of a node's gRPC port: its flags and its connection."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console import password
from sluice.console.command import Arguments, UsageError, port_number

if TYPE_CHECKING:
    from cloud_sdk import Tls
    from cloud_sdk.blocking import Client

RETRY_SECONDS: Final = 5.0  # how long to retry while the node is unreachable
_HOST_HELP: Final = (
    "the address of the node, or of several nodes of a cluster, separated by commas; each may have a port of its own "
    "(default: 127.0.0.1)"
)
_HAS_PORT: Final = re.compile(r"(\[.*\]|[^:]*):\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the node."""
    group = parser.add_argument_group("node")
    group.add_argument("--host", default="127.0.0.1", help=_HOST_HELP)
    group.add_argument("--port", type=port_number, default=7070, help="the gRPC port of the node (default: 7070)")
    password.add_arguments(group, "the user name, if the node requires one (grpc.auth)")
    group.add_argument("--tls", action="store_true", help="use TLS; the options below imply it")
    group.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="trust these authorities (PEM) instead of the system's"
    )
    group.add_argument(
        "--cert-file", type=Path, metavar="FILE", help="the client certificate (PEM), if the node requires one"
    )
    group.add_argument("--key-file", type=Path, metavar="FILE", help="the key of the client certificate (PEM)")
    group.add_argument(
        "--server-name", metavar="NAME", help="the name in the certificate of the node (default: --host)"
    )


def connect(arguments: Arguments) -> "Client":
    """Return a client of the node; the caller closes it. Raises `UsageError` and `SluiceError`."""
    from cloud_sdk import Credentials  # noqa: PLC0415
    from cloud_sdk.blocking import Client  # noqa: PLC0415

    secret = _secret(arguments)
    credentials = None if arguments.username is None else Credentials(arguments.username, secret)
    tls = _tls(arguments)
    return Client(endpoint(arguments), retry_seconds=RETRY_SECONDS, credentials=credentials, tls=tls)


def source_options(arguments: Arguments) -> dict[str, str]:
    """Return the options of Spark's `format("sluice")` for the node. Raises `UsageError`."""
    options = {"endpoint": endpoint(arguments)}
    if arguments.username is not None:
        options |= {"user": arguments.username, "password": _secret(arguments)}
    tls = _tls(arguments)
    if tls is not None:
        given = {"caFile": tls.ca_file, "certificateFile": tls.certificate_file, "keyFile": tls.key_file}
        options["tls"] = "true"
        options.update({name: str(Path(path).absolute()) for name, path in given.items() if path is not None})
        if tls.server_name is not None:
            options["serverName"] = tls.server_name
    return options


def endpoint(arguments: Arguments) -> str:
    """The endpoints that the flags name, separated by commas."""
    hosts = [host.strip() for host in arguments.host.split(",")]
    return ",".join(host if _HAS_PORT.fullmatch(host) else f"{host}:{arguments.port}" for host in hosts)


def _tls(arguments: Arguments) -> "Tls | None":
    """Return the TLS settings, None without TLS. Raises `UsageError`."""
    from cloud_sdk import Tls  # noqa: PLC0415

    if (arguments.cert_file is None) != (arguments.key_file is None):
        raise UsageError("--cert-file and --key-file must be given together")
    given = (arguments.ca_file, arguments.cert_file, arguments.server_name)
    if not arguments.tls and all(each is None for each in given):
        return None
    return Tls(arguments.ca_file, arguments.cert_file, arguments.key_file, arguments.server_name)


def _secret(arguments: Arguments) -> str:
    arguments.password = password.password_of(arguments)  # a prompt appears only once
    return arguments.password or ""
