"""Errors of the SDK, each with what to do about it."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import grpc
import grpc.aio


class SluiceError(Exception):
    """Base of the SDK's errors."""


class InvalidArgument(SluiceError):
    """The request is wrong (a topic, a name, a size). Do not repeat it."""


class OffsetOutOfRange(SluiceError):
    """The partition does not hold the offset. It holds [begin, end): continue within these bounds."""

    def __init__(self, message: str, begin: int, end: int) -> None:
        super().__init__(message)
        self.begin = begin
        self.end = end


class NoSuchMessage(SluiceError):
    """There is no message with this id: retention has removed it, or there never was one."""


class Busy(SluiceError):
    """The node has been at a limit for `retry_seconds`. Send slower."""


class Unavailable(SluiceError):
    """The node has not answered for `retry_seconds`. Messages on their way may be stored or not."""


class NoAnswer(Unavailable):
    """No answer to a request came in time. The command may have been carried out."""


class Untrusted(Unavailable):
    """The node's certificate is not trusted: it is of an unknown authority, out of date, or for another name."""


class TransactionEnded(SluiceError):
    """The transaction was ended before. `Client.trace` tells what became of its messages."""


class TryAgain(Exception):
    """Raise it in a handler to have the message come again after `delay_seconds`, up to 12 hours; None: after the delay
    that the node is configured with. Creating it with another delay raises `InvalidArgument`."""

    def __init__(self, delay_seconds: float | None = None) -> None:
        check_delay(delay_seconds)
        super().__init__(f"try again after {delay_seconds} s" if delay_seconds is not None else "try again")
        self.delay_seconds = delay_seconds


class DataLoss(SluiceError):
    """The node's log is damaged at the place of the read. Its operator has to act."""


class ClientClosed(SluiceError):
    """The client or consumer is closed."""


class NotAllowed(SluiceError):
    """The node requires credentials (`Client(credentials=…)`), the password is wrong, or the user's rules do not allow
    the call. Do not repeat it."""


class Unauthenticated(NotAllowed):
    """The credentials are missing or wrong."""


class NodeError(SluiceError):
    """Any other error of the node, described by its message."""


_KINDS: Final[dict[grpc.StatusCode, type[SluiceError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NoSuchMessage,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    # A node that stops cancels calls that take too long. A missed deadline is a node that hangs.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
}

# The details of gRPC's own client if the connection ends within a write. A node may send the same status code.
_FROM_CORE: Final = "Internal error from Core"
_LONGEST_DELAY_S: Final = 12 * 3_600
# How gRPC reports an untrusted certificate, under the status of a node that cannot be reached: OpenSSL's reason.
_UNTRUSTED: Final = re.compile(r"(CERTIFICATE_VERIFY_FAILED)(?:: ([^:]+))?|Hostname Verification Check failed")
_STATUS_S: Final = 1.0  # for the node's status to arrive after a write has failed
_POLL_S: Final = 0.005


def from_rpc(error: grpc.aio.AioRpcError) -> SluiceError:
    """The SDK's error for the status of a call."""
    message = error.details() or error.code().name
    if error.code() is grpc.StatusCode.OUT_OF_RANGE:
        metadata = cast("grpc.aio.Metadata", error.trailing_metadata())
        return OffsetOutOfRange(message, int(metadata.get("sluice-begin", 0)), int(metadata.get("sluice-end", 0)))
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _FROM_CORE:
        return Unavailable("the connection broke during a write")
    if error.code() is grpc.StatusCode.UNAVAILABLE and (untrusted := _UNTRUSTED.search(message)):
        why = untrusted[2] or ("it cannot be verified" if untrusted[1] else "it is for another name")
        return Untrusted(f"the certificate of the node is not trusted: {why}")
    kind = _KINDS.get(error.code())
    return kind(message) if kind is not None else NodeError(f"{error.code().name}: {message}")


async def stream_error(call: "grpc.aio.StreamStreamCall[Any, Any]") -> SluiceError:
    """The error of a stream that cannot be written to. If the node has ended the stream, its status tells why. The
    status may arrive a moment after the failed write, so this waits for it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _STATUS_S
    while await call.details() == _FROM_CORE and loop.time() < until:  # noqa: ASYNC110 - there is no event for that
        await asyncio.sleep(_POLL_S)
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK:
        return Unavailable("the node ended the stream")
    return from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), await call.trailing_metadata(), details, ""))


@contextmanager
def as_invalid_argument() -> Iterator[None]:
    """Raise `InvalidArgument` for values that protobuf refuses: numbers that are too large, text that is not
    Unicode."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


def check_delay(seconds: float | None) -> None:
    """Raise `InvalidArgument` unless a node accepts this delay; None is accepted."""
    if seconds is not None and not 0 <= seconds <= _LONGEST_DELAY_S:
        raise InvalidArgument(f"a delay is 0 to {_LONGEST_DELAY_S} seconds, not {seconds}")


def require_positive(limit: int) -> None:
    """Raise `InvalidArgument` unless the limit is positive. On the wire, 0 means the node's own limit."""
    if limit < 1:
        raise InvalidArgument(f"a limit is at least 1, not {limit}")
