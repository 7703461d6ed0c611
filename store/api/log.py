"""The log: appends, commits as listeners see them, and records by position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from store.api.appended import Appended
from store.api.sessions import StoredSubscription


@dataclass(slots=True, frozen=True)
class Moved:
    """A message that was held until this commit: its record is older than the commit that enters it into queues."""

    position: int  # of its record in the log
    length: int  # of its record
    topic: bytes
    flags: int
    topic_offset: int
    filter_offsets: tuple[tuple[bytes, int], ...]  # (filter, offset) of the filter queues it entered


@dataclass(slots=True, frozen=True)
class Addressed:
    """A message that entered the inbox of a client."""

    position: int  # of its record in the log
    client_id: bytes
    topic: bytes
    subscription: StoredSubscription | None  # of the client's durable session; None: it has no such session


class Commit:
    """One committed batch after the fold.

    The columns (`starts` to `filter_offsets`) have a row for each message record, in log order, except held messages:
    these are in `moved` of the commit that releases them.

    In a separate gateway process, a commit may have only what concerns that gateway. Then `data` has the frames of
    these messages, and `end` is still that of the batch. A commit with `missed_from` has no content: this process did
    not receive what was committed from there up to `position`, and listeners have to read the store.
    """

    __slots__ = (
        "addressed",
        "again",
        "bans",
        "data",
        "dead_letters",
        "end",
        "event_rules",
        "filter_offsets",
        "flags",
        "missed_from",
        "moved",
        "parents",
        "position",
        "rules",
        "starts",
        "store_time",
        "topic_offsets",
        "topics",
        "users",
    )

    def __init__(self, data: bytes, position: int, store_time: int) -> None:
        self.data = data  # the sealed frames, control records included
        self.position = position  # of data[0]
        self.end = position + len(data)  # position of the next batch
        self.store_time = store_time  # ms
        self.missed_from = -1  # position; -1: nothing was missed
        self.starts: list[int] = []  # where each message's frame starts in `data`
        self.topics: list[bytes] = []
        self.flags: list[int] = []
        self.topic_offsets: list[int] = []  # each message's offset in its topic queue
        # For each message the (filter, offset) pairs of the filter queues that it entered. None if there are no filter
        # queues, so that the common case costs nothing.
        self.filter_offsets: list[tuple[tuple[bytes, int], ...]] | None = None
        self.moved: list[Moved] = []  # in the order in which they entered their queues
        # In a separate gateway process: parent topics of messages that may not be part of this. See `Wants.add_parent`.
        self.parents: Sequence[bytes] = ()
        self.addressed: list[Addressed] = []  # of the messages and of `moved`
        self.dead_letters: list[bytes] = []  # groups whose dead-letter queue grew
        # Groups with messages that come again at another time than expected, groups whose offsets were moved, and
        # groups that waited for a settlement (ordered ones, and those with as many leases as they may have); without
        # shared subscriptions.
        self.again: list[bytes] = []
        self.users: list[bytes] = []  # users that were set or removed
        # Users whose rules or state were set; the empty name: the rules for everybody, or a role that any may have.
        self.rules: list[bytes] = []
        self.bans: list[bytes] = []  # targets of bans that were set or removed
        self.event_rules: list[bytes] = []  # event rules that were set or removed


Done = Callable[[Appended], None]
# What a listener has left of a commit: does a part of it, and returns whether something is left.
Rest = Callable[[], bool]
CommitListener = Callable[[Commit], Rest | None]


class Listening:
    """A listener to commits, and what it listens to. The listener may change `parts` at any time."""

    __slots__ = ("listener", "parts")

    def __init__(self, listener: CommitListener, parts: int) -> None:
        self.listener = listener
        self.parts = parts  # constants of `store.commit_listeners`, added up; 0: it is not called


@dataclass(slots=True)
class Chunk:
    """Consecutive records of the log, of all kinds: the sealed frames from `position` up to `next_position`.

    `position` may be after the requested one, at the end of a segment or behind a damaged range.
    """

    position: int
    next_position: int
    data: bytes
    damaged: int = 0  # damaged bytes that were skipped before `position`


@dataclass(slots=True, frozen=True)
class ProducerState:
    """The last append of a producer, which is a gateway process."""

    producer: bytes
    sequence: int
    position: int  # of the record that names the sequence
    records: int  # number of records that follow it; a crash may have cut them off
    digest: int = 0  # of all that the producer had appended by then (64 bits, made by the producer); 0: none


@dataclass(slots=True)
class TierStats:
    """Figures of the tier: old segments of the log in an object store."""

    segments: int  # in the tier
    object_bytes: int  # of their objects, compressed
    local_begin: int  # position from which on segments have files here
    waiting_bytes: int  # in closed segments that are not in the tier yet
    reads: int  # requests for blocks
    hits: int  # blocks that were in the cache when they were read
    cache_bytes: int
    errors: int  # requests that failed
    error: str  # of the last request; "": it had an answer


@dataclass(slots=True)
class StoreStats:
    """Figures of a store, for people and for Prometheus."""

    log_begin: int
    log_end: int
    records: int  # appended by this process
    messages: int
    batches: int
    checkpoint: int
    log_bytes: int  # on disk
    view_bytes: int
    free_bytes: int  # of the log's file system
    is_disk_low: bool  # fewer bytes are free than retention is to leave
    tail_bytes: int  # in the tail cache
    pending_bytes: int  # accepted by append, not yet committed
    sessions: int  # durable sessions
    retained: int  # retained values
    held: int  # messages that wait for their time or their transaction
    halves: int  # of these, those that wait for their transaction
    max_held: int  # limit of `held`
    damaged_places: int  # damaged ranges of the log that reads skip
    damaged_bytes: int  # in these ranges
    damage_met: int  # other places where this process read damaged records
    entries: int = 0  # of all buckets
    entry_bytes: int = 0  # of the names of their buckets, their keys and their values
    failed: bool = False  # a write failed: no appends until a restart
    tier: TierStats | None = None  # None: there is no tier


class Wants(Protocol):
    """The topic filters whose messages a gateway process receives. A filter is counted as often as it is added."""

    def add(self, topic_filter: bytes) -> None:
        """Receive the messages that match. A caller that reads the end of a queue afterwards misses nothing behind
        it."""

    def remove(self, topic_filter: bytes) -> None:
        """Undo one `add`."""

    def add_parent(self, parent: bytes) -> None:
        """Hear in `Commit.parents` when messages of a parent topic enter its partitions, without the messages."""

    def remove_parent(self, parent: bytes) -> None:
        """Undo one `add_parent`. The parent topic may be named for a while."""

    @property
    def is_settled(self) -> bool:
        """Whether the store has all filters and parent topics: from now on everything that matches is received."""

    async def settled(self) -> None:
        """Wait until `is_settled`. Raises `StoreError` when the store is lost meanwhile."""


class LogStore(Protocol):
    """Appends to the log, its commits and its records."""

    max_wait_ms: int  # a message that would wait longer for its commit is refused; 0: no limit
    reached_at: float  # loop time since when the store can be reached; inf: it cannot. Waits before it do not count

    @property
    def wants(self) -> Wants | None:
        """The filters of the messages that commits have; None: commits have all messages."""

    def append(self, frames: list[bytes], done: Done) -> None:
        """Append unsealed frames, in order, with the next batch.

        Calls `done` on the loop when they are committed and folded, or when that has failed. Raises nothing. If too
        many bytes wait, or messages would wait for longer than `max_wait_ms`, `done` gets `StoreBusy`.
        """

    def on_commit(self, listener: CommitListener, parts: int = ...) -> Listening:
        """Call `listener` with commits, after the fold and before the `done` of their appends.

        A listener that has too much to do for one turn of the loop returns the rest. The rest is called once in each
        later turn, until nothing is left. The `done` of the commit's appends, and all later commits, wait for that.

        parts: call it only with commits that have one of these parts (`store.commit_listeners`); by default with all. A
        listener that needs no commits for a while sets `parts` of the returned object to 0.
        """

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        """The last append of a producer (`store.control.Produced`): its sequence, the number of its records that are
        not in the log, because a crash cut them off, and its digest. None if the producer is unknown or has ended."""

    async def read(self, position: int, max_bytes: int) -> Chunk:
        """Read committed records from `position` on, which is the position of a record or the end of the log."""

    async def position_at(self, time_ms: int) -> int:
        """The position of the first record with a store time of at least `time_ms`; the end of the log if there is
        none."""

    async def message(self, position: int) -> bytes:
        """The sealed frame of the message at this position, which is its id. Includes held messages, and held messages
        that were dropped. Raises `NoSuchMessage`."""

    def stats(self) -> StoreStats: ...
