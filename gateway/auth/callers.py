"""Who calls a front for services or people (gRPC, HTTP), and what the caller may do: the users and rules of devices.

A caller says who it is with every call: user name and password as HTTP has them (`authorization: Basic …`), the
signature of an access key as RocketMQ's clients have it, or a certificate. What was found out is remembered until a
user, a rule or the access keys change; then all who are remembered, or still have a call, are looked at again, so that
calls that last, and streams, follow the rules of the day.
"""

import asyncio
import binascii
import hashlib
import secrets
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from gateway.auth.access_keys import AccessKey, AccessKeys, Signature, signature_of
from gateway.auth.passwords import Passwords
from gateway.auth.permissions import Permissions, RuleBook
from gateway.auth.scram import ITERATIONS, mock_user
from gateway.mqtt.reasons import ReasonCode
from gateway.refusal import Refused
from store.api import Commit, Store, User
from store.errors import StoreError

_MAX_KNOWN: Final = 16_384  # callers that are remembered; the first is forgotten first
_BASIC: Final = "basic "
_WRONG: Final = "wrong user name or password"
_FORGED: Final = "wrong access key or signature"
_LOOK_S: Final = 2.0  # whether the file of access keys has changed
WAYS: Final = ("anonymous", "password", "certificate", "signature")


class Caller:
    """Somebody who calls. Calls that last look at it again and again: it changes when users and rules do."""

    __slots__ = ("__weakref__", "changes", "credential", "is_revoked", "key", "permissions", "user_name")

    def __init__(self, user_name: bytes = b"", credential: User | None = None, key: AccessKey | None = None) -> None:
        self.user_name = user_name  # b"": nobody in particular
        self.credential = credential  # what its password was held against
        self.key = key  # what it signs with
        self.permissions: Permissions | None = None  # None: everything is allowed
        self.is_revoked = False  # its user was changed or removed
        self.changes = -1  # of users and rules, that this rests on

    def may_publish(self, topic: bytes) -> bool:
        return self.permissions is None or self.permissions.may_publish(topic)

    def may_read(self, topic_filter: bytes) -> bool:
        return self.permissions is None or self.permissions.may_subscribe(topic_filter)


class Callers:
    """Of one front. Starts with the node's loop; `stop` it."""

    def __init__(
        self,
        store: Store,
        auth: Sequence[str],
        acl_default: str,
        max_wrong_passwords: int,
        keys: AccessKeys | None = None,
    ) -> None:
        """auth: ways of `WAYS`. acl_default: "allow", "deny", or "" for "deny" where callers have to say who they are.
        max_wrong_passwords: a minute and address; 0: any number. keys: for signatures."""
        self._keys = keys if "signature" in auth else None
        self._store = store
        self._auth = frozenset(auth)
        self._allows_by_default = acl_default == "allow" or (not acl_default and self._auth == {"anonymous"})
        self._passwords = Passwords(max_wrong_passwords)
        self._key = secrets.token_bytes(32)
        self._secret = User(b"", secrets.token_bytes(32), ITERATIONS, b"", b"")  # until there is one in the store
        self._known: dict[bytes, Caller] = {}
        self._there: WeakSet[Caller] = WeakSet()  # those, and whose calls last: two that come at once make two of one
        self._changes = 0
        self._changed = asyncio.Event()
        self._renewing = asyncio.get_running_loop().create_task(self._renew_all())
        store.on_commit(self._on_commit)

    async def stop(self) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._passwords.stop()

    @property
    def asks(self) -> bool:
        """Whether somebody has to say who it is."""
        return "anonymous" not in self._auth

    async def identify(
        self, authorization: str | None, certificate_name: bytes | None, source: str, signed: str | None = None
    ) -> Caller:
        """Who calls. authorization: the header, if there is one. certificate_name: of one that was vouched for.
        source: the address, see `gateway.auth.attempts.source_of`. signed: the time that RocketMQ's clients sign.
        Raises Refused and StoreError."""
        key: AccessKey | None = None
        signature = signature_of(authorization, signed) if authorization is not None else None
        if signature is not None:  # RocketMQ's clients send one always: without a key it says nothing
            authorization = None
            if self._keys is not None and signature.key:
                key = await self._check_signature(signature, self._keys, source)
        if key is not None:
            about = b"s" + key.name.encode() + b"\0" + key.user + b"\0" + key.secret
        elif "password" in self._auth and authorization is not None:
            about = b"p" + authorization.encode(errors="replace") + b"\0" + source.encode()
        elif "certificate" in self._auth and certificate_name:
            about = b"c" + certificate_name
        elif "anonymous" in self._auth:
            about = b"a"
        else:
            raise Refused(ReasonCode.NOT_AUTHORIZED, f"say who you are: {' or '.join(sorted(self._auth))}")
        digest = hashlib.blake2b(about, key=self._key, digest_size=32).digest()
        caller = self._known.get(digest)
        if caller is None:
            caller = (
                await self._new(about[:1], authorization or "", certificate_name or b"", source)
                if key is None
                else Caller(key.user, key=key)
            )
            self._there.add(caller)
        while caller.changes != self._changes and not caller.is_revoked:
            await self._renew(caller)
        if caller.is_revoked:
            raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _WRONG if key is None else _FORGED)
        if digest not in self._known and len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[digest] = caller
        return caller

    async def _new(self, way: bytes, authorization: str, certificate_name: bytes, source: str) -> Caller:
        if way == b"p":
            user = await self._check(authorization, source)
            return Caller(user.name, user)
        return Caller(certificate_name if way == b"c" else b"")

    async def _check(self, authorization: str, source: str) -> User:
        """The user whose name and password the header has. Raises Refused, StoreError."""
        name, password = _read(authorization)
        user = await self._store.user(name) if name else None
        held = user or mock_user(name, await self._store.user(b"") or self._secret)
        right = await self._passwords.is_right(held, password, source)
        if user is None or not right:
            raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _WRONG)
        return user

    async def _check_signature(self, signature: Signature, keys: AccessKeys, source: str) -> AccessKey:
        """The key that a signature is of. What is wrong counts as a wrong password does. Raises Refused."""
        name = signature.key.encode(errors="replace")
        key = keys.find(signature.key)
        digest = hashlib.blake2b(b"" if key is None else key.secret, key=self._key, digest_size=32).digest()
        held = User(name, b"", 0, digest, b"")
        await self._passwords.admit(held, source, name)
        if key is None or not signature.is_of(key, time.time()):
            self._passwords.was_disproved(held, source, name)
            raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _FORGED)
        self._passwords.was_proved(held, source, name)
        return key

    async def _renew(self, caller: Caller) -> None:
        """Have the caller be as the store and the access keys say. Raises StoreError."""
        changes, name = self._changes, caller.user_name
        if caller.key is not None and (self._keys is None or self._keys.find(caller.key.name) != caller.key):
            caller.is_revoked = True
            return
        if caller.credential is not None and await self._store.user(name) != caller.credential:
            caller.is_revoked = True
            return
        rules = await self._store.rules(name) if name else []
        book = RuleBook([*rules, *await self._store.rules(b"")], name)
        caller.permissions = book.permissions(b"", self._allows_by_default)
        caller.changes = changes

    # --- changes

    def _on_commit(self, commit: Commit) -> None:
        if commit.users or commit.rules or commit.missed_from >= 0:  # whose that were nobody was told
            self._changes += 1
            self._changed.set()

    async def _renew_all(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._keys is None else _LOOK_S):
                    await self._changed.wait()
            if self._keys is not None and await asyncio.to_thread(self._keys.reload):
                self._changes += 1
            elif not self._changed.is_set():
                continue
            self._changed.clear()
            for caller in list(self._there):
                try:
                    await self._renew(caller)
                except StoreError:
                    caller.is_revoked = True  # nobody knows: it may call again
            self._known = {digest: caller for digest, caller in self._known.items() if not caller.is_revoked}


def _read(authorization: str) -> tuple[bytes, bytes]:
    """User name and password of a header (RFC 7617). Raises Refused."""
    if authorization[: len(_BASIC)].lower() != _BASIC:
        raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "authorization is Basic, with user name and password")
    try:
        name, colon, password = b64decode(authorization[len(_BASIC) :], validate=True).partition(b":")
    except (binascii.Error, ValueError):
        colon = b""
    if not colon:
        raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "authorization is Basic, with user name and password")
    return name, password
