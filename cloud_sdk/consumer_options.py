"""Options of consumers and reads, and the selection of messages, which the node evaluates."""

from collections.abc import Sequence
from typing import Literal, TypedDict, get_args

from cloud_sdk.errors import InvalidArgument, as_invalid_argument
from cloud_sdk.proto import sluice_pb2 as pb

Start = Literal["earliest", "latest"]


class SelectionOptions(TypedDict, total=False):
    """Select messages that match all of these. An option that is not given selects everything."""

    topic_filter: str  # an MQTT filter for the whole topic, its parent included
    tags: str  # "paid || refunded": messages with one of these tags
    sql: str  # an SQL-92 condition on user properties: "region = 'hz' AND price BETWEEN 10 AND 20"


class ReadOptions(SelectionOptions, total=False):
    """Options of `Client.pull`."""

    without: int  # parts of records that come empty: the sum of `record.layout.PART_*`
    until: int  # the offset at which the read ends; 0: none
    known_partitions: int  # do not wait if the parent topic has more partitions; 0: wait
    keys: Sequence[str]  # only messages with one of these keys, at most 16; empty: any


class PushOptions(SelectionOptions, total=False):
    """Options of `Client.push_consumer`."""

    invisible_seconds: float
    start: Start
    max_deliveries: int
    ordered: bool


class ConsumerOptions(PushOptions, total=False):
    """Options of `Client.consumer`."""

    max_records: int


class PullOptions(SelectionOptions, total=False):
    """Options of `Client.pull_consumer`."""

    partitions: Sequence[int] | None
    group: str | None
    start: Start
    max_records: int
    max_bytes: int


class BroadcastOptions(SelectionOptions, total=False):
    """Options of `Client.broadcast_consumer`."""

    member: str | None
    start: Start
    attempts: int


def selection_of(options: SelectionOptions) -> pb.Selection | None:
    """The selection on the wire; None: everything. Raises `InvalidArgument`."""
    topic_filter, tags, sql = options.get("topic_filter", ""), options.get("tags", ""), options.get("sql", "")
    if not (topic_filter or tags or sql):
        return None
    with as_invalid_argument():
        return pb.Selection(topic_filter=topic_filter, tags=tags, sql=sql)


def checked_start(start: Start) -> Start:
    """Return `start`. Raises `InvalidArgument` for a value that is not one of `Start`."""
    if start not in get_args(Start):
        raise InvalidArgument(f"start is one of {', '.join(get_args(Start))}, not {start!r}")
    return start
