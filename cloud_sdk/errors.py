"""What can go wrong when talking to a node, each with what to do about it."""

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
    """The request is wrong (a topic, a name, a size): repeating it does not help."""


class OffsetOutOfRange(SluiceError):
    """The partition does not hold the offset. It holds [begin, end): seek to one of them."""

    def __init__(self, message: str, begin: int, end: int) -> None:
        super().__init__(message)
        self.begin = begin
        self.end = end


class NoSuchMessage(SluiceError):
    """There is no message with this id: retention has taken it, or it is not one."""


class Busy(SluiceError):
    """The node is at a limit and stayed there for `retry_seconds`: send slower."""


class Unavailable(SluiceError):
    """No node answered for `retry_seconds`. What was being sent may or may not be stored."""


class NoAnswer(Unavailable):
    """Nobody answered a request in time. The command may have been carried out."""


class Untrusted(Unavailable):
    """The node's certificate is of no authority that this client trusts, is out of date, or is for another name."""


class TransactionEnded(SluiceError):
    """The transaction had an end already: what of it was delivered is to be found out (`Client.trace`)."""


class TryAgain(Exception):
    """Raised by a handler: its message is to come again after `delay_seconds`, 12 hours at most; None: as the node is
    configured. Raises `InvalidArgument` where it is told another one."""

    def __init__(self, delay_seconds: float | None = None) -> None:
        check_delay(delay_seconds)
        super().__init__(f"the message is to come again after {delay_seconds} s")
        self.delay_seconds = delay_seconds


class DataLoss(SluiceError):
    """The node found its log damaged where it was asked to read: its operator has to look."""


class ClientClosed(SluiceError):
    """The client or consumer is closed."""


class NotAllowed(SluiceError):
    """The node wants to know who calls (`Client(credentials=…)`), the password is wrong, or the user's rules do not
    allow it: repeating it does not help."""


class Unauthenticated(NotAllowed):
    """Of these the former two: the node does not know who calls."""


class NodeError(SluiceError):
    """The node failed in a way it has no word for; the message is all there is."""


_KINDS: Final[dict[grpc.StatusCode, type[SluiceError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NoSuchMessage,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    # A node that stops cancels what its grace did not cover; a deadline is a node that hangs.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
}

# What gRPC's own client says, under a code that a node may also send, when the connection ends within a write.
_FROM_CORE: Final = "Internal error from Core"
_LONGEST_DELAY_S: Final = 12 * 3_600
# gRPC's words about a node's certificate, of which it says no more than that it cannot connect; OpenSSL's reason.
_UNTRUSTED: Final = re.compile(r"(CERTIFICATE_VERIFY_FAILED)(?:: ([^:]+))?|Hostname Verification Check failed")
_STATUS_S: Final = 1.0  # until the node's status has come, of a stream that can be written to no more
_LOOK_S: Final = 0.005


def from_rpc(error: grpc.aio.AioRpcError) -> SluiceError:
    """The SDK's error for a gRPC status."""
    message = error.details() or error.code().name
    if error.code() is grpc.StatusCode.OUT_OF_RANGE:
        metadata = cast("grpc.aio.Metadata", error.trailing_metadata())
        return OffsetOutOfRange(message, int(metadata.get("sluice-begin", 0)), int(metadata.get("sluice-end", 0)))
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _FROM_CORE:
        return Unavailable("the connection broke within a write")
    if error.code() is grpc.StatusCode.UNAVAILABLE and (untrusted := _UNTRUSTED.search(message)):
        why = untrusted[2] or ("it cannot be verified" if untrusted[1] else "it is for another name than is asked for")
        return Untrusted(f"the certificate of the node is not trusted: {why}")
    kind = _KINDS.get(error.code())
    return kind(message) if kind is not None else NodeError(f"{error.code().name}: {message}")


async def stream_error(call: "grpc.aio.StreamStreamCall[Any, Any]") -> SluiceError:
    """Why a stream cannot be written to any more. Mostly the node has ended it, and its status says why: that may come
    a moment after the write that failed, and takes the place of what gRPC's own client says about that."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _STATUS_S
    while await call.details() == _FROM_CORE and loop.time() < until:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(_LOOK_S)
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK:
        return Unavailable("the node ended the stream")
    return from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), await call.trailing_metadata(), details, ""))


@contextmanager
def as_invalid_argument() -> Iterator[None]:
    """What protobuf says about a number that the wire cannot carry, or a text that is not Unicode, in our words."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(str(error)) from error


def check_delay(seconds: float | None) -> None:
    """Raise `InvalidArgument` unless a node takes this for a delay."""
    if seconds is not None and not 0 <= seconds <= _LONGEST_DELAY_S:
        raise InvalidArgument(f"a delay is 0 to {_LONGEST_DELAY_S} seconds, not {seconds}")


def require_positive(limit: int) -> None:
    """A limit of 0 means the node's on the wire, and nothing to whoever says it."""
    if limit < 1:
        raise InvalidArgument(f"a limit is at least 1, not {limit}")
