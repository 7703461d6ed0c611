"""The options of `format("sluice")` for reading, checked once, on the driver, before anything is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streaming.connection import CONNECTION_OPTIONS, ConnectionOptions
from streaming.option_values import OptionError, boolean, known_options, moment, positive
from streaming.source.columns import SCHEMA
from streaming.source.offsets import Offsets, offsets_from_json
from streaming.source.topics import Topics

_NAMES: Final = (
    *CONNECTION_OPTIONS,
    "parent",
    "filter",
    "history",
    "columns",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "recordsPerTask",
    "pageBytes",
    "failOnDataLoss",
)
# What the options of Spark's source for Kafka are called here, and what to use for those that have no equal.
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "endpoint",
    "subscribe": "parent",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
}
_INSTEAD: Final = {
    "assign": "use startingOffsets with a condition on the column partition",
    "subscribePattern": "use the option filter",
    "minPartitions": "use the option recordsPerTask",
    "startingOffsetsByTimestamp": "use the option startingTimestamp",
    "endingOffsetsByTimestamp": "use the option endingTimestamp",
    "includeHeaders": "the column properties has them",
    "groupIdPrefix": "a query has no group: its progress is in Spark's checkpoint",
    "kafka.group.id": "a query has no group: its progress is in Spark's checkpoint",
}
EARLIEST_OFFSET: Final = -2  # as in Kafka
LATEST_OFFSET: Final = -1
_DEFAULT_RECORDS_PER_TASK: Final = 1_000_000


class Edge(StrEnum):
    """One of the two ends of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(slots=True, frozen=True)
class Moment:
    """The first record that was stored at or after a time."""

    ms: int  # since 1970-01-01 UTC


Place = Edge | Moment | Offsets


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """What to read, from which node, and how much at a time."""

    connection: ConnectionOptions
    topics: Topics
    history: str | None  # the folder of a history, with records that the log may no longer have
    columns: tuple[str, ...]
    starting: Place  # for a batch, and for a stream without a checkpoint
    ending: Place  # for a batch
    max_records_per_trigger: int | None
    max_bytes_per_trigger: int | None
    records_per_task: int
    page_bytes: int | None  # of the log per pull; a task keeps a few pages in memory
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse Spark's options. The case of their names is ignored. Raises `OptionError`."""
        given = known_options(options, _NAMES, _OF_KAFKA, _INSTEAD)
        topics = _topics(given)
        ending = _place(given, "ending", Edge.LATEST, topics)
        if ending is Edge.EARLIEST:
            raise OptionError("endingOffsets cannot be 'earliest'")
        return cls(
            connection=ConnectionOptions.parse(given),
            topics=topics,
            history=given.get("history"),
            columns=_columns(given),
            starting=_place(given, "starting", Edge.EARLIEST, topics),
            ending=ending,
            max_records_per_trigger=positive(given, "maxRecordsPerTrigger"),
            max_bytes_per_trigger=positive(given, "maxBytesPerTrigger"),
            records_per_task=positive(given, "recordsPerTask") or _DEFAULT_RECORDS_PER_TASK,
            page_bytes=positive(given, "pageBytes"),
            fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        )


def _topics(given: Mapping[str, str]) -> Topics:
    parent, topic_filter = given.get("parent"), given.get("filter")
    if (parent is None) == (topic_filter is None):
        raise OptionError("exactly one of the options 'parent' and 'filter' must be given")
    return Topics.of_parents(parent) if parent is not None else Topics.of_filters(topic_filter or "")


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("columns")
    if text is None:
        return tuple(SCHEMA.names)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in SCHEMA.names:
            raise OptionError(f"columns: there is no column {name!r}; the columns are {', '.join(SCHEMA.names)}")
    return names


def _place(given: Mapping[str, str], which: str, default: Edge, topics: Topics) -> Place:
    """Parse `startingOffsets` or `startingTimestamp`, or the two for the end. Raises `OptionError`."""
    name = f"{which}Offsets"
    text = given.get(name.lower())
    ms = moment(given, f"{which}Timestamp")
    if ms is not None:
        if text is not None:
            raise OptionError(f"{name} and {which}Timestamp must not be given together")
        return Moment(ms)
    if text is None:
        return default
    if text.lower() in list(Edge):
        return Edge(text.lower())
    try:
        offsets = offsets_from_json(json.loads(text), topics.parents, least=EARLIEST_OFFSET)
    except ValueError as error:
        example = '{"sensors": {"0": 42}}'
        raise OptionError(f"{name} must be earliest, latest or JSON like {example}, not {text!r}: {error}") from error
    if which == "ending" and EARLIEST_OFFSET in offsets.values():
        raise OptionError("endingOffsets cannot be 'earliest' (-2)")
    return offsets
