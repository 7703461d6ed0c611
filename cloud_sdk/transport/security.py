"""Credentials and TLS of the connection to a node."""

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
    """A user of the node and its password. They are sent as plain text: use TLS on networks that you do not trust."""

    user: str
    password: str = field(repr=False)

    def header(self) -> str:
        """Return the value of the header. Raises `InvalidArgument` for a user name that is empty or has a colon
        (RFC 7617)."""
        if ":" in self.user or not self.user:
            raise InvalidArgument(f"{self.user!r} is not a valid user name: it is empty or has a colon")
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(slots=True, frozen=True)
class Tls:
    """TLS to the node. Files are in PEM format, and are read when the client connects."""

    ca_file: str | Path | None = None  # trusted authorities; None: those of the system
    certificate_file: str | Path | None = None  # the client's own, for nodes that require one
    key_file: str | Path | None = None
    server_name: str | None = None  # expected in the node's certificate; None: the name in the endpoint

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read the files. Raises `InvalidArgument` for a file that cannot be read or is not valid."""
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument("certificate_file and key_file must be given together")
        authorities, key, certificate = _read(self.ca_file), _read(self.key_file), _read(self.certificate_file)
        self._check(authorities)
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def _check(self, authorities: bytes | None) -> None:
        """Check the files, since gRPC reports invalid files as a node that cannot be reached."""
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
                raise InvalidArgument(f"{both} are not a certificate and its key in PEM, without a password") from error

    def options(self) -> tuple[tuple[str, str], ...]:
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


def _no_password() -> str:
    raise ValueError("the key has a password")


def _read(path: str | Path | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
