"""Receipt handles, with which clients settle received messages. Their text is opaque to clients."""

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.groups.long_polling import Source
from store.api import Receipts


def handle_of(partition: int, offset: int, deliveries: int) -> str:
    return f"{partition}.{offset}.{deliveries}"


def receipts_of(source: Source, handle: str) -> Receipts:
    """The receipt that a handle of a message from `source` stands for. Raises `RocketError`."""
    parts = handle.split(".")
    if len(parts) != 3 or any(not part.isdecimal() or len(part) > 19 for part in parts):
        raise RocketError(pb.INVALID_RECEIPT_HANDLE, f"{handle[:100]!r} is not a receipt handle")
    partition, offset, deliveries = (int(part) for part in parts)
    if partition >= len(source.queues):
        raise RocketError(pb.INVALID_RECEIPT_HANDLE, f"{handle!r} is a receipt handle of another topic")
    return Receipts(source.queues[partition], offset, 1, deliveries)
