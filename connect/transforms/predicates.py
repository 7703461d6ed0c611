"""Conditions on records."""

import re

from connect.api import Predicate, Record, Setting, Settings


class TopicNameMatches(Predicate):
    """Whether the whole topic matches a regular expression."""

    name = "TopicNameMatches"
    settings = (Setting("pattern", "A regular expression.", required=True),)

    def __init__(self, settings: Settings) -> None:
        try:
            self._pattern = re.compile(settings["pattern"])
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from error

    def test(self, record: Record) -> bool:
        return self._pattern.fullmatch(record.topic) is not None


class HasHeaderKey(Predicate):
    """Whether there is a header of a name."""

    name = "HasHeaderKey"
    settings = (Setting("name", "The name of the header.", required=True),)

    def __init__(self, settings: Settings) -> None:
        self._name = settings["name"]

    def test(self, record: Record) -> bool:
        return any(name == self._name for name, _ in record.headers)


class RecordIsTombstone(Predicate):
    """Whether a record has no value: the payload is empty."""

    name = "RecordIsTombstone"

    def __init__(self, settings: Settings) -> None:
        """It has no settings."""

    def test(self, record: Record) -> bool:
        return record.value is None or record.value in (b"", "")
