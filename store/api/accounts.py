"""Users that log in with a password, and the rules that say what they may do."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class User:
    """A user that connects with a password, and the keys that verify it (RFC 5802, section 3)."""

    name: bytes
    salt: bytes
    iterations: int  # of PBKDF2 with HMAC-SHA-256
    stored_key: bytes  # 32 bytes
    server_key: bytes  # 32 bytes


@dataclass(slots=True, frozen=True)
class Rule:
    """Allows or denies publishing or subscribing to topics."""

    allow: bool
    publish: bool
    subscribe: bool
    topic_filter: bytes  # `%c` and `%u` as levels stand for the client id and the user name


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
