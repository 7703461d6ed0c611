"""The errors of the store. Each says what to do about it."""

from pathlib import Path


class StoreError(Exception):
    """Base of the store's errors."""


class StoreClosed(StoreError):
    """The store is closing or closed: reconnect to a node that serves."""


class OutcomeUnknown(StoreClosed):
    """The store was restarted before it answered: what was asked of it happened, or not."""


class StoreBusy(StoreError):
    """Too many bytes wait to be committed: send more slowly and try again."""


class StoreFailed(StoreError):
    """A write or a flush failed. The log refuses appends until a restart recovers it."""


class TooManyGroups(StoreError):
    """The limit of groups, or of queues of this group, is reached: remove an unused one."""


class GatewayEnded(StoreError):
    """The gateway counts as dead: its leases are returned, and others may claim its clients.

    It has to restart under another name.
    """

    def __init__(self, gateway: bytes) -> None:
        super().__init__(
            f"the gateway {gateway.decode(errors='replace')} has ended: it sent no heartbeat, or was replaced"
        )


class ClaimedByAnotherUser(StoreError):
    """Another user is connected with this client id."""

    def __init__(self, client_id: bytes) -> None:
        super().__init__(f"another user is connected with the client id {client_id!r}")


class RecordTooLarge(StoreError):
    """A record is larger than the log allows: split it."""


class RecordInvalid(StoreError):
    """An append contains bytes that are not an unsealed frame. Nothing of it is in the log."""


class ViewsDamaged(StoreError):
    """RocksDB cannot read or write the views. They can be rebuilt from the log."""

    def __init__(self, folder: Path, cause: Exception) -> None:
        super().__init__(f"the views in {folder} are damaged ({cause}): move them away to rebuild them from the log")


class OffsetOutOfRange(StoreError):
    """The offset is outside the queue's `begin` and `end`: seek to one of them."""

    def __init__(self, queue: bytes, offset: int, begin: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{begin}, {end}) of {_describe(queue)}")
        self.queue = queue
        self.offset = offset
        self.begin = begin
        self.end = end


class NoSuchMessage(StoreError):
    """There is no message with this id: retention removed it, or the id was never a message's position."""


class TierUnavailable(StoreError):
    """The object store that has this part of the log does not answer: try again later."""


class LogCorrupt(StoreError):
    """The log is damaged before its tail, and the damage is not skipped. The text names segment and position."""

    def __init__(self, segment: str, position: int, what: str) -> None:
        super().__init__(f"{what} in segment {segment} at position {position}: see `sluice log verify`")
        self.what = what
        self.segment = segment
        self.position = position


def _describe(queue: bytes) -> str:
    """Describe a queue, given its name (`store.api`), for people."""
    kind, name = queue[:1], queue[1:].decode(errors="replace")
    match kind:
        case b"p":
            return f"partition {int.from_bytes(queue[-2:], 'big')} of {queue[1:-3].decode(errors='replace')!r}"
        case b"t":
            return f"topic {name!r}"
        case b"f":
            return f"filter {name!r}"
        case b"d":
            return f"the dead letters of {name!r}"
    return "the log"
