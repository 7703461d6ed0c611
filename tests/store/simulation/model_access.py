"""The part of the model that is about who may do what."""

from dataclasses import replace

from record.layout import Kind
from store import control
from store.api import AccessRequest, Ban, Outcome, Role, Rule, User, UserState


class Access:
    """Users and rules by user name."""

    def __init__(self) -> None:
        self.users: dict[bytes, User] = {}
        self.rules: dict[bytes, list[Rule]] = {}
        self.states: dict[bytes, UserState] = {}
        self.roles: dict[bytes, Role] = {}
        self.bans: dict[bytes, Ban] = {}
        self.were_bans = False  # any, ever
        self.changed_bans: list[tuple[int, bytes]] = []  # (cause, target)
        self.open_requests: dict[int, AccessRequest] = {}
        self.decided_requests: list[AccessRequest] = []
        self.changed_users: list[tuple[int, bytes]] = []  # (cause, name)
        self.changed_rules: list[tuple[int, bytes]] = []

    def fold(self, kind: Kind, name: bytes, payload: bytes, position: int, time: int) -> None:
        """Take a record about a user, a role, a ban or a request for access, which was stored at `time` (ms)."""
        if kind in (Kind.BAN_SET, Kind.BAN_ENDED):
            self._fold_ban(kind, name, payload, position, time)
            return
        if kind in (Kind.ACCESS_REQUESTED, Kind.ACCESS_DECIDED):
            self._fold_request(kind, name, payload, position, time)
            return
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
            self.open_requests = {at: each for at, each in self.open_requests.items() if each.user != name}
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

    def _fold_ban(self, kind: Kind, target: bytes, payload: bytes, position: int, time: int) -> None:
        if kind == Kind.BAN_SET:
            event = control.BanSet.parse(payload)
            self.bans[target] = Ban(target, event.until_ms, time, event.by, event.reason)
            self.were_bans = True
        else:
            until_ms, known = control.BanEnded.parse(payload).until_ms, self.bans.get(target)
            if known is None or until_ms not in (0, known.until_ms):
                return
            del self.bans[target]
        self.changed_bans.append((position, target))

    def _fold_request(self, kind: Kind, user: bytes, payload: bytes, position: int, time: int) -> None:
        if kind == Kind.ACCESS_REQUESTED:
            asked = control.AccessRequested.parse(payload)
            found = AccessRequest(position, user, asked.rule, asked.reason, time, asked.until_ms)
            self.open_requests[position] = found
            return
        event = control.AccessDecided.parse(payload)
        known = self.open_requests.get(event.request)
        if known is not None and known.user == user:
            del self.open_requests[event.request]
            outcome, number = Outcome(event.outcome), len(self.decided_requests)
            decided = replace(known, outcome=outcome, decision=number, by=event.by, why=event.reason, decided_ms=time)
            self.decided_requests.append(decided)
