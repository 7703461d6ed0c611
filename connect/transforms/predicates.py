"""Conditions on records."""

from connect.api import Predicate, Record, Setting, Settings
from connect.regular_expressions import RegularExpression


class TopicNameMatches(Predicate):
    """Whether the whole topic matches a regular expression."""

    name = "TopicNameMatches"
    settings = (Setting("pattern", "A regular expression.", required=True),)

    def __init__(self, settings: Settings) -> None:
        self._pattern = RegularExpression(settings["pattern"])

    def test(self, record: Record) -> bool:
        return self._pattern.matches(record.topic)


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
