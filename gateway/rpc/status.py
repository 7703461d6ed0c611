"""The gRPC statuses for errors of the store and for invalid requests."""

from typing import Final, NoReturn, TypeVar

import grpc
import grpc.aio

from store.errors import (
    LogCorrupt,
    NoSuchMessage,
    OffsetOutOfRange,
    OutcomeUnknown,
    RecordTooLarge,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFailed,
    TierUnavailable,
    TooManyGroups,
    ViewsDamaged,
)

Request = TypeVar("Request")
Reply = TypeVar("Reply")

BEGIN: Final = "sluice-begin"  # trailing metadata of OUT_OF_RANGE: the readable offsets [begin, end)
END: Final = "sluice-end"
UNREADABLE: Final = "the request is not a message of this protocol"

_CODES: Final[dict[type[StoreError], grpc.StatusCode]] = {
    LogCorrupt: grpc.StatusCode.DATA_LOSS,
    NoSuchMessage: grpc.StatusCode.NOT_FOUND,
    OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    OutcomeUnknown: grpc.StatusCode.UNAVAILABLE,
    RecordTooLarge: grpc.StatusCode.INVALID_ARGUMENT,
    StoreBusy: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StoreClosed: grpc.StatusCode.UNAVAILABLE,
    StoreFailed: grpc.StatusCode.UNAVAILABLE,
    TierUnavailable: grpc.StatusCode.UNAVAILABLE,
    TooManyGroups: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ViewsDamaged: grpc.StatusCode.DATA_LOSS,
}


class RequestError(Exception):
    """A request that the service itself refuses, with a status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    """An error for an invalid request, which the client must not repeat."""
    return RequestError(grpc.StatusCode.INVALID_ARGUMENT, message)


def status_of(error: StoreError) -> grpc.StatusCode:
    """The status code for an error of the store."""
    return _CODES.get(type(error), grpc.StatusCode.INTERNAL)


async def abort(context: "grpc.aio.ServicerContext[Request, Reply]", error: StoreError | RequestError) -> NoReturn:
    """End the call with the status of `error`."""
    if isinstance(error, RequestError):
        await context.abort(error.code, str(error))
    if isinstance(error, OffsetOutOfRange):
        bounds = ((BEGIN, str(error.begin)), (END, str(error.end)))
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error), bounds)
    await context.abort(status_of(error), str(error))
