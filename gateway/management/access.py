"""Users and rules: listed, changed, and explained.

A running node serves this. For a node that is stopped, the command does so itself over the data folder.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from gateway.auth.rule_text import RuleError, parse_request, parse_rule, rule_text
from gateway.auth.scram import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, SALT_SIZE, new_user
from gateway.auth.sources import LOCAL, host_of
from gateway.broker.append import append
from gateway.management.acl_check import OwnedRule, Question, UnusableName, judge
from gateway.management.paging import MAX_PAGE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.status import RequestError, invalid
from matcher.names import is_valid_filter, is_valid_topic
from store import control
from store.api import Action, Resource, Store, User

MAX_RULES: Final = 256  # of a user, and of everybody
_MAX_NAME: Final = 1024  # bytes
_MAX_PASSWORD: Final = 65_535  # bytes: that of MQTT
_KEY_SIZE: Final = 32  # bytes


class AccessService:
    """Implements the service `Access`."""

    def __init__(self, store: Store, end_session: Callable[[bytes], Awaitable[object]] | None = None) -> None:
        """end_session: ends a session on the running node. None: no node is running."""
        self._store = store
        self._end_session = end_session or self._end_stored
        self._changing = asyncio.Lock()  # no user comes or goes between a check and its record

    # --- users

    async def list_users(self, request: pb.ListUsersRequest, _manager: Manager) -> pb.ListUsersReply:
        limit = page_size(request.limit, MAX_PAGE)
        users = await self._store.users(request.after.encode(), limit)  # without the entry of the node's own secret
        reply = pb.ListUsersReply(users=[_shown(user) for user in users])
        if len(users) == limit:
            reply.after = users[-1].name.decode()
        return reply

    async def create_user(self, request: pb.CreateUserRequest, _manager: Manager) -> pb.User:
        user = await _user(request)
        async with self._changing:
            if await self._store.user(user.name) is not None:
                text = f"there is a user {request.name!r} already: passwd gives another password"
                raise RequestError(grpc.StatusCode.ALREADY_EXISTS, text)
            frames = [control.user_set(user)]
            if await self._store.user(b"") is None:
                nobody = User(b"", secrets.token_bytes(_KEY_SIZE), user.iterations, bytes(_KEY_SIZE), bytes(_KEY_SIZE))
                frames.insert(0, control.user_set(nobody))
            await append(self._store, frames)
        return _shown(user)

    async def change_password(self, request: pb.ChangePasswordRequest, _manager: Manager) -> pb.User:
        user = await _user(request)
        async with self._changing:
            await self._expect(user.name)
            await append(self._store, [control.user_set(user)])
        return _shown(user)

    async def delete_user(self, request: pb.DeleteUserRequest, _manager: Manager) -> pb.DeleteUserReply:
        """Also ends the sessions after a removal that was interrupted."""
        name = user_name(request.name)
        async with self._changing:
            is_there = await self._store.user(name) is not None
            if is_there:
                await append(self._store, [control.UserRemoved().frame(name)])
            count = await self._end_sessions(name)
            if not is_there and not count:
                await self._expect(name)
        return pb.DeleteUserReply(sessions=count)

    async def _end_sessions(self, name: bytes) -> int:
        """End the sessions of a user: nobody else could resume them before they expire."""
        count = 0
        after: bytes | None = None
        while True:
            client_ids, after = await self._store.sessions_of(name, after)
            for client_id in client_ids:
                await self._end_session(client_id)
            count += len(client_ids)
            if after is None:
                return count
            await asyncio.sleep(0)

    async def _end_stored(self, client_id: bytes) -> None:
        """End a stored session of a node that is stopped, and drop its will."""
        state = await self._store.session_row(client_id)
        if state is not None:
            epoch = state.epoch
            ends = [control.WillDropped(epoch).frame(client_id), control.SessionEnded(epoch).frame(client_id)]
            await append(self._store, ends)

    async def _expect(self, name: bytes) -> None:
        if await self._store.user(name) is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no user {name.decode()!r}")

    # --- rules

    async def set_rules(self, request: pb.SetRulesRequest, _manager: Manager) -> pb.SetRulesReply:
        if not request.HasField("user"):
            raise invalid("say whose rules these are: name the user, who is empty for everybody")
        name = user_name(request.user) if request.user else b""
        try:
            rules = [parse_rule(text) for text in request.rules]
        except RuleError as error:
            raise invalid(str(error)) from error
        if len(rules) > MAX_RULES:
            raise invalid(f"there may be at most {MAX_RULES} rules; placeholders may help")
        async with self._changing:
            await append(self._store, [control.RulesSet(rules).frame(name)])
        return pb.SetRulesReply(is_user=await self._is_user(name))

    async def list_rules(self, request: pb.ListRulesRequest, _manager: Manager) -> pb.ListRulesReply:
        limit = page_size(request.limit, MAX_PAGE)
        page = await self._store.rules_of_all(after_of(request), limit)
        reply = pb.ListRulesReply()
        for name, rules in page:
            reply.rules.add(user=name.decode(), rules=[rule_text(rule) for rule in rules])
        if len(page) == limit:
            reply.after = page[-1][0].decode()
        return reply

    async def check_rules(self, request: pb.CheckRulesRequest, _manager: Manager) -> pb.CheckRulesReply:
        name = request.user.encode()
        try:
            action, kind, resource, is_prefix = parse_request(request.action, request.resource)
        except RuleError as error:
            raise invalid(str(error)) from error
        if kind == Resource.TOPIC and not _is_valid(action, resource.encode()):
            raise invalid(f"{resource!r} is not a topic" + ("" if action == Action.PUB else " filter"))
        source = request.source if request.source == LOCAL else host_of(f"[{request.source}]:0")
        if request.source and not source:
            raise invalid(f"{request.source!r} is not an address, nor {LOCAL!r}")
        reply = pb.CheckRulesReply(is_user=await self._is_user(name))
        asked = Question(name, request.client_id.encode(), source, action, kind, resource.encode(), is_prefix)
        try:
            verdict = judge(asked, await self._rules_of(name), request.by_default)
        except UnusableName as error:
            reply.because = f"regardless of rules: {error}"
            return reply
        reply.allowed, reply.because = verdict.allowed, verdict.because
        for rule, outcome in verdict.steps:
            reply.steps.add(rule=rule, outcome=outcome)
        return reply

    async def _rules_of(self, name: bytes) -> list[OwnedRule]:
        """The rules that apply to a user, in the order in which they count."""
        found: list[OwnedRule] = []
        for owner in (name, b"") if name else (b"",):
            whose = owner.decode() or "everybody"
            for number, rule in enumerate(await self._store.rules(owner), 1):
                found.append(OwnedRule(rule, f"rule {number} of {whose}"))
        return found

    async def _is_user(self, name: bytes) -> bool:
        """Whether the name is a user's, or empty for everybody. Other names may come from certificates."""
        return not name or await self._store.user(name) is not None


def user_name(text: str) -> bytes:
    """Check and encode a user name. Raises `RequestError`."""
    name = text.encode()
    if not 0 < len(name) <= _MAX_NAME or not text.isprintable():
        raise invalid(f"a user name has 1 to {_MAX_NAME} bytes and no control characters; {text[:40]!r} is invalid")
    return name


def _is_valid(action: Action, name: bytes) -> bool:
    return is_valid_topic(name) if action == Action.PUB else is_valid_filter(name)


def _shown(user: User) -> pb.User:
    return pb.User(name=user.name.decode(), iterations=user.iterations)


async def _user(request: pb.CreateUserRequest | pb.ChangePasswordRequest) -> User:
    """The user of a request, with keys derived of its password. Raises `RequestError`."""
    name = user_name(request.name)
    match request.WhichOneof("secret"):
        case "keys":
            return _with_keys(name, request.keys)
        case "password" if 0 < len(request.password.encode()) <= _MAX_PASSWORD:
            salt = secrets.token_bytes(SALT_SIZE)
            return await asyncio.to_thread(new_user, name, request.password.encode(), salt, ITERATIONS)
    raise invalid(f"a password has 1 to {_MAX_PASSWORD} bytes")


def _with_keys(name: bytes, keys: pb.ScramKeys) -> User:
    user = User(name, keys.salt, keys.iterations, keys.stored_key, keys.server_key)
    if not MIN_ITERATIONS <= user.iterations <= MAX_ITERATIONS:
        raise invalid(f"iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not 8 <= len(user.salt) <= 64 or len(user.stored_key) != _KEY_SIZE or len(user.server_key) != _KEY_SIZE:
        raise invalid("the salt has 8 to 64 bytes, and each key 32")
    return user
