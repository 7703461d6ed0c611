"""What became of a message, as the log tells it (`Client.trace`)."""

from dataclasses import dataclass
from enum import Enum

from cloud_sdk.proto import sluice_pb2 as pb


class Happened(Enum):
    """What happened to a message."""

    STORED = "stored"  # published by `who`, and committed
    ENTERED = "entered"  # it was held, and is delivered from here on
    RECALLED = "recalled"
    COMMITTED = "committed"  # its transaction
    ROLLED_BACK = "rolled back"
    LEASED = "leased"  # to `member` of the group `who`, until `until_ms`
    POSTPONED = "postponed"  # given back to the group, or kept longer: it comes again at `until_ms`
    FINISHED = "finished"  # acknowledged by a member of the group
    DEAD_LETTERED = "dead-lettered"  # the group gave it up
    PASSED = "passed"  # the group does not want it
    SENT = "sent"  # to the session `who`
    ACKNOWLEDGED = "acknowledged"  # by the session
    MOVED = "moved"  # the group was moved by hand, to `offset`


@dataclass(slots=True, frozen=True)
class TraceEvent:
    """Something that happened to a message, and the record of the log that says so."""

    happened: Happened
    time_ms: int  # ms since 1970-01-01 UTC
    position: int  # of the record
    who: str  # the publisher, a group, or a session; empty: the node
    queue: str  # a parent topic with its partition, "home[0]"; a topic; a filter; "dead letters of g"; or empty
    offset: int  # in the queue
    until_ms: int  # 0: it says nothing
    member: str = (
        ""  # of the group, that leased or settled it: a client's name; empty: none said so, or the node did it
    )


def event_of(event: pb.TraceEvent) -> TraceEvent:
    """Off the wire."""
    happened = Happened[pb.TraceEvent.Kind.Name(event.kind)]
    return TraceEvent(
        happened,
        event.time_ms,
        event.position,
        event.who,
        event.queue,
        event.offset,
        event.until_ms,
        event.member,
    )
