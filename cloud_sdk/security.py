"""Who a client is, and what it trusts: credentials and TLS of the connection to a node."""

import ssl
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
        """Raises `InvalidArgument` for files that cannot be read, or have something else."""
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument("certificate_file and key_file need each other")
        authorities, key, certificate = _read(self.ca_file), _read(self.key_file), _read(self.certificate_file)
        self._check(authorities)
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def _check(self, authorities: bytes | None) -> None:
        """gRPC would say of such files that it cannot connect."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if authorities is not None:
            try:
                context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
            except (ssl.SSLError, ValueError) as error:
                raise InvalidArgument(f"{self.ca_file} has no certificates of authorities in PEM") from error
        if self.certificate_file is not None and self.key_file is not None:
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, _no_password)
            except (ssl.SSLError, ValueError) as error:
                both = f"{self.certificate_file} and {self.key_file}"
                raise InvalidArgument(f"{both} are no certificate and its key in PEM, without a password") from error

    def options(self) -> tuple[tuple[str, str], ...]:
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


def _no_password() -> str:
    raise ValueError("the key has a password")


def _read(path: str | Path | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
