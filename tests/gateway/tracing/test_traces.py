"""A whole node with `[otel]`, real clients, and a collector that reads what the node sends."""

import asyncio
import json
import logging
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import aiomqtt
import grpc.aio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import record
from cloud_sdk import Client, Message, OutgoingMessage
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from gateway.config.config import load
from gateway.node.node import Node
from gateway.node.ports import Ports
from gateway.observe.log_lines import JsonLines
from record.layout import Kind
from tests.otlp import NOT_SAMPLED, PARENT, SAMPLED, TRACE, Collector, Span, collecting
from tests.waiting import PATIENCE_S, patience, until

SERVER, CLIENT = 2, 3  # kinds of spans


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
async def ports(collector: Collector, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Ports]:
    """Of a node. A parameter has more settings."""
    settings = {
        "data_dir": tmp_path / "data",
        "mqtt.port": 0,
        "mqtt.ws_port": -1,
        "grpc.port": 0,
        "http.port": 0,
        "otel.endpoint": collector.url,
        **getattr(request, "param", {}),
    }
    node = Node(load(None, settings, {}))
    yield await node.start()
    await node.stop()


def properties(traceparent: str, kind: int = PacketTypes.PUBLISH) -> Properties:
    found = Properties(kind)
    found.UserProperty = [("colour", "red"), ("traceparent", traceparent)]
    return found


def mqtt(
    ports: Ports, identifier: str, version: aiomqtt.ProtocolVersion = aiomqtt.ProtocolVersion.V5
) -> aiomqtt.Client:
    return aiomqtt.Client("127.0.0.1", ports.mqtt, identifier=identifier, protocol=version)


async def spans(collector: Collector, count: int, operation: str) -> list[Span]:
    await until(lambda: len(collector.named(operation)) >= count)
    return collector.named(operation)


async def metric(ports: Ports, name: str) -> float:
    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.http}/metrics") as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(get)
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def test_a_message_of_a_device_is_traced_to_its_subscriber(ports: Ports, collector: Collector) -> None:
    async with mqtt(ports, "panel") as panel, mqtt(ports, "meter") as meter:
        await panel.subscribe("home/#", 1)
        await meter.publish("home/untraced", b"1", 1)
        await meter.publish("home/not-sampled", b"1", 1, properties=properties(NOT_SAMPLED))
        await meter.publish("home/broken", b"1", 1, properties=properties("00-zz"))
        await meter.publish("home/bath", b"21.5", 1, properties=properties(SAMPLED))
        async with patience():
            got = [await anext(aiter(panel.messages)) for _ in range(4)]
        # MQTT 5.0, 3.3.2.3.7: properties are passed on as they are
        assert ("traceparent", SAMPLED) in got[3].properties.UserProperty
        (acknowledge,) = await spans(collector, 1, "acknowledge")
        (append,) = await spans(collector, 1, "append")
    (commit,), (flush,) = collector.named("commit"), collector.named("flush")
    (deliver,) = collector.named("deliver")
    assert {each.trace for each in collector.spans} == {TRACE}
    assert [each.parent for each in (append, commit, deliver)] == [PARENT] * 3
    assert (flush.parent, acknowledge.parent) == (commit.id, deliver.id)
    assert append.name == "append home/#"
    assert append.process == "sluice node"
    assert [append.kind, deliver.kind] == [SERVER, CLIENT]
    position = append.attributes["messaging.message.id"]
    assert {each.attributes["messaging.message.id"] for each in collector.spans} == {position}
    assert append.attributes == {
        "messaging.system": "sluice",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.destination.name": "home/bath",
        "messaging.destination.template": "home/#",
        "messaging.message.body.size": 4,
        "messaging.message.id": position,
        "messaging.client.id": "meter",
        "network.protocol.name": "mqtt",
    }
    assert deliver.attributes["messaging.client.id"] == "panel"
    assert deliver.attributes["network.protocol.version"] == "5.0"
    assert append.began_ns <= flush.began_ns <= flush.ended_ns <= commit.ended_ns <= append.ended_ns
    assert commit.began_ns <= flush.began_ns
    assert deliver.ended_ns <= acknowledge.began_ns <= acknowledge.ended_ns
    assert await metric(ports, "sluice_otel_spans_exported_total") == 5
    assert await metric(ports, 'sluice_otel_spans_dropped_total{reason="queue"}') == 0


async def test_a_subscriber_that_leaves_has_not_acknowledged(ports: Ports, collector: Collector) -> None:
    """Each QoS, and a shared subscription."""
    silent = await asyncio.open_connection("127.0.0.1", ports.mqtt)
    connect = bytes((0x10, 13, 0, 4, *b"MQTT", 4, 2, 0, 0, 0, 1, *b"s"))
    silent[1].write(connect + bytes((0x82, 17, 0, 1, 0, 12, *b"$share/g/s/#", 1)))
    async with patience():
        await silent[0].readexactly(4 + 5)
    async with mqtt(ports, "two") as two, mqtt(ports, "meter") as meter:
        await two.subscribe("s/#", 2)
        await meter.publish("s/a", b"1", 2, properties=properties(SAMPLED))
        (acknowledge,) = await spans(collector, 1, "acknowledge")
        assert acknowledge.attributes["sluice.mqtt.qos"] == 2
        assert not acknowledge.error
        delivered = await spans(collector, 2, "deliver")
        groups = {
            each.attributes["messaging.client.id"]: each.attributes.get("messaging.consumer.group.name")
            for each in delivered
        }
        assert groups == {"s": "$share/g/s/#", "two": None}
        silent[1].close()
        ended = await spans(collector, 2, "acknowledge")
    assert ended[1].error == "the connection ended before the acknowledgement"
    assert ended[1].attributes["error.type"] == "connection_lost"


async def test_a_group_of_the_sdk_continues_the_trace_of_its_producer(ports: Ports, collector: Collector) -> None:
    tracer = TracerProvider().get_tracer("test")
    current: list[trace.SpanContext] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context())
        if message.payload == b"bad" and len(current) < 3:
            raise ValueError("no such order")
        if len(current) == 3:
            done.set()

    async with (
        Client(f"127.0.0.1:{ports.grpc}") as client,
        client.push_consumer("billing", "orders", handle, from_earliest=True),
    ):
        with tracer.start_as_current_span("order") as span:
            await client.send("orders/1", b"good")
            await client.send_many([OutgoingMessage("orders/1", b"bad")])
        await client.send("orders/1", b"without a span")
        async with patience():
            await done.wait()
        settled = await spans(collector, 3, "acknowledge")
    own = span.get_span_context()
    assert {each.trace_id for each in current if each.is_valid} == {own.trace_id}
    assert {each.span_id for each in current if each.is_valid} == {own.span_id}
    assert {each.trace for each in collector.spans} == {f"{own.trace_id:032x}"}
    assert len(collector.named("append")) == 2
    assert all(each.attributes["network.protocol.name"] == "grpc" for each in collector.named("append"))
    assert {each.attributes["messaging.consumer.group.name"] for each in settled} == {"billing"}
    failed = [each for each in settled if each.error]
    assert [each.error for each in failed] == ["ValueError: no such order"]
    assert all("messaging.destination.partition.id" in each.attributes for each in collector.named("deliver"))


async def test_the_metadata_of_a_call_names_the_trace_of_its_messages(
    ports: Ports, collector: Collector, tmp_path: Path
) -> None:
    """gRPC metadata and a header of HTTP go on as the user property, and consumers find them there."""
    frame = record.frame(int(Kind.MESSAGE), 1, 0, b"a/b", b"", b"", b"1")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        call = SluiceStub(channel).Produce(metadata=(("traceparent", SAMPLED), ("tracestate", "vendor=1")))
        await call.write(pb.ProduceRequest(sequence=1, frames=frame))
        async with patience():
            reply = await call.read()
        await call.done_writing()
    (position,) = reply.results[0].positions
    connector = aiohttp.UnixConnector(str(tmp_path / "data" / "admin.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        publish = {"json": {"text": "2"}, "headers": {"traceparent": SAMPLED}}
        async with session.post("http://node/api/v1/topics/a%2Fb/messages", **publish) as answer:
            second = (await answer.json())["position"]
        async with session.post("http://node/api/v1/topics/a%2Fb/messages", json={"text": "3"}) as answer:
            third = (await answer.json())["position"]
    appended = await spans(collector, 2, "append")
    assert {(each.trace, each.parent) for each in appended} == {(TRACE, PARENT)}
    async with Client(f"127.0.0.1:{ports.grpc}") as client:
        stored = [await client.message(int(each)) for each in (position, second, third)]
    assert [each.properties for each in stored] == [
        {"traceparent": SAMPLED, "tracestate": "vendor=1"},
        {"traceparent": SAMPLED},
        {},
    ]


@pytest.mark.parametrize("ports", [{"otel.sample_per_million": 1_000_000}], indirect=True)
async def test_messages_without_a_trace_begin_one(ports: Ports, collector: Collector) -> None:
    """The append is its root, and each process derives the same ids."""
    async with mqtt(ports, "panel", aiomqtt.ProtocolVersion.V311) as panel, mqtt(ports, "meter") as meter:
        await panel.subscribe("home/#", 1)
        await meter.publish("home/bath", b"1", 1)
        await meter.publish("home/bath", b"2", 1, properties=properties(NOT_SAMPLED))
        await meter.publish("home/bath", b"3", 1)
        acknowledged = await spans(collector, 2, "acknowledge")
    appended = await spans(collector, 2, "append")
    assert len({each.trace for each in appended}) == 2
    for append in appended:
        own = {each.name.split()[0]: each for each in collector.spans if each.trace == append.trace}
        assert not append.parent
        assert own["commit"].parent == own["deliver"].parent == append.id
    assert len(acknowledged) == 2


@pytest.mark.parametrize("ports", [{"otel.max_rate": 3}], indirect=True)
async def test_the_rate_of_spans_is_bounded(ports: Ports, collector: Collector) -> None:
    async with mqtt(ports, "meter") as meter:
        for _ in range(20):
            await meter.publish("home/bath", b"1", 0, properties=properties(SAMPLED))
        await meter.publish("home/bath", b"1", 1)
        await spans(collector, 1, "append")
    assert await metric(ports, 'sluice_otel_spans_dropped_total{reason="rate"}') > 0


@pytest.mark.parametrize("ports", [{"otel.max_queue": 512}], indirect=True)
async def test_a_collector_that_is_away_is_not_felt(
    ports: Ports, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    collector.status = 400
    async with mqtt(ports, "meter") as meter:
        await meter.publish("home/bath", b"1", 1, properties=properties(SAMPLED))
        await until(lambda: "spans cannot be sent to" in caplog.text)
        assert "and are dropped: Failed to export spans batch code: 400, reason: Bad Request" in caplog.text
        assert await metric(ports, 'sluice_otel_spans_dropped_total{reason="export"}') > 0
        collector.status = 200
        await meter.publish("home/bath", b"1", 1, properties=properties(SAMPLED))
        await spans(collector, 1, "append")
        await until(lambda: f"spans go to {collector.url}/v1/traces again" in caplog.text)


def test_without_otel_nothing_of_opentelemetry_is_loaded() -> None:
    """Neither by a node nor by the SDK."""
    code = (
        "import sys, gateway.node.process, gateway.node.supervisor, cloud_sdk, cloud_sdk.blocking\n"
        "from cloud_sdk import OutgoingMessage\n"
        "OutgoingMessage('a', b'').frame(b'')\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'gateway.tracing'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "[]\n"


async def test_a_line_about_a_call_names_its_trace(
    ports: Ports, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.management")
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    handler.setFormatter(JsonLines(""))
    logging.getLogger("gateway.management").addHandler(handler)
    connector = aiohttp.UnixConnector(str(tmp_path / "data" / "admin.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        for headers in ({"traceparent": SAMPLED}, {}):
            async with session.post("http://node/api/v1/configuration:reload", json={}, headers=headers) as answer:
                assert answer.status == 200
    logging.getLogger("gateway.management").removeHandler(handler)
    first, second = map(json.loads, lines)
    assert (first["trace_id"], first["span_id"]) == (TRACE, PARENT)
    assert "trace_id" not in second
