"""Errors of a producer whose stream the node has ended, at any point of its writing."""

import grpc
import grpc.aio
import pytest

from cloud_sdk.errors import SluiceError, Unauthenticated, Unavailable
from cloud_sdk.transport.status import stream_error
from tests.waiting import patience

_CORE = (grpc.StatusCode.INTERNAL, "Internal error from Core")


class Call:
    """A stream whose status changes: gRPC's own client speaks first, then the node."""

    def __init__(self, *statuses: tuple[grpc.StatusCode, str]) -> None:
        self._statuses = list(statuses)
        self.looks = 0

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
