"""Which part of the log is read: parent topics, or MQTT filters over topics. Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from streaming.option_values import OptionError


@dataclass(slots=True, frozen=True)
class TopicSelection:
    """What of one parent topic is wanted."""

    filter: str = ""  # an MQTT filter that the node evaluates; empty: everything
    pattern: str = ""  # a regular expression of topics, which the task evaluates on what the node sends


ALL_TOPICS: Final = TopicSelection()


@dataclass(slots=True, frozen=True)
class Topics:
    """Parent topics, whole (`filters` is empty) or as far as one of the filters matches. What none of `also` matches is
    of no use: it may be left out, and need not be."""

    parents: tuple[str, ...] | None  # None: whatever parents there are that a filter may match
    filters: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

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
        """Those of the parents that there are which may have something wanted."""
        if self.filters:
            parents = [parent for parent in parents if _below(self.filters, parent)]
        return [parent for parent in parents if not self.also or _below(self.also, parent)]

    def selection(self, parent: str) -> TopicSelection:
        """What of this parent topic is wanted: one filter is the node's work, several are the task's."""
        filters, also = _below(self.filters, parent), _below(self.also, parent)
        if any(each in ("#", f"{parent}/#", "+/#") for each in filters):
            filters = []
        if len(also) == 1:
            return TopicSelection(also[0], pattern_of(filters) if filters else "")
        if len(filters) > 1 or (also and not filters):
            return TopicSelection(pattern=pattern_of(filters or also))
        return TopicSelection(filters[0]) if filters else ALL_TOPICS


def pattern_of(filters: Sequence[str]) -> str:
    """A regular expression (RE2's kind) for the topics that one of the filters matches."""
    return r"(?s)\A(?:" + "|".join(map(_pattern, filters)) + r")\z"


def _below(filters: Sequence[str], parent: str) -> list[str]:
    """The filters that may match below a parent. A wildcard does not match a first level that begins with $
    (MQTT-4.7.2-1)."""
    wild = () if parent.startswith("$") else ("+", "#")
    return [each for each in filters if each.split("/", 1)[0] in (parent, *wild)]


def _pattern(topic_filter: str) -> str:
    """The filter `a/#` matches `a` as well (MQTT 5.0, 4.7.1.2)."""
    if topic_filter == "#":
        return ".*"
    is_open = topic_filter.endswith("/#")
    levels = topic_filter.removesuffix("/#").split("/")
    return "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels) + ("(?:/.*)?" if is_open else "")


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON array of them, for names with commas in them, or blanks at their ends."""
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
    """Raises `OptionError` for what is no MQTT filter (MQTT-4.7.1-1, MQTT-4.7.1-2)."""
    levels = topic_filter.split("/")
    wrong = any(("+" in level and level != "+") or ("#" in level and level != "#") for level in levels)
    if not topic_filter or wrong or "#" in levels[:-1] or "\0" in topic_filter:
        raise OptionError(f"{topic_filter!r} is no MQTT topic filter: + is a whole level, # the whole last one")
