"""The source over a real node: several parents, filters that the node evaluates, times, retention."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cloud_sdk import Client, OutgoingMessage
from cloud_sdk.arrow import SCHEMA
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from store.config import StoreConfig, TierConfig
from store.engine import Engine
from streaming.source.batch import BatchReader
from streaming.source.options import SourceOptions
from streaming.source.stream import StreamReader
from tests.waiting import until

TOPICS = ("a/x", "a/x/t", "a/y", "b/x/t", "c", "$q/x")


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[str]:
    """A node in which each topic was published to ten times, a moment apart from ten times more."""
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0), RpcLimits())
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with Client(address, name="tester") as client:
        for _ in range(2):
            await client.send_many([OutgoingMessage(topic, b"%d" % n) for n in range(10) for topic in TOPICS])
            await asyncio.sleep(0.005)
    yield address
    await server.stop(0.2)
    await engine.close()


def rows(reader: BatchReader | StreamReader, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def batch(endpoint: str, *filters: Filter, **extra: str) -> list[dict[str, Any]]:
    reader = BatchReader(SourceOptions.parse({"endpoint": endpoint, **extra}), SCHEMA)
    assert reader.pushFilters(list(filters)) == []
    return rows(reader, reader.partitions())


@pytest.mark.parametrize(
    ("extra", "topics"),
    [
        ({"parent": "a"}, {"a/x", "a/x/t", "a/y"}),
        ({"parent": "a,c"}, {"a/x", "a/x/t", "a/y", "c"}),
        ({"filter": "a/x/#"}, {"a/x", "a/x/t"}),
        ({"filter": "+/x/#"}, {"a/x", "a/x/t", "b/x/t"}),
        ({"filter": "#"}, set(TOPICS) - {"$q/x"}),
        ({"filter": "a/y,+/x/t,$q/x"}, {"a/y", "a/x/t", "b/x/t", "$q/x"}),
    ],
)
async def test_a_batch_reads_the_selected_parents_and_topics(
    endpoint: str, extra: dict[str, str], topics: set[str]
) -> None:
    found = await asyncio.to_thread(batch, endpoint, recordsPerTask="7", **extra)
    assert len(found) == 20 * len(topics)
    assert {row["topic"] for row in found} == topics
    assert len({row["position"] for row in found}) == len(found)
    places = {(row["topic"].split("/")[0], row["partition"], row["offset"]) for row in found}
    assert len(places) == len(found)


async def test_filters_of_a_query(endpoint: str) -> None:
    found = await asyncio.to_thread(batch, endpoint, EqualTo(("topic",), "a/x"), parent="a,b")
    assert [row["topic"] for row in found] == ["a/x"] * 20
    several = await asyncio.to_thread(batch, endpoint, In(("topic",), ("a/x", "b/x/t", "z")), filter="+/x/#")
    assert {row["topic"] for row in several} == {"a/x", "b/x/t"}
    middle = sorted(row["stored_at"] for row in several)[len(several) // 2]
    late = await asyncio.to_thread(batch, endpoint, GreaterThanOrEqual(("stored_at",), middle), parent="a")
    assert len(late) == 30
    assert all(row["stored_at"] >= middle for row in late)


async def test_a_batch_reads_between_two_times(endpoint: str) -> None:
    stored = sorted({row["stored_at"] for row in await asyncio.to_thread(batch, endpoint, parent="a")})
    later = stored[-1]
    young = await asyncio.to_thread(batch, endpoint, parent="a", startingTimestamp=later.isoformat())
    old = await asyncio.to_thread(batch, endpoint, parent="a", endingTimestamp=later.isoformat())
    assert young and all(row["stored_at"] >= later for row in young)
    assert old and all(row["stored_at"] < later for row in old)
    assert len(young) + len(old) == 60
    future = datetime.fromtimestamp(time.time() + 3_600, UTC).isoformat()
    assert await asyncio.to_thread(batch, endpoint, parent="a", startingTimestamp=future) == []


async def test_a_stream_finds_parents_that_are_new(endpoint: str) -> None:
    reader = StreamReader(SourceOptions.parse({"endpoint": endpoint, "filter": "+/x/#"}), SCHEMA)
    start = await asyncio.to_thread(reader.initialOffset)
    assert set(start) == {"a", "b", "c"}
    async with Client(endpoint, name="tester") as client:
        await client.send_many([OutgoingMessage("new/x", b"")] * 3)
    end = await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())
    assert set(end) == {"a", "b", "c", "new"}
    parts = await asyncio.to_thread(reader.partitions, start, end)
    found = await asyncio.to_thread(rows, reader, parts)
    assert sum(row["topic"] == "new/x" for row in found) == 3
    assert len(found) == 63
    await asyncio.to_thread(reader.stop)


async def test_a_batch_crosses_into_the_tier(tmp_path: Path) -> None:
    tier = TierConfig(f"file://{tmp_path}/tier", retention_local_bytes=0)
    config = StoreConfig(segment_size=4 << 20, tail_cache_bytes=0, tier=tier)
    engine = await Engine.open(tmp_path / "data", config)
    server = RpcServer(engine, Authority(engine, 0), RpcLimits())
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    chance = Random(1)
    async with Client(address, name="tester") as client:
        for number in range(100):
            await client.send_many([OutgoingMessage("a/x", b"%d " % number + chance.randbytes(100_000))])
    await until(lambda: engine.stats().tier.local_begin >= 8 << 20)
    found = await asyncio.to_thread(batch, address, parent="a", recordsPerTask="7")
    expected = list(range(100))
    assert sorted(int(bytes(row["payload"]).partition(b" ")[0]) for row in found) == expected
    assert min(row["position"] for row in found) < engine.stats().tier.local_begin
    assert engine.stats().tier.reads > 0
    await server.stop(0.2)
    await engine.close()
