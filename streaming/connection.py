"""How Spark's tasks and its driver reach a node: the options that source and sink share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cloud_sdk import Credentials, InvalidArgument, Tls
from cloud_sdk.blocking import Client
from cloud_sdk.connection import NodeConnection
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
    """A node, who calls it and what is trusted. Files are read where a task runs."""

    endpoint: str  # host:port of a node's gRPC front
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ConnectionOptions":
        """From options by name in lower case. Raises `OptionError`."""
        user, password = given.get("user"), given.get("password")
        if (user is None) != (password is None):
            raise OptionError("user and password need each other")
        ca, certificate, key = given.get("cafile"), given.get("certificatefile"), given.get("keyfile")
        server_name = given.get("servername")
        if (certificate is None) != (key is None):
            raise OptionError("certificateFile and keyFile need each other")
        named = any(value is not None for value in (ca, certificate, server_name))
        tls = None
        if boolean(given, "tls", default=named):
            tls = Tls(ca, certificate, key, server_name)
        elif named:
            raise OptionError("tls is false: caFile, certificateFile and serverName mean nothing then")
        options = cls(required(given, "endpoint"), user, password, tls)
        try:
            NodeConnection(options.endpoint, 0.0, options.credentials())  # which connects when it is used
        except InvalidArgument as error:
            raise OptionError(str(error)) from error
        return options

    def credentials(self) -> Credentials | None:
        return None if self.user is None else Credentials(self.user, self.password or "")

    def client(self, *, name: str | None = None) -> Client:
        """A client that is not connected yet."""
        return Client(self.endpoint, name=name, credentials=self.credentials(), tls=self.tls)
