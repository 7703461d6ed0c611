"""Users, roles and rules: listed, changed, and explained.

A running node serves this. For a node that is stopped, the command does so itself over the data folder.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc

from gateway.auth.credentials.scram import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, SALT_SIZE, new_user
from gateway.auth.rules.roles import MAX_ROLES, MAX_ROLES_OF_USER, RoleError, check_roles, rules_in_order
from gateway.auth.rules.rule_text import RuleError, parse_request, parse_rule, rule_text
from gateway.auth.rules.sources import LOCAL, host_of
from gateway.broker.append import append
from gateway.management.areas.acl_check import OwnedRule, Question, UnusableName, judge
from gateway.management.paging import AT_ONCE, MAX_PAGE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import CLUSTER, UPDATE
from gateway.management.rights import Manager, require_one
from gateway.rpc.status import RequestError, invalid
from matcher.names import is_valid_filter, is_valid_topic
from store import control
from store.api import Action, Resource, Role, Rule, Store, User, UserState

MAX_RULES: Final = 256  # of a user, and of everybody
_MAX_NAME: Final = 1024  # bytes
_SHOWN_USERS: Final = 5  # in an error
_MAX_ENDING: Final = 64  # sessions that end at a time: their records are written together, and devices have their turn
_MAX_PASSWORD: Final = 65_535  # bytes: that of MQTT
_KEY_SIZE: Final = 32  # bytes


class AccessService:
    """Implements the service `Access`."""

    def __init__(self, store: Store, end_session: Callable[[bytes], Awaitable[object]] | None = None) -> None:
        """end_session: ends a session on the running node. None: no node is running."""
        self._store = store
        self._end_session = end_session or self._end_stored
        self.changing = asyncio.Lock()  # no user comes or goes between a check and its record

    # --- users

    async def list_users(self, request: pb.ListUsersRequest, _manager: Manager) -> pb.ListUsersReply:
        limit = page_size(request.limit, MAX_PAGE)
        after = request.after.encode()  # without the entry of the node's own secret
        found = {user.name: user for user in await self._store.users(after, limit)}
        states = dict(await self._store.user_states(after, limit))
        names = sorted({*found, *states})[:limit]
        reply = pb.ListUsersReply()
        for name in names:
            reply.users.append(_shown(name, found.get(name), states.get(name, UserState())))
        if len(names) == limit:
            reply.after = names[-1].decode()
        return reply

    async def create_user(self, request: pb.CreateUserRequest, manager: Manager) -> pb.User:
        user = await _user(request)
        async with self.changing:
            await self._require_over(manager, user.name)
            # Whoever may only add users gets nothing by adding one that has rights already.
            if await self._store.rules(user.name) or await self._store.user_state(user.name) != UserState():
                await require_one(manager, UPDATE, CLUSTER, "access")
            if await self._store.user(user.name) is not None:
                text = f"there is a user {request.name!r} already: passwd gives another password"
                raise RequestError(grpc.StatusCode.ALREADY_EXISTS, text)
            frames = [control.user_set(user)]
            if await self._store.user(b"") is None:
                nobody = User(b"", secrets.token_bytes(_KEY_SIZE), user.iterations, bytes(_KEY_SIZE), bytes(_KEY_SIZE))
                frames.insert(0, control.user_set(nobody))
            await append(self._store, frames)
            return await self._shown(user.name)

    async def change_password(self, request: pb.ChangePasswordRequest, manager: Manager) -> pb.User:
        user = await _user(request)
        async with self.changing:
            await self._require_over(manager, user.name)
            await self._expect(user.name)
            await append(self._store, [control.user_set(user)])
            return await self._shown(user.name)

    async def update_user(self, request: pb.UpdateUserRequest, manager: Manager) -> pb.User:
        name = user_name(request.name)
        async with self.changing:
            await self._require_over(manager, name)
            if request.super_user and not await manager.is_super():
                raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "only a super user can make a super user")
            state = await self._store.user_state(name)
            roles = state.roles
            if request.HasField("roles"):
                roles = tuple(dict.fromkeys(_role_name(each) for each in request.roles.names))
                if len(roles) > MAX_ROLES_OF_USER:
                    raise invalid(f"a user has at most {MAX_ROLES_OF_USER} roles")
                await self._expect_roles(roles)
            is_super = request.super_user if request.HasField("super_user") else state.is_super
            is_disabled = request.disabled if request.HasField("disabled") else state.is_disabled
            if UserState(roles, is_super, is_disabled) != state:
                await append(self._store, [control.UserChanged(roles, is_super, is_disabled).frame(name)])
            return await self._shown(name)

    async def delete_user(self, request: pb.DeleteUserRequest, manager: Manager) -> pb.DeleteUserReply:
        """Also ends the sessions after a removal that was interrupted."""
        name = user_name(request.name)
        async with self.changing:
            await self._require_over(manager, name)
            is_there = await self._store.user(name) is not None or await self._store.user_state(name) != UserState()
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
            for at in range(0, len(client_ids), _MAX_ENDING):
                ends = [self._end_session(client_id) for client_id in client_ids[at : at + _MAX_ENDING]]
                for outcome in await asyncio.gather(*ends, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
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

    async def _require_over(self, manager: Manager, name: bytes) -> None:
        """Raise `RequestError` if the user is a super user, and the caller is not."""
        if (await self._store.user_state(name)).is_super and not await manager.is_super():
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "only a super user can change a super user")

    async def _shown(self, name: bytes) -> pb.User:
        return _shown(name, await self._store.user(name), await self._store.user_state(name))

    # --- roles

    async def list_roles(self, request: pb.ListRolesRequest, _manager: Manager) -> pb.ListRolesReply:
        limit = page_size(request.limit, MAX_PAGE)
        reply = pb.ListRolesReply()
        after = after_of(request)
        while len(reply.roles) < limit:
            wanted = min(limit - len(reply.roles), AT_ONCE)
            roles = await self._store.roles(after, wanted)
            reply.roles.extend(map(_shown_role, roles))
            if len(roles) < wanted:
                return reply
            after = roles[-1].name
            await asyncio.sleep(0)
        if after is not None:
            reply.after = after.decode()
        return reply

    async def set_role(self, request: pb.Role, _manager: Manager) -> pb.Role:
        name, rules = _role_name(request.name), _parsed(request.rules)
        inherits = tuple(dict.fromkeys(_role_name(each) for each in request.inherits))
        async with self.changing:
            await self._expect_roles([each for each in inherits if each != name])
            graph = await self._graph()
            if name not in graph and len(graph) >= MAX_ROLES:
                raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"there may be at most {MAX_ROLES} roles")
            graph[name] = inherits
            try:
                check_roles(graph)
            except RoleError as error:
                raise invalid(str(error)) from error
            if await self._store.role(name) != Role(name, tuple(rules), inherits):
                await append(self._store, [control.RoleSet(rules, inherits).frame(name)])
        return _shown_role(Role(name, tuple(rules), inherits))

    async def delete_role(self, request: pb.DeleteRoleRequest, _manager: Manager) -> pb.DeleteRoleReply:
        name = _role_name(request.name)
        async with self.changing:
            await self._expect_roles([name])
            users = await self._users_with(name)
            heirs = [each for each, inherits in (await self._graph()).items() if name in inherits]
            if users or heirs:
                who = ", ".join(repr(each.decode()) for each in (*users, *heirs))
                text = f"the role {request.name!r} is still used by {who}"
                raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
            await append(self._store, [control.RoleRemoved().frame(name)])
        return pb.DeleteRoleReply()

    async def _graph(self) -> dict[bytes, Sequence[bytes]]:
        """What each role inherits."""
        found: dict[bytes, Sequence[bytes]] = {}
        after: bytes | None = None
        while roles := await self._store.roles(after, AT_ONCE):
            found |= {role.name: role.inherits for role in roles}
            after = roles[-1].name
            await asyncio.sleep(0)
        return found

    async def _users_with(self, role: bytes) -> list[bytes]:
        """The first users that have a role."""
        found: list[bytes] = []
        after: bytes | None = None
        while (page := await self._store.user_states(after, MAX_PAGE)) and len(found) < _SHOWN_USERS:
            found += [name for name, state in page if role in state.roles]
            after = page[-1][0]
            await asyncio.sleep(0)
        return found[:_SHOWN_USERS]

    async def _expect_roles(self, names: Sequence[bytes]) -> None:
        for name in names:
            if await self._store.role(name) is None:
                raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no role {name.decode()!r}")

    # --- rules

    async def set_rules(self, request: pb.SetRulesRequest, _manager: Manager) -> pb.SetRulesReply:
        if not request.HasField("user"):
            raise invalid("say whose rules these are: name the user, who is empty for everybody")
        name = user_name(request.user) if request.user else b""
        rules = _parsed(request.rules)
        async with self.changing:
            await append(self._store, self.rules_frames(name, await self._store.rules(name), rules))
        return pb.SetRulesReply(is_user=await self._is_user(name))

    def rules_frames(self, name: bytes, rules: Sequence[Rule], wanted: Sequence[Rule]) -> list[bytes]:
        """The record, if one is needed, by which a user has other rules. Raises `RequestError`."""
        if len(wanted) > MAX_RULES:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{name.decode()!r} has {MAX_RULES} rules already")
        return [control.RulesSet(wanted).frame(name)] if list(wanted) != list(rules) else []

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
        state = await self._store.user_state(name)
        if state.is_disabled or state.is_super:
            reply.allowed = not state.is_disabled
            what = "disabled" if state.is_disabled else "a super user"
            reply.because = f"regardless of rules, {request.user} is {what}"
            return reply
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
        for whose, rules in await rules_in_order(self._store, name, await self._store.user_state(name)):
            found += [OwnedRule(rule, f"rule {number} of {whose}") for number, rule in enumerate(rules, 1)]
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


def _parsed(texts: Sequence[str]) -> list[Rule]:
    """Parse the rules of a user or a role. Raises `RequestError`."""
    if len(texts) > MAX_RULES:
        raise invalid(f"there may be at most {MAX_RULES} rules; placeholders may help")
    try:
        return [parse_rule(text) for text in texts]
    except RuleError as error:
        raise invalid(str(error)) from error


def _role_name(text: str) -> bytes:
    """Check and encode the name of a role. Raises `RequestError`."""
    name = text.encode()
    if not 0 < len(name) <= _MAX_NAME or not text.isprintable():
        raise invalid(f"the name of a role has 1 to {_MAX_NAME} bytes and no control characters; not {text[:40]!r}")
    return name


def _shown(name: bytes, user: User | None, state: UserState) -> pb.User:
    return pb.User(
        name=name.decode(),
        iterations=0 if user is None else user.iterations,
        roles=[each.decode() for each in state.roles],
        disabled=state.is_disabled,
        super_user=state.is_super,
    )


def _shown_role(role: Role) -> pb.Role:
    rules = [rule_text(rule) for rule in role.rules]
    return pb.Role(name=role.name.decode(), rules=rules, inherits=[each.decode() for each in role.inherits])


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
