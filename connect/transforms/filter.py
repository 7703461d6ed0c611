"""`Filter`: drops records."""

from connect.api import Record, Settings, Transform


class Filter(Transform):
    """Drops every record that it is applied to: with a predicate, those for which that is true."""

    name = "Filter"

    def __init__(self, settings: Settings) -> None:
        """It has no settings."""

    def apply(self, record: Record) -> None:  # noqa: ARG002
        return None
