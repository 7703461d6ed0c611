"""Consumer groups: leases on messages of queues, and how they are settled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from matcher.selector import EVERYTHING, Selection


class Start(Enum):
    """Where a group begins a queue that it is new to."""

    EARLIEST = "earliest"  # at the oldest message
    LATEST = "latest"  # behind the newest


@dataclass(slots=True)
class Receipts:
    """Consecutive messages of a queue as a group leased them; what settles them."""

    queue: bytes
    offset: int
    count: int
    deliveries: int  # how often each of them was leased out


@dataclass(slots=True, frozen=True)
class Handed:
    """A leased message of QoS 2 that one member of a shared subscription is to have, and nobody after it."""

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
class Popped:
    """What a pop leased out. More comes with the next message in one of the queues, and at `available_at` (ms), when
    the first of what is out comes again; None: nothing is. If `is_limited`, the group has as much out as it may, and
    more comes when some of it is settled; if `is_full`, the call asked for no more than this, and there may be more."""

    runs: list[Run]
    available_at: int | None
    is_limited: bool
    is_full: bool = False
    reclaimed: int = 0  # messages that retention took before the group had them, which this pop came past


@dataclass(slots=True, frozen=True)
class GroupQueueState:
    """Where a group is in a queue. Everything below `floor` is finished, nothing from `next` on was ever leased out."""

    queue: bytes
    floor: int
    next: int
    unfinished: int  # messages that are out, or to come again
    lag: int  # messages that are not finished


@dataclass(slots=True, frozen=True)
class GroupState:
    """A group and the queues that it has a place in, sorted."""

    group: bytes
    queues: list[GroupQueueState]


class GroupStore(Protocol):
    """Leases of consumer groups."""

    async def pop(
        self,
        group: bytes,
        queues: Sequence[bytes],
        max_records: int,
        max_bytes: int,
        invisible_ms: int,
        start: Start,
        max_deliveries: int = 0,
        selection: Selection = EVERYTHING,
        ordered: bool = False,
        owner: bytes = b"",
        early: bool = False,
        member: bytes = b"",
    ) -> Popped:
        """Lease out up to `max_records` messages of `max_bytes` (but at least one where there is one), each to nobody
        else for `invisible_ms`. Those whose lease ran out or that were given back come first; of these, what was leased
        out `max_deliveries` times (0: as configured) goes to the group's dead-letter queue instead, but for messages of
        that queue itself. `owner`: the gateway that asks, with whose end the leases end too; those that share a group
        get their turns. `member`: who of the group gets them, as the log is to say (UTF-8); so with what follows.
        Returns once the leases are committed. A call that is cancelled gives back what it leased,
        which does not count then.

        If `early`, it returns at once, and the leases are committed along with what is appended next, or in a tenth of
        a second. They may be settled at once. A crash before that forgets them: the messages come again, as often as
        before, for groups whose members may get a message twice. That a group begins in a queue it waits for.

        New messages that the `selection` does not want are passed over, and finished for the group: all its members
        have to want the same. It is not asked again about those that come again. If `ordered`, nothing of a queue is
        leased out while something of it is, or is to come again later, and all of it comes in the order of the queue.

        A message that is damaged in the log is left out, and comes again; where nothing else is there, `LogCorrupt` is
        raised. Raises `TooManyGroups` for a new group, or queue of a group, and other `StoreError`s: nothing is leased
        then; and `SelectorError`, and ValueError for what is no queue's name."""

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int | None]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
        member: bytes = b"",
    ) -> list[Receipts]:
        """Finish messages (`done`), or have them come again after a delay in ms from now (`again`): 0 gives them back,
        a longer one extends the lease, and None is the delay that the number of deliveries calls for. Those that were
        given to nobody (`unsent`) come again after theirs, and have been leased out once less. Returns once that is
        committed, with the receipts that were stale: their messages are finished or leased out again. While the
        store is busy it waits. Raises `StoreError`; some may have been settled then. A delay that is negative or longer
        than 100 years is a ValueError."""

    async def bury(self, group: bytes, receipts: Sequence[Receipts], member: bytes = b"") -> list[Receipts]:
        """Have messages go to the group's dead-letter queue, however often they were leased out. Returns once that is
        committed, with the receipts that were stale. While the store is busy it waits. Raises `StoreError`; some may
        have gone then. Dead letters of the group itself are a ValueError."""

    async def release(self, group: bytes, queue: bytes) -> None:
        """Have all that a group has out of a queue come again now, for who knows that nobody works on it. Returns once
        that is committed. Raises `StoreError`."""

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        """Finish messages of a shared subscription's queue, and have them be exchanges of their sessions, in one: a
        crash leaves both or nothing. Returns once that is committed, with the offsets whose leases were stale: they are
        handed to nobody. Raises `StoreError`; nothing is handed over then."""

    async def reset_group(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        """Have a group begin these queues at these offsets; what it has of them is forgotten. Returns once that is
        committed. Raises `OffsetOutOfRange`, `TooManyGroups` and other `StoreError`s."""

    async def remove_group(self, group: bytes) -> None:
        """Forget a group with all it has; its dead-letter queue stays. Returns once that is committed."""

    async def groups(self, after: bytes | None, limit: int) -> list[GroupState]:
        """Up to `limit` groups that were ever used, sorted, behind `after`."""

    async def group_offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Committed offset by partition; a partition nobody committed is absent."""

    async def shares_held(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` shared subscriptions that are kept for members without a trace in the log, each with the
        gateways that have these (the process of the store itself has no name), sorted, behind `after`."""
