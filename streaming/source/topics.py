"""The part of the log to read: parent topics, or MQTT filters of topics."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cloud_sdk import NotAllowed
from cloud_sdk.blocking import Client
from streaming.option_values import OptionError


@dataclass(slots=True, frozen=True)
class TopicSelection:
    """The selected topics of one parent topic."""

    filter: str = ""  # an MQTT filter that the node evaluates; empty: all topics
    pattern: str = ""  # a regular expression of topics that the task evaluates
    keys: tuple[str, ...] = ()  # the node may leave out messages with none of these keys; empty: all messages
    names: tuple[str, ...] = ()  # other topics may be left out; empty: none may

    @property
    def is_one_topic(self) -> bool:
        """Whether the node finds the messages by the name of a topic."""
        return self.filter != "" and "+" not in self.filter and "#" not in self.filter and not self.keys


ALL_TOPICS: Final = TopicSelection()


@dataclass(slots=True, frozen=True)
class Topics:
    """Parent topics, whole (`filters` is empty) or the topics that one of the filters matches. Topics that none of
    `also` matches, and messages that have none of `keys`, may be left out, but need not be."""

    parents: tuple[str, ...] | None  # None: all parents that a filter may match
    filters: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @classmethod
    def of_parents(cls, text: str) -> "Topics":
        parents = _names(text)
        for parent in parents:
            if any(sign in parent for sign in "/+#\0"):
                raise OptionError(f"a parent is the first level of topics, not {parent!r}; see the option filter")
        return cls(parents)

    @classmethod
    def of_filters(cls, text: str) -> "Topics":
        filters = _names(text)
        for each in filters:
            _require_filter(each)
        first = [each.split("/", 1)[0] for each in filters]
        fixed = None if any(level in ("+", "#") for level in first) else tuple(dict.fromkeys(first))
        return cls(fixed, filters)

    def matching(self, parents: Iterable[str]) -> list[str]:
        """Return the parents that may have selected topics."""
        if self.filters:
            parents = [parent for parent in parents if _below(self.filters, parent)]
        return [parent for parent in parents if not self.also or _below(self.also, parent)]

    def selection(self, parent: str) -> TopicSelection:
        """Return the selection of a parent topic. The node evaluates one filter, and the task several."""
        filters, also = _below(self.filters, parent), _below(self.also, parent)
        if any(each in ("#", f"{parent}/#", "+/#") for each in filters):
            filters = []
        if filters and len(also) > 1:  # names: the user may have no right to read others
            wanted = re.compile("|".join(map(_pattern, filters)), re.DOTALL)
            also = [name for name in also if wanted.fullmatch(name)] or also
        if len(also) == 1:
            return TopicSelection(also[0], pattern_of(filters) if filters else "", self.keys)
        if len(filters) > 1 or (also and not filters):
            return TopicSelection("", pattern_of(filters or also), self.keys, tuple(also))
        return TopicSelection(filters[0] if filters else "", "", self.keys, tuple(also))


def unknown_parents(client: Client, topics: Topics) -> list[str]:
    """Return a line for each named parent topic that has no messages yet, with similar ones that have: it may be
    misspelled. A user that may not list parent topics gets none. Raises `SluiceError`."""
    missing = [parent for parent in topics.parents or () if not any(each.end for each in client.partitions(parent))]
    if not missing:
        return []
    try:
        known = client.parents()
    except NotAllowed:
        known = []
    lines = []
    for parent in missing:
        near = [each for each in difflib.get_close_matches(parent, known, 3, 0.6) if each != parent]
        hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
        lines.append(f"the parent topic {parent!r} has no messages yet{hint}")
    return lines


def pattern_of(filters: Sequence[str]) -> str:
    """Return a regular expression (RE2) for the topics that one of the filters matches."""
    return r"(?s)\A(?:" + "|".join(map(_pattern, filters)) + r")\z"


def _below(filters: Sequence[str], parent: str) -> list[str]:
    """Return the filters that may match below a parent. A wildcard does not match a first level that begins with $
    (MQTT-4.7.2-1)."""
    wild = () if parent.startswith("$") else ("+", "#")
    return [each for each in filters if each.split("/", 1)[0] in (parent, *wild)]


def _pattern(topic_filter: str) -> str:
    """Return a regular expression for one filter. The filter `a/#` also matches `a` (MQTT 5.0, section 4.7.1.2)."""
    if topic_filter == "#":
        return ".*"
    is_open = topic_filter.endswith("/#")
    levels = topic_filter.removesuffix("/#").split("/")
    return "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels) + ("(?:/.*)?" if is_open else "")


def _names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas, or a JSON array of names, which may contain commas and outer blanks."""
    if not text.startswith("["):
        return tuple(dict.fromkeys(name.strip(" ") for name in text.split(",")))
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"not a JSON array of names: {text!r}")
    return tuple(dict.fromkeys(names))


def _require_filter(topic_filter: str) -> None:
    """Raise `OptionError` for an invalid MQTT filter (MQTT-4.7.1-1, MQTT-4.7.1-2)."""
    levels = topic_filter.split("/")
    wrong = any(("+" in level and level != "+") or ("#" in level and level != "#") for level in levels)
    if not topic_filter or wrong or "#" in levels[:-1] or "\0" in topic_filter:
        raise OptionError(
            f"{topic_filter!r} is not an MQTT topic filter: + and # must be whole levels, and # the last one"
        )
