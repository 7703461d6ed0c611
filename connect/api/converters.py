"""Converters: between the payload of a message and the value of a record."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from connect.api.records import SinkRecord, SourceRecord
from connect.api.settings import Setting, Settings


class Converter(ABC):
    """A kind of converter. Each task makes an object of it. Its calls may not block."""

    name: ClassVar[str]  # the value of `value.converter`, as "json"
    settings: ClassVar[tuple[Setting, ...]] = ()  # given as `value.converter.NAME`
    content_type: ClassVar[str | None] = None  # MQTT 5 content type of the payloads that it makes

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @abstractmethod
    def to_value(self, record: SinkRecord) -> Any:
        """The value of a message, of its `payload`. Raises `DataError`."""

    @abstractmethod
    def to_payload(self, record: SourceRecord) -> bytes:
        """The payload of a message, of the `value` of a record. Raises `DataError`."""
