"""The options of a sink, checked on the driver before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streaming.connection import CONNECTION_OPTIONS, ConnectionOptions
from streaming.option_values import OptionError, boolean, known_options

_SPARK: Final = ("checkpointLocation", "path", "queryName")  # options of Spark's own
_NAMES: Final = (*CONNECTION_OPTIONS, "topic", "qos", "retain", "publisher", "producer", "batch", *_SPARK)


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """The options of a sink, including the defaults for missing columns."""

    connection: ConnectionOptions
    topic: str | None
    qos: int
    retain: bool
    publisher: str  # the client id that consumers of the messages see
    producer: str | None  # names the work when a batch may be repeated (with `batch`)
    batch: int | None  # the number of the batch, which only rises

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parse Spark's options. Raises `OptionError`."""
        given = known_options(options, _NAMES)
        qos = given.get("qos", "1").strip()
        if qos not in ("0", "1", "2"):
            raise OptionError(f"qos must be 0, 1 or 2, not {qos!r}")
        producer, batch = given.get("producer"), given.get("batch")
        if (producer is None) != (batch is None):
            raise OptionError("producer and batch must be given together")
        if batch is not None and not batch.strip().isdecimal():
            raise OptionError(f"batch must be a whole number, not {batch!r}")
        return cls(
            connection=ConnectionOptions.parse(given),
            topic=given.get("topic"),
            qos=int(qos),
            retain=boolean(given, "retain", default=False),
            publisher=given.get("publisher", "spark"),
            producer=producer,
            batch=None if batch is None else int(batch),
        )
