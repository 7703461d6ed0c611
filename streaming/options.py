"""The options of `format("sluice")`, checked once, on the driver, before anything is read."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streaming.offsets import Offsets, offsets_from_json

PAGE_RECORDS: Final = 8192  # per pull: what a task holds in memory, with PAGE_BYTES
PAGE_BYTES: Final = 2 << 20

_NAMES: Final = (
    "endpoint",
    "parent",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerTrigger",
    "recordsPerTask",
    "failOnDataLoss",
)
_DEFAULT_RECORDS_PER_TASK: Final = 1_000_000


class OptionError(ValueError):
    """An option is missing, unknown or has a value that cannot be used."""


class Edge(StrEnum):
    """One of the two ends of what a partition holds."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """What to read, from where, and how much at a time."""

    endpoint: str  # host:port of a node's gRPC front
    parent: str  # the topic's first level
    starting: Edge | Offsets  # used by a batch, and by a stream without a checkpoint
    ending: Edge | Offsets  # batch only
    max_records_per_trigger: int | None
    records_per_task: int
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """From Spark's options, whose names are matched without regard to case. Raises `OptionError`."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _NAMES}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {known[near[0]]}?" if near else f"; there are: {', '.join(_NAMES)}"
                raise OptionError(f"unknown option {name!r}{hint}")
        for name in ("endpoint", "parent"):
            if name not in given:
                raise OptionError(f"option {name!r} is missing")
        starting = _offsets(given, "startingOffsets", Edge.EARLIEST)
        ending = _offsets(given, "endingOffsets", Edge.LATEST)
        if ending is Edge.EARLIEST:
            raise OptionError("endingOffsets cannot be 'earliest'")
        return cls(
            endpoint=given["endpoint"],
            parent=given["parent"],
            starting=starting,
            ending=ending,
            max_records_per_trigger=_positive(given, "maxRecordsPerTrigger"),
            records_per_task=_positive(given, "recordsPerTask") or _DEFAULT_RECORDS_PER_TASK,
            fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        )


def _offsets(given: Mapping[str, str], name: str, default: Edge) -> Edge | Offsets:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() in list(Edge):
        return Edge(text.lower())
    try:
        return offsets_from_json(json.loads(text))
    except ValueError as error:
        raise OptionError(f'{name} must be earliest, latest or JSON like {{"0": 42}}, not {text!r}') from error


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise OptionError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text == "true"
