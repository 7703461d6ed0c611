"""Transforms of single records, and the predicates that say to which records they apply."""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

from connect.api.records import SinkRecord, SourceRecord
from connect.api.settings import Setting, Settings

Record: TypeAlias = SinkRecord | SourceRecord


class Transform(ABC):
    """A kind of transform. Each task makes an object of it. Its calls may not block."""

    name: ClassVar[str]  # the value of `transforms.ALIAS.type`, as "InsertField"
    settings: ClassVar[tuple[Setting, ...]] = ()  # given as `transforms.ALIAS.NAME`

    @abstractmethod
    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for settings that do not go together."""

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """Change a record, and return it; None: drop it. Values are replaced, never changed in place: other records may
        share them. Raises `DataError`."""


class Predicate(ABC):
    """A kind of condition on records."""

    name: ClassVar[str]  # the value of `predicates.ALIAS.type`, as "TopicNameMatches"
    settings: ClassVar[tuple[Setting, ...]] = ()  # given as `predicates.ALIAS.NAME`

    @abstractmethod
    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for settings that do not go together."""

    @abstractmethod
    def test(self, record: Record) -> bool:
        """Whether the transform applies to a record."""
