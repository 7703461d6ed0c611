"""Topics of one system as topics of another: rules such as `plant/+/temp -> site-a/{1}/temp`."""

import re
from collections.abc import Sequence
from typing import Final

from connect.api import Setting, SettingType

_PLACE: Final = re.compile(r"\{([^{}]*)\}")


class TopicMapping:
    """The rules of a setting, in their order. The first rule whose filter matches a topic names the new topic."""

    def __init__(self, rules: Sequence[str]) -> None:
        """rules: each `FILTER -> TOPIC`. `+` in the filter is one level, and `#` at its end is all that follow. `{1}`
        in the topic is what the first of them matched. Raises `ValueError`."""
        self._rules = [_read_rule(rule) for rule in rules]

    def __call__(self, topic: str) -> str:
        """The new topic; the same if no rule matches."""
        for pattern, target in self._rules:
            found = pattern.fullmatch(topic)
            if found is not None:
                return target.format("", *found.groups())
        return topic


def _read_rule(rule: str) -> tuple[re.Pattern[str], str]:
    topic_filter, arrow, target = (part.strip() for part in rule.partition("->"))
    if not arrow or not topic_filter or not target:
        raise ValueError(f"{rule!r} is not FILTER -> TOPIC")
    levels = topic_filter.split("/")
    for at, level in enumerate(levels):
        if (len(level) > 1 and ("+" in level or "#" in level)) or (level == "#" and at < len(levels) - 1):
            raise ValueError(f"{topic_filter!r} is not a topic filter")
    if "+" in target or "#" in target:
        raise ValueError(f"{target!r} has wildcards: {{1}}, {{2}} … are what those of {topic_filter!r} match")
    wildcards = sum(level in ("+", "#") for level in levels)
    for place in _PLACE.findall(target):
        if not place.isdecimal() or not 1 <= int(place) <= wildcards:
            raise ValueError(f"{{{place}}} in {target!r}: {topic_filter!r} has {wildcards} wildcards")
    if "{" in _PLACE.sub("", target) or "}" in _PLACE.sub("", target):
        raise ValueError(f"{target!r} has a brace that is not of a place such as {{1}}")
    parts = {"+": "([^/]*)", "#": "(.*)"}
    return re.compile("/".join(parts.get(level, re.escape(level)) for level in levels), re.DOTALL), target


def _problem(rules: list[str]) -> str | None:
    try:
        TopicMapping(rules)
    except ValueError as error:
        return str(error)
    return None


MAPPING: Final = Setting(
    "topic.mapping",
    "Rules with commas between them, as `plant/+/temp -> site-a/{1}/temp, # -> site-a/{1}`. The first rule whose "
    "filter matches a topic gives the new one; {1} is what its first wildcard matched. Other topics stay as they are.",
    SettingType.LIST,
    default=[],
    check=_problem,
)
