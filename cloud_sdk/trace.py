"""The trace of a message: what the log tells about it (`Client.trace`)."""

from dataclasses import dataclass
from enum import Enum

from cloud_sdk.dead_letter import DeadLetterReason
from cloud_sdk.proto import sluice_pb2 as pb


class Happened(Enum):
    """What happened to a message."""

    STORED = "stored"  # published by `who` and committed
    ENTERED = "entered"  # it was delayed or a half message, and is delivered from here on
    RECALLED = "recalled"
    COMMITTED = "committed"  # its transaction
    ROLLED_BACK = "rolled back"
    LEASED = "leased"  # to `member` of the group `who`, until `until_ms`
    POSTPONED = "postponed"  # given back, or its lease extended: it comes again at `until_ms`
    FINISHED = "finished"  # acknowledged by a member of the group
    DEAD_LETTERED = "dead-lettered"  # it became a dead letter of the group
    PASSED = "passed"  # the group does not select it
    SENT = "sent"  # to the session `who`
    ACKNOWLEDGED = "acknowledged"  # by the session
    MOVED = "moved"  # the group was reset to `offset`


@dataclass(slots=True, frozen=True)
class TraceEvent:
    """An event in the life of a message, and the record of the log that tells of it."""

    happened: Happened
    time_ms: int  # ms since 1970-01-01 UTC
    position: int  # of the record
    who: str  # the publisher, a group, or a session; empty: the node
    queue: str  # a parent topic with its partition, "home[0]"; a topic; a filter; "dead letters of g"; or empty
    offset: int  # in the queue
    until_ms: int  # 0: none
    # The member of the group that leased or settled the message: the name of its client. Empty: not known, or the node.
    member: str = ""
    reason: DeadLetterReason | None = None  # of DEAD_LETTERED
    error: str = ""  # of DEAD_LETTERED, as `DeadLetter.error`


def event_of(event: pb.TraceEvent) -> TraceEvent:
    """The event of a reply."""
    happened = Happened[pb.TraceEvent.Kind.Name(event.kind)]
    is_dead = happened is Happened.DEAD_LETTERED
    return TraceEvent(
        happened,
        event.time_ms,
        event.position,
        event.who,
        event.queue,
        event.offset,
        event.until_ms,
        event.member,
        DeadLetterReason[pb.DeadLetter.Reason.Name(event.reason)] if is_dead else None,
        event.error,
    )
