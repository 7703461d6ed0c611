"""The access view: users with their SCRAM credentials, roles, the rules about what each user may do, and bans.

Passwords are not stored. The stored keys verify a password, and prove the server to the client (RFC 5802, section 3).
"""

from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Final

from store.api import Ban, Role, Rule, User, UserState
from store.control import BanEnded, BanSet, RoleSet, UserChanged, UserSet
from store.views.database.count import Count
from store.views.database.state import State

_USERS: Final = b"U"
_RULES: Final = b"A"  # by user; the rules for everybody have the empty name

_STATES: Final = b"E"  # by user, if it is not the usual one
_ROLES: Final = b"L"
_BANS: Final = b"N"  # by target

_USER_ROW: Final = Struct(">I32s32s")  # iterations, stored key, server key; the salt follows
_COUNT: Final = Struct(">H")  # of names; each follows with its length
_BAN: Final = Struct(">QQH")  # end, begin (ms), length of who set it; that and the reason follow
_RULE: Final = Struct(">BBBHH")  # marks, actions, kind, lengths of the name and of the sources; these follow
_ALLOW: Final = 1
_PREFIX: Final = 2
_SUPER: Final = 1  # marks of a state, before the roles
_DISABLED: Final = 2


class Access:
    """Users and rules by user name."""

    __slots__ = ("_state", "ban_count")

    def __init__(self, state: State) -> None:
        self._state = state
        self.ban_count = Count(state, _BANS)

    def user_set(self, name: bytes, event: UserSet) -> None:
        row = _USER_ROW.pack(event.iterations, event.stored_key, event.server_key) + event.salt
        self._state.put(_USERS, name, row)

    def user_removed(self, name: bytes) -> None:
        """Remove the user with its rules and its state."""
        self._delete(_USERS, name)
        self._delete(_RULES, name)
        self._delete(_STATES, name)

    def user_changed(self, name: bytes, event: UserChanged) -> None:
        marks = event.is_super * _SUPER | event.is_disabled * _DISABLED
        if marks or event.roles:
            self._state.put(_STATES, name, bytes((marks,)) + _packed_names(event.roles))
        else:
            self._delete(_STATES, name)

    def role_set(self, name: bytes, event: RoleSet) -> None:
        self._state.put(_ROLES, name, _packed_names(event.inherits) + b"".join(map(packed_rule, event.rules)))

    def role_removed(self, name: bytes) -> None:
        self._delete(_ROLES, name)

    def rules_set(self, name: bytes, rules: Sequence[Rule]) -> None:
        if rules:
            self._state.put(_RULES, name, b"".join(map(packed_rule, rules)))
        else:
            self._delete(_RULES, name)

    def user(self, name: bytes) -> User | None:
        row = self._state.get(_USERS, name)
        return None if row is None else _user(name, row)

    def users(self, after: bytes | None, limit: int) -> list[User]:
        """Up to `limit` users in order of their names, from after `after` on."""
        found: list[User] = []
        for name, row in self._state.scan(_USERS, after=after):
            if len(found) == limit:
                break
            found.append(_user(name, row))
        return found

    def rules(self, name: bytes) -> list[Rule]:
        row = self._state.get(_RULES, name)
        return [] if row is None else rules_of(row)

    def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        """Up to `limit` (user name, rules) of users with rules, in order of their names, from after `after` on."""
        found: list[tuple[bytes, list[Rule]]] = []
        for name, row in self._state.scan(_RULES, after=after):
            if len(found) == limit:
                break
            found.append((name, rules_of(row)))
        return found

    def user_state(self, name: bytes) -> UserState:
        row = self._state.get(_STATES, name)
        return UserState() if row is None else _user_state(row)

    def user_states(self, after: bytes | None, limit: int) -> list[tuple[bytes, UserState]]:
        """Up to `limit` (user name, state) in order of the names, from after `after` on."""
        return [(name, _user_state(row)) for name, row in islice(self._state.scan(_STATES, after=after), limit)]

    def role(self, name: bytes) -> Role | None:
        row = self._state.get(_ROLES, name)
        return None if row is None else _role(name, row)

    def roles(self, after: bytes | None, limit: int) -> list[Role]:
        """Up to `limit` roles in order of their names, from after `after` on."""
        return [_role(name, row) for name, row in islice(self._state.scan(_ROLES, after=after), limit)]

    def ban_set(self, target: bytes, event: BanSet, time: int) -> None:
        """Apply BAN_SET, which was stored at `time` (ms)."""
        if self._state.get(_BANS, target) is None:
            self.ban_count.change(1)
        self._state.put(_BANS, target, _BAN.pack(event.until_ms, time, len(event.by)) + event.by + event.reason)

    def ban_ended(self, target: bytes, event: BanEnded) -> bool:
        """Returns whether there was such a ban."""
        ban = self.ban(target)
        if ban is None or event.until_ms not in (0, ban.until_ms):
            return False
        self._state.delete(_BANS, target)
        self.ban_count.change(-1)
        return True

    def ban(self, target: bytes) -> Ban | None:
        row = self._state.get(_BANS, target)
        return None if row is None else _ban(target, row)

    def bans(self, after: bytes | None, limit: int) -> list[Ban]:
        """Up to `limit` bans in order of their targets, from after `after` on."""
        return [_ban(target, row) for target, row in islice(self._state.scan(_BANS, after=after), limit)]

    def _delete(self, table: bytes, name: bytes) -> None:
        if self._state.get(table, name) is not None:
            self._state.delete(table, name)


def _user(name: bytes, row: bytes) -> User:
    iterations, stored_key, server_key = _USER_ROW.unpack_from(row)
    return User(name, row[_USER_ROW.size :], iterations, stored_key, server_key)


def _user_state(row: bytes) -> UserState:
    marks = row[0]
    return UserState(_names(row, 1)[0], bool(marks & _SUPER), bool(marks & _DISABLED))


def _role(name: bytes, row: bytes) -> Role:
    inherits, end = _names(row, 0)
    return Role(name, tuple(rules_of(row[end:])), inherits)


def _ban(target: bytes, row: bytes) -> Ban:
    until_ms, since_ms, length = _BAN.unpack_from(row)
    at = _BAN.size + length
    return Ban(target, until_ms, since_ms, row[_BAN.size : at], row[at:])


def _packed_names(names: Sequence[bytes]) -> bytes:
    return _COUNT.pack(len(names)) + b"".join([_COUNT.pack(len(name)) + name for name in names])


def _names(row: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """The names from there on, and where they end."""
    (count,) = _COUNT.unpack_from(row, at)
    at += _COUNT.size
    found: list[bytes] = []
    for _ in range(count):
        (length,) = _COUNT.unpack_from(row, at)
        at += _COUNT.size
        found.append(row[at : at + length])
        at += length
    return tuple(found), at


def packed_rule(rule: Rule) -> bytes:
    """A rule as rows have it."""
    marks = rule.allow * _ALLOW | rule.is_prefix * _PREFIX
    sources = ",".join(rule.sources).encode()
    return _RULE.pack(marks, rule.actions, rule.kind, len(rule.name), len(sources)) + rule.name + sources


def rules_of(row: bytes) -> list[Rule]:
    """The rules that `packed_rule` packed, one behind the other."""
    found: list[Rule] = []
    at = 0
    while at < len(row):
        marks, actions, kind, length, sources_length = _RULE.unpack_from(row, at)
        at += _RULE.size
        name = row[at : at + length]
        at += length
        sources = row[at : at + sources_length].decode()
        at += sources_length
        where = tuple(sources.split(",")) if sources else ()
        found.append(Rule(bool(marks & _ALLOW), actions, kind, name, bool(marks & _PREFIX), where))
    return found
