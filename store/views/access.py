"""The access view: users with their SCRAM credentials, and the rules about what each user may do.

Passwords are not stored. The stored keys verify a password, and prove the server to the client (RFC 5802, section 3).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from store.api import Rule, User
from store.control import UserSet
from store.views.database.state import State

_USERS: Final = b"U"
_RULES: Final = b"A"  # by user; the rules for everybody have the empty name

_USER_ROW: Final = Struct(">I32s32s")  # iterations, stored key, server key; the salt follows
_RULE: Final = Struct(">BBBHH")  # marks, actions, kind, lengths of the name and of the sources; these follow
_ALLOW: Final = 1
_PREFIX: Final = 2


class Access:
    """Users and rules by user name."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def user_set(self, name: bytes, event: UserSet) -> None:
        row = _USER_ROW.pack(event.iterations, event.stored_key, event.server_key) + event.salt
        self._state.put(_USERS, name, row)

    def user_removed(self, name: bytes) -> None:
        """Remove the user and the user's rules."""
        self._delete(_USERS, name)
        self._delete(_RULES, name)

    def rules_set(self, name: bytes, rules: Sequence[Rule]) -> None:
        if rules:
            self._state.put(_RULES, name, b"".join(map(_packed, rules)))
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
        return [] if row is None else _rules(row)

    def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        """Up to `limit` (user name, rules) of users with rules, in order of their names, from after `after` on."""
        found: list[tuple[bytes, list[Rule]]] = []
        for name, row in self._state.scan(_RULES, after=after):
            if len(found) == limit:
                break
            found.append((name, _rules(row)))
        return found

    def _delete(self, bucket: bytes, name: bytes) -> None:
        if self._state.get(bucket, name) is not None:
            self._state.delete(bucket, name)


def _user(name: bytes, row: bytes) -> User:
    iterations, stored_key, server_key = _USER_ROW.unpack_from(row)
    return User(name, row[_USER_ROW.size :], iterations, stored_key, server_key)


def _packed(rule: Rule) -> bytes:
    marks = rule.allow * _ALLOW | rule.is_prefix * _PREFIX
    sources = ",".join(rule.sources).encode()
    return _RULE.pack(marks, rule.actions, rule.kind, len(rule.name), len(sources)) + rule.name + sources


def _rules(row: bytes) -> list[Rule]:
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
