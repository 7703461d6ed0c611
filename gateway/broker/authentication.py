"""Authentication of MQTT clients at CONNECT and by AUTH, and the effect of changed users and rules on connections."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from math import inf
from time import time
from typing import Final, NoReturn

from gateway.auth.attempts import source_of
from gateway.auth.audit import AUTHENTICATION, Event
from gateway.auth.authenticators.authenticator import Credentials, Grant
from gateway.auth.authority import (
    WRONG,
    Authority,
    UserDisabled,
    WrongPassword,
    login_failure_line,
    may_publish_will,
)
from gateway.auth.bans import BanIndex, ClientBanned, of_targets
from gateway.auth.credentials.scram import METHOD, NONCE_SIZE, ScramError, ServerExchange, WrongProof
from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientGone, ClientRefused
from gateway.auth.rules.permissions import Permissions
from gateway.auth.rules.sources import host_of
from gateway.connection.connection import Connection
from gateway.connection.enhanced_auth import EnhancedAuthentication
from gateway.mqtt.encode import Explanation, auth
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Auth, Connect, Will
from gateway.mqtt.reasons import ReasonCode
from gateway.observe.counters import Counters
from gateway.schemas.payload_checks import PayloadChecks
from gateway.topics.destination import parse_destination
from matcher.cover import Shape
from matcher.names import is_shared
from matcher.reserved import filter_of, read_filter
from store.api import AccountStore, Action, Commit, Outbound, Resource, SessionState, User
from store.errors import StoreError

_LONGEST_TIMER_S: Final = 86_400.0  # the clock may be set meanwhile
_SLICE: Final = 1000  # connections checked in one turn of the loop


class Authentication:
    """Authenticates the clients of all listeners of a node."""

    def __init__(
        self,
        store: AccountStore,
        authority: Authority,
        counters: Counters,
        connections: Callable[[], list[Connection]],
        spawn: Callable[[Coroutine[object, None, None]], None],
        payload_checks: PayloadChecks,
    ) -> None:
        """connections: returns those with a session. spawn: runs a coroutine as a task of the node."""
        self._payload_checks = payload_checks
        self._store = store
        self._authority = authority
        self._counters = counters
        self._connections = connections
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        authority.on_change(self._on_change)

    # --- CONNECT

    async def identify(self, connection: Connection, packet: Connect, client_id: bytes) -> Identity:
        """Authenticate a client and find its permissions. Raises ClientRefused, ClientGone and StoreError."""
        enhanced_auth = connection.enhanced_auth
        try:
            identity = await self._identify(connection, packet, client_id)
        except ClientRefused as refused:
            claimed = packet.username or b"" if enhanced_auth is None else enhanced_auth.user_name
            self._note("CONNECT", connection, client_id, claimed, str(refused))
            raise
        self._note("CONNECT", connection, client_id, identity.user_name, "")
        return identity

    def _note(self, action: str, connection: Connection, client_id: bytes, user: bytes, refusal: str) -> None:
        """Note an authentication in the audit log."""
        audit = self._authority.audit
        if audit.is_on:
            name, client = user.decode(errors="replace"), client_id.decode(errors="replace")
            source = host_of(connection.peer())
            audit.note(Event(AUTHENTICATION, not refusal, action, "", name, client, source, why=refusal))

    def note_topic(self, connection: Connection, allowed: bool, action: Action, topic: bytes) -> None:
        """Note in the audit log that rules allow or deny a message or a filter, see `Identity.note_topic`."""
        if connection.identity is not None:
            connection.identity.note_topic(self._authority.audit, allowed, action, topic)

    async def _identify(self, connection: Connection, packet: Connect, client_id: bytes) -> Identity:
        admission = connection.admission
        info = connection.info
        identity = Identity(client_id, admission.allows_by_default, connection.peer())
        await self._authority.bans.check_identity(identity)  # before the work that a password is
        if info is not None and info.user_name is not None:
            identity.user_name = info.user_name
        enhanced_auth = connection.enhanced_auth
        if enhanced_auth is not None:
            if "scram" not in admission.auth or enhanced_auth.method != METHOD:
                raise ClientRefused(ReasonCode.BAD_AUTHENTICATION_METHOD, "this authentication method is not offered")
            user, identity.proof = await self._run_scram(
                connection, enhanced_auth, packet.authentication_data, client_id
            )
            if identity.user_name not in (b"", user.name):
                raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "the user name differs from the certificate's")
            identity.prove(user)
            connection.enhanced_auth = None
        elif "certificate" in admission.auth and info is not None and info.is_certified:
            pass
        elif "password" in admission.auth and (packet.username is not None or packet.password is not None):
            identity.prove(await self._check_password(connection, packet, identity))
            if info is not None and info.user_name not in (None, identity.user_name):
                raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "the user name differs from the certificate's")
        elif "anonymous" not in admission.auth:
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "this listener requires authentication")
        if admission.binds_client_ids and packet.client_id and (info is None or info.client_id is None):
            self._check_client_id(connection, identity)
        await self._authority.renew(identity)
        if not _may_open_session(identity.permissions, client_id):
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "rules deny a session with this client id")
        if packet.will is not None and not may_publish_will(identity.permissions, packet.will.topic):
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "the will's topic may not be published to")
        if packet.will is not None and self._payload_checks.is_active:
            self._check_payload(packet.will)
        return identity

    def _check_payload(self, will: Will) -> None:
        """Hold a will against the schemas of its topic, as with messages. Raises ClientRefused."""
        topic = parse_destination(will.topic, int(time() * 1000), is_checked=True).topic
        fault = None if will.retain and not will.payload else self._payload_checks.fault(topic, will.payload)
        if fault is None:
            return
        if fault.mode == "refuse":
            raise ClientRefused(ReasonCode.PAYLOAD_FORMAT_INVALID, f"of the will, {fault.reason}")
        will.add_properties(fault.properties(topic))
        if fault.quarantine:
            will.redirect(fault.quarantine)

    def _check_client_id(self, connection: Connection, identity: Identity) -> None:
        """Raise ClientRefused unless the client id belongs to the user."""
        if not identity.owns_client_id(identity.client_id):
            why = "the client id must be the user name, or the user name followed by a colon and anything"
            self.refuse_session(connection, identity, why)

    def refuse_session(self, connection: Connection, identity: Identity, why: str) -> NoReturn:
        """Count and log a client id of another user, and raise ClientRefused."""
        self._counters.sessions_denied += 1
        who = f"client id {identity.client_id[:64]!r} of user {identity.user_name[:64]!r} from {connection.peer()}"
        connection.admission.warn("session", f"refusing {who}: {why}", identity.client_id)
        raise ClientRefused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why)

    async def _check_password(self, connection: Connection, packet: Connect, identity: Identity) -> User | Grant:
        """Return the user if the password is right. Raises ClientRefused, StoreError."""
        name = packet.username or b""
        password = packet.password or b""
        credentials = Credentials(name, password, client_id=identity.client_id, peer=identity.peer)
        try:
            return await self._authority.authenticate(credentials, connection.peer())
        except WrongPassword:
            self._failed(connection, name)
            raise

    def _failed(self, connection: Connection, name: bytes) -> None:
        self._counters.logins_failed += 1
        connection.admission.warn("password", login_failure_line(name, connection.peer()), connection.client_id)

    # --- AUTH packets

    async def _run_scram(
        self, connection: Connection, enhanced_auth: EnhancedAuthentication, data: bytes | None, client_id: bytes
    ) -> tuple[User, bytes]:
        """Run a SCRAM exchange. Returns the user and the server's proof.

        Raises ClientRefused, ClientGone, StoreError.
        """
        known = connection.identity  # None: it is connecting
        exchange = ServerExchange(secrets.token_bytes(NONCE_SIZE))
        passwords, source = self._authority.passwords, source_of(connection.peer())
        try:
            exchange.begin(data if data is not None else await enhanced_auth.ask(None))
            enhanced_auth.user_name = exchange.user_name
            if known is not None and exchange.user_name != known.user_name:
                raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "re-authentication must be for the same user")
            user, is_known = await self._authority.find_user(exchange.user_name)
            final = await enhanced_auth.ask(exchange.challenge(user))
            if known is None:  # a re-authentication is not limited: its first failure ends the connection
                await passwords.admit(user, source, client_id)
            proof = exchange.finish(final)
            if not is_known:
                raise WrongProof(WRONG)
            passwords.proof_succeeded(user, source, client_id)
        except WrongProof as error:
            passwords.proof_failed(user, source, client_id)
            self._failed(connection, exchange.user_name)
            raise WrongPassword from error
        except ScramError as error:
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, f"SCRAM: {error}") from None
        return user, proof

    def auth(self, connection: Connection, packet: Auth) -> None:
        """Handle AUTH of a client with a session: it starts or continues a re-authentication (MQTT-4.12.1-1)."""
        enhanced_auth = connection.enhanced_auth
        if enhanced_auth is None and packet.reason == ReasonCode.REAUTHENTICATE:
            seconds = connection.admission.connect_timeout
            connection.enhanced_auth = EnhancedAuthentication(connection, packet.authentication_method, seconds)
            self._spawn(self._authenticate_again(connection, connection.enhanced_auth, packet.authentication_data))
        elif enhanced_auth is None or not enhanced_auth.answer(packet):
            connection.fail(ProtocolError("AUTH out of turn (section 4.12)", ReasonCode.PROTOCOL_ERROR))

    async def _authenticate_again(
        self, connection: Connection, enhanced_auth: EnhancedAuthentication, data: bytes | None
    ) -> None:
        """Re-authenticate. Permissions stay the same meanwhile; a failure ends the connection (MQTT-4.12.1-2)."""
        identity = connection.identity
        assert identity is not None
        try:
            user, proof = await self._run_scram(connection, enhanced_auth, data, identity.client_id)
            if await self._store.user(user.name) != user:
                raise ClientRefused(ReasonCode.NOT_AUTHORIZED, WRONG)
        except ClientRefused as refused:
            self._note("AUTH", connection, identity.client_id, enhanced_auth.user_name, str(refused))
            reason = refused.reason
            if reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD:  # not a reason of DISCONNECT
                reason = ReasonCode.NOT_AUTHORIZED
            connection.close(reason, Explanation(str(refused).encode()))
        except StoreError as error:
            connection.append_failed(error)
        except ClientGone:
            pass
        else:
            identity.prove(user)
            self._note("AUTH", connection, identity.client_id, user.name, "")
            connection.send(auth(ReasonCode.SUCCESS, enhanced_auth.method, proof))
        finally:
            connection.enhanced_auth = None

    # --- the end of a grant

    def end_in_time(self, connection: Connection, grant: Grant) -> None:
        """Close the connection when what its client has authenticated with expires."""
        if grant.expires < inf:
            seconds = min(max(0.0, grant.expires - time()), _LONGEST_TIMER_S)
            connection.forget_expiry = self._loop.call_later(seconds, self._expired, connection).cancel

    def _expired(self, connection: Connection) -> None:
        connection.forget_expiry = None
        grant = None if connection.identity is None else connection.identity.grant
        if grant is None or connection.is_closed():
            return
        if grant.has_expired():
            connection.close(ReasonCode.MAXIMUM_CONNECT_TIME, Explanation(b"the credentials have expired"))
        else:
            self.end_in_time(connection, grant)

    # --- restored sessions

    def forbidden_filters(self, identity: Identity, state: SessionState) -> list[bytes]:
        """The filters of a stored session that rules do not allow (any more)."""
        permissions = identity.permissions
        if permissions is None:
            return []
        return [s.topic_filter for s in state.subscriptions if not permissions.may_subscribe(s.topic_filter)]

    def forbidden_outbound(self, identity: Identity, state: SessionState) -> list[Outbound]:
        """The unacknowledged messages of a stored session whose filters rules do not allow.

        Retained values have no filter: they are checked when they are sent again. So are messages that a remaining
        subscription may match. After PUBREC no message is sent again.
        """
        permissions = identity.permissions
        if permissions is None:
            return []
        names = {outbound.topic_filter for outbound in state.outbound if outbound.topic_filter}
        denied = {name for name in names if not permissions.may_subscribe(filter_of(name) or name)}
        if denied:
            filters = [each.topic_filter for each in state.subscriptions if not is_shared(each.topic_filter)]
            left = [Shape(each) for each in filters if permissions.may_subscribe(each)]
            denied = {name for name in denied if not any(map(Shape(filter_of(name) or name).overlaps, left))}
        return [each for each in state.outbound if not each.released and each.topic_filter in denied]

    # --- changes

    def _on_change(self, commit: Commit) -> None:
        banned = of_targets(commit.bans)
        self._spawn(self._apply(set(commit.users), set(commit.rules), banned, commit.missed_from >= 0))

    async def _apply(self, users: set[bytes], rules: set[bytes], banned: BanIndex, is_missed: bool) -> None:
        """Close connections whose user was changed or removed, and those that are banned, and update the permissions of
        others.

        is_missed: commits were missed, so any user, rule or ban may have changed.
        """
        connections = self._connections()
        for number, connection in enumerate(connections):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            identity = connection.identity
            if identity is None or connection.is_closed():
                continue
            is_users = identity.credential is not None and identity.user_name in users
            is_theirs = is_users or b"" in rules or identity.user_name in rules
            if is_theirs or is_missed or _concern(banned, identity):
                await self._renew_live(connection, identity)

    async def _renew_live(self, connection: Connection, identity: Identity) -> None:
        try:
            await self._authority.renew(identity)
        except ClientRefused as refused:
            is_shut_out = isinstance(refused, (UserDisabled, ClientBanned))
            connection.is_will_dropped = is_shut_out or await self._is_removed(identity.user_name)
            why = Explanation(str(refused).encode() if is_shut_out else b"the user was changed or removed")
            connection.close(ReasonCode.ADMINISTRATIVE_ACTION, why)
            return
        except StoreError as error:
            connection.append_failed(error)
            return
        connection.permissions = identity.permissions
        if connection.is_closed() or self._is_allowed(connection, identity.permissions):
            return
        connection.close(ReasonCode.NOT_AUTHORIZED, Explanation(b"the session or a subscription is no longer allowed"))

    async def _is_removed(self, name: bytes) -> bool:
        try:
            return await self._store.user(name) is None
        except StoreError:
            return True  # unknown: the will is not sent

    def _is_allowed(self, connection: Connection, permissions: Permissions | None) -> bool:
        """Whether rules allow the session, the will and all subscriptions of a connection.

        A will that they deny is not sent.
        """
        session = connection.session
        if permissions is None or session is None:
            return True
        will = connection.will
        if will is not None and not may_publish_will(permissions, will.topic):
            connection.is_will_dropped = True
            return False
        if not _may_open_session(permissions, session.client_id):
            return False
        names = {read_filter(name) for name in (*session.subscribing.names, *session.bounded_replays)}
        names.update(session.subscriptions.filters(), session.shares)
        return all(permissions.may_subscribe(name) for name in names)


def _concern(banned: BanIndex, identity: Identity) -> bool:
    """Whether bans concern a client."""
    return bool(banned) and banned.find_identity(identity, 0) is not None


def _may_open_session(permissions: Permissions | None, client_id: bytes) -> bool:
    """Whether a client may have a session with its client id: unless a rule denies it."""
    return permissions is None or permissions.decide(Action.CREATE, Resource.SESSION, client_id) is not False
