"""Event rules: what is done with the messages of some topics. Each rule is a consumer group with a definition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from matcher.names import has_wildcard, parent_of
from store.api.queues import partition_queue, subscription_queue

MAX_EVENT_RULES: Final = 4096  # in a store
EVENT_RULE: Final = b"$rule/"  # how the names of their groups begin


@dataclass(slots=True, frozen=True)
class EventRule:
    """An event rule. The store knows its topics; what its definition says is the concern of those who run it."""

    name: bytes
    filters: tuple[bytes, ...]  # topic filters, which do not overlap
    # Whether a filter with wildcards is read from the partitions of its parent topic, which have the past too, and all
    # other messages of the parent topic. Otherwise it is read from the queue of the filter, which begins with the rule.
    reads_parents: bool
    definition: bytes
    by: bytes  # user who set it; b"": the node's own user
    set_ms: int  # store time

    @property
    def group(self) -> bytes:
        """The name of its consumer group."""
        return event_rule_group(self.name)

    def reads(self, queue: bytes) -> bool:
        """Whether the rule reads this queue."""
        if queue[:1] == b"p":
            parent = queue[1:-3]
            return self.reads_parents and any(has_wildcard(each) and parent_of(each) == parent for each in self.filters)
        return queue in self.own_queues()

    def own_queues(self) -> list[bytes]:
        """The queues of its filters, without partitions."""
        filters = [each for each in self.filters if not (self.reads_parents and has_wildcard(each))]
        return [subscription_queue(each) for each in filters]

    def queues(self, partition_count: Callable[[bytes], int]) -> list[bytes]:
        """All queues that it reads. partition_count: see `QueueStore`."""
        queues = self.own_queues()
        if self.reads_parents:
            parents = dict.fromkeys(parent_of(each) for each in self.filters if has_wildcard(each))
            for parent in parents:
                queues += [partition_queue(parent, number) for number in range(partition_count(parent))]
        return queues

    def wanted_filters(self) -> Sequence[bytes]:
        """Its filters that need a queue of their own."""
        return () if self.reads_parents else [each for each in self.filters if has_wildcard(each)]


def event_rule_group(name: bytes) -> bytes:
    """The name of the consumer group of an event rule."""
    return EVENT_RULE + name


class EventRuleStore(Protocol):
    """Reads of event rules."""

    async def event_rule(self, name: bytes) -> EventRule | None: ...

    async def event_rules(self, after: bytes | None, limit: int) -> list[EventRule]:
        """Up to `limit` event rules, sorted by name, from after `after` on."""

    async def event_rule_count(self) -> int: ...
