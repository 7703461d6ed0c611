"""The options of source and sink that say how Spark's driver and tasks connect to a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cloud_sdk import Credentials, InvalidArgument, Tls
from cloud_sdk.blocking import Client
from cloud_sdk.transport.connection import NodeConnection
from streaming.option_values import OptionError, boolean, required

CONNECTION_OPTIONS: Final = (
    "endpoint",
    "user",
    "password",
    "tls",
    "caFile",
    "certificateFile",
    "keyFile",
    "serverName",
)


@dataclass(slots=True, frozen=True)
class ConnectionOptions:
    """Addresses of nodes, the credentials and the TLS settings. Files are read on the machine of the task."""

    endpoint: str  # host:port of the gRPC listener of a node, or of several, separated by commas
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ConnectionOptions":
        """Parse options by their names in lower case. Raises `OptionError`."""
        user, password = given.get("user"), given.get("password")
        if (user is None) != (password is None):
            raise OptionError("user and password must be given together")
        ca, certificate, key = given.get("cafile"), given.get("certificatefile"), given.get("keyfile")
        server_name = given.get("servername")
        if (certificate is None) != (key is None):
            raise OptionError("certificateFile and keyFile must be given together")
        named = any(value is not None for value in (ca, certificate, server_name))
        tls = None
        if boolean(given, "tls", default=named):
            tls = Tls(ca, certificate, key, server_name)
        elif named:
            raise OptionError("caFile, certificateFile and serverName need tls, which is false")
        options = cls(required(given, "endpoint"), user, password, tls)
        try:
            NodeConnection(options.endpoint, 0.0, options.credentials())  # only checks the endpoints
        except InvalidArgument as error:
            raise OptionError(str(error)) from error
        return options

    def credentials(self) -> Credentials | None:
        return None if self.user is None else Credentials(self.user, self.password or "")

    def client(self, *, name: str | None = None) -> Client:
        """Return a client that is not connected yet."""
        return Client(self.endpoint, name=name, credentials=self.credentials(), tls=self.tls)
