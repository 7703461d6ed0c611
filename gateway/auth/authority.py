"""Users and rules of the store, for all fronts of a process: checks passwords, and answers what a user may do.

The truth is in the store. Caches (states and rules by user, proven passwords) are dropped when a commit changes users,
roles or rules. Fronts are called then, and check their clients again. Wrong passwords at all fronts are counted
together.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import time
from typing import Final

from gateway.auth.attempts import source_of
from gateway.auth.audit import AuditLog
from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Link
from gateway.auth.authenticators.chain import Chain, Step
from gateway.auth.bans import Bans, ClientBanned
from gateway.auth.credentials.passwords import Passwords
from gateway.auth.credentials.scram import ITERATIONS, mock_user
from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientRefused
from gateway.auth.rules.permissions import Permissions, RuleBook, SampledPermissions
from gateway.auth.rules.roles import roles_in_order, rules_in_order
from gateway.auth.rules.sources import LOCAL
from gateway.config.audit import AuditConfig
from gateway.config.auth import USERS, AuthConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.topics.destination import parse_destination
from matcher.reserved import AUDIT
from store.api import Action, Commit, Resource, Rule, Store, StoredWill, User, UserState
from store.commit_listeners import ACCOUNTS

_MAX_ACCOUNTS: Final = 16_384  # users in the cache
# The last rule of everybody where the events of the audit log are messages: no default lets anybody read them.
_EVENTS: Final = Rule(False, int(Action.SUB), int(Resource.TOPIC), AUDIT + b"/#")
WRONG: Final = "wrong user name or password"
DISABLED: Final = "the user is disabled"
NOT_BASIC: Final = "authorization must be Basic, with user name and password"

ChangeListener = Callable[[Commit], None]
# The user name (b"": clients without a user), and what an authenticator gives it.
_AccountKey = tuple[bytes, tuple[()] | tuple[tuple[bytes, ...], tuple[Rule, ...], bool]]


class UserDisabled(ClientRefused):
    """The user is disabled. Only those who have proven to be that user learn it."""

    def __init__(self) -> None:
        super().__init__(ReasonCode.BANNED, DISABLED)


class WrongPassword(ClientRefused):
    """The password is wrong, or there is no such user: the answer does not tell which."""

    def __init__(self) -> None:
        super().__init__(ReasonCode.BAD_USER_NAME_OR_PASSWORD, WRONG)


class Authority:
    """The users and rules of a process. Create it on the loop, and `stop` it."""

    def __init__(
        self,
        store: Store,
        max_wrong_passwords: int,
        audit: AuditLog | None = None,
        config: AuthConfig | None = None,
        links: Iterable[Link] = (),
    ) -> None:
        """max_wrong_passwords: per minute and address; 0: no limit. audit, links: are stopped with this. audit: None:
        there is no audit log. config, links: who is asked about credentials; by default the store alone."""
        config = config or AuthConfig()
        self._store = store
        self.audit = audit or AuditLog(AuditConfig(), "")
        self.passwords = Passwords(max_wrong_passwords)
        self.chain = config.chain
        self._config = config
        self._chain = Chain(config, links, self.passwords, self._check_user)
        self.bans = Bans(store)
        self.changes = 0  # commits that changed users, rules or bans
        self._accounts: dict[_AccountKey, _Account] = {}
        self._secret = User(b"", secrets.token_bytes(32), ITERATIONS, b"", b"")  # used until the store has one
        self._listeners: list[ChangeListener] = []
        self.service_logins_failed = {"grpc": 0, "http": 0}  # of services; those of devices are in `Counters`
        store.on_commit(self._on_commit, ACCOUNTS)

    @property
    def cache_s(self) -> int:
        """Seconds after which it is asked again who a caller is that an authenticator knows."""
        return self._config.cache_s

    async def stop(self) -> None:
        self.passwords.stop()
        await self.audit.stop()
        await self._chain.close()

    def on_change(self, listener: ChangeListener) -> None:
        """Call `listener` with each commit that changed users, rules or bans, or may have done so."""
        self._listeners.append(listener)

    # --- authentication

    async def authenticate(self, credentials: Credentials, peer: str, steps: list[Step] | None = None) -> User | Grant:
        """Return who has the credentials. steps: see `Chain.authenticate`.

        peer: see `gateway.auth.attempts.source_of`. Raises WrongPassword, ClientRefused when they are not checked,
        StoreError.
        """
        if credentials.is_token and self.chain == [USERS]:
            raise ClientRefused(ReasonCode.BAD_AUTHENTICATION_METHOD, NOT_BASIC)
        found = await self._chain.authenticate(credentials, peer, steps)
        if found is None:
            raise WrongPassword
        return found

    async def _check_user(self, credentials: Credentials, peer: str, is_last: bool) -> User | Denial | None:
        """The link `users` of the chain. If no other is left, unknown names take the same steps as known ones."""
        if credentials.is_token:
            return None
        user, is_known = await self.find_user(credentials.name)
        if not is_known and not is_last:
            return None
        right = await self.passwords.is_right(user, credentials.secret, source_of(peer))
        return user if right and is_known else Denial("the password is wrong" if is_known else "there is no such user")

    async def find_user(self, name: bytes) -> tuple[User, bool]:
        """Return the user of that name and True, or a mock user and False. Raises StoreError."""
        secret = await self._store.user(b"") or self._secret
        user = await self._store.user(name) if name else None
        return (mock_user(name, secret), False) if user is None else (user, True)

    # --- authorization

    async def renew(self, identity: Identity) -> bool:
        """Bring the identity up to date with the store's users, rules and bans. Returns whether it was out of date.

        Raises WrongPassword when its user was changed or removed, UserDisabled, ClientBanned, StoreError.
        """
        if identity.changes == self.changes:
            return False
        while identity.changes != self.changes:
            changes = self.changes
            credential = identity.credential
            if credential is not None and await self._store.user(credential.name) != credential:
                raise WrongPassword
            await self.bans.check_identity(identity)
            account = await self._account(identity.user_name, identity.grant)
            if account.state.is_disabled:
                raise UserDisabled
            source = identity.source if account.names_sources else ""
            permissions = account.permissions(identity.client_id, identity.allows_by_default, source)
            if self.audit.sample:
                tell = partial(identity.note_topic, self.audit, True, Action.PUB)
                permissions = SampledPermissions(permissions, identity.client_id, tell)
            identity.permissions = permissions
            identity.changes = changes
        return True

    async def rules_of(self, user: User | Grant) -> tuple[UserState, list[tuple[str, Sequence[Rule]]]]:
        """The state and the rules of who has logged in; see `rules_in_order`. Raises StoreError."""
        if isinstance(user, User):
            state = await self._store.user_state(user.name)
            return state, await self._rules(user.name, state)
        state = _state_of(await self._store.user_state(user.user), user)
        return state, await self._rules(user.user, state, user.rules)

    async def permissions(self, identity: Identity, source: str) -> Permissions | None:
        """What rules allow a user: no default counts. None: it may do everything.

        source: see `gateway.auth.rules.sources.host_of`. Raises StoreError.
        """
        return (await self._account(identity.user_name, identity.grant)).permissions(b"", False, source)

    async def permissions_of(self, user_name: bytes) -> Permissions | None:
        """What rules allow a user by name, for what the node does as that user. None: it may do everything.

        Roles that an authenticator gives at a login do not count. Raises UserDisabled and StoreError.
        """
        account = await self._account(user_name)
        if account.state.is_disabled:
            raise UserDisabled
        return account.permissions(b"", False, LOCAL)

    async def roles_of(self, user_name: bytes) -> frozenset[bytes] | None:
        """The roles of a user by name, with those that they inherit. None: it may do everything. Raises StoreError."""
        state = await self._store.user_state(user_name)
        return (
            None if state.is_super else frozenset(role.name for role in await roles_in_order(self._store, state.roles))
        )

    async def may_send_will(self, will: StoredWill) -> bool:
        """Whether the current rules allow a will that is to be sent. Raises StoreError."""
        if will.is_account and await self._store.user(will.user_name) is None:
            return False
        source = will.source.decode()
        try:
            await self.bans.check(will.client_id, will.user_name, source)
        except ClientBanned:
            return False
        account = await self._account(will.user_name)
        if account.state.is_disabled:
            return False
        permissions = account.permissions(will.client_id, will.is_allowed, source)
        return may_publish_will(permissions, will.topic)

    async def _account(self, user_name: bytes, grant: Grant | None = None) -> "_Account":
        key = (user_name, () if grant is None else (grant.roles, grant.rules, grant.is_super))
        account = self._accounts.get(key)
        if account is not None:
            return account
        changes = self.changes
        state = await self._store.user_state(user_name) if user_name else UserState()
        if grant is not None:
            state = _state_of(state, grant)
        owned = await self._rules(user_name, state, () if grant is None else grant.rules)
        account = _Account(state, RuleBook([rule for _, rules in owned for rule in rules], user_name))
        if changes == self.changes:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                self._accounts.clear()
            self._accounts[key] = account
        return account

    async def _rules(
        self, user: bytes, state: UserState, granted: Sequence[Rule] = ()
    ) -> list[tuple[str, Sequence[Rule]]]:
        """See `rules_in_order`."""
        owned = await rules_in_order(self._store, user, state, granted)
        return [*owned, ("the node", [_EVENTS])] if self.audit.has_topic else owned

    def _on_commit(self, commit: Commit) -> None:
        self.changes += 1
        self.bans.changed(commit)
        if commit.users or commit.rules or commit.missed_from >= 0:
            self._accounts.clear()
            self._chain.forget()
        for listener in self._listeners:
            listener(commit)


class _Account:
    """A user's state and rules."""

    __slots__ = ("_book", "names_sources", "state")

    def __init__(self, state: UserState, book: RuleBook) -> None:
        self.state = state
        self.names_sources = book.names_sources
        self._book = book

    def permissions(self, client_id: bytes, default: bool, source: str) -> Permissions | None:
        """See `RuleBook.permissions`."""
        return None if self.state.is_super else self._book.permissions(client_id, default, source)


def _state_of(state: UserState, grant: Grant) -> UserState:
    """The state of a user with what an authenticator gives it. Whoever can choose a name there must not become a super
    user by that of one here."""
    return UserState((*state.roles, *grant.roles), grant.is_super, state.is_disabled)


def login_failure_line(name: bytes, peer: str, why: str = WRONG) -> str:
    """The log line about a failed login."""
    return f"refusing {name[:64]!r} from {peer}: {why}"


def may_publish_will(permissions: Permissions | None, topic: bytes) -> bool:
    """Whether rules allow a will. Its topic was found valid when it came with CONNECT."""
    if permissions is None:
        return True
    return permissions.may_publish(parse_destination(topic, int(time() * 1000), is_checked=True).topic)
