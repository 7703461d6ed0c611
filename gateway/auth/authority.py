"""Users and rules of the store, for all fronts of a process: checks passwords, and answers what a user may do.

The truth is in the store. Caches (rules by user, proven passwords) are dropped when a commit changes users or rules.
Fronts are called then, and check their clients again. Wrong passwords at all fronts are counted together.
"""

import secrets
from collections.abc import Callable
from time import time
from typing import Final

from gateway.auth.attempts import source_of
from gateway.auth.identity import Identity
from gateway.auth.passwords import Passwords
from gateway.auth.permissions import Permissions, RuleBook
from gateway.auth.refusal import ClientRefused
from gateway.auth.scram import ITERATIONS, mock_user
from gateway.mqtt.reasons import ReasonCode
from gateway.topics.destination import parse_destination
from store.api import Commit, Store, StoredWill, User
from store.commit_listeners import ACCOUNTS

_MAX_RULE_BOOKS: Final = 16_384  # rule books in the cache, one for each user
WRONG: Final = "wrong user name or password"

ChangeListener = Callable[[Commit], None]


class WrongPassword(ClientRefused):
    """The password is wrong, or there is no such user: the answer does not tell which."""

    def __init__(self) -> None:
        super().__init__(ReasonCode.BAD_USER_NAME_OR_PASSWORD, WRONG)


class Authority:
    """The users and rules of a process. Create it on the loop, and `stop` it."""

    def __init__(self, store: Store, max_wrong_passwords: int) -> None:
        """max_wrong_passwords: per minute and address; 0: no limit."""
        self._store = store
        self.passwords = Passwords(max_wrong_passwords)
        self.changes = 0  # commits that changed users or rules
        self._rule_books: dict[bytes, RuleBook] = {}  # by user name; b"": clients without a user
        self._secret = User(b"", secrets.token_bytes(32), ITERATIONS, b"", b"")  # used until the store has one
        self._listeners: list[ChangeListener] = []
        self.service_logins_failed = {"grpc": 0, "http": 0}  # of services; those of devices are in `Counters`
        store.on_commit(self._on_commit, ACCOUNTS)

    def stop(self) -> None:
        self.passwords.stop()

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

        Raises ClientRefused when its user was changed or removed, StoreError.
        """
        if identity.changes == self.changes:
            return False
        while identity.changes != self.changes:
            changes = self.changes
            credential = identity.credential
            if credential is not None and await self._store.user(credential.name) != credential:
                raise WrongPassword
            book = await self._rule_book(identity.user_name)
            identity.permissions = book.permissions(identity.client_id, identity.allows_by_default, identity.source)
            identity.changes = changes
        return True

    async def permissions(self, user_name: bytes, source: str) -> Permissions:
        """What rules allow a user: no default counts. source: see `gateway.auth.sources.host_of`. Raises StoreError."""
        permissions = (await self._rule_book(user_name)).permissions(b"", False, source)
        assert permissions is not None  # without a default, some things are not allowed
        return permissions

    async def may_send_will(self, will: StoredWill) -> bool:
        """Whether the current rules allow a will that is to be sent. Raises StoreError."""
        if will.is_account and await self._store.user(will.user_name) is None:
            return False
        book = await self._rule_book(will.user_name)
        return may_publish_will(book.permissions(will.client_id, will.is_allowed, will.source.decode()), will.topic)

    async def _rule_book(self, user_name: bytes) -> RuleBook:
        book = self._rule_books.get(user_name)
        if book is not None:
            return book
        changes = self.changes
        rules = await self._store.rules(user_name) if user_name else []
        book = RuleBook([*rules, *await self._store.rules(b"")], user_name)
        if changes == self.changes:
            if len(self._rule_books) >= _MAX_RULE_BOOKS:
                self._rule_books.clear()
            self._rule_books[user_name] = book
        return book

    def _on_commit(self, commit: Commit) -> None:
        self.changes += 1
        self._rule_books.clear()
        for listener in self._listeners:
            listener(commit)


def login_failure_line(name: bytes, peer: str, why: str = WRONG) -> str:
    """The log line about a failed login."""
    return f"refusing {name[:64]!r} from {peer}: {why}"


def may_publish_will(permissions: Permissions | None, topic: bytes) -> bool:
    """Whether rules allow a will. Its topic was found valid when it came with CONNECT."""
    if permissions is None:
        return True
    return permissions.may_publish(parse_destination(topic, int(time() * 1000), is_checked=True).topic)
