"""Redis streams in both directions, against Debian's redis-server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from connect.api import ConnectError, InvalidSettings, RetriableError, SinkRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.redis.sink import RedisSink
from connect.connectors.redis.source import RedisSource
from tests.connect.connectors.harness import Context, again, collect, reasons, sent, settings_of, started
from tests.connect.connectors.servers import RedisServer
from tests.gateway.authority import Authority
from tests.waiting import patience

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Any]:
    connected = redis.asyncio.Redis(port=server.port, protocol=2)
    async with patience():
        yield connected
    await connected.aclose()


@asynccontextmanager
async def sink_to(server: RedisServer, context: Context | None = None, **more: str) -> AsyncIterator[Any]:
    uri = f"redis://127.0.0.1:{server.port}"
    async with started(RedisSink(), context or Context(), redis_uri=uri, **more) as task:
        yield task


@asynccontextmanager
async def source_from(server: RedisServer, context: Context | None = None, **more: str) -> AsyncIterator[Any]:
    uri = f"redis://127.0.0.1:{server.port}"
    async with started(RedisSource(), context or Context(), redis_uri=uri, **more) as task:
        yield task


async def test_sink_adds_entries(server: RedisServer, client: Any) -> None:
    record = sent(
        "plant/7/temp",
        {"t": 21.5},
        3,
        headers=[("a", "1"), ("a", "2"), ("site", "north")],
        key="k",
        content_type="application/json",
    )
    async with sink_to(server, redis_key="iot:${level1}", source_cluster_alias="here") as task:
        await task.put([record])
    ((_, fields),) = await client.xrange("iot:plant")
    assert {name.decode(): value.decode() for name, value in fields.items()} == {
        "value": '{"t":21.5}',
        "topic": "plant/7/temp",
        "id": "3000",
        "key": "k",
        "content-type": "application/json",
        "header.a": "1, 2",
        "header.site": "north",
        f"header.{CLUSTER}": f"here,127.0.0.1:{server.port}",
    }


async def test_sink_bounds_a_stream(server: RedisServer, client: Any) -> None:
    async with sink_to(server, redis_key="bounded", redis_stream_maxlen="100") as task:
        await task.put([sent("a", b"x", at) for at in range(3_000)])
    assert 100 <= await client.xlen("bounded") <= 300
    assert (await client.xrevrange("bounded", count=1))[0][1][b"id"] == b"2999000"


async def test_sink_rejects_single_messages(server: RedisServer, client: Any) -> None:
    context = Context()
    await client.set("text", "no stream")
    async with sink_to(server, context, redis_key="${level1}") as task:
        await task.put([sent("text/x", b""), sent("entries/1", b"1"), sent("/x", b"")])
    assert [record.topic for record, _ in context.rejected] == ["/x", "text/x"]
    assert reasons(context)[0] == "the name of the stream is empty"
    assert reasons(context)[1].startswith("Redis refuses the entry: ")
    assert await client.xlen("entries") == 1


async def test_source_goes_on_after_what_is_stored(server: RedisServer, client: Any) -> None:
    given = {"redis_stream_name": "orders,returns", "topic_mapping": "orders -> shop/orders"}
    for at in range(1_200):
        await client.xadd(
            "orders", {"value": str(at), "header.site": "north", "key": "k", "content-type": "text/plain"}
        )
    await client.xadd("returns", {"order": "7", "why": "too large"})
    async with source_from(server, Context("goes-on"), **given) as task:
        first = await collect(task, 500, commit=False)
        await task.committed(first[:101])
    (returned,) = [each for each in first if each.topic == "returns"]
    async with source_from(server, Context("goes-on"), **given) as task:
        orders = await collect(task, 1_100)
    assert [int(each.value) for each in orders] == list(range(100, 1_200))
    assert (orders[0].key, orders[0].content_type) == ("k", "text/plain")
    assert orders[0].headers == [("site", "north"), (CLUSTER, f"127.0.0.1:{server.port}")]
    assert returned.value == b'{"order": "7", "why": "too large"}'
    assert (await client.xpending("orders", "sluice-goes-on"))["pending"] == 0


async def test_source_asks_for_few_large_entries_at_once(server: RedisServer, client: Any) -> None:
    for _ in range(20):
        await client.xadd("large", {"value": bytes(1_000_000)})
    async with source_from(server, Context("large"), redis_stream_name="large") as task:
        counts: list[int] = []
        while sum(counts) < 20:
            records = await task.poll()
            await task.committed(records)
            counts.append(len(records))
    assert max(counts) <= 4


async def test_tasks_share_streams_and_take_over_what_others_left(server: RedisServer, client: Any) -> None:
    given = {"redis_stream_name": "shared", "redis_stream_claim_idle_ms": "1000"}
    for at in range(600):
        await client.xadd("shared", {"value": str(at)})
    async with source_from(server, Context("sharing", 0), **given) as first:
        left = await collect(first, 300, commit=False)
    async with source_from(server, Context("sharing", 1), **given) as second:
        found = await collect(second, 600)
    assert {each.value for each in found} == {str(at).encode() for at in range(600)}
    assert 300 <= len(left) < 600


async def test_source_leaves_out_entries_that_are_gone(server: RedisServer, client: Any) -> None:
    gone, _ = [await client.xadd("trimmed", {"value": each}) for each in ("gone", "there")]
    async with source_from(server, Context("trimmed"), redis_stream_name="trimmed") as task:
        await collect(task, 2, commit=False)
    await client.xdel("trimmed", gone)
    async with source_from(server, Context("trimmed"), redis_stream_name="trimmed") as task:
        assert [each.value for each in await collect(task, 1)] == [b"there"]
    assert (await client.xpending("trimmed", "sluice-trimmed"))["pending"] == 0


async def test_both_directions_do_not_loop(server: RedisServer, client: Any) -> None:
    async with (
        sink_to(server, redis_key="loop", source_cluster_alias="here") as sink,
        source_from(
            server, redis_stream_name="loop", target_cluster_alias="here", topic_field_enabled="true"
        ) as source,
    ):
        await sink.put([sent("ours/x", b"")])
        await client.xadd("loop", {"value": "", "topic": "theirs/x"})
        (record,) = await collect(source, 1)
        assert record.topic == "theirs/x"
        await sink.put([SinkRecord(record.topic, b"", headers=record.headers)])
        assert await client.xlen("loop") == 2


async def test_a_server_that_is_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    sink, source = RedisSink().task(), RedisSource().task()
    given = {"redis.uri": f"redis://127.0.0.1:{server.port}"}
    reading = settings_of(RedisSource(), {**given, "redis.stream.name": "load"})

    with pytest.raises(RetriableError, match=f"cannot reach Redis at 127.0.0.1:{server.port}: "):
        await sink.start(settings_of(RedisSink(), {**given, "redis.key": "load"}), Context())
    server.start()
    seen: set[bytes] = set()
    batches, size = 100, 50

    async def drain() -> None:
        while len(seen) < batches * size:
            found = await again(source.poll)
            seen.update(each.value for each in found)
            await again(lambda: source.committed(found))

    try:
        async with asyncio.timeout(200):
            await sink.start(settings_of(RedisSink(), {**given, "redis.key": "load"}), Context())
            await source.start(reading, Context())
            reader = asyncio.create_task(drain())
            for batch in range(batches):
                put = asyncio.create_task(
                    again(lambda at=batch: sink.put([sent("a", f"{at}-{each}".encode()) for each in range(size)]))
                )
                if batch % 20 == 10:
                    await asyncio.sleep(0)
                    server.kill()
                    server.start()
                await put
            await reader
    finally:
        await sink.stop()
        await source.stop()
        server.stop()
    assert seen == {f"{batch}-{each}".encode() for batch in range(batches) for each in range(size)}


async def test_wrong_settings_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_of(RedisSink(), {"redis.uri": "http://x"})
    assert str(caught.value).startswith("redis.uri: an address such as redis://host:6379/0")
    guarded = RedisServer(tmp_path, "requirepass right")
    guarded.start()
    try:
        for more in ({}, {"redis.password": "secret"}):
            values = settings_of(RedisSink(), {"redis.uri": f"redis://127.0.0.1:{guarded.port}", **more})
            with pytest.raises(ConnectError) as refused:
                await RedisSink().task().start(values, Context())
            assert not isinstance(refused.value, RetriableError)
            assert str(refused.value).startswith(f"Redis at 127.0.0.1:{guarded.port} refuses this user: ")
            assert "secret" not in str(refused.value)
    finally:
        guarded.stop()


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    file, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
    own, own_key = authority.issue("client", "client", "DNS:client")
    both = tmp_path / "client.pem"
    both.write_bytes(own.read_bytes() + own_key.read_bytes())
    server = RedisServer(tmp_path / "redis")
    config = tmp_path / "redis" / "redis.conf"
    lines = (
        f"port 0\ntls-port {server.port}\ntls-cert-file {file}\ntls-key-file {key}\ntls-ca-cert-file {authority.file}\n"
    )
    config.write_text(config.read_text() + lines, encoding="utf-8")
    server.start()
    given = {"redis.uri": f"rediss://localhost:{server.port}"}
    trusted = {**given, "ssl.truststore.location": str(authority.file)}
    task = RedisSink().task()
    try:
        async with patience():
            values = settings_of(RedisSink(), {**trusted, "ssl.keystore.location": str(both)})
            await task.start(values, Context())
            await task.put([sent("a", b"1")])
            with pytest.raises(ConnectError, match="TLS to Redis"):
                await RedisSink().task().start(settings_of(RedisSink(), given), Context())
    finally:
        await task.stop()
        server.stop()
