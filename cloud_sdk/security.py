"""Who a client is, and what it trusts: credentials and TLS of the connection to a node."""

from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from cloud_sdk.errors import InvalidArgument

AUTHORIZATION: Final = "authorization"


@dataclass(slots=True, frozen=True)
class Credentials:
    """A user of the node. They cross the network as they are: use TLS wherever others could read there."""

    user: str
    password: str = field(repr=False)

    def header(self) -> str:
        """Raises `InvalidArgument`: a colon ends the user name (RFC 7617)."""
        if ":" in self.user or not self.user:
            raise InvalidArgument(f"{self.user!r} is no user name that can be sent: it is empty or has a colon")
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(slots=True, frozen=True)
class Tls:
    """TLS to the node. Files are PEM and are read when the client connects."""

    ca_file: str | Path | None = None  # the authorities that are trusted; None: those of the system
    certificate_file: str | Path | None = None  # the client's own, where the node wants one
    key_file: str | Path | None = None
    server_name: str | None = None  # that the node's certificate has to be for, where the endpoint says another

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Raises `InvalidArgument` for files that cannot be read."""
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument("certificate_file and key_file need each other")
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))

    def options(self) -> tuple[tuple[str, str], ...]:
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


def _read(path: str | Path | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
