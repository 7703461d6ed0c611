"""The SDK's errors for the statuses of gRPC calls."""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from cloud_sdk.errors import (
    Busy,
    DataLoss,
    InvalidArgument,
    NodeError,
    NoSuchMessage,
    NotAllowed,
    OffsetOutOfRange,
    SluiceError,
    Unauthenticated,
    Unavailable,
    Untrusted,
)

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
# How gRPC reports an untrusted certificate, under the status of a node that cannot be reached: OpenSSL's reason.
_UNTRUSTED: Final = re.compile(r"(CERTIFICATE_VERIFY_FAILED)(?:: ([^:]+))?|Hostname Verification Check failed")
_STATUS_S: Final = 1.0  # for the node's status to arrive after a write has failed
_POLL_S: Final = 0.005

_Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"
_Result = TypeVar("_Result")
_STATUSES: Final[WeakKeyDictionary[_Stream, tuple[grpc.StatusCode, str | None, grpc.aio.Metadata]]] = (
    WeakKeyDictionary()
)  # the node's


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


def keep_status(call: _Stream) -> None:
    """Remember the status with which the node ends a stream that was just opened, for `stream_error`. If the status
    comes while a write is under way, the write fails after it, and gRPC replaces the status by one of its own
    (`set_internal_error` of `grpc.aio`)."""
    call.add_done_callback(_on_status)


def _on_status(call: _Stream) -> None:
    if _result(call.details()) != _FROM_CORE:
        _STATUSES.setdefault(call, (_result(call.code()), _result(call.details()), _result(call.trailing_metadata())))


def _result(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """What a coroutine returns that has nothing to wait for, as those of a call that has ended."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("_Result", end.value)
    raise RuntimeError("the call has no status")


async def stream_error(call: _Stream) -> SluiceError:
    """The error of a stream that cannot be written to. If the node has ended the stream, its status tells why. The
    status may arrive a moment after the failed write, so this waits for it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _STATUS_S
    while await call.details() == _FROM_CORE and call not in _STATUSES and loop.time() < until:  # noqa: ASYNC110 - there is no event for that
        await asyncio.sleep(_POLL_S)
    code, details, trailing = _STATUSES.get(call) or (
        await call.code(),
        await call.details(),
        await call.trailing_metadata(),
    )
    if code is grpc.StatusCode.OK:
        return Unavailable("the node ended the stream")
    return from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, ""))
