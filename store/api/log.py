"""The log: appends, commits as listeners see them, and records by position."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from store.api.appended import Appended
from store.api.sessions import StoredSubscription


@dataclass(slots=True, frozen=True)
class Moved:
    """A message whose record is older than the commit that puts it into its queues: it was held, and is so no more."""

    position: int  # of its record in the log
    length: int  # of that
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
    subscription: (
        StoredSubscription | None
    )  # by which the client's durable session gets it; None: there is no such session


class Commit:
    """One committed batch as the fold left it. Columns run over its *message* records, in log order, but those that
    are held: they are in `moved` of the commit that lets them go.

    In a gateway of its own process a commit may have only what concerns that gateway: `data` is the frames of its
    messages then, and `end` that of the batch. With `missed_from` it has nothing: what was committed from there up to
    `position` was not told of, and listeners have to look for themselves."""

    __slots__ = (
        "addressed",
        "again",
        "data",
        "dead_letters",
        "end",
        "filter_offsets",
        "flags",
        "missed_from",
        "moved",
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
        self.end = position + len(data)  # of the next batch
        self.store_time = store_time  # ms
        self.missed_from = -1
        self.starts: list[int] = []  # where each message's frame starts in `data`
        self.topics: list[bytes] = []
        self.flags: list[int] = []
        self.topic_offsets: list[int] = []  # each message's offset in its topic queue
        # Per message the (filter, offset) pairs of the filter queues it entered; None where no
        # filter queue exists at all, so that the common case costs nothing.
        self.filter_offsets: list[tuple[tuple[bytes, int], ...]] | None = None
        self.moved: list[Moved] = []  # in the order in which they entered their queues
        self.addressed: list[Addressed] = []  # of the messages and of `moved`
        self.dead_letters: list[bytes] = []  # groups whose dead-letter queue grew
        # Groups of which messages come again at another time, or that go on elsewhere; none of shared subscriptions.
        self.again: list[bytes] = []
        self.users: list[bytes] = []  # that were set or removed
        self.rules: list[bytes] = []  # users whose rules were set; the empty name: those for everybody


Done = Callable[[Appended], None]
CommitListener = Callable[[Commit], None]


class Listening:
    """A listener to commits. It may change `parts` at any time."""

    __slots__ = ("listener", "parts")

    def __init__(self, listener: CommitListener, parts: int) -> None:
        self.listener = listener
        self.parts = parts  # of `store.commit_listeners`: what it wants. 0: no commit


@dataclass(slots=True)
class Chunk:
    """Consecutive records of the log itself, every kind of them: frames from `position` up to `next_position`. That may
    lie behind the position asked for, where a segment ends or damage is passed over."""

    position: int
    next_position: int
    data: bytes
    damaged: int = 0  # bytes passed over before `position`: they are damaged, and records in them are gone


@dataclass(slots=True, frozen=True)
class ProducerState:
    """What a producer, a process of a gateway, appended last."""

    producer: bytes
    sequence: int
    position: int  # of the log's record of it
    records: int  # that are to follow that record; a crash may have cut them
    digest: int = 0  # of all that its work had given by then, as the producer has it (64 bits); 0: it has none


@dataclass(slots=True)
class StoreStats:
    """Figures for people and Prometheus."""

    log_begin: int
    log_end: int
    records: int  # appended by this process
    messages: int
    batches: int
    checkpoint: int
    log_bytes: int  # on disk
    view_bytes: int
    tail_bytes: int  # in the tail cache
    pending_bytes: int  # accepted by append, not yet committed
    sessions: int  # durable ones
    retained: int  # values
    held: int  # messages that wait for their time or their transaction
    max_held: int  # of those
    damaged_places: int  # of the log, known and served around
    damaged_bytes: int  # in them
    damage_met: int  # other places where reads of this process met damage
    failed: bool = False  # a write failed: no appends until a restart


class Wants(Protocol):
    """The topic filters that a gateway is told of, each as often as it was added."""

    def add(self, topic_filter: bytes) -> None:
        """Tell of what matches. Who asks for the end of a queue next misses nothing that comes behind that."""

    def remove(self, topic_filter: bytes) -> None: ...

    @property
    def is_settled(self) -> bool:
        """Whether all that matches is told from now on."""

    async def settled(self) -> None:
        """Wait for that. Raises `StoreError` when the store is lost meanwhile."""


class LogStore(Protocol):
    """The log, and what is told of its commits."""

    @property
    def wants(self) -> Wants | None:
        """What listeners to commits are told of. None: of everything."""

    def append(self, frames: list[bytes], done: Done) -> None:
        """Take unsealed frames for the next batch, in order. `done` is called on the loop once they are
        committed and folded, or have failed. Raises nothing; a full backlog fails with `StoreBusy`."""

    def on_commit(self, listener: CommitListener, parts: int = ...) -> Listening:
        """Call `listener` with each commit, after the fold and before the `done`s of its appends.

        parts: only with commits that have one of these (`store.commit_listeners`); every commit by default. A listener
        that needs no commits for a while sets `parts` of what is returned to 0.
        """

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        """The sequence of the last append of a producer (`store.control.produced`), how many of its records are not in
        the log, since a crash may have cut it, and its digest. None: the producer is not known, or has ended."""

    async def read(self, position: int, max_bytes: int) -> Chunk:
        """Committed log records from `position` on (must be a record's position or the log's end)."""

    async def position_at(self, time_ms: int) -> int:
        """Position of the log's first record whose store time is not before `time_ms`; the end if there is none."""

    async def message(self, position: int) -> bytes:
        """The sealed frame of the message with this id, which is its position in the log; also one that is held, or
        was and entered nothing. Raises `NoSuchMessage`."""

    def stats(self) -> StoreStats: ...
