"""The SDK for code without an event loop: the calls of `cloud_sdk.Client`, which block.

A client runs the asyncio client on an event loop in a daemon thread, which the first call starts. A client may be made
before a process forks and used afterwards. A process that has used a client must not fork and use one in the child,
because gRPC does not survive that. Several threads may use a client; their sends share requests.
"""

from cloud_sdk.blocking.client import Bucket, Client, IdempotentProducer, Transaction, TransactionChecks
from cloud_sdk.blocking.consumers import Delivery, PullConsumer, PushConsumer, SimpleConsumer

__all__ = [
    "Bucket",
    "Client",
    "Delivery",
    "IdempotentProducer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "Transaction",
    "TransactionChecks",
]
