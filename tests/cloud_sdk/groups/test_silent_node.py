"""Members of a group at a node that takes requests and answers nothing."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest

from cloud_sdk import Client, Unavailable
from cloud_sdk.groups import member_stream
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceServicer, add_SluiceServicer_to_server
from tests.waiting import patience


class Silent(SluiceServicer):
    """Has the streams of members open, and writes nothing."""

    async def Consume(self, requests: AsyncIterator[pb.ConsumeRequest], _context: object) -> None:  # noqa: N802  gRPC
        async for _ in requests:
            pass


@pytest.fixture
async def endpoint() -> AsyncIterator[str]:
    server = grpc.aio.server()
    add_SluiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_node_that_answers_nothing_is_unavailable(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_stream, "ANSWER_S", 0.05)
    async with patience(), Client(endpoint, retry_seconds=0.0) as client, client.consumer("g", "home") as consumer:
        with pytest.raises(Unavailable, match="did not answer within"):
            await consumer.next(0.0)
