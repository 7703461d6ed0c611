"""What can go wrong in the store, each with what to do about it."""

from pathlib import Path


class StoreError(Exception):
    """Base of the store's errors."""


class StoreClosed(StoreError):
    """The store is closing or closed: reconnect to a node that serves."""


class StoreBusy(StoreError):
    """More is waiting to be committed than the configured bound: send slower and try again."""


class StoreFailed(StoreError):
    """A write or a flush failed. The log takes no more appends until the node is restarted and recovers."""


class TooManyGroups(StoreError):
    """There are as many groups, or queues of this group, as there may be: remove one that is not used any more."""


class GatewayEnded(StoreError):
    """The gateway is taken for dead: what it had is seen to, and others may have its clients. It has to begin anew,
    under another name."""

    def __init__(self, gateway: bytes) -> None:
        super().__init__(f"the gateway {gateway.decode(errors='replace')} has ended: it was not heard of, or replaced")


class ClaimedByAnotherUser(StoreError):
    """Another user is connected with this client id."""

    def __init__(self, client_id: bytes) -> None:
        super().__init__(f"another user is connected with the client id {client_id!r}")


class RecordTooLarge(StoreError):
    """A record is larger than the log takes: split it."""


class RecordInvalid(StoreError):
    """What was appended is not an unsealed frame. Nothing of that append is in the log."""


class ViewsDamaged(StoreError):
    """RocksDB cannot read or write the views. The log has everything they hold: without them it is folded anew."""

    def __init__(self, folder: Path, cause: Exception) -> None:
        super().__init__(f"the views in {folder} are damaged ({cause}): move them away to have the log folded anew")


class OffsetOutOfRange(StoreError):
    """The offset is not in the queue. `begin` and `end` say what is: seek to one of them."""

    def __init__(self, queue: bytes, offset: int, begin: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{begin}, {end}) of {_told(queue)}")
        self.queue = queue
        self.offset = offset
        self.begin = begin
        self.end = end


class NoSuchMessage(StoreError):
    """There is no message with this id: retention has taken it, or it is not the position of one."""


class LogCorrupt(StoreError):
    """Damage before the log's tail. Nothing is skipped: the message names segment and position."""

    def __init__(self, segment: str, position: int, what: str) -> None:
        super().__init__(f"{what} in segment {segment} at position {position}: see `sluice log verify`")
        self.what = what
        self.segment = segment
        self.position = position


def _told(queue: bytes) -> str:
    """A queue by its name (`store.api`), for people."""
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
