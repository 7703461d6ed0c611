"""The blocking face of the SDK: the same calls as `cloud_sdk.Client`, for code without an event loop.

A client runs the asyncio client on a loop of its own, in a daemon thread that the first call starts: a client may
be made before a process forks and used after, but a process that has used one must not fork and use one in the
child (gRPC does not survive that). Safe to use from several threads, which then share batches.
"""

from cloud_sdk.blocking.client import Client, IdempotentProducer, Transaction, TransactionChecks
from cloud_sdk.blocking.consumers import Delivery, PullConsumer, PushConsumer, SimpleConsumer

__all__ = [
    "Client",
    "Delivery",
    "IdempotentProducer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "Transaction",
    "TransactionChecks",
]
