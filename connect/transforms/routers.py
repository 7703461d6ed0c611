"""Transforms of the topic."""

import re
from typing import Final

from connect.api import Record, Setting, Settings, Transform
from connect.regular_expressions import RegularExpression
from connect.transforms.time_formats import TimeFormat

_GROUP: Final = re.compile(r"\$(?:(\d)|\{(\w+)\})")  # in a replacement


class RegexRouter(Transform):
    """Replaces a topic that a regular expression matches as a whole. `$1` is its first group."""

    name = "RegexRouter"
    settings = (
        Setting("regex", "A regular expression for the whole topic.", required=True),
        Setting("replacement", "The new topic.", required=True),
    )

    def __init__(self, settings: Settings) -> None:
        self._regex = RegularExpression(settings["regex"])
        texts = _GROUP.split(settings["replacement"])  # text, number or None, name or None, text, …
        self._begin = texts[0]
        self._rest = [
            (self._regex.group_number(number or name), text)
            for number, name, text in zip(texts[1::3], texts[2::3], texts[3::3], strict=True)
        ]

    def apply(self, record: Record) -> Record:
        groups = self._regex.groups_of(record.topic)
        if groups is not None:
            record.topic = self._begin + "".join(groups[number] + text for number, text in self._rest)
        return record


class TimestampRouter(Transform):
    """Makes a topic of the topic and the time of a record. A record without a time keeps its topic."""

    name = "TimestampRouter"
    settings = (
        Setting("topic.format", "The new topic, with `${topic}` and `${timestamp}`.", default="${topic}-${timestamp}"),
        Setting("timestamp.format", "How the time is written, as in Java.", default="yyyyMMdd"),
    )

    def __init__(self, settings: Settings) -> None:
        self._topic = settings["topic.format"]
        self._time = TimeFormat(settings["timestamp.format"])

    def apply(self, record: Record) -> Record:
        if record.timestamp_ms is not None:
            time = self._time.write(record.timestamp_ms)
            record.topic = self._topic.replace("${timestamp}", time).replace("${topic}", record.topic)
        return record
