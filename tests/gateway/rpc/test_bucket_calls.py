"""Changes of buckets through several gateways of one store: the log decides, whoever appends."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.limits import RpcLimits
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from store.config import StoreConfig
from store.engine import Engine
from store.errors import OutcomeUnknown
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.views import buckets


async def test_one_gateway_of_several_wins(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=1 << 20))
        stack.push_async_callback(engine.close)
        server = StoreServer(engine, Hub(engine), RemoteConfig())
        await server.start(f"unix:{tmp_path}/s")
        stack.push_async_callback(server.stop)
        gateways = [BucketCalls(engine, RpcLimits())]
        for name in ("g1", "g2", "g3"):
            remote = await RemoteStore.open(f"unix:{tmp_path}/s", name, EventReceiver(), RemoteConfig())
            stack.push_async_callback(remote.close)
            gateways.append(BucketCalls(remote, RpcLimits()))
        revision = 0
        for step in range(20):
            value = [b"%d of %d" % (step, number) for number in range(len(gateways))]
            puts = [
                each.put(pb.PutEntryRequest(bucket="a", key="k", value=value[number], expected=revision))
                for number, each in enumerate(gateways)
            ]
            replies = await asyncio.gather(*puts)
            (winner,) = [number for number, reply in enumerate(replies) if not reply.conflicts]
            revision = replies[winner].revision
            assert {reply.revision for reply in replies} == {revision}
            for each in gateways:
                entry = (await each.get(pb.GetEntryRequest(bucket="a", key="k"))).entry
                assert (entry.value, entry.revision) == (value[winner], revision)


async def test_an_outcome_that_is_forgotten_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes came in one batch than outcomes are kept."""
    monkeypatch.setattr(buckets, "MAX_OUTCOMES", 2)
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 20))
    calls = BucketCalls(engine, RpcLimits())
    puts = [calls.put(pb.PutEntryRequest(bucket="a", key=str(number))) for number in range(8)]
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert any(isinstance(answer, OutcomeUnknown) for answer in answers)
    assert all(isinstance(answer, OutcomeUnknown | pb.ChangeEntryReply) for answer in answers)
    await engine.close()
