"""Why a message is a dead letter (`Client.dead_letters`, `Client.trace`)."""

from dataclasses import dataclass
from enum import Enum


class DeadLetterReason(Enum):
    """Why a group gave a message up."""

    LEASE_ENDED = "lease ended"  # the lease of its last allowed delivery ran out, or was given back
    FAILED = "failed"  # its last allowed delivery failed
    FORWARDED = "forwarded"  # a consumer gave it up
    TOO_LARGE = "too large"  # the members of a shared subscription do not accept packets of its size


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """Where a dead letter came from, and why. Times are ms since 1970-01-01 UTC."""

    group: str
    reason: DeadLetterReason
    error: str  # of the last failure, as `nack` or the handler's exception gave it; empty: none
    deliveries: int  # how often the message was leased out
    queue: str  # a parent topic with its partition, "home[0]"; a topic; or a filter
    offset: int  # in `queue`
    first_ms: int  # when the group leased it for the first time
    last_ms: int  # when the group leased it for the last time
