"""Consumer groups: leases on messages of queues, and how they are settled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Protocol

from matcher.selector import EVERYTHING, Selection

MAX_ERROR: Final = 256  # bytes of the error of a failed message


class Start(Enum):
    """Where a group begins a queue that it is new to."""

    EARLIEST = "earliest"  # at the oldest message
    LATEST = "latest"  # behind the newest
    # At the queue's first message, if that is in the log and less than an hour old, else behind the newest. RocketMQ's
    # CONSUME_FROM_LAST_OFFSET has a new group begin so.
    RECENT = "recent"


class Ordering(Enum):
    """Which messages a member is leased in order: nothing of an ordering key while an older message of it is leased or
    waits to come again. The key of a message is what its user property `ordering_key` names, or else its topic."""

    NONE = "none"
    # Those that name a key, one of each key at a time: the member may handle all that it gets at the same time. Those
    # that name none are leased as without order.
    NAMED_KEYS = "named keys"
    ALL_KEYS = "all keys"  # the member handles the messages of a key in the order in which it gets them


@dataclass(slots=True, frozen=True)
class PopRequest:
    """What a member of a group asks for: the arguments of `GroupStore.pop`."""

    group: bytes
    queues: Sequence[bytes]
    max_records: int
    max_bytes: int  # of all messages, but the first one may be larger
    invisible_ms: int  # length of the leases
    start: Start
    # A message that was leased out this often goes to the group's dead-letter queue instead; 0: as configured. Messages
    # of the dead-letter queue itself stay.
    max_deliveries: int = 0
    # New messages that it does not match are passed over, and are finished for the group. All members must use the same
    # selection. It is not applied again to messages that come again.
    selection: Selection = EVERYTHING
    ordering: Ordering = Ordering.NONE
    # The gateway that asks. Its leases end with it, and gateways that share a group take turns. b"": the process of the
    # store itself.
    owner: bytes = b""
    # Return before the leases are committed: that happens along with the next append, or within 0.1 s. The messages may
    # be settled at once. A crash before the commit forgets the leases, and the messages come again as if never leased.
    # The first use of a queue by the group is always waited for.
    early: bool = False
    member: bytes = b""  # member of the group, for the log (UTF-8)
    user: bytes = b""  # of the caller, and the creator of a group that begins with this pop; b"": none


@dataclass(slots=True)
class Receipts:
    """Consecutive messages of a queue as a group leased them; needed to settle them."""

    queue: bytes
    offset: int
    count: int
    deliveries: int  # how often each of them was leased out


class DeadLetterReason(IntEnum):
    """Why a group gave a message up."""

    LEASE_ENDED = 0  # the lease of its last allowed delivery ran out, or was given back
    FAILED = 1  # its last allowed delivery failed
    FORWARDED = 2  # a consumer gave it up
    TOO_LARGE = 3  # the members of a shared subscription do not accept packets of its size


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """Where a dead letter came from, and why."""

    reason: DeadLetterReason
    error: bytes  # what the consumer said of the last failure, UTF-8; b"": nothing
    deliveries: int  # how often the message was leased out, but at most 254
    queue: bytes
    offset: int  # in `queue`
    first_ms: int  # when the group leased it for the first time
    last_ms: int  # when the group leased it for the last time


@dataclass(slots=True, frozen=True)
class Failed:
    """Leased messages that a consumer could not handle."""

    receipts: Receipts
    delay_ms: int | None  # until they come again; None: the configured delay for their number of deliveries
    error: bytes = b""  # what happened, UTF-8, up to `MAX_ERROR` bytes; kept if they become dead letters


@dataclass(slots=True, frozen=True)
class Handed:
    """A leased QoS 2 message of a shared subscription that belongs to one session from now on."""

    offset: int
    deliveries: int  # of the lease
    client_id: bytes
    packet_id: int  # of the exchange; 0: the session ends with its connection, the log does not know it


@dataclass(slots=True)
class Run:
    """Consecutive messages of a queue that are leased out: `count` sealed frames back to back."""

    queue: bytes
    offset: int
    count: int
    deliveries: int  # how often each of them was leased out, this time included
    data: bytes


@dataclass(slots=True)
class PopResult:
    """What a pop leased out. Another pop may find more after the next message in one of the queues."""

    runs: list[Run]
    available_at: int | None  # ms, when the first leased message comes again; None: nothing is leased out
    is_limited: bool  # the group has as many messages out as it may; settling some makes room
    is_full: bool = False  # the request allowed no more than this; there may be more
    reclaimed: int = 0  # messages that retention removed before the group had them, passed over by this pop
    dead_letters: list[DeadLetter] = field(default_factory=list)  # of each message of `runs` in a dead-letter queue
    left: int = 0  # messages behind these in the queues, which the group was never leased


@dataclass(slots=True, frozen=True)
class Redelivery:
    """How often, and when, a message comes again that a group could not handle, unless a call says otherwise."""

    max_deliveries: int  # after which the message is a dead letter
    delays_ms: Sequence[int]  # after the first, second, … delivery; the last one counts for all later ones


@dataclass(slots=True, frozen=True)
class GroupQueueState:
    """The progress of a group in a queue."""

    queue: bytes
    floor: int  # every message below this offset is finished
    next: int  # no message from this offset on was ever leased out
    unfinished: int  # messages between the two that are leased out, come again, or wait for their ordering key
    lag: int  # all messages that are not finished


@dataclass(slots=True, frozen=True)
class GroupState:
    """A group and its queues, sorted."""

    group: bytes
    queues: list[GroupQueueState]


@dataclass(slots=True, frozen=True)
class GroupPause:
    """A group is leased no messages."""

    since_ms: int  # store time
    by: bytes  # user who paused it; b"": none


@dataclass(slots=True, frozen=True)
class GroupProgress:
    """The progress of a group in all its queues together; its dead letters apart."""

    lag: int  # messages that are not finished
    unfinished: int  # of these, messages that are leased out, come again, or wait for their ordering key
    oldest_ms: int  # store time of the oldest message that is not finished; 0: there is none
    dead_letters: int  # that are not finished


class GroupStore(Protocol):
    """Leases of consumer groups on messages, and committed offsets. Every change returns once it is committed."""

    @property
    def redelivery(self) -> Redelivery:
        """As the store is configured."""

    async def pop(self, request: PopRequest) -> PopResult:
        """Lease messages to a member of a group, at least one where there is one. Messages whose lease ran out and
        messages that were given back come first. A call that is cancelled gives back what it leased, uncounted.

        A damaged message is left out, and comes again; if there is nothing else, `LogCorrupt` is raised. Raises
        `TooManyGroups` for a new group, or a new queue of a group; `SelectorError`; ValueError for a wrong queue name
        or `invisible_ms`; and other `StoreError`s. Nothing is leased then."""

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
        member: bytes = b"",
        failed: Sequence[Failed] = (),
        max_deliveries: int = 0,
        late: bool = False,
    ) -> list[Receipts]:
        """Settle leased messages. Messages in `done` are finished. Those in `again` come again after a delay in ms: 0
        gives a message back, and a longer delay extends its lease. Those in `unsent` reached no consumer: they come
        again after the delay, and the delivery does not count. Those in `failed` become dead letters if they were
        delivered `max_deliveries` times (0: as configured). Otherwise they come again after the delay. `late`: the
        record starts no flush for 0.1 s, but joins the next one.

        Returns the receipts that were stale: their messages are finished or leased out again. Waits while the store is
        busy. Raises `StoreError`, and some messages may have been settled then; ValueError for a delay that is negative
        or longer than 100 years, or an error that is too long."""

    async def dead_letter(
        self, group: bytes, receipts: Sequence[Receipts], reason: DeadLetterReason, member: bytes = b""
    ) -> list[Receipts]:
        """Move leased messages to the group's dead-letter queue. Returns the receipts that were stale. Waits while the
        store is busy. Raises `StoreError`, and some messages may have moved then; ValueError for messages of the
        dead-letter queue itself."""

    async def release_leases(self, group: bytes, queue: bytes) -> None:
        """End all leases of a group on a queue: the messages come again now. Raises `StoreError`."""

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        """Finish leased messages of a shared subscription and make them exchanges of sessions, in one record: a crash
        leaves both or neither. Returns the offsets whose leases were stale: these are not handed over. Raises
        `StoreError`; nothing is handed over then."""

    async def reset_group(self, group: bytes, offsets: Mapping[bytes, int], user: bytes = b"") -> None:
        """Move a group to these offsets, by queue, and forget its leases there. `user` is the caller's, and the creator
        of a group that is new. Raises `OffsetOutOfRange`, `TooManyGroups` and other `StoreError`s."""

    async def remove_group(self, group: bytes) -> None:
        """Remove a group and its state. Its dead-letter queue stays."""

    async def groups(self, after: bytes | None, limit: int) -> list[GroupState]:
        """Return up to `limit` groups behind `after`, sorted by name."""

    async def group_creator(self, group: bytes) -> bytes:
        """Return the user whose call created the group; b"" if there is none, or no such group."""

    async def group_pause(self, group: bytes) -> GroupPause | None:
        """Since when the group is paused. None: it is not."""

    async def group_offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Return the committed offsets of a pull group by partition of a parent topic. A partition without a commit is
        absent."""

    async def transient_shares(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Return up to `limit` shared subscriptions behind `after`, sorted, that have members whose sessions are not in
        the log. Each comes with the gateways of these members; b"" is the process of the store itself."""
