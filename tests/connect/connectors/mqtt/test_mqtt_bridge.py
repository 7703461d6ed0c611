"""The MQTT bridge against mosquitto: what travels, what is acknowledged when, what happens if the broker is away."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connect.api import ConnectError, InvalidSettings, RetriableError, SinkRecord, SourceRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.mqtt.sink import MqttSink
from connect.connectors.mqtt.source import MqttSource
from tests.connect.connectors.harness import Context, again, collect, reasons, settings_of, started
from tests.connect.connectors.servers import Mosquitto
from tests.gateway.authority import Authority
from tests.waiting import patience, until

pytestmark = pytest.mark.slow

VERSIONS = ["5.0", "3.1.1"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def sink_to(port: int, context: Context | None = None, **more: str) -> AsyncIterator[Any]:
    context = context or Context("sink")
    async with patience(), started(MqttSink(), context, mqtt_server_uri=f"tcp://127.0.0.1:{port}", **more) as task:
        yield task


@asynccontextmanager
async def source_from(port: int, context: Context | None = None, **more: str) -> AsyncIterator[Any]:
    context = context or Context("source")
    async with patience(), started(MqttSource(), context, mqtt_server_uri=f"tcp://127.0.0.1:{port}", **more) as source:
        yield source


def records(topics: Iterable[str], value: bytes = b"") -> list[SinkRecord]:
    return [SinkRecord(topic, value) for topic in topics]


@asynccontextmanager
async def subscriber(port: int, topic_filter: str) -> AsyncIterator[aiomqtt.Client]:
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(topic_filter, qos=1)
        yield client


async def received(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    return [await anext(client.messages) for _ in range(count)]


@asynccontextmanager
async def publisher(port: int) -> AsyncIterator[aiomqtt.Client]:
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        yield client


async def test_sink_passes_properties_on(broker: Mosquitto) -> None:
    record = SinkRecord(
        "plant/7/temp",
        {"t": 21.5},
        headers=[("a", "1"), ("a", "2")],
        content_type="application/json",
        response_topic="answers/7",
        correlation_data=b"\x00\x01",
    )
    async with subscriber(broker.port, "site/#") as client:
        async with sink_to(broker.port, topic_mapping="plant/# -> site/{1}", source_cluster_alias="here") as task:
            await task.put([record])
        (message,) = await received(client, 1)
    assert (message.topic.value, message.payload, message.qos) == ("site/7/temp", b'{"t":21.5}', 1)
    properties = message.properties
    assert properties.UserProperty == [("a", "1"), ("a", "2"), (CLUSTER, f"here,127.0.0.1:{broker.port}")]
    assert (properties.ContentType, properties.ResponseTopic) == ("application/json", "answers/7")
    assert properties.CorrelationData == b"\x00\x01"


@pytest.mark.parametrize("version", VERSIONS)
async def test_sink_keeps_the_order_of_more_messages_than_the_broker_takes_at_once(
    broker: Mosquitto, version: str
) -> None:
    topics = [f"many/{version}/{at}" for at in range(3_000)]
    async with subscriber(broker.port, f"many/{version}/#") as client:
        async with sink_to(broker.port, mqtt_protocol_version=version) as task:
            await task.put(records(topics[:2_000]))
            await task.put(records(topics[2_000:]))
        assert [each.topic.value for each in await received(client, 3_000)] == topics


async def test_sink_sets_the_time_that_a_message_has_left(broker: Mosquitto) -> None:
    import time

    now = int(time.time() * 1_000)
    fresh, old, dead = (
        SinkRecord("expiry/x", name, message_expiry=100, timestamp_ms=now - age_s * 1_000)
        for name, age_s in (("fresh", 0), ("old", 40), ("dead", 101))
    )
    async with subscriber(broker.port, "expiry/#") as client, sink_to(broker.port) as task:
        await task.put([dead, old, fresh])
        first, second = await received(client, 2)
    assert (first.payload, second.payload) == (b"old", b"fresh")
    assert 50 < first.properties.MessageExpiryInterval <= 60 < second.properties.MessageExpiryInterval


async def test_sink_rejects_what_mqtt_does_not_allow_and_sends_the_rest(broker: Mosquitto) -> None:
    context = Context()
    bad = [
        SinkRecord("bad/#", b""),
        SinkRecord("bad/x", object()),
        SinkRecord("t" * 65_536, b""),
        SinkRecord("bad/y", b"", correlation_data=bytes(65_536)),
        SinkRecord("bad/y", b"", response_topic="\n"),
    ]
    async with (
        subscriber(broker.port, "bad/#") as client,
        sink_to(broker.port, context) as task,
    ):
        await task.put([*bad, SinkRecord("bad/good", b"1")])
        assert [each.topic.value for each in await received(client, 1)] == ["bad/good"]
    assert [record for record, _ in context.rejected] == bad
    assert reasons(context)[0] == "'bad/#' is not a topic name"


@pytest.mark.parametrize("version", VERSIONS)
async def test_characters_for_which_a_broker_hangs_up_do_not_stop_the_sink(broker: Mosquitto, version: str) -> None:
    context = Context()
    bad = [SinkRecord(f"odd/{character}", b"") for character in "\x01\x85\ufdd0\uffff\U0001ffff"]
    odd = SinkRecord("odd/x", b"", headers=[("a\x01", "1\n2")], content_type="text\x02")
    async with subscriber(broker.port, "odd/#") as client:
        async with sink_to(broker.port, context, mqtt_protocol_version=version) as task:
            await task.put([*bad, odd])
        (message,) = await received(client, 1)
    assert [record for record, _ in context.rejected] == bad
    if version == "5.0":
        assert message.properties.UserProperty[0] == ("a\ufffd", "1\ufffd2")
        assert message.properties.ContentType == "text\ufffd"


async def test_sink_rejects_what_the_broker_refuses(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite open/#\n", encoding="utf-8")
    server = Mosquitto(tmp_path / "broker", ["allow_anonymous true", f"acl_file {rules}", "max_packet_size 2000"])
    server.start()
    context = Context()
    try:
        async with subscriber(server.port, "open/#") as client, sink_to(server.port, context) as task:
            large, closed = SinkRecord("open/x", bytes(2_000)), SinkRecord("closed/x", b"")
            await task.put([large, closed, SinkRecord("open/y", b"1")])
            assert [each.topic.value for each in await received(client, 1)] == ["open/y"]
    finally:
        server.stop()
    assert [record for record, _ in context.rejected] == [large, closed]
    assert reasons(context) == [
        "a message of 2000 bytes: the broker takes packets of 2000",
        "the MQTT broker refuses the message: Not authorized",
    ]


async def test_source_acknowledges_what_is_stored_and_nothing_else(broker: Mosquitto) -> None:
    """Messages of a task that ended before they were stored come to the next one, and no others do."""
    more = {"mqtt_topics": "acks/#"}
    context = Context("acks")
    async with source_from(broker.port, context, **more):
        pass  # the session begins
    async with publisher(broker.port) as client:
        for at in range(12):
            await client.publish(f"acks/{at}", str(at), qos=1)
    async with source_from(broker.port, context, **more) as task:
        first = await collect(task, 12, commit=False)
        assert [each.value for each in first] == [str(at).encode() for at in range(12)]
        await task.committed(first[:3])
    async with source_from(broker.port, context, **more) as task:
        assert [each.value for each in await collect(task, 9)] == [str(at).encode() for at in range(3, 12)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_source_hands_over_properties_and_retained_messages(broker: Mosquitto, version: str) -> None:
    topic = f"retained/{version}/x"
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("b", "2")]
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answers"
    properties.CorrelationData = b"7"
    properties.MessageExpiryInterval = 1_000
    async with publisher(broker.port) as client:
        await client.publish(topic, "kept", qos=1, retain=True, properties=properties)
    mapping = "retained/+/x -> local/{1}"
    async with source_from(
        broker.port, mqtt_topics=f"retained/{version}/#", mqtt_protocol_version=version, topic_mapping=mapping
    ) as task:
        (record,) = await collect(task, 1)
    assert (record.topic, record.value, record.qos, record.retain) == (f"local/{version}", b"kept", 1, True)
    if version == "5.0":
        assert record.headers == [("a", "1"), ("b", "2"), (CLUSTER, f"127.0.0.1:{broker.port}")]
        assert (record.content_type, record.response_topic, record.correlation_data) == ("text/plain", "answers", b"7")
        assert 990 < record.message_expiry <= 1_000


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_that_goes_on_gets_no_retained_messages_again(tmp_path: Path, version: str) -> None:
    """Neither when the connection breaks, nor, with MQTT 5.0, at another worker. New filters and sessions get them."""
    server = Mosquitto(tmp_path, saves=True)
    server.start()
    context = Context("again")

    ends, is_5 = itertools.count(), version == "5.0"

    async def take(task: Any, *payloads: str) -> None:
        """Store and acknowledge what comes before an end that is published when the connection is there."""
        found: list[SourceRecord] = []
        for _ in range(2):
            end = b"end %d" % next(ends)
            async with publisher(server.port) as client:
                await client.publish("again/x", end, qos=1)
            while not found or found[-1].value != end:
                found += await again(lambda: collect(task, 1))
        await until(lambda: not task._connection._client.want_write())
        assert sorted(each.value.decode() for each in found if each.topic != "again/x") == sorted(payloads)

    more = {"mqtt_topics": "again/#", "mqtt_protocol_version": version}
    try:
        async with publisher(server.port) as client:
            for topic in ("again/a", "again/b", "other/c"):
                await client.publish(topic, topic[-1], qos=1, retain=True)
        async with source_from(server.port, context, **more) as task:
            await take(task, "a", "b")
            task._connection.abort()
            await take(task)
            server.stop()
            server.start()
            await take(task)
        async with source_from(server.port, context, **more) as task:
            await take(task, *("" if is_5 else "ab"))
        async with source_from(server.port, context, **more | {"mqtt_topics": "again/#,other/#"}) as task:
            await take(task, *("c" if is_5 else "abc"))
        async with source_from(server.port, context, **more, mqtt_client_id="another") as task:
            await take(task, "a", "b")
    finally:
        server.stop()


async def test_bridges_in_both_directions_do_not_loop(broker: Mosquitto) -> None:
    """With the name of this cluster nothing comes back; without it, once. On 3.1.1 it comes back once, too."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        sink = await enter(sink_to(broker.port, Context("s"), source_cluster_alias="here"))
        source = await enter(source_from(broker.port, Context("r"), mqtt_topics="loop/#", target_cluster_alias="here"))
        client = await enter(publisher(broker.port))
        await sink.put([SinkRecord("loop/ours", b"")])
        await client.publish("loop/theirs", "", qos=1)
        (record,) = await collect(source, 1)
        assert record.topic == "loop/theirs"
        # What came from there does not go back.
        watcher = await enter(subscriber(broker.port, "loop/#"))
        await sink.put([SinkRecord(record.topic, record.value, headers=record.headers), SinkRecord("loop/end", b"")])
        assert [each.topic.value for each in await received(watcher, 1)] == ["loop/end"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_bridges_without_names_send_a_message_back_once(broker: Mosquitto, version: str) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        sink = await enter(sink_to(broker.port, Context("s2"), mqtt_protocol_version=version))
        topics = f"echo/{version}/#"
        source = await enter(source_from(broker.port, Context("r2"), mqtt_topics=topics, mqtt_protocol_version=version))
        await sink.put([SinkRecord(f"echo/{version}/x", b"")])
        (record,) = await collect(source, 1)
        watcher = await enter(subscriber(broker.port, topics))
        again = SinkRecord(record.topic, record.value, headers=record.headers)
        await sink.put([again, SinkRecord(f"echo/{version}/end", b"")])
        assert [each.topic.value for each in await received(watcher, 1)] == [f"echo/{version}/end"]


async def test_shared_subscriptions_divide_the_work_between_tasks(broker: Mosquitto) -> None:
    given = {"mqtt.topics": "$share/g/shared/#"}
    assert len(MqttSource().task_settings(given, 2)) == 2
    assert len(MqttSource().task_settings({"mqtt.topics": "$share/g/a,b"}, 2)) == 1
    more = {"mqtt_topics": "$share/g/shared/#"}
    async with AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(source_from(broker.port, Context("shared", task), **more))
            for task in (0, 1)
        ]
        async with publisher(broker.port) as client:
            for at in range(10):
                await client.publish(f"shared/{at}", "", qos=1)
        found = await asyncio.gather(*(collect(task, 5) for task in tasks))
    assert {each.topic for part in found for each in part} == {f"shared/{at}" for at in range(10)}


async def test_a_broker_that_is_away_is_tried_again(tmp_path: Path) -> None:
    server = Mosquitto(tmp_path)
    sink, source = MqttSink().task(), MqttSource().task()
    given = {"mqtt.server.uri": f"tcp://127.0.0.1:{server.port}"}
    with pytest.raises(RetriableError, match=f"cannot reach the MQTT broker 127.0.0.1:{server.port}: .*refused"):
        await sink.start(settings_of(MqttSink(), given), Context())
    server.start()
    try:
        async with patience():
            await sink.start(settings_of(MqttSink(), given), Context("s"))
            await source.start(settings_of(MqttSource(), {**given, "mqtt.topics": "#"}), Context("r"))
            await sink.put(records(["a"]))
            assert [each.topic for each in await collect(source, 1)] == ["a"]
            waits = asyncio.create_task(source.poll())
            server.kill()
            with pytest.raises(RetriableError, match="lost the connection"):
                await waits
            with pytest.raises(RetriableError):
                await sink.put(records(["b"]))
            with pytest.raises(RetriableError, match="cannot reach"):
                await source.poll()
            server.start()
            await source.start(settings_of(MqttSource(), {**given, "mqtt.topics": "#"}), Context("r"))
            await sink.put(records(["b"]))
            assert [each.topic for each in await collect(source, 1)] == ["b"]
    finally:
        await sink.stop()
        await source.stop()
        server.stop()


async def test_wrong_settings_are_one_clear_line(tmp_path: Path) -> None:
    for uri, text in {
        "http://x": "an address such as tcp://broker:1883 or ssl://broker:8883 is expected, not 'http://x'",
        "tcp://u:secret@x": "user and password belong into mqtt.username and mqtt.password",
    }.items():
        with pytest.raises(InvalidSettings) as caught:
            settings_of(MqttSink(), {"mqtt.server.uri": uri})
        assert str(caught.value) == f"mqtt.server.uri: {text}"
    with pytest.raises(InvalidSettings, match="'a/\\+' is not FILTER -> TOPIC"):
        settings_of(MqttSink(), {"mqtt.server.uri": "tcp://x", "topic.mapping": "a/+"})
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    guarded = Mosquitto(tmp_path / "guarded", ["allow_anonymous false", f"password_file {passwords}"])
    guarded.start()
    try:
        given = {"mqtt.server.uri": f"tcp://127.0.0.1:{guarded.port}", "mqtt.username": "u", "mqtt.password": "secret"}
        for version in VERSIONS:
            values = settings_of(MqttSink(), {**given, "mqtt.protocol.version": version})
            with pytest.raises(ConnectError) as caught:
                await MqttSink().task().start(values, Context())
            assert not isinstance(caught.value, RetriableError)
            assert f"127.0.0.1:{guarded.port} refuses the connection: Not authorized" in str(caught.value)
    finally:
        guarded.stop()


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    file, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
    own, own_key = authority.issue("client", "client", "DNS:client")
    both = tmp_path / "client.pem"
    both.write_bytes(own.read_bytes() + own_key.read_bytes())
    lines = [f"cafile {authority.file}", f"certfile {file}", f"keyfile {key}", "require_certificate true"]
    server = Mosquitto(tmp_path / "broker", [*lines, "allow_anonymous true"])
    server.start()
    given = {"mqtt.server.uri": f"ssl://localhost:{server.port}", "ssl.truststore.location": str(authority.file)}
    values = {**given, "ssl.keystore.location": str(both)}
    sink, source = MqttSink().task(), MqttSource().task()
    try:
        async with patience():
            await source.start(settings_of(MqttSource(), {**values, "mqtt.topics": "#"}), Context("r"))
            await sink.start(settings_of(MqttSink(), values), Context("s"))
            await sink.put(records([f"tls/{at}" for at in range(500)], bytes(3_000)))
            assert [each.topic for each in await collect(source, 500)] == [f"tls/{at}" for at in range(500)]
            with pytest.raises(ConnectError):  # without a certificate of its own
                await MqttSink().task().start(settings_of(MqttSink(), given), Context("t"))
            with pytest.raises(ConnectError, match="certificate"):  # with an authority that does not know the server
                await (
                    MqttSink()
                    .task()
                    .start(settings_of(MqttSink(), {"mqtt.server.uri": f"ssl://localhost:{server.port}"}), Context("u"))
                )
    finally:
        await sink.stop()
        await source.stop()
        server.stop()


async def test_nothing_is_lost_on_the_way_when_the_broker_is_killed_under_load(tmp_path: Path) -> None:
    """Batches go to the broker and come back, while it is killed five times. What is missing then was acknowledged by
    the broker in a life that ended with a kill: mosquitto answers before it writes."""
    server = Mosquitto(tmp_path, saves=True)
    server.start()
    uri = f"tcp://127.0.0.1:{server.port}"
    lives, kills, batches, size = 0, 5, 60, 50
    sent: dict[str, int] = {}  # payload → the life of the broker that acknowledged it
    seen: set[str] = set()
    ended = asyncio.Event()

    async def drain() -> None:
        values = settings_of(MqttSource(), {"mqtt.server.uri": uri, "mqtt.topics": "load/#"})
        await again(lambda: source.start(values, Context("source")))
        ready.set()
        while not ended.is_set() or not all(life < lives or text in seen for text, life in sent.items()):
            found = await again(source.poll)
            seen.update(each.value.decode() for each in found)
            await source.committed(found)

    ready = asyncio.Event()
    sink, source = MqttSink().task(), MqttSource().task()
    reader = asyncio.create_task(drain())
    try:
        async with asyncio.timeout(240):
            await ready.wait()
            await sink.start(settings_of(MqttSink(), {"mqtt.server.uri": uri}), Context("sink"))
            for batch in range(batches):
                if batch % (batches // kills) == batches // kills - 1 and lives < kills:
                    put = asyncio.create_task(again(lambda at=batch: sink.put(numbered(at, size))))
                    await asyncio.sleep(0)
                    server.kill()
                    lives += 1
                    server.start()
                    await put
                else:
                    await again(lambda at=batch: sink.put(numbered(at, size)))
                sent.update((each.value.decode(), lives) for each in numbered(batch, size))
            ended.set()
            await again(lambda: sink.put([SinkRecord("load/end", b"end")]))
            await reader
    finally:
        reader.cancel()
        await sink.stop()
        await source.stop()
        server.stop()
    missing = [text for text in sent if text not in seen]
    assert all(sent[text] < lives for text in missing)
    assert len(missing) < len(sent) // 10


def numbered(batch: int, size: int) -> list[SinkRecord]:
    return [SinkRecord(f"load/{at}", f"{batch}-{at}".encode()) for at in range(size)]
