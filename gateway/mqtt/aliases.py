"""Topic aliases that the server gives a client (section 3.3.2.3.4): a number in place of a topic's name."""

from collections import OrderedDict
from typing import Final

_COST: Final = 3  # bytes of the property
_MAX_TOPIC: Final = 1024  # bytes of a topic that gets an alias: a connection may have many


class TopicAliases:
    """The aliases of one connection. There are never more than the client allows (MQTT-3.1.2-26).

    A topic gets one when it comes a second time soon after the first: for one that comes once, an alias only costs
    bytes. When all are taken, the one that was used longest ago goes to the new topic.
    """

    __slots__ = ("_aliases", "_maximum", "_seen")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum  # more than 0
        self._aliases: OrderedDict[bytes, int] = OrderedDict()  # the one used last is the last
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # topics that came once; as many as aliases

    def known(self, topic: bytes) -> int:
        """The alias under which the client knows the topic, or 0."""
        alias = self._aliases.get(topic, 0)
        if alias:
            self._aliases.move_to_end(topic)
        return alias

    def give(self, topic: bytes) -> int:
        """An alias for a topic that has none, to be sent along with its name; 0 if it is not worth one yet."""
        if not _COST < len(topic) <= _MAX_TOPIC:
            return 0
        seen = self._seen
        if topic not in seen:
            if len(seen) >= self._maximum:
                seen.popitem(False)
            seen[topic] = None
            return 0
        del seen[topic]
        aliases = self._aliases
        alias = len(aliases) + 1
        if alias > self._maximum:
            _, alias = aliases.popitem(False)
        aliases[topic] = alias
        return alias
