"""Who somebody is, what proved it, and what he may do."""

from gateway.auth.permissions import Permissions
from store.api import User


class Identity:
    """Of one connection, or of who calls a front for services or people."""

    __slots__ = ("allows_by_default", "changes", "client_id", "credential", "permissions", "proof", "user_name")

    def __init__(self, client_id: bytes, allows_by_default: bool) -> None:
        self.client_id = client_id  # b"": none
        self.allows_by_default = allows_by_default  # what no rule speaks of
        self.user_name = b""  # proven; b"": nobody in particular
        self.credential: User | None = None  # what its password was held against
        self.permissions: Permissions | None = None  # None: everything is allowed
        self.proof: bytes | None = None  # the server's own, for CONNACK
        self.changes = -1  # of users and rules, that the permissions rest on

    def prove(self, user: User) -> None:
        """It knows the password of this user."""
        self.credential = user
        self.user_name = user.name

    def may_use_session_of(self, owner: bytes) -> bool:
        """Whether a session may go on here, or be begun anew: a user's is not for others. owner: b"" for nobody."""
        return not owner or owner == self.user_name

    def owns_client_id(self, client_id: bytes) -> bool:
        """Whether the client id is one of the user's own: the name, or the name, a colon and anything."""
        return bool(self.user_name) and client_id.partition(b":")[0] == self.user_name
