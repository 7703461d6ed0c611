"""Users that log in with a password, the roles and rules that say what they may do, bans, and requests for access."""

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


@dataclass(slots=True, frozen=True)
class UserState:
    """What a user is beside its password and its rules."""

    roles: tuple[bytes, ...] = ()  # in the order in which their rules count
    is_super: bool = False  # may do everything, whatever rules say
    is_disabled: bool = False  # may do nothing, and is not let in


@dataclass(slots=True, frozen=True)
class Role:
    """Rules that users have together."""

    name: bytes
    rules: tuple[Rule, ...]
    inherits: tuple[bytes, ...]  # roles whose rules count behind its own


@dataclass(slots=True, frozen=True)
class Ban:
    """Somebody is not let in."""

    target: bytes  # `client:` and a client id, `user:` and a user name, or `address:` and a network
    until_ms: int  # from then on it does nothing; 0: it has no end
    since_ms: int  # store time
    by: bytes  # user who set it; b"": none
    reason: bytes


class Outcome(IntEnum):
    """What became of a request for access."""

    OPEN = 0
    APPROVED = 1
    DECLINED = 2
    EXPIRED = 3  # nobody decided in time


@dataclass(slots=True, frozen=True)
class AccessRequest:
    """A user asks for a rule, and somebody decides."""

    number: int  # position of its record
    user: bytes
    rule: Rule
    reason: bytes  # of the user
    since_ms: int  # store time
    until_ms: int  # nobody has decided by then: it has expired
    outcome: Outcome = Outcome.OPEN
    decision: int = -1  # how many decisions came before; -1: it is open
    by: bytes = b""  # user who decided; b"": the node, or somebody on its machine
    why: bytes = b""
    decided_ms: int = 0  # store time


class AccountStore(Protocol):
    """Reads of users, roles, rules, bans and requests for access."""

    async def user(self, name: bytes) -> User | None: ...

    async def users(self, after: bytes | None, limit: int) -> list[User]:
        """Up to `limit` users, sorted, from after `after` on. The first may have the empty name which is no user's. Its
        salt is the secret for the salts of unknown users."""

    async def rules(self, name: bytes) -> list[Rule]:
        """The rules for a user. The empty name has the rules for everybody."""

    async def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        """Up to `limit` (user name, rules) of users with rules, sorted, from after `after` on."""

    async def user_state(self, name: bytes) -> UserState:
        """Also of a name without a password, which a certificate may prove."""

    async def user_states(self, after: bytes | None, limit: int) -> list[tuple[bytes, UserState]]:
        """Up to `limit` (user name, state) of users whose state is not the usual one, sorted, from after `after` on."""

    async def role(self, name: bytes) -> Role | None: ...

    async def roles(self, after: bytes | None, limit: int) -> list[Role]:
        """Up to `limit` roles, sorted, from after `after` on."""

    async def ban(self, target: bytes) -> Ban | None:
        """The ban of a target. Its time may be over."""

    async def bans(self, after: bytes | None, limit: int) -> list[Ban]:
        """Up to `limit` bans, sorted by target, from after `after` on. The time of some may be over."""

    async def ban_count(self) -> int:
        """The number of bans, with those whose time is over."""

    async def access_request(self, number: int) -> AccessRequest | None:
        """A request that is open."""

    async def open_access_requests(self, user: bytes | None = None) -> list[AccessRequest]:
        """The requests that are open, of one user or (None) of all, the oldest first. The time of some may be over."""

    async def decided_access_requests(self, before: int, limit: int) -> list[AccessRequest]:
        """Up to `limit` requests whose `decision` is below `before`, the latest first."""
