"""The part of the model that is about event rules: which there are, and where their groups begin."""

from collections.abc import Callable

from matcher.names import has_wildcard, parent_of
from record.layout import Kind
from store import control
from store.api import EVENT_RULE, EventRule, filter_queue, topic_queue
from tests.store.simulation.model_groups import Groups, Place


class EventRules:
    """Event rules by name."""

    def __init__(self, groups: Groups, end: Callable[[bytes], int]) -> None:
        """end: of a queue."""
        self.by_name: dict[bytes, EventRule] = {}
        self.were_any = False
        self.changed: list[tuple[int, bytes]] = []  # (cause, name)
        self._groups = groups
        self._end = end

    def fold(self, kind: Kind, name: bytes, payload: bytes, position: int, time: int) -> bool:
        """Take a record about a rule. Returns whether it changed something."""
        known = self.by_name.get(name)
        if kind == Kind.EVENT_RULE_REMOVED:
            if known is None:
                return False
            del self.by_name[name]
            self._groups.remove(EVENT_RULE + name)
        else:
            event = control.EventRuleSet.parse(payload)
            fields = tuple(event.filters), event.reads_parents
            rule = self.by_name[name] = EventRule(name, *fields, event.definition, event.by, time)
            self.were_any = True
            if known is None or (known.filters, known.reads_parents) != fields or event.restarts:
                if known is not None:
                    self._groups.remove(EVENT_RULE + name)
                for queue in {*own_queues(rule), *(each for each in event.begins if reads(rule, each))}:
                    begin = event.begins.get(queue, -1)
                    self._groups.places[EVENT_RULE + name, queue] = Place(self._end(queue) if begin < 0 else begin)
        self.changed.append((position, name))
        return True

    def wanted(self) -> list[bytes]:
        """The wildcard filters that need a queue, once for each rule."""
        rules = [rule for rule in self.by_name.values() if not rule.reads_parents]
        return [each for rule in rules for each in rule.filters if has_wildcard(each)]

    def is_over(self, group: bytes, queue: bytes) -> bool:
        """Whether a group that is named like that of a rule may not have a queue."""
        if not group.startswith(EVENT_RULE) or queue[:1] == b"d":
            return False
        rule = self.by_name.get(group[len(EVENT_RULE) :])
        return rule is None or not reads(rule, queue)


def own_queues(rule: EventRule) -> list[bytes]:
    exact = [topic_queue(each) for each in rule.filters if not has_wildcard(each)]
    return exact + [filter_queue(each) for each in rule.filters if has_wildcard(each) and not rule.reads_parents]


def reads(rule: EventRule, queue: bytes) -> bool:
    parents = {parent_of(each) for each in rule.filters if has_wildcard(each)} if rule.reads_parents else set()
    return queue in own_queues(rule) or (queue[:1] == b"p" and queue[1:-3] in parents)
