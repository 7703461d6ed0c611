"""Who a connection's client is, what proved it, and what it may do."""

from gateway.auth.permissions import Permissions
from store.api import User


class Identity:
    """Of one connection."""

    __slots__ = ("allows_by_default", "changes", "client_id", "credential", "permissions", "proof", "user_name")

    def __init__(self, client_id: bytes, allows_by_default: bool) -> None:
        self.client_id = client_id
        self.allows_by_default = allows_by_default  # what no rule speaks of
        self.user_name = b""  # proven; b"": nobody in particular
        self.credential: User | None = None  # what its password was held against
        self.permissions: Permissions | None = None  # None: everything is allowed
        self.proof: bytes | None = None  # the server's own, for CONNACK
        self.changes = -1  # of users and rules, that the permissions rest on

    def prove(self, user: User) -> None:
        """The client knows the password of this user."""
        self.credential = user
        self.user_name = user.name

    def may_take_over(self, other: "Identity | None") -> bool:
        """Whether a session that the other is connected to may go on here: a user's is not for others."""
        return other is None or not other.user_name or other.user_name == self.user_name
