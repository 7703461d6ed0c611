"""Messages on their way between the log and another system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Headers = Sequence[tuple[str, str]]  # MQTT 5 user properties, in order


class Partition(NamedTuple):
    """A partition of a parent topic: the first level of a topic."""

    parent: str
    number: int


_NO_PARTITION: Final = Partition("", 0)


@dataclass(slots=True)
class SinkRecord:
    """A message of the log on its way to another system. Transforms change the fields of the first group only."""

    topic: str
    value: Any  # what the converter made of the payload: `bytes` of "raw", `str` of "text", JSON values of "json", …
    key: str | None = None  # the message's first key
    headers: list[tuple[str, str]] = field(default_factory=list)
    timestamp_ms: int = 0  # when it was stored, since 1970-01-01 UTC

    payload: bytes = b""  # as it was published
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    message_expiry: int | None = None  # seconds from when it was stored
    publisher: str = ""
    qos: int = 0
    retain: bool = False
    position: int = 0  # in the log: the id of the message
    partition: Partition = _NO_PARTITION
    offset: int = 0  # in its partition


@dataclass(slots=True)
class SourceRecord:
    """A message of another system on its way into the log."""

    topic: str
    value: Any  # what the converter makes the payload of
    key: str | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    timestamp_ms: int | None = None  # of the other system, if it has one

    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    qos: int = 1
    retain: bool = False
    message_expiry: int | None = None  # seconds
    source: str = ""  # what the offset is an offset of: a table, a queue; "" for sources with one
    offset: Mapping[str, Any] | None = None  # JSON: where the source goes on after this record; None: it has no offsets
