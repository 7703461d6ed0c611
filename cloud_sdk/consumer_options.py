"""What may be said of a consumer, and what it wants of a parent topic: the node selects, and sends nothing else."""

from collections.abc import Sequence
from typing import Literal, TypedDict, get_args

from cloud_sdk.errors import InvalidArgument
from cloud_sdk.proto import sluice_pb2 as pb

Start = Literal["earliest", "latest"]


class SelectionOptions(TypedDict, total=False):
    """Messages that all of these select; what is left out selects everything."""

    topic_filter: str  # an MQTT filter of the whole topic, below the parent
    tags: str  # "paid || refunded": by the tag they were sent with
    sql: str  # an SQL-92 condition on user properties: "region = 'hz' AND price BETWEEN 10 AND 20"


class ReadOptions(SelectionOptions, total=False):
    """What of a partition is read, see `Client.pull`."""

    without: int  # parts of the records that are not wanted, and come empty: `record.layout.PART_*`, added up
    until: int  # nothing is looked at from this offset on


class PushOptions(SelectionOptions, total=False):
    """How a group consumes, see `Client.push_consumer`."""

    invisible_seconds: float
    start: Start
    max_deliveries: int
    ordered: bool


class ConsumerOptions(PushOptions, total=False):
    """How a group consumes, see `Client.consumer`."""

    max_records: int


class PullOptions(SelectionOptions, total=False):
    """What a reader reads, see `Client.pull_consumer`."""

    partitions: Sequence[int] | None
    group: str | None
    start: Start
    max_records: int


class BroadcastOptions(SelectionOptions, total=False):
    """How everybody consumes, see `Client.broadcast_consumer`."""

    member: str | None
    start: Start
    attempts: int


def selection_of(options: SelectionOptions) -> pb.Selection | None:
    """On the wire; None for everything."""
    topic_filter, tags, sql = options.get("topic_filter", ""), options.get("tags", ""), options.get("sql", "")
    return pb.Selection(topic_filter=topic_filter, tags=tags, sql=sql) if topic_filter or tags or sql else None


def checked_start(start: Start) -> Start:
    """Return `start`. Raises `InvalidArgument` for a value that is not one of `Start`."""
    if start not in get_args(Start):
        raise InvalidArgument(f"start is one of {', '.join(get_args(Start))}, not {start!r}")
    return start
