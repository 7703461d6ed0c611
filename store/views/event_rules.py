"""The view of event rules: each rule, the place of its group, and the filter queues that it needs."""

from itertools import islice
from struct import Struct
from typing import Final

from store.api import EVENT_RULE, EventRule
from store.control import EventRuleSet
from store.views.database.count import Count
from store.views.database.state import State
from store.views.groups.pops import Pops
from store.views.queues.dispatch import Dispatcher
from store.views.queues.wanted import WantedFilters

_RULES: Final = b"F"  # by name
_HEAD: Final = Struct(">QBHH")  # set at (ms), whether it reads parent topics, length of its user, number of filters
_LENGTH: Final = Struct(">H")  # of a filter; all filters, and then the definition, follow


def is_of_event_rule(group: bytes) -> bool:
    """Whether a group is that of an event rule, which may have been removed."""
    return group.startswith(EVENT_RULE)


class EventRules:
    """Event rules by name."""

    __slots__ = ("_dispatcher", "_pops", "_state", "_wanted", "count")

    def __init__(self, state: State, wanted: WantedFilters, dispatcher: Dispatcher, pops: Pops) -> None:
        self._state = state
        self._wanted = wanted
        self._dispatcher = dispatcher
        self._pops = pops
        self.count = Count(state, _RULES)

    def rule_set(self, name: bytes, event: EventRuleSet, time: int) -> None:
        """Apply EVENT_RULE_SET, which was stored at `time` (ms)."""
        known = self.get(name)
        rule = EventRule(name, tuple(event.filters), event.reads_parents, event.definition, event.by, time)
        if known is None:
            self.count.change(1)
        is_other = known is None or (known.filters, known.reads_parents) != (rule.filters, rule.reads_parents)
        if is_other or event.restarts:
            if known is not None:
                self._end(known)
            self._begin(rule, event)
        self._state.put(_RULES, name, _row(rule))

    def removed(self, name: bytes) -> bool:
        """Apply EVENT_RULE_REMOVED. Returns whether there was such a rule."""
        rule = self.get(name)
        if rule is None:
            return False
        self._end(rule)
        self._state.delete(_RULES, name)
        self.count.change(-1)
        return True

    def get(self, name: bytes) -> EventRule | None:
        row = self._state.get(_RULES, name)
        return None if row is None else _rule(name, row)

    def page(self, after: bytes | None, limit: int) -> list[EventRule]:
        """Up to `limit` rules in order of their names, from after `after` on."""
        return [_rule(name, row) for name, row in islice(self._state.scan(_RULES, after=after), limit)]

    def reads(self, group: bytes, queue: bytes) -> bool:
        """Whether the rule of a group is there, and reads this queue."""
        rule = self.get(group[len(EVENT_RULE) :])
        return rule is not None and rule.reads(queue)

    def _begin(self, rule: EventRule, event: EventRuleSet) -> None:
        for topic_filter in rule.wanted_filters():
            self._wanted.add(topic_filter)
        queues = {*rule.own_queues(), *(queue for queue in event.begins if rule.reads(queue))}
        begins = {queue: event.begins.get(queue, -1) for queue in sorted(queues)}
        ends = {queue: self._dispatcher.end(queue) if offset < 0 else offset for queue, offset in begins.items()}
        self._pops.reset(rule.group, ends)

    def _end(self, rule: EventRule) -> None:
        self._pops.removed(rule.group)
        for topic_filter in rule.wanted_filters():
            self._wanted.remove(topic_filter)


def _row(rule: EventRule) -> bytes:
    head = _HEAD.pack(rule.set_ms, rule.reads_parents, len(rule.by), len(rule.filters))
    return b"".join([head, rule.by, *[_LENGTH.pack(len(each)) + each for each in rule.filters], rule.definition])


def _rule(name: bytes, row: bytes) -> EventRule:
    set_ms, reads_parents, by_size, count = _HEAD.unpack_from(row)
    at = _HEAD.size + by_size
    by, filters = row[_HEAD.size : at], list[bytes]()
    for _ in range(count):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(row, at)[0]
        filters.append(row[begin:at])
    return EventRule(name, tuple(filters), bool(reads_parents), row[at:], by, set_ms)
