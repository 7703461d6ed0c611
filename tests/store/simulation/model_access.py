"""The part of the model that is about who may do what."""

from record.layout import Kind
from store import control
from store.api import Role, Rule, User, UserState


class Access:
    """Users and rules by user name."""

    def __init__(self) -> None:
        self.users: dict[bytes, User] = {}
        self.rules: dict[bytes, list[Rule]] = {}
        self.states: dict[bytes, UserState] = {}
        self.roles: dict[bytes, Role] = {}
        self.changed_users: list[tuple[int, bytes]] = []  # (cause, name)
        self.changed_rules: list[tuple[int, bytes]] = []

    def fold(self, kind: Kind, name: bytes, payload: bytes, position: int) -> None:
        """Take a record about a user."""
        if kind in (Kind.USER_SET, Kind.USER_REMOVED):
            self.changed_users.append((position, name))
        if kind != Kind.USER_SET:
            self.changed_rules.append((position, b"" if kind in (Kind.ROLE_SET, Kind.ROLE_REMOVED) else name))
        if kind == Kind.USER_SET:
            event = control.UserSet.parse(payload)
            self.users[name] = User(name, event.salt, event.iterations, event.stored_key, event.server_key)
        elif kind == Kind.USER_REMOVED:
            self.users.pop(name, None)
            self.rules.pop(name, None)
            self.states.pop(name, None)
        elif kind == Kind.USER_CHANGED:
            changed = control.UserChanged.parse(payload)
            self.states[name] = UserState(tuple(changed.roles), changed.is_super, changed.is_disabled)
            if self.states[name] == UserState():
                del self.states[name]
        elif kind == Kind.ROLE_SET:
            role = control.RoleSet.parse(payload)
            self.roles[name] = Role(name, tuple(role.rules), tuple(role.inherits))
        elif kind == Kind.ROLE_REMOVED:
            self.roles.pop(name, None)
        else:
            self.rules.pop(name, None)
            rules = list(control.RulesSet.parse(payload).rules)
            if rules:
                self.rules[name] = rules
