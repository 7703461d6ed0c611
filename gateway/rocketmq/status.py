"""RocketMQ's status codes for errors. A reply carries them; the gRPC call itself succeeds."""

from typing import Final

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from store.errors import (
    LogCorrupt,
    NoSuchMessage,
    OffsetOutOfRange,
    RecordTooLarge,
    StoreBusy,
    StoreError,
    TooManyGroups,
)

_CODES: Final[dict[type[StoreError], "pb.Code"]] = {
    NoSuchMessage: pb.MESSAGE_NOT_FOUND,
    OffsetOutOfRange: pb.ILLEGAL_OFFSET,
    RecordTooLarge: pb.MESSAGE_BODY_TOO_LARGE,
    StoreBusy: pb.TOO_MANY_REQUESTS,
    TooManyGroups: pb.TOO_MANY_REQUESTS,
    LogCorrupt: pb.MESSAGE_CORRUPTED,
}


class RocketError(Exception):
    """A request that the service refuses, with RocketMQ's code."""

    def __init__(self, code: "pb.Code", message: str) -> None:
        super().__init__(message)
        self.code = code


OK: Final = pb.Status(code=pb.OK, message="OK")


def status_of(error: StoreError | RocketError) -> pb.Status:
    """The status for an error. INTERNAL_SERVER_ERROR for a closed or failed store makes clients retry."""
    code = error.code if isinstance(error, RocketError) else _CODES.get(type(error), pb.INTERNAL_SERVER_ERROR)
    return pb.Status(code=code, message=str(error))
