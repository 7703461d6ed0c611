"""The identity of a client: who it is, how that was proven, and what it may do."""

from gateway.auth.audit import AUTHORIZATION, AuditLog, Event
from gateway.auth.authenticators.authenticator import Grant
from gateway.auth.rules.permissions import Permissions
from gateway.auth.rules.rule_text import rule_text
from gateway.auth.rules.sources import host_of
from matcher.reserved import AUDIT, is_below, read_filter
from store.api import Action, User


class Identity:
    """The identity of one connection, or of one caller of gRPC or HTTP."""

    __slots__ = (
        "allows_by_default",
        "called",
        "changes",
        "client_id",
        "credential",
        "grant",
        "peer",
        "permissions",
        "proof",
        "user_name",
    )

    def __init__(self, client_id: bytes, allows_by_default: bool, peer: str) -> None:
        """peer: see `gateway.auth.rules.sources.host_of`."""
        self.client_id = client_id  # b"": none
        self.called = client_id  # the client id by which it may be banned
        self.allows_by_default = allows_by_default  # applies where no rule does
        self.peer = peer
        self.user_name = b""  # proven; b"": no user
        self.credential: User | None = None  # the user that its password was checked against
        self.grant: Grant | None = None  # of an authenticator that knows its user
        self.permissions: Permissions | None = None  # None: everything is allowed
        self.proof: bytes | None = None  # the server's SCRAM proof, for CONNACK
        self.changes = -1  # version of users, rules and bans that the permissions are based on

    @property
    def source(self) -> str:
        """See `gateway.auth.rules.sources.host_of`. Computed each time, because hardly any rules ask for it."""
        return host_of(self.peer)

    def note_topic(self, audit: AuditLog, allowed: bool, action: Action, topic: bytes, why: str = "") -> None:
        """Note in the audit log that the client may, or may not, PUB to a topic or SUB to a filter. Of what is allowed
        only some is noted, see `AuditConfig.sample`."""
        if not audit.is_on or (allowed and not (audit.sample and audit.is_sampled())):
            return
        if allowed and is_below(read_filter(topic), AUDIT):
            return  # who reads the events would make more of them
        rule = None if self.permissions is None else self.permissions.deciding_rule(action, topic)
        event = Event(
            AUTHORIZATION,
            allowed,
            action.name or "",
            f"topic:{topic.decode(errors='replace')}",
            user=self.user_name.decode(errors="replace"),
            client=self.client_id.decode(errors="replace"),
            source=self.source,
            rule="" if rule is None else rule_text(rule),
            why=why,
            sample=audit.sample if allowed else 0,
        )
        audit.note(event)

    def prove(self, user: User | Grant) -> None:
        """Record that the client has proven to be this user."""
        if isinstance(user, Grant):
            self.grant, self.credential, self.user_name = user, None, user.user
        else:
            self.grant, self.credential, self.user_name = None, user, user.name

    def may_use_session_of(self, owner: bytes) -> bool:
        """Whether the client may resume or replace a session. owner: its user; b"": none."""
        return not owner or owner == self.user_name

    def owns_client_id(self, client_id: bytes) -> bool:
        """Whether the client id is the user name, or the user name followed by a colon and anything."""
        return bool(self.user_name) and client_id.partition(b":")[0] == self.user_name
