"""RabbitMQ in both directions, against Debian's rabbitmq-server."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from connect.api import ConnectError, RetriableError, SinkRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.rabbitmq.sink import RabbitMqSink
from connect.connectors.rabbitmq.source import RabbitMqSource, RabbitMqSourceTask
from tests.connect.connectors.harness import Context, again, collect, reasons, sent, settings_of, started
from tests.connect.connectors.servers import RabbitMqServers
from tests.waiting import patience, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMqServers]:
    running = RabbitMqServers(tmp_path_factory.mktemp("rabbitmq"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
async def channel(server: RabbitMqServers) -> AsyncIterator[Any]:
    """A channel of somebody else."""
    connection = await aio_pika.connect(port=server.port)
    async with patience():
        yield await connection.channel()
    await connection.close()


def at(server: RabbitMqServers, **more: str) -> dict[str, str]:
    return {"rabbitmq_host": "127.0.0.1", "rabbitmq_port": str(server.port), **more}


def dotted(given: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in given.items()}


async def test_sink_publishes_with_confirms(server: RabbitMqServers, channel: Any) -> None:
    exchange = await channel.declare_exchange("plant", aio_pika.ExchangeType.TOPIC)
    queue = await channel.declare_queue("temps")
    await queue.bind(exchange, "plant.*.temp")
    now = int(time.time() * 1_000)
    records = [
        sent(f"plant/{each}/temp", {"t": each}, each, headers=[("a", "1"), ("a", "2")], timestamp_ms=now)
        for each in range(1_500)
    ]
    records[0].content_type, records[0].message_expiry = "application/json", 1_000
    records.append(sent("plant/x/temp", b"expired", timestamp_ms=now - 2_000, message_expiry=1))
    async with started(RabbitMqSink(), Context(), **at(server, rabbitmq_exchange="plant")) as task:
        await task.put(records)
    found = [await queue.get(no_ack=True) for _ in range(1_500)]
    assert [each.routing_key for each in found] == [f"plant.{each}.temp" for each in range(1_500)]
    first = found[0]
    assert (first.body, first.content_type, first.delivery_mode) == (b'{"t":0}', "application/json", 2)
    assert first.headers == {"a": "1, 2", "mqtt-topic": "plant/0/temp", CLUSTER: f"127.0.0.1:{server.port}"}
    assert 900 < float(first.expiration) <= 1_000
    assert await queue.get(no_ack=True, fail=False) is None


async def test_sink_rejects_single_messages(server: RabbitMqServers, channel: Any) -> None:
    queue = await channel.declare_queue("few.good")
    context = Context()
    async with started(RabbitMqSink(), context, **at(server)) as task:
        large = sent("few/large", b"", 4, headers=[(name, 60_000 * "x") for name in "abc"])
        await task.put([sent("no/queue", b"", 1), sent("few/good", b"1", 2), sent("a" * 300, b"", 3), large])
    assert (await queue.get(no_ack=True)).body == b"1"
    assert [record.topic[:8] for record, _ in context.rejected] == ["aaaaaaaa", "few/larg", "no/queue"]
    assert reasons(context)[2] == "no queue takes the routing key no.queue"
    async with started(RabbitMqSink(), context, **at(server, rabbitmq_mandatory="false")) as task:
        await task.put([sent("no/queue", b"")])
    assert len(context.rejected) == 3


async def test_sink_sends_what_expires_later_than_rabbitmq_knows(server: RabbitMqServers, channel: Any) -> None:
    queue = await channel.declare_queue("expiry")
    now = int(time.time() * 1_000)
    lives = (100, 2**32 - 1)
    async with started(RabbitMqSink(), Context(), **at(server)) as task:
        await task.put([sent("expiry", b"", timestamp_ms=now, message_expiry=each) for each in lives])
    some, more = [await queue.get(no_ack=True) for _ in lives]
    assert 90 < some.expiration <= 100
    assert more.expiration is None


async def test_source_goes_on_after_what_is_stored(server: RabbitMqServers, channel: Any) -> None:
    queue = await channel.declare_queue("orders")
    for each in range(1_200):
        message = aio_pika.Message(str(each).encode(), headers={"site": "north", "n": 7}, content_type="text/plain")
        await channel.default_exchange.publish(message, "orders")
    given = at(server, rabbitmq_queue="orders", topic_mapping="orders -> shop/orders")
    async with started(RabbitMqSource(), Context(), **given) as task:
        first = await collect(task, 300, commit=False)
        await task.committed(first[:100])
    async with started(RabbitMqSource(), Context(), **given) as task:
        rest = await collect(task, 1_100)
    assert sorted(int(each.value) for each in rest) == list(range(100, 1_200))
    assert (rest[0].topic, rest[0].content_type) == ("shop/orders", "text/plain")
    assert rest[0].headers == [("n", "7"), ("site", "north"), (CLUSTER, f"127.0.0.1:{server.port}")]
    assert await queue.get(no_ack=True, fail=False) is None


async def test_source_holds_few_bytes_of_large_messages(
    server: RabbitMqServers, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it may be sent ahead. Each message comes once all the same."""
    monkeypatch.setattr("connect.connectors.rabbitmq.source._MAX_HELD", 1 << 20)
    queue = await channel.declare_queue("large")
    sizes = [100] * 100 + [100_000] * 100 + [2 << 20] * 2
    for number, size in enumerate(sizes):
        await channel.default_exchange.publish(aio_pika.Message(b"%d:" % number + bytes(size)), "large")
    held: list[tuple[int, int]] = []  # messages, and their bytes
    hold = RabbitMqSourceTask._hold

    async def noted(task: RabbitMqSourceTask, message: Any) -> None:
        await hold(task, message)
        held.append((len(task._held), sum(len(each.body) for each in task._held)))
        assert held[-1][1] == task._held_bytes

    monkeypatch.setattr(RabbitMqSourceTask, "_hold", noted)
    async with started(RabbitMqSource(), Context(), **at(server, rabbitmq_queue="large")) as task:
        await until(lambda: task._is_full)
        found = await collect(task, len(sizes))
        assert sorted(int(each.value.partition(b":")[0]) for each in found) == list(range(len(sizes)))
        assert task._prefetch < 100
    assert all(size <= 1 << 20 or count == 1 for count, size in held)
    assert await queue.get(no_ack=True, fail=False) is None


async def test_both_directions_do_not_loop(server: RabbitMqServers, channel: Any) -> None:
    queue = await channel.declare_queue("loop")
    given = {"rabbitmq_queue": "loop", "target_cluster_alias": "here", "topic_header_enabled": "true"}
    async with (
        started(
            RabbitMqSink(), Context(), **at(server, source_cluster_alias="here", rabbitmq_routing_key="loop")
        ) as sink,
        started(RabbitMqSource(), Context(), **at(server, **given)) as source,
    ):
        await sink.put([sent("ours/x", b"")])
        theirs = aio_pika.Message(b"", headers={"mqtt-topic": "theirs/x"})
        await channel.default_exchange.publish(theirs, "loop")
        (record,) = await collect(source, 1)
        assert record.topic == "theirs/x"
        await sink.put([SinkRecord(record.topic, b"", headers=record.headers)])
    assert await queue.get(no_ack=True, fail=False) is None


async def test_wrong_settings_are_one_clear_line(server: RabbitMqServers, channel: Any) -> None:
    values = settings_of(RabbitMqSink(), dotted(at(server, rabbitmq_virtual_host="none")))
    with pytest.raises(ConnectError, match="does not open the virtual host none"):
        await RabbitMqSink().task().start(values, Context())
    for kind, more, text in (
        (RabbitMqSink(), {"rabbitmq_password": "secret"}, "refuses: .*ACCESS_REFUSED"),
        (RabbitMqSink(), {"rabbitmq_exchange": "none"}, "refuses: .*no exchange 'none'"),
        (RabbitMqSource(), {"rabbitmq_queue": "none"}, "refuses: .*no queue 'none'"),
    ):
        values = settings_of(kind, dotted(at(server, **more)))
        task: Any = kind.task()
        with pytest.raises(ConnectError, match=f"RabbitMQ at 127.0.0.1:{server.port} {text}") as refused:
            await task.start(values, Context())
        await task.stop()
        assert not isinstance(refused.value, RetriableError)
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)


async def test_a_queue_that_is_removed_ends_the_task(server: RabbitMqServers, channel: Any) -> None:
    queue = await channel.declare_queue("removed")
    async with started(RabbitMqSource(), Context(), **at(server, rabbitmq_queue="removed")) as task:
        waits = asyncio.create_task(task.poll())
        await asyncio.sleep(0)
        await queue.delete(if_unused=False, if_empty=False)
        with pytest.raises(RetriableError):
            await waits
        with pytest.raises(ConnectError, match="no queue 'removed'"):
            await task.poll()


async def test_a_server_that_is_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    server = RabbitMqServers(tmp_path)
    sink, source = RabbitMqSink().task(), RabbitMqSource().task()
    sending = settings_of(RabbitMqSink(), dotted(at(server, rabbitmq_routing_key="load")))
    reading = settings_of(RabbitMqSource(), dotted(at(server, rabbitmq_queue="load")))
    seen: set[bytes] = set()
    batches, size = 60, 50

    async def drain() -> None:
        while len(seen) < batches * size:
            found = await again(source.poll)
            seen.update(each.value for each in found)
            await again(lambda: source.committed(found))

    with pytest.raises(RetriableError, match=f"no connection to RabbitMQ at 127.0.0.1:{server.port}: "):
        await sink.start(sending, Context())
    try:
        server.start()
        async with asyncio.timeout(240):
            connection = await aio_pika.connect(port=server.port)
            await (await connection.channel()).declare_queue("load", durable=True)
            await connection.close()
            await again(lambda: sink.start(sending, Context()))
            await again(lambda: source.start(reading, Context()))
            reader = asyncio.create_task(drain())
            for batch in range(batches):
                records = [sent("a", f"{batch}-{each}".encode(), each) for each in range(size)]
                put = asyncio.create_task(again(lambda records=records: sink.put(records)))
                if batch in (20, 40):
                    await asyncio.sleep(0)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await put
            await reader
    finally:
        await sink.stop()
        await source.stop()
        server.stop()
    assert seen == {f"{batch}-{each}".encode() for batch in range(batches) for each in range(size)}
