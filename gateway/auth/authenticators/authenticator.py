"""What an authenticator is: something beside the node's own users that knows who has a name, password or token.

A plug-in is a distribution with an entry point in the group `sluice.authenticators`. It names a callable that takes the
options of the plug-in (`[[auth.plugins]]`) and returns an `Authenticator`. An example is in `examples/authenticator`.
"""

from dataclasses import dataclass, field
from time import time
from typing import Protocol

from gateway.auth.rules.sources import host_of
from store.api import Rule


@dataclass(slots=True, frozen=True)
class Credentials:
    """What a client or a caller has sent to say who it is."""

    name: bytes  # b"": none
    secret: bytes = field(repr=False)  # a password, or a token
    is_token: bool = False  # it came as `Bearer`, without a name
    client_id: bytes = b""  # of MQTT; b"": none
    front: str = "mqtt"  # "mqtt", "grpc" or "http"
    peer: str = ""  # see `gateway.auth.rules.sources.host_of`

    @property
    def source(self) -> str:
        """The address that they come from. Computed each time, because the node's own users do not ask for it."""
        return host_of(self.peer)


@dataclass(slots=True, frozen=True)
class Grant:
    """Who somebody is, and what that gives beside what the node's own rules for the name do."""

    user: bytes
    roles: tuple[bytes, ...] = ()  # of the node; unknown ones give nothing
    rules: tuple[Rule, ...] = ()  # count behind the user's own, and before those of roles
    is_super: bool = False
    expires: float = float("inf")  # seconds since 1970; the connection then ends

    def has_expired(self) -> bool:
        return self.expires <= time()


@dataclass(slots=True, frozen=True)
class Denial:
    """The credentials are wrong. Nobody else is asked."""

    why: str  # for the operator: clients are not told


class Unavailable(Exception):
    """The authenticator cannot answer now. The login is refused, and nobody else is asked. The text says why."""


class Authenticator(Protocol):
    """Knows users. Its methods run on the event loop and must not block it."""

    async def authenticate(self, credentials: Credentials) -> Grant | Denial | None:
        """Who it is. None: the next one in the chain may know. Raises Unavailable."""

    async def close(self) -> None:
        """Close what is open. Nothing is asked any more."""


@dataclass(slots=True, frozen=True)
class Link:
    """An authenticator in a chain."""

    name: str
    authenticator: Authenticator
    timeout_s: float
    max_parallel: int
    is_guessable: bool = True  # a secret may be found by trying: failures count, and answers are cached
