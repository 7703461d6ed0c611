"""The part of the model that is about who may do what."""

from record.layout import Kind
from store import control
from store.api import Rule, User


class Access:
    """Users and rules by user name."""

    def __init__(self) -> None:
        self.users: dict[bytes, User] = {}
        self.rules: dict[bytes, list[Rule]] = {}
        self.changed_users: list[tuple[int, bytes]] = []  # (cause, name)
        self.changed_rules: list[tuple[int, bytes]] = []

    def fold(self, kind: Kind, name: bytes, payload: bytes, position: int) -> None:
        """Take a record about a user."""
        if kind != Kind.RULES_SET:
            self.changed_users.append((position, name))
        if kind != Kind.USER_SET:
            self.changed_rules.append((position, name))
        if kind == Kind.USER_SET:
            event = control.UserSet.parse(payload)
            self.users[name] = User(name, event.salt, event.iterations, event.stored_key, event.server_key)
        elif kind == Kind.USER_REMOVED:
            self.users.pop(name, None)
            self.rules.pop(name, None)
        else:
            self.rules.pop(name, None)
            rules = list(control.RulesSet.parse(payload).rules)
            if rules:
                self.rules[name] = rules
