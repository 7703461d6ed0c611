"""Errors of a producer whose stream the node has ended, at any point of its writing."""

from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from cloud_sdk.errors import SluiceError, Unauthenticated, Unavailable
from cloud_sdk.transport.status import keep_status, stream_error
from tests.waiting import patience

_CORE = (grpc.StatusCode.INTERNAL, "Internal error from Core")


class Call:
    """A stream whose status changes: gRPC's own client speaks first, then the node."""

    def __init__(self, *statuses: tuple[grpc.StatusCode, str]) -> None:
        self._statuses = list(statuses)
        self.looks = 0
        self._on_status: Callable[[Call], None] | None = None

    def add_done_callback(self, callback: "Callable[[Call], None]") -> None:
        self._on_status = callback

    def end(self, status: tuple[grpc.StatusCode, str]) -> None:
        self._statuses = [status]
        assert self._on_status is not None
        self._on_status(self)

    async def details(self) -> str:
        self.looks += 1
        details = self._statuses[0][1]
        if len(self._statuses) > 1:
            self._statuses.pop(0)
        return details

    async def code(self) -> grpc.StatusCode:
        return self._statuses[0][0]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()


@pytest.mark.parametrize(
    ("statuses", "kind", "text"),
    [
        ([(grpc.StatusCode.UNAUTHENTICATED, "say who you are")], Unauthenticated, "say who you are"),
        ([_CORE, _CORE, (grpc.StatusCode.UNAUTHENTICATED, "say who you are")], Unauthenticated, "say who you are"),
        ([(grpc.StatusCode.OK, "")], Unavailable, "the node ended the stream"),
        ([_CORE], Unavailable, "the connection broke during a write"),
    ],
)
async def test_the_node_s_status_counts(
    statuses: list[tuple[grpc.StatusCode, str]], kind: type[SluiceError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_sdk.transport.status._STATUS_S", 0.05)
    call = Call(*statuses)
    async with patience():
        error = await stream_error(call)  # type: ignore[arg-type]
    assert type(error) is kind
    assert str(error) == text


async def test_a_write_that_fails_after_the_node_s_status_does_not_replace_it() -> None:
    call = Call()
    keep_status(call)  # type: ignore[arg-type]
    call.end((grpc.StatusCode.UNAUTHENTICATED, "say who you are"))
    call.end(_CORE)
    error = await stream_error(call)  # type: ignore[arg-type]
    assert type(error) is Unauthenticated
    assert str(error) == "say who you are"


async def test_the_node_s_status_after_a_failed_write_is_kept() -> None:
    call = Call()
    keep_status(call)  # type: ignore[arg-type]
    for status in (_CORE, (grpc.StatusCode.UNAUTHENTICATED, "say who you are"), (grpc.StatusCode.CANCELLED, "")):
        call.end(status)
    error = await stream_error(call)  # type: ignore[arg-type]
    assert type(error) is Unauthenticated
