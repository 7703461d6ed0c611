"""Administration of users and rules: queries by name, JSON in, JSON out.

A running node answers them on its administration socket. For a node that is stopped, the command answers them itself
from the data folder.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gateway.admin.acl_check import UnusableName, published_topic, subscribed_filter
from gateway.admin.queries import AdminQueries, WrongRequest
from gateway.auth.permissions import CLIENT_ID, USER_NAME, RuleBook
from gateway.auth.scram import MAX_ITERATIONS, MIN_ITERATIONS
from gateway.broker.append import append
from matcher.names import is_valid_filter, is_valid_topic, split_shared
from store import control
from store.api import Rule, Store, User

MAX_RULES: Final = 256  # of a user, and of everybody
_MAX_NAME: Final = 1024  # bytes
_PAGE: Final = 1000
_KEY_SIZE: Final = 32  # bytes
_ACTIONS: Final = {"publish": (True, False), "subscribe": (False, True), "both": (True, True)}


class Administration(AdminQueries):
    """Changes and lists users and rules."""

    def __init__(self, store: Store, end_session: Callable[[bytes], Awaitable[object]] | None = None) -> None:
        """end_session: ends a session on the running node. None: no node is running."""
        self._store = store
        self._end_session = end_session or self._end_stored
        self._changing = asyncio.Lock()  # no user comes or goes between a check and its record

    @property
    def queries(self) -> Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        return {
            "user-add": self._add,
            "user-passwd": self._change,
            "user-remove": self._remove,
            "user-list": self._users,
            "acl-set": self._set_rules,
            "acl-list": self._rules,
            "acl-check": self._check,
        }

    # --- users

    async def _add(self, body: dict[str, Any]) -> dict[str, Any]:
        user = _user(body)
        async with self._changing:
            if await self._store.user(user.name) is not None:
                raise WrongRequest(f"there is a user {body['name']!r} already: passwd gives another password")
            frames = [control.user_set(user)]
            if await self._store.user(b"") is None:
                nobody = User(b"", secrets.token_bytes(_KEY_SIZE), user.iterations, bytes(_KEY_SIZE), bytes(_KEY_SIZE))
                frames.insert(0, control.user_set(nobody))
            await append(self._store, frames)
        return {}

    async def _change(self, body: dict[str, Any]) -> dict[str, Any]:
        user = _user(body)
        async with self._changing:
            await self._expect(user.name)
            await append(self._store, [control.user_set(user)])
        return {}

    async def _remove(self, body: dict[str, Any]) -> dict[str, Any]:
        """Remove a user and its sessions, also after a removal that was interrupted."""
        name = user_name(body["name"])
        async with self._changing:
            is_there = await self._store.user(name) is not None
            if is_there:
                await append(self._store, [control.UserRemoved().frame(name)])
            count = await self._end_sessions(name)
            if not is_there and not count:
                await self._expect(name)
        return {"sessions": count}

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

    async def _users(self, body: dict[str, Any]) -> dict[str, Any]:
        """A page of users behind `after`, without the entry of the node's own secret."""
        after = str(body.get("after") or "").encode()
        users = await self._store.users(after, _PAGE)
        rows = [{"name": user.name.decode(), "iterations": user.iterations} for user in users]
        return {"users": rows, "after": rows[-1]["name"] if len(rows) == _PAGE else None}

    async def _expect(self, name: bytes) -> None:
        if await self._store.user(name) is None:
            raise WrongRequest(f"there is no user {name.decode()!r}")

    # --- rules

    async def _set_rules(self, body: dict[str, Any]) -> dict[str, Any]:
        """Set the rules of a user, or of everybody if there is no name. An empty list removes them."""
        name = user_name(body["user"]) if body["user"] else b""
        rules = [parse_rule(text) for text in body["rules"]]
        if len(rules) > MAX_RULES:
            raise WrongRequest(f"there may be at most {MAX_RULES} rules; placeholders may help")
        async with self._changing:
            await append(self._store, [control.RulesSet(rules).frame(name)])
        return {"is_user": await self._is_user(name)}

    async def _rules(self, body: dict[str, Any]) -> dict[str, Any]:
        after = body.get("after")
        page = await self._store.rules_of_all(None if after is None else str(after).encode(), _PAGE)
        rows = [{"user": name.decode(), "rules": [rule_text(rule) for rule in rules]} for name, rules in page]
        return {"acl": rows, "after": rows[-1]["user"] if len(rows) == _PAGE else None}

    async def _check(self, body: dict[str, Any]) -> dict[str, Any]:
        """Whether rules allow a topic, and which rule decides."""
        name, client_id = str(body["user"]).encode(), str(body["client_id"]).encode()
        topic = str(body["topic"]).encode()
        publishes = body["action"] == "publish"
        if not (is_valid_topic(topic) if publishes else is_valid_filter(topic)):
            raise WrongRequest(f"{body['topic']!r} is not a topic" + ("" if publishes else " filter"))
        about = {"is_user": await self._is_user(name)}
        try:
            topic = published_topic(topic) if publishes else subscribed_filter(topic, client_id)
        except UnusableName as error:
            return about | {"allowed": False, "because": f"regardless of rules: {error}"}
        if not topic:
            return about | {"allowed": True, "because": "regardless of rules, a client may read its own inbox"}
        for owner in (name, b"") if name else (b"",):
            for number, rule in enumerate(await self._store.rules(owner), 1):
                # Alone, with the opposite default: the verdict is that of the rule if it applies.
                permissions = RuleBook([rule], name).permissions(client_id, not rule.allow)
                assert permissions is not None
                verdict = permissions.may_publish(topic) if publishes else permissions.may_subscribe(topic)
                if verdict == rule.allow:
                    whose = owner.decode() or "everybody"
                    return about | {"allowed": rule.allow, "because": f"rule {number} of {whose}: {rule_text(rule)}"}
        return about | {"allowed": bool(body["default"]), "because": "no rule applies: the listener's default"}

    async def _is_user(self, name: bytes) -> bool:
        """Whether the name is a user's, or empty for everybody. Other names may come from certificates."""
        return not name or await self._store.user(name) is not None


def user_name(text: str) -> bytes:
    """Check and encode a user name. Raises ValueError."""
    name = text.encode()  # a lone surrogate is a ValueError
    if not 0 < len(name) <= _MAX_NAME or not text.isprintable():
        raise ValueError(f"a user name has 1 to {_MAX_NAME} bytes and no control characters; {text[:40]!r} is invalid")
    return name


def parse_rule(text: str) -> Rule:
    """Parse a rule such as `allow publish home/%c/#`. Raises ValueError."""
    words = text.split(None, 2)
    if len(words) != 3 or words[0] not in ("allow", "deny") or words[1] not in _ACTIONS:
        raise ValueError(f"a rule is allow or deny, publish, subscribe or both, and a topic filter; not {text!r}")
    topic_filter = words[2].encode()
    if not is_valid_filter(topic_filter) or split_shared(topic_filter)[0]:
        raise ValueError(f"{words[2]!r} is not a topic filter (rules name shared subscriptions without $share)")
    for level in topic_filter.split(b"/"):
        if level not in (CLIENT_ID, USER_NAME) and (CLIENT_ID in level or USER_NAME in level):
            raise ValueError(f"%c and %u must be whole levels of a filter, unlike in {words[2]!r}")
    publish, subscribe = _ACTIONS[words[1]]
    return Rule(words[0] == "allow", publish, subscribe, topic_filter)


def rule_text(rule: Rule) -> str:
    """The rule as `parse_rule` reads it."""
    action = next(name for name, what in _ACTIONS.items() if what == (rule.publish, rule.subscribe))
    return f"{'allow' if rule.allow else 'deny'} {action} {rule.topic_filter.decode()}"


def _user(body: dict[str, Any]) -> User:
    """What the command derived of a password. Raises ValueError."""
    salt, stored_key, server_key = (bytes.fromhex(body[name]) for name in ("salt", "stored_key", "server_key"))
    user = User(user_name(body["name"]), salt, int(body["iterations"]), stored_key, server_key)
    if not MIN_ITERATIONS <= user.iterations <= MAX_ITERATIONS:
        raise ValueError(f"iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not 8 <= len(salt) <= 64 or len(stored_key) != _KEY_SIZE or len(server_key) != _KEY_SIZE:
        raise ValueError("the salt has 8 to 64 bytes, and each key 32")
    return user
