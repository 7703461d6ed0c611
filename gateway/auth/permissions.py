"""Evaluates rules: whether a client may publish to a topic, or subscribe to a filter.

Rules are checked in order, first those of the user, then those for everybody. The first rule that applies decides,
otherwise the listener's default. A rule applies to a topic that its filter matches, with MQTT's rule about `$` (`#`
does not match `$SYS/uptime`).

A filter is granted when every topic that it may match is allowed, because messages are not checked again when they are
delivered. So a rule that allows applies if it covers the whole filter, and a rule that denies if both have a topic in
common.

Rules to subscribe to `$group/NAME` are about the group NAME. The name of a shared subscription is its whole filter,
`$share/…`: where such a rule applies to it, that rule has to allow it as well.
"""

from collections.abc import Sequence
from typing import Final

from matcher.cache_budget import CacheBudget
from matcher.cover import covers_levels, overlap_levels
from matcher.names import levels_match, split_shared
from matcher.reserved import GROUP, inbox_of
from store.api import Rule

CLIENT_ID: Final = b"%c"  # placeholders for levels of a rule's filter
USER_NAME: Final = b"%u"
_MAX_VERDICTS: Final = 1024  # cached for each connection
_MAX_CACHED: Final = 256  # bytes of a topic whose verdict is cached
_budget: Final[CacheBudget[bool]] = CacheBudget(16 << 20)  # verdicts of all connections


class Clause:
    """A rule, prepared for matching."""

    __slots__ = ("allow", "is_wild_first", "levels")

    def __init__(self, allow: bool, levels: list[bytes]) -> None:
        self.allow = allow
        self.levels = levels
        self.is_wild_first: bool = levels[0] in (b"+", b"#")

    def matches(self, topic: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to a topic. is_special: it begins with $."""
        if is_special and self.is_wild_first:
            return False
        return levels_match(self.levels, topic, 0)

    def covers(self, wanted: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to every topic that a filter matches."""
        if is_special and self.is_wild_first:
            return False
        return covers_levels(self.levels, wanted)

    def overlaps(self, wanted: list[bytes], is_special: bool) -> bool:
        """Whether the rule applies to at least one topic that a filter matches."""
        if is_special and self.is_wild_first:
            return False
        if self.levels[0][:1] == b"$" and wanted[0] in (b"+", b"#"):
            return False
        return overlap_levels(self.levels, wanted)


class Permissions:
    """The permissions of one connection."""

    __slots__ = ("_default", "_inbox", "_publish", "_subscribe", "_verdicts")

    def __init__(self, publish: list[Clause], subscribe: list[Clause], default: bool, client_id: bytes) -> None:
        self._inbox = inbox_of(client_id)  # always readable: rules apply to those who publish there
        self._publish = publish
        self._subscribe = subscribe
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
        if name and not self._may_join(topic_filter):
            return False
        levels = inner.split(b"/")
        is_special = inner.startswith(b"$")
        for clause in self._subscribe:
            if not clause.allow and clause.overlaps(levels, is_special):
                return False
            if clause.allow and clause.covers(levels, is_special):
                return True
        return self._default

    def _may_join(self, shared_filter: bytes) -> bool:
        """Whether no rule about groups denies a shared subscription."""
        levels = [GROUP, *shared_filter.split(b"/")]
        for clause in self._subscribe:
            if clause.levels[0] == GROUP:
                if not clause.allow and clause.overlaps(levels, True):
                    return False
                if clause.allow and clause.covers(levels, True):
                    return True
        return True


class RuleBook:
    """The rules for one user, or for clients without a user, to be bound to client ids."""

    __slots__ = ("_clauses", "_client_bound", "_rules")

    def __init__(self, rules: Sequence[Rule], user_name: bytes) -> None:
        """rules: those of the user, then those for everybody. user_name: b"" for none."""
        self._rules = [(rule, _named(rule.topic_filter.split(b"/"), USER_NAME, user_name)) for rule in rules]
        self._client_bound = any(levels is not None and CLIENT_ID in levels for _, levels in self._rules)
        self._clauses: tuple[list[Clause], list[Clause]] | None = None

    def permissions(self, client_id: bytes, default: bool) -> Permissions | None:
        """The permissions of the user with this client id. None: everything is allowed."""
        if default and all(rule.allow for rule, _ in self._rules):
            return None
        if self._clauses is None or self._client_bound:
            self._clauses = self._bind(client_id)
        publish, subscribe = self._clauses
        return Permissions(publish, subscribe, default, client_id)

    def _bind(self, client_id: bytes) -> tuple[list[Clause], list[Clause]]:
        publish: list[Clause] = []
        subscribe: list[Clause] = []
        for rule, levels in self._rules:
            bound = None if levels is None else _named(levels, CLIENT_ID, client_id)
            if bound is not None:
                clause = Clause(rule.allow, bound)
                if rule.publish:
                    publish.append(clause)
                if rule.subscribe:
                    subscribe.append(clause)
        return publish, subscribe


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
