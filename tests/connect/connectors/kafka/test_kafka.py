"""Kafka in both directions, against the mock cluster of librdkafka.

Its groups have one member here: aiokafka's SyncGroup of a second one is answered with InvalidRequestError.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from connect.api import InvalidSettings, RetriableError, SinkRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.kafka.sink import KafkaSink
from connect.connectors.kafka.source import KafkaSource
from tests.connect.connectors.harness import Context, collect, reasons, sent, settings_of, started
from tests.connect.connectors.servers import MockKafka
from tests.waiting import patience

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockKafka]:
    running = MockKafka(tmp_path_factory.mktemp("kafka"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def producer(cluster: MockKafka) -> AsyncIterator[Any]:
    made = AIOKafkaProducer(bootstrap_servers=cluster.address)
    async with patience():
        await made.start()
        yield made
    await made.stop()


@asynccontextmanager
async def sink_to(cluster: MockKafka, context: Context | None = None, **more: str) -> AsyncIterator[Any]:
    async with started(KafkaSink(), context or Context(), bootstrap_servers=cluster.address, **more) as task:
        yield task


@asynccontextmanager
async def source_from(cluster: MockKafka, name: str, task: int = 0, **more: str) -> AsyncIterator[Any]:
    context = Context(name, task)
    async with started(KafkaSource(), context, bootstrap_servers=cluster.address, **more) as source:
        yield source


async def stored(cluster: MockKafka, topic: str, count: int) -> list[Any]:
    """So many records of a topic, as somebody else reads them."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        found: list[Any] = []
        while len(found) < count:
            for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                found += batch
    finally:
        await consumer.stop()
    return found


async def committed(cluster: MockKafka, group: str, topic: str) -> int:
    """The sum of a group's offsets."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, each) for each in range(4)]
        return sum([await consumer.committed(each) or 0 for each in partitions])
    finally:
        await consumer.stop()


async def test_sink_sends_key_headers_and_time(cluster: MockKafka) -> None:
    records = [sent(f"plant/{at % 7}/temp", {"t": at}, at) for at in range(2_000)]
    records[0].headers, records[0].key, records[0].content_type = [("a", "1"), ("a", "2")], "k", "application/json"
    async with patience(), sink_to(cluster, source_cluster_alias="here", compression_type="zstd") as task:
        await task.put(records)
        found = await stored(cluster, "plant", 2_000)
    by_key: dict[bytes, list[int]] = {}
    for each in found:
        by_key.setdefault(each.key, []).append(each.timestamp - 1_780_000_000_000)
    assert by_key[b"plant/1/temp"] == list(range(1, 2_000, 7))
    first = next(each for each in found if each.key == b"k")
    assert (first.value, first.timestamp) == (b'{"t":0}', 1_780_000_000_000)
    assert first.headers == (
        ("a", b"1"),
        ("a", b"2"),
        (CLUSTER, f"here,{cluster.address}".encode()),
        ("mqtt-topic", b"plant/0/temp"),
        ("content-type", b"application/json"),
    )


async def test_sink_rejects_single_messages(cluster: MockKafka) -> None:
    context = Context()
    async with patience(), sink_to(cluster, context, max_request_size="10000") as task:
        await task.put([sent("no topic/x", b""), sent("few/large", bytes(20_000)), sent("few/good", b"1")])
        assert [each.value for each in await stored(cluster, "few", 1)] == [b"1"]
    assert [record.topic for record, _ in context.rejected] == ["no topic/x", "few/large"]
    assert reasons(context) == [
        "'no topic' is no topic of Kafka: it has 1 to 249 of a-z A-Z 0-9 . _ -",
        "the message is larger than max.request.size, or than Kafka allows",
    ]


async def test_source_goes_on_after_what_is_stored(cluster: MockKafka, producer: Any) -> None:
    headers = [("site", b"north"), ("content-type", b"text/plain")]
    for at in range(1_200):
        await producer.send("orders", str(at).encode(), b"k", 0, 1_780_000_000_000 + at, headers)
    await producer.flush()
    given = {"kafka_topics": "orders", "topic_mapping": "orders -> shop/orders"}
    async with patience():
        async with source_from(cluster, "goes-on", **given) as task:
            first = await collect(task, 300, commit=False)
            await task.committed(first[:100])
        assert await committed(cluster, "sluice-goes-on", "orders") == 100
        async with source_from(cluster, "goes-on", **given) as task:
            rest = await collect(task, 1_100)
        assert [int(each.value) for each in rest] == list(range(100, 1_200))
        assert await committed(cluster, "sluice-goes-on", "orders") == 1_200
    record = rest[0]
    assert (record.topic, record.key, record.content_type) == ("shop/orders", "k", "text/plain")
    assert record.timestamp_ms == 1_780_000_000_100
    assert record.headers == [("site", "north"), (CLUSTER, cluster.address)]


async def test_both_directions_do_not_loop(cluster: MockKafka, producer: Any) -> None:
    given = {"kafka_topics": "loop", "target_cluster_alias": "here", "topic_header_enabled": "true"}
    async with (
        patience(),
        sink_to(cluster, source_cluster_alias="here", kafka_topic="loop") as sink,
        source_from(cluster, "loop", **given) as source,
    ):
        await sink.put([sent("ours/x", b"1")])
        await producer.send_and_wait("loop", b"2", headers=[("mqtt-topic", b"theirs/x")])
        (record,) = await collect(source, 1)
        assert (record.topic, record.value) == ("theirs/x", b"2")
        await sink.put([SinkRecord(record.topic, b"3", headers=record.headers), sent("ours/x", b"4", 4)])
        assert {each.value for each in await stored(cluster, "loop", 3)} == {b"1", b"2", b"4"}


async def test_brokers_that_are_away_are_tried_again(tmp_path: Path) -> None:
    cluster = MockKafka(tmp_path)
    cluster.start()
    given = {"bootstrap.servers": cluster.address, "request.timeout.ms": "2000"}
    sending = settings_of(KafkaSink(), {**given, "delivery.timeout.ms": "2000"})
    sink = KafkaSink().task()
    try:
        async with patience():
            await sink.start(sending, Context())
            await sink.put([sent("away/1", b"")])
            cluster.kill()
            with pytest.raises(RetriableError, match="does not acknowledge messages"):
                await sink.put([sent("away/2", b"", 2)])
            with pytest.raises(
                RetriableError, match=f"cannot connect to Kafka at {cluster.address}: no broker answers"
            ):
                await sink.put([sent("away/2", b"", 2)])
            reading = settings_of(KafkaSource(), {**given, "kafka.topics": "away"})
            with pytest.raises(RetriableError, match="cannot connect to Kafka"):
                await KafkaSource().task().start(reading, Context())
    finally:
        await sink.stop()
        cluster.stop()


def test_wrong_settings_are_one_clear_line() -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_of(KafkaSink(), {"bootstrap.servers": "kafka"})
    assert str(caught.value) == "bootstrap.servers: HOST:PORT is expected, not 'kafka'"
    with pytest.raises(InvalidSettings, match="user and password are required with SASL"):
        settings_of(KafkaSink(), {"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_SSL"})
