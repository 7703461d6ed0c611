"""The calls of RocketMQ's clients, one by one, over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cloud_sdk import Client, Decision, Happened, Message
from gateway.auth.authority import Authority
from gateway.config.services import GroupConfig, GrpcConfig
from gateway.node.rpc_server import RpcServer
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from record import crc32c
from record.layout import NAMES_KEY
from store.api import PopResult, partition_of
from store.config import StoreConfig
from store.control import TopicPartitions
from store.engine import Engine
from tests.waiting import PATIENCE_S, patience, until

ME = (("x-mq-client-id", "service"),)
TOPIC, GROUP = pb.Resource(name="home"), pb.Resource(name="group")
_STREAMING = frozenset(("ReceiveMessage", "PullMessage"))


CONFIG = GrpcConfig(
    groups=[GroupConfig("fifo", fifo=True), GroupConfig("late", "latest"), GroupConfig("early", "earliest")]
)


class Wire:
    """Calls by name."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def call(self, name: str, request: Any, metadata: Any = ME) -> Any:
        path, kind = f"/apache.rocketmq.v2.MessagingService/{name}", type(request)
        response = getattr(pb, kind.__name__.removesuffix("Request") + "Response")
        codecs = (kind.SerializeToString, response.FromString)
        if name in _STREAMING:
            return [
                each
                async for each in self._channel.unary_stream(path, *codecs)(
                    request, metadata=metadata, timeout=PATIENCE_S
                )
            ]
        return await self._channel.unary_unary(path, *codecs)(request, metadata=metadata, timeout=PATIENCE_S)

    async def send(self, *bodies: bytes, **system: Any) -> Any:
        fields = {"message_id": "01", "message_type": pb.NORMAL, **system}
        messages = [pb.Message(topic=TOPIC, body=body, system_properties=fields) for body in bodies]
        return await self.call("SendMessage", pb.SendMessageRequest(messages=messages))

    async def receive(self, wait_ms: int = 0, topic: pb.Resource = TOPIC, **fields: Any) -> list[pb.Message]:
        """Messages of one answer, whose form is checked: the status comes first."""
        request = pb.ReceiveMessageRequest(
            **{"group": GROUP, "message_queue": pb.MessageQueue(topic=topic, id=-1), **fields}
        )
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        status, *replies = await self.call("ReceiveMessage", request)
        if not replies:
            assert status.status.code == pb.MESSAGE_NOT_FOUND
            return []
        assert status.status.code == pb.OK
        assert replies[-1].HasField("delivery_timestamp")
        return [each.message for each in replies[:-1]]

    async def receive_code(self, **fields: Any) -> int:
        request = pb.ReceiveMessageRequest(**{"group": GROUP, "message_queue": pb.MessageQueue(topic=TOPIC), **fields})
        (answer,) = await self.call("ReceiveMessage", request)
        return int(answer.status.code)

    async def acknowledge(self, *handles: str, group: pb.Resource = GROUP) -> Any:
        entries = [pb.AckMessageEntry(message_id="01", receipt_handle=handle) for handle in handles]
        return await self.call("AckMessage", pb.AckMessageRequest(group=group, topic=TOPIC, entries=entries))

    async def change(self, handle: str, seconds: int) -> int:
        request = pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle)
        request.invisible_duration.FromSeconds(seconds)
        return int((await self.call("ChangeInvisibleDuration", request)).status.code)

    async def dead_letter(self, handle: str, topic: pb.Resource = TOPIC) -> int:
        request = pb.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=topic, receipt_handle=handle)
        return int((await self.call("ForwardMessageToDeadLetterQueue", request)).status.code)

    def telemetry(self) -> Any:
        codecs = (pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString)
        return self._channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry", *codecs)(
            metadata=ME, timeout=PATIENCE_S
        )


def handle(message: pb.Message) -> str:
    return str(message.system_properties.receipt_handle)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    settings = StoreConfig(
        segment_size=1 << 20, parent_partitions={b"wide": 9}, retry_delays_s=(1.5, 20), max_deliveries=5
    )
    engine = await Engine.open(tmp_path, settings)
    yield engine
    await engine.close()


@pytest.fixture
async def wire(engine: Engine) -> AsyncIterator[Wire]:
    server = RpcServer(engine, Authority(engine, 0), config=CONFIG)
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Wire(channel)
    await server.stop(0.2)


async def test_a_waiting_client_gets_messages_of_a_partition_that_is_added(
    wire: Wire, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a gateway, whose store is restarted with more partitions."""
    assert await wire.receive() == []
    pop, is_waiting = engine.pop, asyncio.Event()

    async def noted(*arguments: Any, **named: Any) -> PopResult:
        is_waiting.set()
        return await pop(*arguments, **named)

    monkeypatch.setattr(engine, "pop", noted)
    waiting = asyncio.create_task(wire.receive(wait_ms=60_000))
    async with patience():
        await is_waiting.wait()
    engine.append([TopicPartitions(32).frame(b"home")], lambda _: None)
    names = [b"k%d" % number for number in range(100)]
    key = next(name for name in names if partition_of(crc32c(name) | NAMES_KEY, 32) >= 4)
    await wire.send(b"x", message_type=pb.FIFO, message_group=key.decode())
    (message,) = await waiting
    assert message.system_properties.queue_id >= 4
    assert (await wire.acknowledge(handle(message))).status.code == pb.OK


async def test_routes_have_the_endpoints_of_the_client(wire: Wire) -> None:
    endpoints = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=443)])
    route = await wire.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=endpoints))
    queue, *others = route.message_queues
    assert [each.id for each in others] == [1, 2, 3]
    assert (route.status.code, queue.topic, queue.id, queue.broker.endpoints) == (pb.OK, TOPIC, 0, endpoints)
    assert set(queue.accept_message_types) == {pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION}
    asked = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=endpoints)
    (assignment,) = (await wire.call("QueryAssignment", asked)).assignments
    assert (assignment.message_queue.id, assignment.message_queue.broker.endpoints) == (-1, endpoints)


async def test_routes_name_all_nodes_that_told_their_addresses(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 20))
    told = [("10.0.0.1:7070", 1), ("n2.example:443", 1), ("[::1]:7072", 1)]
    server = RpcServer(engine, Authority(engine, 0), services=lambda: told)
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        wire = Wire(channel)
        endpoints = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=443)])
        route = (await wire.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=endpoints))).message_queues
        assert [each.id for each in route] == [0, 1, 2, 3]
        assert route[0].broker == route[3].broker
        nodes = {pb.IPv4: ("10.0.0.1", 7070), pb.DOMAIN_NAME: ("n2.example", 443), pb.IPv6: ("[::1]", 7072)}
        asked = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=endpoints)
        assigned = [each.message_queue for each in (await wire.call("QueryAssignment", asked)).assignments]
        assert [each.id for each in assigned] == [-1, -1, -1]
        for queues in (route[:3], assigned):
            found = [each.broker.endpoints for each in queues]
            assert {each.scheme: (each.addresses[0].host, each.addresses[0].port) for each in found} == nodes
            assert len({each.broker.name for each in queues}) == 3
        told[:] = [("10.0.0.1:7070", 3), ("n2.example:443", 1), ("[::1]:7072", 0)]
        route = (await wire.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=endpoints))).message_queues
        assert sorted(each.broker.name for each in route) == ["10.0.0.1:7070"] * 3 + ["n2.example:443"]
        assigned = [each.message_queue for each in (await wire.call("QueryAssignment", asked)).assignments]
        assert [each.broker.name for each in assigned] == ["10.0.0.1:7070", "n2.example:443"]
        told.clear()
        route = (await wire.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=endpoints))).message_queues
        assert all(each.broker.endpoints == endpoints for each in route)
    await server.stop(0.2)
    await engine.close()


async def test_a_topic_has_as_many_queues_as_its_parent_topic_has_partitions(wire: Wire) -> None:
    topic = pb.Resource(name="wide")
    route = await wire.call("QueryRoute", pb.QueryRouteRequest(topic=topic))
    assert [each.id for each in route.message_queues] == list(range(9))
    fields = {"message_id": "01", "message_type": pb.FIFO}
    for key in map(str, range(40)):
        message = pb.Message(topic=topic, body=key.encode(), system_properties={**fields, "message_group": key})
        await wire.call("SendMessage", pb.SendMessageRequest(messages=[message]))
    ends: list[int] = []
    for number in range(9):
        queue = pb.MessageQueue(topic=topic, id=number)
        asked = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END)
        ends.append((await wire.call("QueryOffset", asked)).offset)
    assert sum(ends) == 40
    assert ends[8]
    asked = pb.QueryOffsetRequest(message_queue=pb.MessageQueue(topic=topic, id=9), query_offset_policy=pb.END)
    answer = await wire.call("QueryOffset", asked)
    assert (answer.status.code, answer.status.message) == (pb.BAD_REQUEST, "there is no queue 9: there are 9")
    bodies = [message.body for message in await wire.receive(topic=topic, batch_size=100)]
    assert sorted(bodies, key=int) == [b"%d" % key for key in range(40)]


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "$SYS", "n" * 256])
async def test_invalid_topic_names(wire: Wire, name: str) -> None:
    topic = pb.Resource(name=name)
    assert (await wire.call("QueryRoute", pb.QueryRouteRequest(topic=topic))).status.code == pb.ILLEGAL_TOPIC
    request = pb.SendMessageRequest(messages=[pb.Message(topic=topic)])
    assert (await wire.call("SendMessage", request)).status.code == pb.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "$share/g/f", "a\0", "n" * 256])
async def test_invalid_group_names(wire: Wire, name: str) -> None:
    assert await wire.receive_code(group=pb.Resource(name=name)) == pb.ILLEGAL_CONSUMER_GROUP


async def test_namespaces_separate_topics_and_groups(wire: Wire) -> None:
    ours = pb.Resource(resource_namespace="eu", name="home")
    assert await wire.receive(topic=ours) == []
    assert await wire.receive() == []
    fields = {"message_id": "01", "message_type": pb.NORMAL}
    await wire.call(
        "SendMessage", pb.SendMessageRequest(messages=[pb.Message(topic=ours, body=b"x", system_properties=fields)])
    )
    assert await wire.receive() == []
    (found,) = await wire.receive(topic=ours)
    assert (found.topic, found.user_properties["originMqttTopic"]) == (ours, "eu%home")


async def test_a_batch_is_stored_whole_or_not_at_all(wire: Wire) -> None:
    assert await wire.receive() == []
    assert (await wire.send(b"a", b"", message_type=pb.FIFO)).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    sent = await wire.send(b"a", b"b")
    assert (sent.status.code, len(sent.entries)) == (pb.OK, 2)
    assert sent.entries[0].offset < sent.entries[1].offset
    assert [each.body for each in await wire.receive()] == [b"a", b"b"]
    assert (await wire.call("SendMessage", pb.SendMessageRequest())).status.code == pb.BAD_REQUEST


async def test_a_client_id_is_required(wire: Wire) -> None:
    answer = await wire.call("SendMessage", pb.SendMessageRequest(messages=[pb.Message(topic=TOPIC)]), metadata=())
    assert answer.status.code == pb.CLIENT_ID_REQUIRED


async def test_acknowledgements_one_by_one(wire: Wire) -> None:
    assert await wire.receive() == []
    await wire.send(b"a", b"b")
    first, second = await wire.receive()
    answer = await wire.acknowledge(handle(first), "9999.0.1", "nonsense", handle(first))
    assert answer.status.code == pb.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [pb.OK, pb.INVALID_RECEIPT_HANDLE, pb.INVALID_RECEIPT_HANDLE, pb.OK]
    assert (await wire.acknowledge(handle(second))).status.code == pb.OK
    assert (await wire.acknowledge(handle(second))).status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await wire.acknowledge()).status.code == pb.BAD_REQUEST


async def test_a_returned_message_comes_again_with_a_new_handle(wire: Wire) -> None:
    assert await wire.receive() == []
    await wire.send(b"a")
    (first,) = await wire.receive()
    assert await wire.change(handle(first), 13 * 3600) == pb.ILLEGAL_INVISIBLE_TIME
    assert await wire.change(handle(first), 0) == pb.OK
    (again,) = await wire.receive(10_000)
    assert again.system_properties.delivery_attempt == 2
    assert await wire.change(handle(first), 5) == pb.INVALID_RECEIPT_HANDLE
    assert (await wire.acknowledge(handle(first))).status.code == pb.INVALID_RECEIPT_HANDLE


async def test_forwarding_to_the_dead_letter_queue(wire: Wire) -> None:
    assert await wire.receive() == []
    await wire.send(b"a")
    (first,) = await wire.receive()
    assert await wire.dead_letter(handle(first)) == pb.OK
    assert await wire.dead_letter(handle(first)) == pb.INVALID_RECEIPT_HANDLE
    assert await wire.receive() == []
    letters = pb.Resource(name="%DLQ%group")
    (letter,) = await wire.receive(topic=letters)
    assert letter.body == b"a"
    message_id, queue = letter.system_properties.message_id, first.system_properties.queue_id
    assert letter.system_properties.dead_letter_queue == pb.DeadLetterQueue(topic="home", message_id=message_id)
    found = dict(letter.user_properties)
    leased_ms = found["deadLetterFirstDelivery"]
    assert int(leased_ms) >= letter.system_properties.store_timestamp.ToMilliseconds()
    assert {name: value for name, value in found.items() if name[:4] in ("DLQ_", "dead")} == {
        "DLQ_ORIGIN_TOPIC": "home",
        "DLQ_ORIGIN_MESSAGE_ID": first.system_properties.message_id,
        "deadLetterQueueId": str(queue),
        "deadLetterQueueOffset": str(first.system_properties.queue_offset),
        "deadLetterReason": "FORWARDED",
        "deadLetterDeliveryAttempts": "1",
        "deadLetterFirstDelivery": leased_ms,
        "deadLetterLastDelivery": leased_ms,
    }
    assert not first.system_properties.HasField("dead_letter_queue")
    assert await wire.dead_letter(handle(letter), letters) == pb.ILLEGAL_TOPIC
    other = pb.MessageQueue(topic=pb.Resource(name="%DLQ%other"))
    assert await wire.receive_code(message_queue=other) == pb.ILLEGAL_TOPIC


async def test_invalid_receive_requests(wire: Wire) -> None:
    wrong = pb.FilterExpression(type=pb.SQL, expression="price >")
    assert await wire.receive_code(filter_expression=wrong) == pb.ILLEGAL_FILTER_EXPRESSION
    assert await wire.receive_code(batch_size=-1) == pb.BAD_REQUEST
    assert await wire.receive_code(invisible_duration={"seconds": 13 * 3600}) == pb.ILLEGAL_INVISIBLE_TIME
    assert await wire.receive_code(long_polling_timeout={"seconds": -1}) == pb.ILLEGAL_POLLING_TIME


async def test_a_waiting_receive_is_woken(wire: Wire) -> None:
    assert await wire.receive() == []
    waiting = asyncio.create_task(wire.receive(15_000))
    await wire.send(b"a")
    assert [each.body for each in await waiting] == [b"a"]


async def test_transactions_end_once(wire: Wire) -> None:
    assert await wire.receive() == []
    sent = await wire.send(b"a", message_type=pb.TRANSACTION)
    asked = pb.EndTransactionRequest(topic=TOPIC, transaction_id=sent.entries[0].transaction_id, resolution=pb.COMMIT)
    assert await wire.receive() == []
    assert (await wire.call("EndTransaction", asked)).status.code == pb.OK
    assert [each.body for each in await wire.receive(5_000)] == [b"a"]
    assert (await wire.call("EndTransaction", asked)).status.code == pb.INVALID_TRANSACTION_ID
    asked.transaction_id = "nonsense"
    assert (await wire.call("EndTransaction", asked)).status.code == pb.INVALID_TRANSACTION_ID


async def test_a_client_gets_its_settings(wire: Wire) -> None:
    stream = wire.telemetry()
    publishing = pb.Publishing(topics=[TOPIC], max_body_size=1 << 30)
    await stream.write(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))
    settings = (await stream.read()).settings
    assert 0 < settings.publishing.max_body_size < 1 << 30
    assert settings.backoff_policy.exponential_backoff.multiplier == 2
    subscription = pb.Subscription(group=GROUP)
    await stream.write(
        pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))
    )
    settings = (await stream.read()).settings
    assert settings.backoff_policy.max_attempts == 5
    delays = [each.ToMilliseconds() for each in settings.backoff_policy.customized_backoff.next]
    assert delays == [1_500, 20_000]
    await stream.write(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.LITE_PUSH_CONSUMER)))
    assert (await stream.read()).status.code == pb.UNRECOGNIZED_CLIENT_TYPE
    await wire.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=GROUP))
    assert await stream.read() == grpc.aio.EOF


async def test_messages_of_a_terminated_push_consumer_are_returned(wire: Wire) -> None:
    assert await wire.receive() == []
    stream = wire.telemetry()
    await stream.write(
        pb.TelemetryCommand(
            settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=GROUP))
        )
    )
    await stream.read()
    await wire.send(b"a", b"b")
    first, _ = await wire.receive(auto_renew=True)
    await wire.acknowledge(handle(first))
    await wire.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=GROUP))
    (again,) = await wire.receive(15_000)
    assert (again.body, again.system_properties.delivery_attempt) == (b"b", 2)


async def test_the_last_failed_delivery_makes_a_dead_letter_at_once(wire: Wire) -> None:
    """A push consumer fails a message by changing its invisible duration. A simple consumer extends its lease so."""
    assert await wire.receive() == []
    stream = wire.telemetry()
    await stream.write(
        pb.TelemetryCommand(
            settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=GROUP))
        )
    )
    await stream.read()
    await wire.send(b"a")
    letters = pb.Resource(name="%DLQ%group")
    for attempt in range(1, 6):
        (message,) = await wire.receive(auto_renew=attempt == 5)
        assert message.system_properties.delivery_attempt == attempt
        if attempt == 4:
            assert await wire.change(handle(message), 7_200) == pb.OK
        assert await wire.receive(topic=letters) == []
        assert await wire.change(handle(message), 7_200 if attempt == 5 else 0) == pb.OK
    (letter,) = await wire.receive(topic=letters)
    assert letter.body == b"a"


async def test_a_new_group_begins_at_the_first_message_while_that_is_recent(wire: Wire) -> None:
    """A configured group begins where its configuration says."""
    await wire.send(b"a", b"b")
    received = {
        name: [each.body for each in await wire.receive(group=pb.Resource(name=name))]
        for name in ("group", "late", "early")
    }
    assert received == {"group": [b"a", b"b"], "late": [], "early": [b"a", b"b"]}


@pytest.mark.parametrize(("name", "reported"), [("fifo", False), ("unconfigured", True)])
async def test_a_fifo_group_gets_messages_in_order(wire: Wire, name: str, reported: bool) -> None:
    """A group is FIFO by the configuration, or because its client reports it."""
    fifo = pb.Resource(name=name)
    stream = wire.telemetry()
    subscription = pb.Subscription(group=fifo, fifo=reported)
    await stream.write(
        pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))
    )
    assert (await stream.read()).settings.subscription.fifo
    assert await wire.receive(group=fifo) == []
    await wire.send(b"a", b"b", message_type=pb.FIFO, message_group="order-7")
    await wire.send(b"c", message_type=pb.FIFO, message_group="order-7")
    (first,) = await wire.receive(group=fifo, batch_size=1)
    assert first.system_properties.message_group == "order-7"
    assert await wire.receive(group=fifo) == []
    assert (await wire.acknowledge(handle(first), group=fifo)).status.code == pb.OK
    assert [each.body for each in await wire.receive(5_000, group=fifo)] == [b"b", b"c"]


async def test_any_group_gets_messages_that_have_a_message_group_in_order(wire: Wire) -> None:
    """An answer has one message of each message group: the client is not told that it has to handle them in turn."""
    stream = wire.telemetry()
    subscription = pb.Subscription(group=GROUP)
    await stream.write(
        pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))
    )
    assert not (await stream.read()).settings.subscription.fifo
    await wire.send(b"a", b"b", b"c", message_type=pb.FIFO, message_group="order-7")
    await wire.send(b"other", message_type=pb.FIFO, message_group="order-8")
    await wire.send(b"1", b"2")
    received = {each.body: each for each in await wire.receive()}
    assert sorted(received) == [b"1", b"2", b"a", b"other"]
    assert await wire.change(handle(received[b"a"]), 1) == pb.OK
    assert (await wire.acknowledge(handle(received[b"1"]), handle(received[b"other"]))).status.code == pb.OK
    await wire.send(b"d", message_type=pb.FIFO, message_group="order-8")
    assert [each.body for each in await wire.receive(5_000)] == [b"d"]
    (again,) = await wire.receive(10_000)
    assert (again.body, again.system_properties.delivery_attempt) == (b"a", 2)
    assert await wire.dead_letter(handle(again)) == pb.OK
    (second,) = await wire.receive(5_000)
    assert second.body == b"b"
    assert await wire.receive() == []
    assert await wire.dead_letter(handle(second)) == pb.OK
    letters = await wire.receive(topic=pb.Resource(name="%DLQ%group"))
    assert [each.body for each in letters] == [b"a", b"b"]


async def test_members_wait_for_a_message_group(wire: Wire) -> None:
    """The acknowledgement of one member gives a waiting one the next message."""
    await wire.send(b"a", b"b", message_type=pb.FIFO, message_group="order-7")
    (first,) = await wire.receive()
    waiting = asyncio.create_task(wire.receive(20_000))
    assert await wire.receive() == []
    assert (await wire.acknowledge(handle(first))).status.code == pb.OK
    assert [each.body for each in await waiting] == [b"b"]


async def test_a_pull_consumer_reads_by_offset(wire: Wire) -> None:
    """It finds offsets, reads from there on, and keeps an offset for its group."""
    sent = await wire.send(*(b"%d" % number for number in range(5)), tag="t")
    assert sent.status.code == pb.OK
    ends = {number: await offset_of(wire, number, pb.END) for number in range(4)}
    (partition,) = [number for number, end in ends.items() if end == 5]
    assert await offset_of(wire, partition, pb.BEGINNING) == 0
    assert await offset_of(wire, partition, pb.TIMESTAMP) == 0
    queue = pb.MessageQueue(topic=TOPIC, id=partition)
    assert await pull(wire, queue, 1, batch_size=2) == (pb.OK, [(1, b"1"), (2, b"2")], 3)
    wanted = pb.FilterExpression(type=pb.TAG, expression="other")
    assert await pull(wire, queue, 0, filter_expression=wanted) == (pb.MESSAGE_NOT_FOUND, [], 5)
    assert await pull(wire, queue, 5) == (pb.MESSAGE_NOT_FOUND, [], 5)
    asked = pb.GetOffsetRequest(group=GROUP, message_queue=queue)
    assert (await wire.call("GetOffset", asked)).status.code == pb.OFFSET_NOT_FOUND
    update = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue, offset=3)
    assert (await wire.call("UpdateOffset", update)).status.code == pb.OK
    assert (await wire.call("GetOffset", asked)).offset == 3
    assert [each.body for each in await wire.receive()] == [b"3", b"4"]  # members begin there as well


async def test_a_waiting_pull_is_woken(wire: Wire) -> None:
    await wire.send(b"a")
    (partition,) = [number for number in range(4) if await offset_of(wire, number, pb.END)]
    waiting = asyncio.create_task(pull(wire, pb.MessageQueue(topic=TOPIC, id=partition), 1, wait_s=20))
    await wire.send(b"b")
    assert await waiting == (pb.OK, [(1, b"b")], 2)


async def test_invalid_requests_of_pull_consumers(wire: Wire) -> None:
    queue, none = pb.MessageQueue(topic=TOPIC), pb.MessageQueue(topic=TOPIC, id=4)
    assert await pull(wire, none, 0) == (pb.BAD_REQUEST, [], None)
    assert await pull(wire, queue, -1) == (pb.ILLEGAL_OFFSET, [], None)
    assert await pull(wire, queue, 1) == (pb.ILLEGAL_OFFSET, [], None)
    assert await pull(wire, queue, 0, batch_size=-1) == (pb.BAD_REQUEST, [], None)
    for name, request, code in (
        ("UpdateOffset", pb.UpdateOffsetRequest(group=GROUP, message_queue=queue, offset=-1), pb.ILLEGAL_OFFSET),
        ("UpdateOffset", pb.UpdateOffsetRequest(group=GROUP, message_queue=none), pb.BAD_REQUEST),
        ("GetOffset", pb.GetOffsetRequest(message_queue=queue), pb.ILLEGAL_CONSUMER_GROUP),
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=none), pb.BAD_REQUEST),
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.TIMESTAMP), pb.BAD_REQUEST),
    ):
        assert (await wire.call(name, request)).status.code == code, name


async def offset_of(wire: Wire, partition: int, policy: "pb.QueryOffsetPolicy") -> int:
    request = pb.QueryOffsetRequest(
        message_queue=pb.MessageQueue(topic=TOPIC, id=partition), query_offset_policy=policy, timestamp={"seconds": 1}
    )
    found = await wire.call("QueryOffset", request)
    assert found.status.code == pb.OK
    return int(found.offset)


async def pull(
    wire: Wire, queue: pb.MessageQueue, offset: int, wait_s: int = 0, **fields: Any
) -> tuple[int, list[tuple[int, bytes]], int | None]:
    """The status of a PullMessage, its messages as (offset, body), and the next offset."""
    request = pb.PullMessageRequest(group=GROUP, message_queue=queue, offset=offset, **fields)
    request.long_polling_timeout.FromSeconds(wait_s)
    status, *replies = await wire.call("PullMessage", request)
    messages = [(each.message.system_properties.queue_offset, each.message.body) for each in replies[:-1]]
    return status.status.code, messages, replies[-1].next_offset if replies else None


async def test_traces_name_the_clients_of_a_group(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 20))
    server = RpcServer(engine, Authority(engine, 0))
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, Client(f"127.0.0.1:{port}") as native:
        wire = Wire(channel)
        assert await wire.receive() == []
        sent = await wire.send(b"x", b"y")
        first, second = await wire.receive()
        await wire.change(handle(first), 60)
        await wire.acknowledge(handle(first))
        await wire.dead_letter(handle(second))
        events = [await native.trace(entry.offset) for entry in sent.entries]
    await server.stop(0.2)
    await engine.close()
    assert [[(event.happened, event.member) for event in each[1:]] for each in events] == [
        [(Happened.LEASED, "service"), (Happened.POSTPONED, "service"), (Happened.FINISHED, "service")],
        [(Happened.LEASED, "service"), (Happened.DEAD_LETTERED, "service")],
    ]


async def test_a_client_checks_transactions_of_others_only_when_these_are_gone(tmp_path: Path) -> None:
    """Also when the others use Sluice's SDK."""
    settings = StoreConfig(segment_size=1 << 20, transaction_check_s=0.05, transaction_checks=1000)
    engine = await Engine.open(tmp_path, settings)
    server = RpcServer(engine, Authority(engine, 0))
    endpoint = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    asked: list[bytes] = []

    async def check(message: Message) -> Decision:
        asked.append(message.payload)
        return Decision.UNKNOWN if len(asked) < 3 else Decision.COMMIT

    async with grpc.aio.insecure_channel(endpoint) as channel:
        stream = Wire(channel).telemetry()
        publishing = pb.Publishing(topics=[TOPIC])
        await stream.write(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))
        await stream.read()
        async with Client(endpoint, name="shop") as before, Client(endpoint, name="shop") as client:
            async with client.transaction_checks(check):
                await until(lambda: server._service is not None and server._service._held._streams)
                await before.transaction().send("home/x", b"connected")
                await until(lambda: len(asked) == 3)
                await until(lambda: not engine.stats().held)
            await until(lambda: server._service is not None and not server._service._held._streams)
            await before.transaction().send("home/x", b"gone")
        command = (await stream.read()).recover_orphaned_transaction_command
        stream.cancel()
    await server.stop(0.2)
    await engine.close()
    assert command.message.body == b"gone"
