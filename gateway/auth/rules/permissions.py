"""Evaluates rules: what a client may do to topics, groups, sessions and the cluster.

Rules are checked in order, first those of the user, then those for everybody. The first rule that applies decides,
otherwise the default. Rules with sources that the client does not come from are left out.

A rule applies to a topic that its filter matches, with MQTT's rule about `$` (`#` does not match `$SYS/uptime`). A
filter is granted when every topic that it may match is allowed, because messages are not checked again when they are
delivered. So a rule that allows applies if it covers the whole filter, and a rule that denies if both have a topic in
common. The same goes for all groups, all sessions and so on, whose name is the empty prefix.

The name of a shared subscription is its whole filter, `$share/…`. It is a group: where a rule about that group applies,
that rule has to allow it as well.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from gateway.auth.rules.sources import Networks
from matcher.cache_budget import CacheBudget
from matcher.cover import covers_levels, overlap_levels
from matcher.names import levels_match, split_shared
from matcher.reserved import inbox_of
from store.api import Action, Resource, Rule

CLIENT_ID: Final = b"%c"  # placeholders in the name of a rule; in a filter for levels
USER_NAME: Final = b"%u"
_PLACEHOLDER: Final = re.compile(rb"%[cu]")
_PUB: Final = int(Action.PUB)
_SUB: Final = int(Action.SUB)
_OTHERS: Final = int(Action.LIST | Action.GET | Action.UPDATE)
_TOPIC: Final = int(Resource.TOPIC)
_GROUP: Final = int(Resource.GROUP)
_MAX_VERDICTS: Final = 1024  # cached for each connection
_MAX_CACHED: Final = 256  # bytes of a topic whose verdict is cached
_budget: Final[CacheBudget[bool]] = CacheBudget(16 << 20)  # verdicts of all connections


class Clause:
    """A rule about topics, prepared for matching. With `is_prefix` the last level stands for all levels that begin so,
    and all levels below."""

    __slots__ = ("actions", "allow", "is_prefix", "is_wild_first", "levels", "rule")

    def __init__(self, rule: Rule, levels: list[bytes]) -> None:
        self.rule = rule
        self.allow: bool = rule.allow
        self.actions: int = rule.actions
        self.levels = levels
        self.is_prefix: bool = rule.is_prefix
        self.is_wild_first: bool = levels[0] in (b"+", b"#")

    def matches(self, topic: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to a topic. is_special: it begins with $."""
        if is_special and self.is_wild_first:
            return False
        if self.is_prefix:
            return self._covers_as_prefix(topic)
        return levels_match(self.levels, topic, 0)

    def covers(self, wanted: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to every topic that a filter matches."""
        if is_special and self.is_wild_first:
            return False
        if self.is_prefix:
            return self._covers_as_prefix(wanted)
        return covers_levels(self.levels, wanted)

    def overlaps(self, wanted: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to at least one topic that a filter matches."""
        if is_special and self.is_wild_first:
            return False
        if self.levels[0][:1] == b"$" and wanted[0] in (b"+", b"#"):
            return False
        if self.is_prefix:
            return self._overlaps_as_prefix(wanted)
        return overlap_levels(self.levels, wanted)

    def _covers_as_prefix(self, wanted: list[bytes]) -> bool:
        last = len(self.levels) - 1
        if len(wanted) <= last:
            return False
        for at in range(last):
            here = wanted[at]
            if here == b"#" or self.levels[at] not in (b"+", here):
                return False
        prefix, here = self.levels[last], wanted[last]
        if here == b"#":
            return not prefix and not last  # `a/#` also matches `a`
        if here == b"+":
            return not prefix
        return here.startswith(prefix)

    def _overlaps_as_prefix(self, wanted: list[bytes]) -> bool:
        last = len(self.levels) - 1
        for at in range(min(last + 1, len(wanted))):
            here, mine = wanted[at], self.levels[at]
            if here == b"#":
                return True
            if at == last:
                return here == b"+" or here.startswith(mine)
            if mine not in (here, b"+") and here != b"+":
                return False
        return False


class NameClause:
    """A rule about groups, sessions or the cluster, prepared for matching."""

    __slots__ = ("actions", "allow", "is_prefix", "kind", "name", "rule")

    def __init__(self, rule: Rule, name: bytes) -> None:
        self.rule = rule
        self.allow: bool = rule.allow
        self.actions: int = rule.actions
        self.kind: int = rule.kind
        self.is_prefix: bool = rule.is_prefix
        self.name = name

    def covers(self, name: bytes, is_prefix: bool) -> bool:
        """Whether the rule applies to a name, or to all names with a prefix."""
        if self.is_prefix:
            return name.startswith(self.name)
        return not is_prefix and name == self.name

    def overlaps(self, name: bytes, is_prefix: bool) -> bool:
        """Whether the rule applies to a name, or to at least one name with a prefix."""
        return self.covers(name, is_prefix) or (is_prefix and self.name.startswith(name))


class Clauses:
    """Rules, prepared for matching, in their order."""

    __slots__ = ("names", "others", "publish", "subscribe")

    def __init__(self) -> None:
        self.publish: list[Clause] = []
        self.subscribe: list[Clause] = []
        self.others: list[Clause] = []  # about other actions on topics: LIST, GET and UPDATE
        self.names: list[NameClause] = []  # about other resources than topics

    def add(self, clause: Clause) -> None:
        """Add a rule about topics."""
        if clause.actions & _PUB:
            self.publish.append(clause)
        if clause.actions & _SUB:
            self.subscribe.append(clause)
        if clause.actions & _OTHERS:
            self.others.append(clause)


class Permissions:
    """The permissions of one connection."""

    __slots__ = ("_clauses", "_default", "_inbox", "_publish", "_verdicts")

    def __init__(self, clauses: Clauses, default: bool, client_id: bytes) -> None:
        self._inbox = inbox_of(client_id)  # always readable: rules apply to those who publish there
        self._clauses = clauses
        self._publish = clauses.publish
        self._default = default
        self._verdicts: dict[bytes, bool] = {}

    def may_publish(self, topic: bytes) -> bool:
        verdict = self._verdicts.get(topic)
        return verdict if verdict is not None else self._judge(topic)

    def _judge(self, topic: bytes) -> bool:
        levels = topic.split(b"/")
        is_special = topic.startswith(b"$")
        verdict = self._default
        for clause in self._publish:
            if clause.matches(levels, is_special):
                verdict = clause.allow
                break
        if len(topic) > _MAX_CACHED:
            return verdict
        verdicts = self._verdicts
        if len(verdicts) >= _MAX_VERDICTS:
            verdicts.clear()
        _budget.add(verdicts, topic, verdict, 0)
        return verdict

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """Whether every topic that the filter (plain, or `$share/group/filter`) may match is allowed."""
        if topic_filter == self._inbox:
            return True
        name, inner = split_shared(topic_filter)
        if name and self.decide(_SUB, _GROUP, topic_filter) is False:
            return False
        clause = _deciding(self._clauses.subscribe, _SUB, inner)
        return self._default if clause is None else clause.allow

    def may_look(self, action: int, topic_filter: bytes) -> bool:
        """Whether `action` (LIST or GET) is allowed for every topic that the filter may match.

        Where no rule says so, the right to subscribe counts: who may read all messages may know of them.
        """
        clause = _deciding(self._clauses.others, action, topic_filter)
        return self.may_subscribe(topic_filter) if clause is None else clause.allow

    def decide_topics(self, action: int, topic_filter: bytes) -> bool | None:
        """What the first rule says that applies to PUB or UPDATE of all topics that a filter matches. None: no rule
        applies."""
        clause = _deciding(self._publish if action == _PUB else self._clauses.others, action, topic_filter)
        return None if clause is None else clause.allow

    def decide(self, action: int, kind: int, name: bytes, is_prefix: bool = False) -> bool | None:
        """What the first rule says that applies to an action on a resource, or on all whose name begins so. None: no
        rule applies. kind: not TOPIC."""
        clause = self._deciding_name(action, kind, name, is_prefix)
        return None if clause is None else clause.allow

    def deciding_rule(self, action: int, name: bytes) -> Rule | None:
        """The rule because of which PUB of a topic or SUB of a filter is denied or allowed; None: no rule applies."""
        if action == _PUB:
            levels, is_special = name.split(b"/"), name.startswith(b"$")
            return next((each.rule for each in self._publish if each.matches(levels, is_special)), None)
        group, inner = split_shared(name)
        joined = self._deciding_name(_SUB, _GROUP, name, False) if group else None
        if joined is not None and not joined.allow:
            return joined.rule
        clause = _deciding(self._clauses.subscribe, _SUB, inner)
        return None if clause is None else clause.rule

    def _deciding_name(self, action: int, kind: int, name: bytes, is_prefix: bool) -> NameClause | None:
        for clause in self._clauses.names:
            if clause.kind == kind and clause.actions & action:
                if not clause.allow and clause.overlaps(name, is_prefix):
                    return clause
                if clause.allow and clause.covers(name, is_prefix):
                    return clause
        return None


class SampledPermissions(Permissions):
    """Permissions that tell of each message that they allow."""

    __slots__ = ("_tell",)

    def __init__(self, of: Permissions | None, client_id: bytes, tell: Callable[[bytes], None]) -> None:
        """of: what is allowed; None: everything is. tell: called with the topic."""
        if of is None:
            super().__init__(Clauses(), True, client_id)
        else:
            super().__init__(of._clauses, of._default, client_id)
        self._tell = tell

    def may_publish(self, topic: bytes) -> bool:
        allowed = super().may_publish(topic)
        if allowed:
            self._tell(topic)
        return allowed


def _deciding(clauses: list[Clause], action: int, topic_filter: bytes) -> Clause | None:
    """The first clause that applies to everything that a filter matches, or denies a part of it."""
    levels = topic_filter.split(b"/")
    is_special = topic_filter.startswith(b"$")
    for clause in clauses:
        if not clause.actions & action:
            continue
        if not clause.allow and clause.overlaps(levels, is_special):
            return clause
        if clause.allow and clause.covers(levels, is_special):
            return clause
    return None


class RuleBook:
    """The rules for one user, or for clients without a user, to be bound to client ids and sources."""

    __slots__ = ("_clauses", "_is_bound", "_may_deny", "_rules", "_user_name", "names_sources")

    def __init__(self, rules: Sequence[Rule], user_name: bytes) -> None:
        """rules: those of the user, then those for everybody. user_name: b"" for none."""
        self._user_name = user_name
        self._rules = [
            (
                rule,
                Networks(rule.sources) if rule.sources else None,
                _named(rule.name.split(b"/"), USER_NAME, user_name) if rule.kind == _TOPIC else None,
            )
            for rule in rules
        ]
        self.names_sources = any(rule.sources for rule in rules)  # otherwise sources mean nothing to it
        self._is_bound = self.names_sources or any(CLIENT_ID in rule.name for rule in rules)
        self._may_deny = not all(rule.allow for rule in rules)
        self._clauses: Clauses | None = None

    def permissions(self, client_id: bytes, default: bool, source: str) -> Permissions | None:
        """The permissions of the user with this client id, from this source (see `host_of`). None: everything is
        allowed."""
        if default and not self._may_deny:
            return None
        if self._clauses is None or self._is_bound:
            self._clauses = self._bind(client_id, source)
        return Permissions(self._clauses, default, client_id)

    def _bind(self, client_id: bytes, source: str) -> Clauses:
        clauses = Clauses()
        for rule, networks, levels in self._rules:
            if networks is not None and not networks.contain(source):
                continue
            if rule.kind != _TOPIC:
                name = _named_text(rule.name, client_id, self._user_name)
                if name is not None:
                    clauses.names.append(NameClause(rule, name))
                continue
            bound = None if levels is None else _named(levels, CLIENT_ID, client_id)
            if bound is not None:
                clauses.add(Clause(rule, bound))
        return clauses


def _named_text(text: bytes, client_id: bytes, user_name: bytes) -> bytes | None:
    """Replace the placeholders in the name of a group, a session or an area. None: there is no such name."""
    if (CLIENT_ID in text and not client_id) or (USER_NAME in text and not user_name):
        return None
    return _PLACEHOLDER.sub(lambda found: client_id if found[0] == CLIENT_ID else user_name, text)


def _named(levels: list[bytes], placeholder: bytes, name: bytes) -> list[bytes] | None:
    """Replace the placeholder in the levels by a name.

    None: the rule applies to nothing, because no topic has such a level, or the name at the first level begins with $.
    """
    if placeholder not in levels:
        return levels
    if levels[0] == placeholder and name.startswith(b"$"):
        return None
    if not name or b"/" in name or b"+" in name or b"#" in name or name in (CLIENT_ID, USER_NAME):
        return None
    return [name if level == placeholder else level for level in levels]
