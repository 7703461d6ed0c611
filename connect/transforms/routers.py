"""Transforms of the topic."""

import re

from connect.api import Record, Setting, Settings, Transform
from connect.transforms.time_formats import TimeFormat


class RegexRouter(Transform):
    """Replaces a topic that a regular expression matches as a whole. `$1` is its first group."""

    name = "RegexRouter"
    settings = (
        Setting("regex", "A regular expression for the whole topic.", required=True),
        Setting("replacement", "The new topic.", required=True),
    )

    def __init__(self, settings: Settings) -> None:
        text = settings["replacement"].replace("\\", "\\\\")
        self._replacement = re.sub(r"\$(?:(\d)|\{(\w+)\})", lambda group: rf"\g<{group[1] or group[2]}>", text)
        try:
            self._regex = re.compile(settings["regex"])
            re.compile(f"(?:{settings['regex']})|").sub(self._replacement, "")  # it has the groups
        except (re.error, IndexError) as error:
            raise ValueError(f"regex and replacement cannot be used: {error}") from error

    def apply(self, record: Record) -> Record:
        match = self._regex.fullmatch(record.topic)
        if match is not None:
            record.topic = match.expand(self._replacement)
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
