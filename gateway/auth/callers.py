"""Callers of gRPC and HTTP: who they are, and what they may do by the users and rules of devices.

A caller authenticates with every call: with user name and password (`authorization: Basic …`), with a token
(`authorization: Bearer …`), with the signature of an access key as RocketMQ clients do, or with a certificate. The
result is cached until a user, a rule or the access keys change; an answer of an authenticator also ends after a time.
After a change all cached callers, and those with a call under way, are checked again. So long calls and streams follow
the current rules.
"""

import asyncio
import binascii
import hashlib
import logging
import math
import secrets
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from gateway.auth.attempts import source_of
from gateway.auth.audit import AUTHENTICATION, AUTHORIZATION, AuditLog, Event
from gateway.auth.authenticators.authenticator import Credentials, Grant
from gateway.auth.authority import NOT_BASIC, WRONG, Authority, UserDisabled, WrongPassword, login_failure_line
from gateway.auth.bans import ClientBanned
from gateway.auth.credentials.access_keys import AccessKey, AccessKeys, Signature, signature_of
from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientRefused
from gateway.auth.rules.permissions import Permissions
from gateway.auth.rules.sources import host_of
from gateway.mqtt.reasons import ReasonCode
from gateway.observe.throttled_log import ThrottledLog
from store.api import Action, Commit, Resource, User
from store.errors import StoreError

log = logging.getLogger(__name__)

_MAX_KNOWN: Final = 16_384  # callers in the cache; the oldest is dropped first
_FORGED: Final = "wrong access key or signature"
_CHECK_S: Final = 2.0  # seconds between checks of the file of access keys, and for callers whose time is over


class Caller(Identity):
    """A caller. It changes with users and rules, and long calls look at it again."""

    __slots__ = ("__weakref__", "_audit", "good_until", "is_revoked", "key", "refusal")

    def __init__(
        self, allows_by_default: bool, peer: str, key: AccessKey | None = None, audit: AuditLog | None = None
    ) -> None:
        super().__init__(b"", allows_by_default, peer)
        self._audit = audit
        self.is_revoked = False  # its user or key was changed, removed or disabled, or it is banned
        self.refusal: ClientRefused | None = None  # why, if the caller may know it
        self.good_until = math.inf  # monotonic seconds after which its next call is authenticated again
        self.key = key  # the key that it signs with
        if key is not None:
            self.user_name = key.user

    def may_publish(self, topic: bytes) -> bool:
        return self.permissions is None or self.permissions.may_publish(topic)

    def may_read(self, topic_filter: bytes) -> bool:
        allowed = self.permissions is None or self.permissions.may_subscribe(topic_filter)
        if allowed and self._audit is not None and self._audit.sample:
            self.note_topic(self._audit, True, Action.SUB, topic_filter)
        return allowed

    def note_denial(self, action: str, resource: str, why: str) -> None:
        """Note in the audit log that the caller was refused something. action: a method."""
        if self._audit is not None and self._audit.is_on:
            user = self.user_name.decode(errors="replace")
            self._audit.note(Event(AUTHORIZATION, False, action, resource, user, source=self.source, why=why))

    def note_denied_topic(self, action: Action, topic: bytes, why: str) -> None:
        """Note in the audit log that the caller may not PUB to a topic, or SUB to a filter."""
        if self._audit is not None:
            self.note_topic(self._audit, False, action, topic, why)

    def may_list(self, topic_filter: bytes) -> bool:
        """Whether it may know of all topics that the filter matches."""
        return self.permissions is None or self.permissions.may_look(Action.LIST, topic_filter)

    def decide(self, action: Action, kind: Resource, name: bytes, is_prefix: bool = False) -> bool | None:
        """See `Permissions.decide`. Where everything is allowed unless a rule denies it, the answer is never None."""
        permissions = self.permissions
        verdict = None if permissions is None else permissions.decide(action, kind, name, is_prefix)
        return True if verdict is None and (permissions is None or self.allows_by_default) else verdict


class Callers:
    """The callers of one front. Create it on the loop, and `stop` it."""

    def __init__(
        self,
        authority: Authority,
        front: str,
        auth: Sequence[str],
        acl_default: str = "",
        keys: AccessKeys | None = None,
    ) -> None:
        """front: "grpc" or "http". auth: "anonymous", "password", "certificate", "signature". acl_default: "allow",
        "deny", or "" for "deny" unless callers may be anonymous. keys: for signatures."""
        self._keys = keys if "signature" in auth else None
        self._authority = authority
        self._front = front
        self._auth = frozenset(auth)
        self._allows_by_default = acl_default == "allow" or (not acl_default and self._auth == {"anonymous"})
        self._throttled_log = ThrottledLog(log, f"{front}: ")
        self._key = secrets.token_bytes(32)
        self.audit = authority.audit
        self.successes = 0  # callers that were not known before
        self._known: dict[bytes, Caller] = {}
        self._live: WeakSet[Caller] = WeakSet()  # cached callers, and those of calls under way
        self._ends_by_time = False  # there was a caller whose authentication ends by time
        self._changed = asyncio.Event()
        self._renewing = asyncio.get_running_loop().create_task(self._renew_all())
        authority.on_change(self._on_change)

    async def stop(self) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def permissions_by_rules(self, caller: Caller) -> Permissions | None:
        """What rules allow a caller: no default counts. None: it may do everything. Raises StoreError."""
        return await self._authority.permissions(caller, caller.source)

    async def identify(
        self,
        authorization: str | None,
        certificate_name: bytes | None,
        peer: str,
        signed: str | None = None,
        client_id: str = "",
    ) -> Caller:
        """Authenticate a call. The arguments and the errors are those of `_identify`. The audit log has what fails, and
        what succeeds for the first time."""
        known = self.successes
        try:
            caller = await self._identify(authorization, certificate_name, peer, signed, client_id)
        except ClientRefused as refused:
            user = _claimed(authorization, certificate_name)
            self._note(False, user, peer, str(refused))
            raise
        if self.successes != known:
            self._note(True, caller.user_name.decode(errors="replace"), peer, "")
        return caller

    def _note(self, allowed: bool, user: str, peer: str, why: str) -> None:
        self.audit.note(Event(AUTHENTICATION, allowed, self._front, user=user, source=host_of(peer), why=why))

    async def _identify(
        self,
        authorization: str | None,
        certificate_name: bytes | None,
        peer: str,
        signed: str | None,
        client_id: str,
    ) -> Caller:
        """Authenticate a call.

        authorization: the header, if there is one. certificate_name: from a verified certificate. peer: see
        `gateway.auth.attempts.source_of`. signed: the time that RocketMQ clients sign. client_id: theirs. Raises
        ClientRefused and StoreError.
        """
        source, called = host_of(peer), client_id.encode(errors="replace")
        await self._authority.bans.check(called, b"", source)
        key: AccessKey | None = None
        signature = signature_of(authorization, signed) if authorization is not None else None
        if signature is not None:  # RocketMQ clients always send one; without a key it means nothing
            authorization = None
            if self._keys is not None and signature.key:
                key = await self._check_signature(signature, self._keys, peer)
        if key is not None:
            about = b"s" + key.name.encode() + b"\0" + key.user + b"\0" + key.secret
        elif "password" in self._auth and authorization is not None:
            about = b"p" + authorization.encode(errors="replace")
        elif "certificate" in self._auth and certificate_name:
            about = b"c" + certificate_name
        elif "anonymous" in self._auth:
            about = b"a"
        else:
            text = f"authentication is required: {' or '.join(sorted(self._auth))}"
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, text)
        about = b"\0".join((about, source.encode(), called))
        digest = hashlib.blake2b(about, key=self._key, digest_size=32).digest()
        caller = self._known.get(digest)
        if caller is not None and caller.good_until <= time.monotonic():
            del self._known[digest]
            caller = None
        if caller is None:
            caller = Caller(self._allows_by_default, peer, key, self.audit)
            caller.called = called
            if about[:1] == b"p":
                self._prove(caller, await self._check(authorization or "", peer))
            elif about[:1] == b"c":
                caller.user_name = certificate_name or b""
            self._live.add(caller)
        await self._renew(caller)
        if caller.refusal is not None:
            raise caller.refusal
        if caller.is_revoked:
            raise ClientRefused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, WRONG if key is None else _FORGED)
        if digest not in self._known and len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        if digest not in self._known:
            self.successes += 1
        self._known[digest] = caller
        return caller

    def _prove(self, caller: Caller, user: User | Grant) -> None:
        caller.prove(user)
        if caller.grant is not None:
            caller.good_until = time.monotonic() + self._authority.cache_s
            if caller.grant.expires < math.inf and not self._ends_by_time:
                self._ends_by_time = True
                self._changed.set()

    async def _check(self, authorization: str, peer: str) -> User | Grant:
        """Return the user whose name and password, or token, are in the header. Raises ClientRefused, StoreError."""
        name, secret, is_token = _parse(authorization)
        credentials = Credentials(name, secret, is_token, front=self._front, peer=peer)
        try:
            return await self._authority.authenticate(credentials, peer)
        except WrongPassword:
            self._failed(name, peer, WRONG)
            raise

    async def _check_signature(self, signature: Signature, keys: AccessKeys, peer: str) -> AccessKey:
        """Return the key of a signature. A wrong one counts as a wrong password. Raises ClientRefused."""
        name = signature.key.encode(errors="replace")
        key = keys.find(signature.key)
        digest = hashlib.blake2b(b"" if key is None else key.secret, key=self._key, digest_size=32).digest()
        credential = User(name, b"", 0, digest, b"")
        passwords, source = self._authority.passwords, source_of(peer)
        await passwords.admit(credential, source, name)
        if key is None or not signature.is_of(key, time.time()):
            passwords.proof_failed(credential, source, name)
            self._failed(name, peer, _FORGED)
            raise ClientRefused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _FORGED)
        passwords.proof_succeeded(credential, source, name)
        return key

    def _failed(self, name: bytes, peer: str, why: str) -> None:
        self._authority.service_logins_failed[self._front] += 1
        self._throttled_log.warning("password", login_failure_line(name, peer, why))

    async def _renew(self, caller: Caller) -> None:
        """Bring a caller up to date with the store and the access keys. Raises StoreError."""
        if caller.key is not None and (self._keys is None or self._keys.find(caller.key.name) != caller.key):
            caller.is_revoked = True
            return
        if caller.grant is not None and caller.grant.has_expired():
            caller.is_revoked = True
            return
        try:
            await self._authority.renew(caller)
        except WrongPassword:
            caller.is_revoked = True
        except (UserDisabled, ClientBanned) as refused:
            caller.is_revoked = True
            caller.refusal = refused

    # --- changes

    def _on_change(self, _: Commit) -> None:
        self._changed.set()

    def _end_expired(self) -> None:
        """End what callers do whose token has expired."""
        if self._ends_by_time:
            for caller in list(self._live):
                if caller.grant is not None and caller.grant.has_expired():
                    caller.is_revoked = True

    async def _renew_all(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S if self._keys is not None or self._ends_by_time else None):
                    await self._changed.wait()
            self._end_expired()
            has_other_keys = self._keys is not None and await asyncio.to_thread(self._keys.reload)
            if not has_other_keys and not self._changed.is_set():
                continue
            self._changed.clear()
            for caller in list(self._live):
                try:
                    await self._renew(caller)
                except StoreError:
                    caller.is_revoked = True  # unknown: the caller has to authenticate again
            self._known = {digest: caller for digest, caller in self._known.items() if not caller.is_revoked}


def _parse(authorization: str) -> tuple[bytes, bytes, bool]:
    """Parse user name and password (RFC 7617), or a token (RFC 6750), and which it is. Raises ClientRefused."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return b"", encoded.strip().encode(errors="replace"), True
    try:
        name, colon, password = b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        colon = b""
    if scheme.lower() != "basic" or not colon:
        raise ClientRefused(ReasonCode.BAD_AUTHENTICATION_METHOD, NOT_BASIC)
    return name, password, False


def _claimed(authorization: str | None, certificate_name: bytes | None) -> str:
    """The user, or the access key, that a caller claims to be; "" if that cannot be told."""
    if authorization is None:
        return (certificate_name or b"").decode(errors="replace")
    signature = signature_of(authorization, None)
    if signature is not None:
        return signature.key
    try:
        return _parse(authorization)[0].decode(errors="replace")
    except ClientRefused:
        return ""
