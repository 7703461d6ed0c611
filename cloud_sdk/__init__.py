"""The Python SDK for cloud services: produce, consume in a group and pull by offset, over gRPC.

`Client` is for asyncio, and `cloud_sdk.blocking.Client` for code without an event loop. The SDK is installed without a
node, so it may import `record` and nothing else of Sluice.

`producing` sends, `consuming` reads partitions by offset, `groups` has the members of groups, `buckets` has key-value
entries, and `transactions` and `replies` are built on those. All of them call the node through `transport`, and
`lifetime` closes them in order. `message` has what is sent and received, and `proto` is the wire.
"""

from cloud_sdk.buckets import Bucket, BucketChanges, Entry
from cloud_sdk.client import Client
from cloud_sdk.consumer_options import SelectionOptions
from cloud_sdk.consuming.broadcast_consumer import BroadcastConsumer
from cloud_sdk.consuming.pull_consumer import PullConsumer
from cloud_sdk.dead_letter import DeadLetter, DeadLetterReason
from cloud_sdk.errors import (
    Busy,
    ClientClosed,
    DataLoss,
    InvalidArgument,
    MessagesRejected,
    NoAnswer,
    NodeError,
    NoSuchMessage,
    NotAllowed,
    OffsetOutOfRange,
    RevisionConflict,
    SluiceError,
    TransactionEnded,
    TryAgain,
    Unauthenticated,
    Unavailable,
    Untrusted,
)
from cloud_sdk.groups.leases import Lease
from cloud_sdk.groups.push_consumer import PushConsumer
from cloud_sdk.groups.simple_consumer import Delivery, SimpleConsumer
from cloud_sdk.message import (
    Batch,
    Child,
    Group,
    GroupQueue,
    Message,
    OutgoingMessage,
    PartitionBounds,
    Receipt,
    SendOptions,
    Timer,
    inbox_of,
)
from cloud_sdk.producing.idempotent_producer import IdempotentProducer
from cloud_sdk.properties import Properties
from cloud_sdk.trace import Happened, TraceEvent
from cloud_sdk.transactions import Decision, Transaction, TransactionChecks
from cloud_sdk.transport.security import Credentials, Tls

__all__ = [
    "Batch",
    "BroadcastConsumer",
    "Bucket",
    "BucketChanges",
    "Busy",
    "Child",
    "Client",
    "ClientClosed",
    "Credentials",
    "DataLoss",
    "DeadLetter",
    "DeadLetterReason",
    "Decision",
    "Delivery",
    "Entry",
    "Group",
    "GroupQueue",
    "Happened",
    "IdempotentProducer",
    "InvalidArgument",
    "Lease",
    "Message",
    "MessagesRejected",
    "NoAnswer",
    "NoSuchMessage",
    "NodeError",
    "NotAllowed",
    "OffsetOutOfRange",
    "OutgoingMessage",
    "PartitionBounds",
    "Properties",
    "PullConsumer",
    "PushConsumer",
    "Receipt",
    "RevisionConflict",
    "SelectionOptions",
    "SendOptions",
    "SimpleConsumer",
    "SluiceError",
    "Timer",
    "Tls",
    "TraceEvent",
    "Transaction",
    "TransactionChecks",
    "TransactionEnded",
    "TryAgain",
    "Unauthenticated",
    "Unavailable",
    "Untrusted",
    "inbox_of",
]
