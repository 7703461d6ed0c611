"""Users and rules of the store, for all fronts of a process: checks passwords, and answers what a user may do.

The truth is in the store. Caches (states and rules by user, proven passwords) are dropped when a commit changes users,
roles or rules. Fronts are called then, and check their clients again. Wrong passwords at all fronts are counted
together.
"""

import secrets
from collections.abc import Callable
from time import time
from typing import Final

from gateway.auth.attempts import source_of
from gateway.auth.audit import AuditLog
from gateway.auth.identity import Identity
from gateway.auth.passwords import Passwords
from gateway.auth.permissions import Permissions, RuleBook
from gateway.auth.refusal import ClientRefused
from gateway.auth.roles import rules_in_order
from gateway.auth.scram import ITERATIONS, mock_user
from gateway.config.audit import AuditConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.topics.destination import parse_destination
from store.api import Commit, Store, StoredWill, User, UserState
from store.commit_listeners import ACCOUNTS

_MAX_ACCOUNTS: Final = 16_384  # users in the cache
WRONG: Final = "wrong user name or password"
DISABLED: Final = "the user is disabled"

ChangeListener = Callable[[Commit], None]


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

    def __init__(self, store: Store, max_wrong_passwords: int, audit: AuditLog | None = None) -> None:
        """max_wrong_passwords: per minute and address; 0: no limit. audit: is stopped with this. None: there is no
        audit log."""
        self._store = store
        self.audit = audit or AuditLog(AuditConfig(), "")
        self.passwords = Passwords(max_wrong_passwords)
        self.changes = 0  # commits that changed users or rules
        self._accounts: dict[bytes, _Account] = {}  # by user name; b"": clients without a user
        self._secret = User(b"", secrets.token_bytes(32), ITERATIONS, b"", b"")  # used until the store has one
        self._listeners: list[ChangeListener] = []
        self.service_logins_failed = {"grpc": 0, "http": 0}  # of services; those of devices are in `Counters`
        store.on_commit(self._on_commit, ACCOUNTS)

    def stop(self) -> None:
        self.passwords.stop()
        self.audit.stop()

    def on_change(self, listener: ChangeListener) -> None:
        """Call `listener` with each commit that changed users or rules, or may have done so."""
        self._listeners.append(listener)

    # --- authentication

    async def check_password(self, name: bytes, password: bytes, peer: str) -> User:
        """Return the user of that name, if the password is right. Unknown names take the same steps.

        peer: see `gateway.auth.attempts.source_of`. Raises WrongPassword, ClientRefused when the password is not
        checked, StoreError.
        """
        user, is_known = await self.find_user(name)
        right = await self.passwords.is_right(user, password, source_of(peer))
        if not right or not is_known:
            raise WrongPassword
        return user

    async def find_user(self, name: bytes) -> tuple[User, bool]:
        """Return the user of that name and True, or a mock user and False. Raises StoreError."""
        secret = await self._store.user(b"") or self._secret
        user = await self._store.user(name) if name else None
        return (mock_user(name, secret), False) if user is None else (user, True)

    # --- authorization

    async def renew(self, identity: Identity) -> bool:
        """Bring the identity up to date with the store's users and rules. Returns whether it was out of date.

        Raises WrongPassword when its user was changed or removed, UserDisabled, StoreError.
        """
        if identity.changes == self.changes:
            return False
        while identity.changes != self.changes:
            changes = self.changes
            credential = identity.credential
            if credential is not None and await self._store.user(credential.name) != credential:
                raise WrongPassword
            account = await self._account(identity.user_name)
            if account.state.is_disabled:
                raise UserDisabled
            source = identity.source if account.names_sources else ""
            identity.permissions = account.permissions(identity.client_id, identity.allows_by_default, source)
            identity.changes = changes
        return True

    async def permissions(self, user_name: bytes, source: str) -> Permissions | None:
        """What rules allow a user: no default counts. None: it may do everything.

        source: see `gateway.auth.sources.host_of`. Raises StoreError.
        """
        return (await self._account(user_name)).permissions(b"", False, source)

    async def may_send_will(self, will: StoredWill) -> bool:
        """Whether the current rules allow a will that is to be sent. Raises StoreError."""
        if will.is_account and await self._store.user(will.user_name) is None:
            return False
        account = await self._account(will.user_name)
        if account.state.is_disabled:
            return False
        permissions = account.permissions(will.client_id, will.is_allowed, will.source.decode())
        return may_publish_will(permissions, will.topic)

    async def _account(self, user_name: bytes) -> "_Account":
        account = self._accounts.get(user_name)
        if account is not None:
            return account
        changes = self.changes
        state = await self._store.user_state(user_name) if user_name else UserState()
        owned = await rules_in_order(self._store, user_name, state)
        account = _Account(state, RuleBook([rule for _, rules in owned for rule in rules], user_name))
        if changes == self.changes:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                self._accounts.clear()
            self._accounts[user_name] = account
        return account

    def _on_commit(self, commit: Commit) -> None:
        self.changes += 1
        self._accounts.clear()
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


def login_failure_line(name: bytes, peer: str, why: str = WRONG) -> str:
    """The log line about a failed login."""
    return f"refusing {name[:64]!r} from {peer}: {why}"


def may_publish_will(permissions: Permissions | None, topic: bytes) -> bool:
    """Whether rules allow a will. Its topic was found valid when it came with CONNECT."""
    if permissions is None:
        return True
    return permissions.may_publish(parse_destination(topic, int(time() * 1000), is_checked=True).topic)
