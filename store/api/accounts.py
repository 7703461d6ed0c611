"""Users that log in with a password, and the rules that say what they may do."""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Protocol


@dataclass(slots=True, frozen=True)
class User:
    """A user that connects with a password, and the keys that verify it (RFC 5802, section 3)."""

    name: bytes
    salt: bytes
    iterations: int  # of PBKDF2 with HMAC-SHA-256
    stored_key: bytes  # 32 bytes
    server_key: bytes  # 32 bytes


class Action(IntFlag):
    """What somebody does to a resource."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    LIST = 32
    GET = 64


ALL_ACTIONS = 127


class Resource(IntEnum):
    """The kinds of resources."""

    CLUSTER = 1  # an area of the node or the cluster, such as `store`
    TOPIC = 2
    GROUP = 3
    SESSION = 4  # by client id


@dataclass(slots=True, frozen=True)
class Rule:
    """Allows or denies actions on resources of a kind."""

    allow: bool
    actions: int  # bits of `Action`
    kind: int  # a `Resource`
    # Of the resource; for topics a filter. `%c` and `%u` stand for client id and user name, in filters as whole levels.
    name: bytes
    is_prefix: bool = False  # all resources whose name begins so
    sources: tuple[str, ...] = ()  # networks such as `10.0.0.0/8`, or `local` for Unix sockets; empty: from everywhere


class AccountStore(Protocol):
    """Reads of users and rules."""

    async def user(self, name: bytes) -> User | None: ...

    async def users(self, after: bytes | None, limit: int) -> list[User]:
        """Up to `limit` users, sorted, from after `after` on. The first may have the empty name which is no user's. Its
        salt is the secret for the salts of unknown users."""

    async def rules(self, name: bytes) -> list[Rule]:
        """The rules for a user. The empty name has the rules for everybody."""

    async def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        """Up to `limit` (user name, rules) of users with rules, sorted, from after `after` on."""
