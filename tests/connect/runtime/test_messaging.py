"""Connectors to messaging systems at a worker: what they make of settings, acknowledgements and states."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import nats
import pytest

from sluice.demo.engine_servers import NatsServers
from tests.connect.connectors.servers import RedisServer
from tests.connect.runtime.conftest import Connect
from tests.waiting import patience, until

pytestmark = pytest.mark.slow

HERE = ["127.0.0.0/8"]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


async def there_and_back(connect: Connect, out: Mapping[str, str], back: Mapping[str, str]) -> None:
    """Send messages, which a sink takes to another system, and a source takes back below `back/`."""
    await connect.set("out", {"topics": "home/#,back/#", "tasks.max": "2", **out})
    await connect.set("back", {"tasks.max": "2", "topic.mapping": "home/# -> back/{1}", **back})
    wanted = {b"%d" % number for number in range(500)}
    async with patience(), connect.worker(allowed_networks=HERE) as worker:
        for name in ("out", "back"):
            for task in (0, 1):
                await connect.until_state(worker, name, "RUNNING", task)
        for number in range(500):
            await connect.client.send(f"home/{number % 7}", b"%d" % number)
        found: list[bytes] = []
        async with connect.client.pull_consumer("back") as consumer:
            while len(found) < len(wanted):
                found += [each.payload for each in await consumer.poll(0.2)]
            while sum([each.lag for each in await connect.client.groups() if each.name == "connect-out"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert not await consumer.poll(0.5)  # what came back was not sent again
        assert set(found) == wanted


async def test_messages_go_to_redis_and_back(connect: Connect, redis: RedisServer) -> None:
    server = {"redis.uri": f"redis://127.0.0.1:{redis.port}"}
    sink = {"connector.class": "redis-sink", "redis.key": "s", **server}
    source = {"connector.class": "redis-source", "redis.stream.name": "s", "topic.field.enabled": "true", **server}
    await there_and_back(connect, sink, source)


async def test_messages_go_to_nats_and_back(connect: Connect, tmp_path: Path) -> None:
    with NatsServers(tmp_path / "nats", 1) as servers:
        url = f"nats://127.0.0.1:{servers.ports[0]}"
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="S", subjects=["home.>", "back.>"])
        await client.close()
        sink = {"connector.class": "nats-sink", "nats.servers": url}
        source = {"connector.class": "nats-source", "nats.servers": url, "nats.stream": "S"}
        await there_and_back(connect, sink, source)


async def test_a_private_address_that_nobody_allowed_fails_a_task(connect: Connect, redis: RedisServer) -> None:
    await connect.set(
        "w", {"connector.class": "redis-sink", "topics": "a/#", "redis.uri": f"redis://127.0.0.1:{redis.port}"}
    )
    async with patience(), connect.worker() as worker:
        fields = await connect.until_state(worker, "w", "FAILED")
        assert "127.0.0.1" in fields["trace"]


async def test_a_system_that_is_away_is_waited_for(connect: Connect, redis: RedisServer) -> None:
    redis.kill()
    server = {"redis.uri": f"redis://127.0.0.1:{redis.port}"}
    await connect.set("w", {"connector.class": "redis-sink", "topics": "a/#", "redis.key": "s", **server})
    await connect.client.send("a/x", b"1")
    async with patience(), connect.worker(allowed_networks=HERE) as worker:
        await until(lambda: any(run.fields()["retried"] for run in worker.running.values()))
        redis.start()
        await connect.set("r", {"connector.class": "redis-source", "redis.stream.name": "s", **server})
        async with connect.client.pull_consumer("s") as consumer:
            while not (found := await consumer.poll(0.2)):
                pass
        assert [each.payload for each in found] == [b"1"]
