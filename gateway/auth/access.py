"""Who a client is and what it may do: asked at CONNECT, and again whenever a user or a rule changes.

The truth is in the store. What is kept here for speed (rules by user, proven passwords) is forgotten with each change
that a commit tells of; connections that rest on what changed are closed or get other permissions.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from time import time
from typing import Final, NoReturn

from gateway.address import address
from gateway.auth.attempts import source_of
from gateway.auth.dialogue import Dialogue
from gateway.auth.identity import Identity
from gateway.auth.passwords import Passwords
from gateway.auth.permissions import Permissions, RuleBook
from gateway.auth.scram import (
    ITERATIONS,
    METHOD,
    NONCE_SIZE,
    ScramError,
    ServerExchange,
    WrongProof,
    mock_user,
)
from gateway.config import MqttConfig
from gateway.connection import Connection
from gateway.counters import Counters
from gateway.mqtt.encode import Explanation, auth
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Auth, Connect
from gateway.mqtt.reasons import ReasonCode
from gateway.refusal import Gone, Refused
from matcher.reserved import filter_of
from store.api import Commit, SessionState, Store, User
from store.api import Will as StoredWill
from store.errors import StoreError

_MAX_BOOKS: Final = 16_384  # rule books kept, of a user each
_SLICE: Final = 1000  # connections looked at in one turn of the loop
_WRONG: Final = "wrong user name or password"


class Access:
    """Asks the store who may come in, and keeps what it said true."""

    def __init__(
        self,
        store: Store,
        config: MqttConfig,
        counters: Counters,
        connections: Callable[[], list[Connection]],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        """connections: those with a session. spawn: runs a coroutine as long as the node runs."""
        self._store = store
        self._counters = counters
        self._connections = connections
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._passwords = Passwords(config.max_wrong_passwords)
        self._changes = 0  # commits that changed users or rules
        self._books: dict[bytes, RuleBook] = {}  # by user name, b"" for those who have none
        self._secret = User(b"", secrets.token_bytes(32), ITERATIONS, b"", b"")  # until there is one in the store
        store.on_commit(self._on_commit)

    def stop(self) -> None:
        self._passwords.stop()

    # --- who it is

    async def identify(self, connection: Connection, packet: Connect, client_id: bytes) -> Identity:
        """Who the client is, and what it may do. Raises Refused, Gone and StoreError."""
        gate = connection.gate
        arrival = connection.arrival
        identity = Identity(client_id, gate.allows_by_default)
        if arrival is not None and arrival.user_name is not None:
            identity.user_name = arrival.user_name
        dialogue = connection.dialogue
        if dialogue is not None:
            if "scram" not in gate.auth or dialogue.method != METHOD:
                raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "this authentication method is not offered")
            user, identity.proof = await self._converse(connection, dialogue, packet.authentication_data, client_id)
            if identity.user_name not in (b"", user.name):
                raise Refused(ReasonCode.NOT_AUTHORIZED, "the user name is not the certificate's")
            identity.prove(user)
            connection.dialogue = None
        elif "certificate" in gate.auth and arrival is not None and arrival.is_certified:
            pass
        elif "password" in gate.auth and (packet.username is not None or packet.password is not None):
            identity.prove(await self._check_password(connection, packet.username or b"", packet.password or b""))
        elif "anonymous" not in gate.auth:
            raise Refused(ReasonCode.NOT_AUTHORIZED, "this listener wants to know who you are")
        if gate.binds_client_ids and packet.client_id and (arrival is None or arrival.client_id is None):
            self._check_client_id(connection, identity)
        await self.renew(identity)
        if packet.will is not None and not _may_send(identity.permissions, packet.will.topic):
            raise Refused(ReasonCode.NOT_AUTHORIZED, "the will's topic may not be published to")
        return identity

    def _check_client_id(self, connection: Connection, identity: Identity) -> None:
        """Raises Refused."""
        if not identity.is_bound_to(identity.client_id):
            why = "the client id is to be the user name, or that, a colon and anything"
            self.refuse_session(connection, identity, why)

    def refuse_session(self, connection: Connection, identity: Identity, why: str) -> NoReturn:
        """Raises Refused."""
        self._counters.sessions_denied += 1
        who = f"client id {identity.client_id[:64]!r} of user {identity.user_name[:64]!r} from {connection.peer()}"
        connection.gate.tell("session", f"refusing {who}: {why}")
        raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why)

    async def renew(self, identity: Identity) -> bool:
        """Have the identity be that of the store as it is. Whether it was not. Raises Refused, StoreError."""
        if identity.changes == self._changes:
            return False
        while identity.changes != self._changes:
            changes = self._changes
            credential = identity.credential
            if credential is not None and await self._store.user(credential.name) != credential:
                raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _WRONG)
            book = await self._book(identity.user_name)
            identity.permissions = book.permissions(identity.client_id, identity.allows_by_default)
            identity.changes = changes
        return True

    async def _book(self, user_name: bytes) -> RuleBook:
        book = self._books.get(user_name)
        if book is not None:
            return book
        changes = self._changes
        rules = await self._store.rules(user_name) if user_name else []
        book = RuleBook([*rules, *await self._store.rules(b"")], user_name)
        if changes == self._changes:
            if len(self._books) >= _MAX_BOOKS:
                self._books.clear()
            self._books[user_name] = book
        return book

    # --- passwords

    async def _check_password(self, connection: Connection, name: bytes, password: bytes) -> User:
        """The user whose password it is. Unknown ones take the same steps. Raises Refused, StoreError."""
        user, is_known = await self._find(name)
        right = await self._passwords.is_right(user, password, source_of(connection.peer()))
        if not right or not is_known:
            self._failed(connection, name)
            raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, _WRONG)
        return user

    async def _find(self, name: bytes) -> tuple[User, bool]:
        """The user of that name, or one who looks like it from outside; and whether it is one."""
        secret = await self._store.user(b"") or self._secret
        user = await self._store.user(name) if name else None
        return (mock_user(name, secret), False) if user is None else (user, True)

    def _failed(self, connection: Connection, name: bytes) -> None:
        self._counters.logins_failed += 1
        connection.gate.tell("password", f"refusing {name[:64]!r} from {connection.peer()}: {_WRONG}")

    # --- AUTH packets

    async def _converse(
        self, connection: Connection, dialogue: Dialogue, data: bytes | None, client_id: bytes
    ) -> tuple[User, bytes]:
        """One SCRAM exchange: who it is, and the server's own proof. Raises Refused, Gone, StoreError."""
        known = connection.identity  # None: it is about to connect
        exchange = ServerExchange(secrets.token_bytes(NONCE_SIZE))
        source = source_of(connection.peer())
        try:
            exchange.begin(data if data is not None else await dialogue.ask(None))
            if known is not None and exchange.user_name != known.user_name:
                raise Refused(ReasonCode.NOT_AUTHORIZED, "a connection stays with its user")
            user, is_known = await self._find(exchange.user_name)
            final = await dialogue.ask(exchange.challenge(user))
            if known is None:  # else the wrong ones of others do not concern it, and its own one ends it
                await self._passwords.admit(user, source, client_id)
            proof = exchange.finish(final)
            if not is_known:
                raise WrongProof(_WRONG)
            self._passwords.was_proved(user, source, client_id)
        except WrongProof as error:
            self._passwords.was_disproved(user, source, client_id)
            self._failed(connection, exchange.user_name)
            raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, str(error)) from None
        except ScramError as error:
            raise Refused(ReasonCode.NOT_AUTHORIZED, f"SCRAM: {error}") from None
        return user, proof

    def auth(self, connection: Connection, packet: Auth) -> None:
        """AUTH of a client that has a session: it begins to authenticate again, or goes on (MQTT-4.12.1-1)."""
        dialogue = connection.dialogue
        if dialogue is None and packet.reason == ReasonCode.REAUTHENTICATE:
            seconds = connection.gate.connect_timeout
            connection.dialogue = Dialogue(connection, packet.authentication_method, seconds)
            self._spawn(self._authenticate_again(connection, connection.dialogue, packet.authentication_data))
        elif dialogue is None or not dialogue.answer(packet):
            connection.fail(ProtocolError("AUTH out of turn (section 4.12)", ReasonCode.PROTOCOL_ERROR))

    async def _authenticate_again(self, connection: Connection, dialogue: Dialogue, data: bytes | None) -> None:
        """What was allowed before stays so meanwhile; a failure ends the connection (MQTT-4.12.1-2)."""
        identity = connection.identity
        assert identity is not None
        try:
            user, proof = await self._converse(connection, dialogue, data, identity.client_id)
            if await self._store.user(user.name) != user:
                raise Refused(ReasonCode.NOT_AUTHORIZED, _WRONG)
        except Refused as refused:
            reason = refused.reason
            if reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD:  # which DISCONNECT does not have
                reason = ReasonCode.NOT_AUTHORIZED
            connection.close(reason, Explanation(str(refused).encode()))
        except StoreError as error:
            connection.append_failed(error)
        except Gone:
            pass
        else:
            identity.prove(user)
            connection.send(auth(ReasonCode.SUCCESS, dialogue.method, proof))
        finally:
            connection.dialogue = None

    # --- what it may do

    def forbidden(self, identity: Identity, state: SessionState) -> list[bytes]:
        """The filters of a session that the client may not subscribe to (any more)."""
        permissions = identity.permissions
        if permissions is None:
            return []
        return [s.topic_filter for s in state.subscriptions if not permissions.may_subscribe(s.topic_filter)]

    def withheld(self, identity: Identity, state: SessionState) -> list[int]:
        """Packet ids of messages that an earlier connection, perhaps another user's, left on their way by what the
        client may not subscribe to, whether the session still does or not. Retained values do not say by what they
        came: each is looked at when it would be sent again. Where PUBREC came, no message is sent again."""
        permissions = identity.permissions
        if permissions is None:
            return []
        names = {outbound.topic_filter for outbound in state.outbound if outbound.topic_filter}
        denied = {name for name in names if not permissions.may_subscribe(filter_of(name) or name)}
        return [each.packet_id for each in state.outbound if not each.released and each.topic_filter in denied]

    async def may_send(self, will: StoredWill) -> bool:
        """Whether a will may go where it goes, now that it is to be sent. Raises StoreError."""
        if will.is_account and await self._store.user(will.user_name) is None:
            return False
        book = await self._book(will.user_name)
        return _may_send(book.permissions(will.client_id, will.is_allowed), will.topic)

    # --- changes

    def _on_commit(self, commit: Commit) -> None:
        is_missed = commit.missed_from >= 0
        if commit.users or commit.rules or is_missed:
            self._changes += 1
            self._books.clear()
            self._spawn(self._apply(set(commit.users), set(commit.rules), is_missed))

    async def _apply(self, users: set[bytes], rules: set[bytes], is_missed: bool) -> None:
        """Close the connections whose password is no longer one, and give others their new permissions. `is_missed`:
        whose that are nobody was told."""
        connections = self._connections()
        for number, connection in enumerate(connections):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            identity = connection.identity
            if identity is None or connection.is_closed():
                continue
            is_users = identity.credential is not None and identity.user_name in users
            if is_users or b"" in rules or identity.user_name in rules or is_missed:
                await self._renew_live(connection, identity)

    async def _renew_live(self, connection: Connection, identity: Identity) -> None:
        try:
            await self.renew(identity)
        except Refused:
            connection.is_will_dropped = await self._is_removed(identity.user_name)
            why = Explanation(b"the user was changed or removed")
            connection.close(ReasonCode.ADMINISTRATIVE_ACTION, why)
            return
        except StoreError as error:
            connection.append_failed(error)
            return
        connection.permissions = identity.permissions
        if connection.is_closed() or self._keeps_within(connection, identity.permissions):
            return
        connection.close(ReasonCode.NOT_AUTHORIZED, Explanation(b"what it subscribed to is no longer allowed"))

    async def _is_removed(self, name: bytes) -> bool:
        try:
            return await self._store.user(name) is None
        except StoreError:
            return True  # nobody knows: what may not be sent is not

    def _keeps_within(self, connection: Connection, permissions: Permissions | None) -> bool:
        """Whether a connection may have what it has. A will that it may not is not sent."""
        session = connection.session
        if permissions is None or session is None:
            return True
        will = connection.will
        if will is not None and not _may_send(permissions, will.topic):
            connection.is_will_dropped = True
            return False
        names = {filter_of(name) or name for name in session.subscribing}
        names.update(session.subscriptions, session.shares)
        return all(permissions.may_subscribe(name) for name in names)


def _may_send(permissions: Permissions | None, topic: bytes) -> bool:
    """Whether a will may go where it goes: the topic was looked at when it came."""
    return permissions is None or permissions.may_publish(address(topic, int(time() * 1000), is_checked=True).topic)
