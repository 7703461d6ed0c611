"""The one interface to a store: `Store`. The in-process engine implements it, and the client of one that is remote.

Everything here is called on the node's event loop. `append` only gathers and returns at once; queries
are coroutines because a remote store answers over a socket (the engine answers most of them without
ever suspending). Commits reach listeners on the loop, in log order, after the fold has applied them.

Source: design pages `docs/architecture.md` and `docs/format.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from matcher.names import has_wildcard, split_shared
from matcher.selector import EVERYTHING, Selection
from store.appended import Appended as Appended  # noqa: PLC0414  part of this face
from store.ended import Ended as Ended  # noqa: PLC0414  part of this face
from store.owed import Owed as Owed  # noqa: PLC0414  part of this face


def topic_queue(topic: bytes) -> bytes:
    """Name of the queue of one full MQTT topic."""
    return b"t" + topic


def filter_queue(topic_filter: bytes) -> bytes:
    """Name of the queue of one wildcard filter that a durable session subscribes to."""
    return b"f" + topic_filter


def subscription_queue(topic_filter: bytes) -> bytes:
    """Name of the queue that a durable or shared subscription reads."""
    inner = split_shared(topic_filter)[1]
    return filter_queue(inner) if has_wildcard(inner) else topic_queue(inner)


def partition_queue(parent: bytes, partition: int) -> bytes:
    """Name of a partition of a parent topic (the first level of a topic, which may be empty)."""
    return b"p" + parent + b"\0" + partition.to_bytes(2, "big")


def dead_letter_queue(group: bytes) -> bytes:
    """Name of the queue of the messages that a group gave up on."""
    return b"d" + group


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
    subscription: "Subscription | None"  # by which the client's durable session gets it; None: there is no such session


@dataclass(slots=True, frozen=True)
class HeldMessage:
    """A message that is in the log and in no queue yet: delayed until a time, or until its transaction ends."""

    handle: int  # position of its record; a name for it also when the record is gone
    topic: bytes
    publisher: bytes
    due_ms: int | None  # None: as soon as its transaction is committed
    rounds: int  # how often its publisher was asked what became of the transaction


@dataclass(slots=True)
class HeldPage:
    """Held messages in order; `after` is to be passed to get the next page, None at the end."""

    messages: list[HeldMessage]
    after: bytes | None


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
TransactionListener = Callable[[Sequence[HeldMessage]], None]


@dataclass(slots=True, frozen=True)
class Bounds:
    """The readable offsets of a queue: [begin, end)."""

    begin: int
    end: int


@dataclass(slots=True)
class Fetched:
    """Consecutive records of a queue: `count` sealed frames back to back, the first at offset `offset`.

    That may be behind the offset asked for: records in between are gone (reclaimed by retention, which takes a
    message that was held before its neighbours, or damaged). Go on at `next_offset`, also when `count` is 0."""

    offset: int
    count: int
    data: bytes
    bounds: Bounds

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


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


@dataclass(slots=True)
class Chunk:
    """Consecutive records of the log itself, every kind of them: frames from `position` up to `next_position`. That may
    lie behind the position asked for, where a segment ends or damage is passed over."""

    position: int
    next_position: int
    data: bytes
    damaged: int = 0  # bytes passed over before `position`: they are damaged, and records in them are gone


@dataclass(slots=True)
class Found:
    """Messages that have a key, the oldest first: `count` sealed frames back to back, each with its position.
    `after` is to be passed to get those behind, None at the end; there may be more also when `count` is 0."""

    count: int
    data: bytes
    after: int | None


@dataclass(slots=True)
class Subscription:
    """One durable subscription of a session with its committed cursor."""

    topic_filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int  # 0: none
    start_position: int  # log position of the record that made it: older messages are not its
    offset: int  # first offset of its queue that is not acknowledged
    # Of one that began in the past, until all that is older than itself is acknowledged; -1 else. For a topic: the
    # first offset of what is not older. For a wildcard filter, whose queue has nothing older: the log position to read
    # on from. To `store.control.subscribed` it says where to begin: an offset of the topic's queue, or a position.
    replay: int = -1
    # Offsets below it, and all of a wildcard filter's replay, may have been sent by a node that died; -1: nothing was.
    sent_before: int = -1


@dataclass(slots=True)
class Outbound:
    """A message on its way to a durable session: which packet id carries which queue entry."""

    packet_id: int
    topic_filter: bytes  # the subscription whose cursor sent it
    offset: int  # in that subscription's queue
    released: bool  # PUBREC came: PUBREL is owed, the message itself must not be sent again
    qos: int  # at which it was sent; 0: a record of an older version, which did not tell
    passed: bool = False  # of a replay's history, which does not come by the message again


@dataclass(slots=True)
class SessionState:
    """A durable session as the view has it."""

    client_id: bytes
    epoch: int
    expiry_interval: int  # seconds; 0xFFFFFFFF: never
    closed_at: int  # ms; 0 while a node holds it open
    subscriptions: list[Subscription] = field(default_factory=list)
    inbound: list[int] = field(default_factory=list)  # QoS 2 packet ids received and not released
    outbound: list[Outbound] = field(default_factory=list)
    user_name: bytes = b""  # whose it is: of the last connection; b"": nobody's in particular
    owed: list[Owed] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class User:
    """Who may connect with a password, and what proves that somebody knows it (RFC 5802, section 3)."""

    name: bytes
    salt: bytes
    iterations: int  # of PBKDF2 with HMAC-SHA-256
    stored_key: bytes  # 32 bytes
    server_key: bytes  # 32 bytes


@dataclass(slots=True, frozen=True)
class Rule:
    """Whether topics may be published to, or subscribed to."""

    allow: bool
    publish: bool
    subscribe: bool
    topic_filter: bytes  # `%c` and `%u` as levels stand for the client id and the user name


@dataclass(slots=True, frozen=True)
class Will:
    """The will of a connection: to be sent when that has ended in another way than by a DISCONNECT that drops it."""

    client_id: bytes
    delay_interval: int  # seconds
    due_ms: int  # 0: no end of the connection is recorded
    topic: bytes
    flags: int  # QoS and RETAIN as in a frame; that of its message has FLAG_WILL as well
    properties: bytes  # MQTT 5 block, no length prefix
    payload: bytes
    epoch: int = 0  # of the connection
    user_name: bytes = b""  # of who set it; b"": nobody in particular
    is_account: bool = False  # that is the name of a user, who may have been removed since
    is_allowed: bool = True  # what no rule speaks of may be published where it came from
    gateway: bytes = b""  # that has the connection; b"": the process of the store itself


@dataclass(slots=True, frozen=True)
class Produced:
    """What a producer, a process of a gateway, appended last."""

    producer: bytes
    sequence: int
    position: int  # of the log's record of it
    records: int  # that are to follow that record; a crash may have cut them
    digest: int = 0  # of all that its work had given by then, as the producer has it (64 bits); 0: it has none


@dataclass(slots=True)
class Attendance:
    """What a gateway is told. Orders come again until they are carried out."""

    orders: list[tuple[bytes, bool]]  # clients whose connection is to be closed; True: they have another one
    others: dict[str, int]  # figures of the other gateways, added up
    groups: list[bytes]  # shared subscriptions of which messages came back: they are to be had again


@dataclass(slots=True)
class Retained:
    """A retained value: its topic and the sealed frame it is."""

    topic: bytes
    frame: bytes
    entered: int  # position of the record by which it came to be that: of a message that was held, not its own


@dataclass(slots=True)
class TopicPage:
    """Topics in the order of their levels; `after` is to be passed to get the next page, None at the end."""

    names: list[bytes]
    after: bytes | None


@dataclass(slots=True)
class Child:
    """A name in the tree of topics, of one level, which may be empty."""

    name: bytes
    is_topic: bool  # it was published to
    has_children: bool  # there are topics below it


@dataclass(slots=True)
class ChildPage:
    """Names of one level, sorted; `after` is to be passed to get the next page, None at the end."""

    children: list[Child]
    after: bytes | None


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


class Store(Protocol):
    """The log and its views."""

    partitions: int  # per parent topic

    @property
    def wants(self) -> Wants | None:
        """What listeners to commits are told of. None: of everything."""

    def append(self, frames: list[bytes], done: Done) -> None:
        """Take unsealed frames for the next batch, in order. `done` is called on the loop once they are
        committed and folded, or have failed. Raises nothing; a full backlog fails with `StoreBusy`."""

    def on_commit(self, listener: CommitListener) -> None:
        """Call `listener` with each commit, after the fold and before the `done`s of its appends."""

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        """The sequence of the last append of a producer (`store.control.produced`), how many of its records are not in
        the log, since a crash may have cut it, and its digest. None: the producer is not known, or has ended."""

    async def bounds(self, queue: bytes) -> Bounds: ...

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        """Records from the first that is there at or behind `offset`, at least one where there is one; none at the
        end. Those of a topic or a partition come without these parts (`record.layout.PART_*`), which count in
        `max_bytes` all the same. Raises `OffsetOutOfRange` below begin or beyond end."""

    async def read(self, position: int, max_bytes: int) -> Chunk:
        """Committed log records from `position` on (must be a record's position or the log's end)."""

    async def position_at(self, time_ms: int) -> int:
        """Position of the log's first record whose store time is not before `time_ms`; the end if there is none."""

    async def floor(self, parent: bytes) -> int:
        """Store time, in ms, before which messages of a parent topic are not answered any more."""

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        """First offset whose store time is not before `time_ms`; the queue's end if there is none."""

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        """Messages of a parent topic that have the user property `key` with this value, oldest first, behind the
        position `after`: up to `limit`, and of `max_bytes`, but for the first. Those that entered their queues."""

    async def message(self, position: int) -> bytes:
        """The sealed frame of the message with this id, which is its position in the log; also one that is held, or
        was and entered nothing. Raises `NoSuchMessage`."""

    async def session(self, client_id: bytes) -> SessionState | None: ...

    async def session_row(self, client_id: bytes) -> SessionState | None:
        """The session without what it has (subscriptions, packet ids, what is owed to it): one row to read."""

    async def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, Subscription]:
        """The session's subscriptions with these filters, by filter, at a cost that does not grow with the others."""

    async def sessions(self, after: bytes | None, limit: int) -> list[bytes]:
        """Client ids of durable sessions, sorted, behind `after`."""

    def may_hold(self) -> bool:
        """Whether there is room for one more message that waits for its time or its transaction. Asked before an
        append, so that what is on its way may go beyond the limit."""

    async def sessions_of(self, user_name: bytes, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Client ids of a user's durable sessions among the next thousands behind `after`, sorted, and where to go on
        behind; None: that was all."""

    def session_count(self) -> int:
        """How many durable sessions there are."""

    async def will(self, client_id: bytes) -> Will | None: ...

    async def wills(self, after: bytes | None, limit: int) -> list[Will]:
        """All wills, sorted by client id, behind that of the client `after`."""

    async def wills_waiting(self, limit: int) -> list[tuple[bytes, int]]:
        """Wills whose connection is known to have ended, as (client id, due in ms), the next first."""

    async def sessions_open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        """Sessions that no SESSION_CLOSED has followed, sorted, behind `after`: (client id, epoch, expiry interval,
        gateway that has the connection, or nothing for the process of the store itself)."""

    async def sessions_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        """Closed sessions whose expiry has come, as (client id, epoch)."""

    async def retained(self, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        """Retained values that match, in the order of their levels, behind `after`; fewer than `limit`: the end."""

    async def group_offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        """Committed offset by partition; a partition nobody committed is absent."""

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

    async def shares_held(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` shared subscriptions that are kept for members without a trace in the log, each with the
        gateways that have these (the process of the store itself has no name), sorted, behind `after`."""

    async def gateways(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` gateways that have joined and not left, sorted, behind `after`."""

    async def join(self, gateway: bytes, held: Sequence[tuple[bytes, bytes]] | None, more: bool = False) -> float:
        """Have a process of its own be a gateway of this store, under a name that nobody else ever has. Returns the
        lease in seconds: so long it is there without attending. `held`: it joined before, and lost the store; these are
        the clients, with their proven users, that it has connections of, and `more` of them follow with another call.
        Raises `GatewayEnded` and other `StoreError`s."""

    async def attend(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        """The gateway is there, and counts this. Returns when something is asked of it, or after a part of the lease.
        Raises `GatewayEnded`: it has to begin anew."""

    async def leave(self, gateway: bytes) -> None:
        """The gateway has no connections any more. Returns when others may have all that it had."""

    async def hold(self, gateway: bytes, client_id: bytes, user: bytes) -> None:
        """Have a client be the gateway's alone. Whoever else has it closes its connection, and records the end of that,
        before this returns. Raises `HeldByAnother` for the client of another proven `user`, and `GatewayEnded`."""

    async def free(self, gateway: bytes, clients: Sequence[bytes]) -> None:
        """The gateway has no connections of these any more, and all that it had to append about them is committed."""

    async def reset_group(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        """Have a group begin these queues at these offsets; what it has of them is forgotten. Returns once that is
        committed. Raises `OffsetOutOfRange`, `TooManyGroups` and other `StoreError`s."""

    async def remove_group(self, group: bytes) -> None:
        """Forget a group with all it has; its dead-letter queue stays. Returns once that is committed."""

    async def groups(self, after: bytes | None, limit: int) -> list[GroupState]:
        """Up to `limit` groups that were ever used, sorted, behind `after`."""

    async def timers(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` (at least 1) messages that wait for their time, the next first, behind `after`."""

    async def transactions(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` (at least 1) messages that wait for the end of their transaction, behind `after`. One about
        which somebody is asked meanwhile may come twice."""

    async def recall(self, handles: Sequence[int]) -> list[int]:
        """Drop messages that wait for their time. Returns once that is committed, with the handles of those that do
        not (any more): the others are never delivered. Raises `StoreError`; some may have been dropped then."""

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        """Have messages that wait for the end of their transaction enter their queues, in this order (or wait for
        their time, if they are delayed as well), or drop them. Returns once that is committed, with the handles of
        those that do not wait for it (any more). Raises `StoreError`; the transaction of some may have ended then."""

    def on_transaction_check(self, listener: TransactionListener) -> None:
        """Call `listener` with messages whose transaction should have ended, for it to ask their publishers and call
        `end_transaction`. Called again for those that still wait, some times, after which they are rolled back."""

    async def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        """Topics that were ever published to and begin with `prefix`, up to `limit`, fewer where they are long."""

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        """The names that follow `above` in topics that were ever published to, at a cost that does not grow with what
        is below them. `above` is empty, and the names are the parent topics; or some levels with a slash behind."""

    async def user(self, name: bytes) -> User | None: ...

    async def users(self, after: bytes | None, limit: int) -> list[User]:
        """Up to `limit` users, sorted, behind `after`. The first may have the empty name, which is no user's."""

    async def rules(self, name: bytes) -> list[Rule]:
        """The rules for a user; for everybody: the empty name."""

    async def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        """Up to `limit` (user name, rules) of those that have rules, sorted, behind `after`."""

    def stats(self) -> StoreStats: ...
