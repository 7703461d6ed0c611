"""The Python client that cloud services import: produce, consume in a group, pull by offset, over gRPC.

`Client` is the asyncio face, `cloud_sdk.blocking.Client` the same for code without an event loop; `proto` is the
wire. Ships to people who run no node: may import `record` and nothing else of Sluice.
"""

from cloud_sdk.client import Client
from cloud_sdk.consumer import Consumer, Delivery, Lease
from cloud_sdk.errors import (
    Busy,
    ClientClosed,
    DataLoss,
    InvalidArgument,
    NodeError,
    NoSuchMessage,
    OffsetOutOfRange,
    SluiceError,
    Unavailable,
)
from cloud_sdk.message import Batch, Child, Group, GroupQueue, Message, OutgoingMessage, PartitionBounds, Receipt
from cloud_sdk.properties import Properties

__all__ = [
    "Batch",
    "Busy",
    "Child",
    "Client",
    "ClientClosed",
    "Consumer",
    "DataLoss",
    "Delivery",
    "Group",
    "GroupQueue",
    "InvalidArgument",
    "Lease",
    "Message",
    "NoSuchMessage",
    "NodeError",
    "OffsetOutOfRange",
    "OutgoingMessage",
    "PartitionBounds",
    "Properties",
    "Receipt",
    "SluiceError",
    "Unavailable",
]
