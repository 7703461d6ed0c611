"""The interface to a store: `Store`. The in-process engine implements it, and the client of a remote one.

`Store` is nine small protocols, each in a module with its data classes. A caller that needs only one of them says so
in its signature. This module re-exports all names, so that callers import from `store.api`.

Everything here is called on the node's event loop. `append` only gathers and returns at once. Queries are coroutines,
because a remote store answers over a socket; the engine answers most of them without suspending. Commits reach
listeners on the loop, in log order, after the views have folded them.

Source: design pages `docs/architecture.md` and `docs/format.md`.
"""

from typing import Protocol

from store.api.accounts import (
    ALL_ACTIONS,
    AccessRequest,
    AccountStore,
    Action,
    Ban,
    Outcome,
    Resource,
    Role,
    Rule,
    User,
    UserState,
)
from store.api.appended import Appended
from store.api.buckets import (
    MAX_ENTRY_NAME,
    MAX_ENTRY_VALUE,
    MAX_TOKEN,
    BucketChanges,
    BucketEntry,
    BucketStore,
    ChangeOutcome,
    EntryChange,
    EntryPage,
    entry_subject,
    is_entry_name,
    split_entry_subject,
)
from store.api.event_rules import EVENT_RULE, MAX_EVENT_RULES, EventRule, EventRuleStore, event_rule_group
from store.api.gateways import Attendance, GatewayStore, NamedClaim
from store.api.groups import (
    MAX_ERROR,
    DeadLetter,
    DeadLetterReason,
    Failed,
    GroupPause,
    GroupProgress,
    GroupQueueState,
    GroupState,
    GroupStore,
    Handed,
    Ordering,
    PopRequest,
    PopResult,
    Receipts,
    Redelivery,
    Run,
    Start,
)
from store.api.held import HeldMessage, HeldPage, HeldStore, TransactionListener
from store.api.log import (
    Addressed,
    Chunk,
    Commit,
    CommitListener,
    Done,
    Listening,
    LogStore,
    Moved,
    ProducerState,
    Rest,
    StoreStats,
    TierStats,
    Wants,
)
from store.api.queues import (
    Bounds,
    Child,
    ChildPage,
    Fetched,
    Found,
    QueueStore,
    Retained,
    Selected,
    TopicPage,
    dead_letter_queue,
    filter_queue,
    message_queues,
    partition_of,
    partition_queue,
    subscription_queue,
    topic_queue,
)
from store.api.sessions import Outbound, PendingRetained, SessionState, SessionStore, StoredSubscription, StoredWill

__all__ = [
    "ALL_ACTIONS",
    "EVENT_RULE",
    "MAX_ENTRY_NAME",
    "MAX_ENTRY_VALUE",
    "MAX_ERROR",
    "MAX_EVENT_RULES",
    "MAX_TOKEN",
    "AccessRequest",
    "AccountStore",
    "Action",
    "Addressed",
    "Appended",
    "Attendance",
    "Ban",
    "Bounds",
    "BucketChanges",
    "BucketEntry",
    "BucketStore",
    "BulkReads",
    "ChangeOutcome",
    "Child",
    "ChildPage",
    "Chunk",
    "Commit",
    "CommitListener",
    "DeadLetter",
    "DeadLetterReason",
    "Done",
    "EntryChange",
    "EntryPage",
    "EventRule",
    "EventRuleStore",
    "Failed",
    "Fetched",
    "Found",
    "GatewayStore",
    "GroupPause",
    "GroupProgress",
    "GroupQueueState",
    "GroupState",
    "GroupStore",
    "Handed",
    "HeldMessage",
    "HeldPage",
    "HeldStore",
    "Listening",
    "LogStore",
    "MessageStore",
    "Moved",
    "NamedClaim",
    "Ordering",
    "Outbound",
    "Outcome",
    "PendingRetained",
    "PopRequest",
    "PopResult",
    "ProducerState",
    "QueueStore",
    "Receipts",
    "Redelivery",
    "Resource",
    "Rest",
    "Retained",
    "Role",
    "Rule",
    "Run",
    "Selected",
    "SessionState",
    "SessionStore",
    "Start",
    "Store",
    "StoreStats",
    "StoredSubscription",
    "StoredWill",
    "TierStats",
    "TopicPage",
    "TransactionListener",
    "User",
    "UserState",
    "Wants",
    "dead_letter_queue",
    "entry_subject",
    "event_rule_group",
    "filter_queue",
    "is_entry_name",
    "message_queues",
    "partition_of",
    "partition_queue",
    "split_entry_subject",
    "subscription_queue",
    "topic_queue",
]


class MessageStore(LogStore, QueueStore, Protocol):
    """The log and its queues, for readers of messages."""


class BulkReads(Protocol):
    """Reads for those who read much and wait for nothing. They do not hold up commits and answers on their way from a
    store in another process, and a node's own copy of a shared log may answer them. In return, what they read may be
    ahead of the commits that listeners have heard of, and the end of `Fetched.bounds` a moment old, but not if the read
    reaches it."""

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        """Read up to `max_records` records and `max_bytes` bytes of a queue from `offset` on, as `QueueStore.fetch`."""

    async def fetch_selected(
        self,
        queue: bytes,
        offset: int,
        until: int,
        topic_filter: bytes,
        keys: list[bytes],
        max_records: int,
        max_bytes: int,
        without: int = 0,
    ) -> Selected | None:
        """Read messages of a partition that a filter or keys select, as `QueueStore.fetch_selected`."""

    async def read(self, position: int, max_bytes: int) -> Chunk:
        """Read up to `max_bytes` bytes of the log from `position` on, as `LogStore.read`."""

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        """Find up to `limit` messages of a parent topic by their key, as `QueueStore.by_key`."""


class Store(
    MessageStore, SessionStore, GroupStore, HeldStore, GatewayStore, AccountStore, EventRuleStore, BucketStore, Protocol
):
    """The log and all its views."""

    @property
    def bulk(self) -> BulkReads:
        """Reads of this store for services that read many megabytes."""
