"""Cloud services and devices at two gateways: what one of them does reaches the clients of the other."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cloud_sdk import Client, Decision, Delivery, Message, OutgoingMessage
from gateway.broker.append import append
from gateway.config.config import load
from gateway.node.gateway_node import GatewayNode
from gateway.node.store_node import StoreNode
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from store import control
from store.api import Action, Resource, Rule
from tests.gateway.mqtt import wire as packets
from tests.gateway.raw import PUBACK, PUBLISH, RawClient
from tests.gateway.rocketmq.test_rocket_service import ME, TOPIC, Wire, pull
from tests.waiting import PATIENCE_S, until

EVER = 0xFFFF_FFFF
FREE = {"mqtt.port": 0, "mqtt.ws_port": -1, "http.port": 0, "grpc.port": 0, "store.segment_size": 4 << 20}


class Split:
    """A store and two gateways, all in the test's own loop and over sockets."""

    def __init__(self, folder: Path, notify: str) -> None:
        self._folder = folder
        self._notify = notify
        self._nodes: list[StoreNode | GatewayNode] = []
        self.ports: dict[str, int] = {}  # of MQTT, by gateway
        self.endpoints: dict[str, str] = {}  # for services, by gateway

    async def start(self) -> None:
        role = {"split.role": "store", "split.listen": "127.0.0.1:0", "store.transaction_check_s": 1}
        own = {**FREE, **role, "grpc.port": -1, "data_dir": self._folder / "data"}
        self.store = store = StoreNode(load(None, own, {}))
        self._nodes.append(store)
        ports = await store.start()
        assert ports.grpc == -1
        for name in "ab":
            own = {"split.role": "gateway", "split.store": ports.addresses["store"], "split.notify": self._notify}
            gateway = GatewayNode(load(None, {**FREE, **own, "split.place": name}, {}))
            self._nodes.append(gateway)
            listening = await gateway.start()
            self.ports[name], self.endpoints[name] = listening.mqtt, f"127.0.0.1:{listening.grpc}"

    async def stop(self) -> None:
        for node in reversed(self._nodes):
            await node.stop()

    async def client(self, gateway: str, name: bytes, expiry: int = EVER) -> RawClient:
        return await RawClient.connect(self.ports[gateway], name, 5, expiry == 0, expiry=expiry)


@pytest.fixture(params=["routed", "broadcast"])
async def split(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Split]:
    found = Split(tmp_path, request.param)
    await found.start()
    yield found
    await found.stop()


async def test_halves_reach_devices_when_they_are_committed_by_whoever_is_asked(split: Split) -> None:
    durable = await split.client("a", b"durable")
    passing = await split.client("b", b"passing", 0)
    for client in (durable, passing):
        await client.subscribe((b"home/#", 1))
    fates = {b"keep": Decision.COMMIT, b"drop": Decision.ROLLBACK}

    async def check(message: Message) -> Decision:
        return fates[message.payload]

    async with Client(split.endpoints["a"], name="shop") as dead:
        for payload in fates:
            await dead.transaction().send("home/orphan", payload)
    async with Client(split.endpoints["b"], name="shop") as client:
        async with client.transaction() as own:
            await own.send("home/own", b"own")
        async with client.transaction_checks(check):
            for device in (durable, passing):
                assert [m.payload for m in await device.take(2)] == [b"own", b"keep"]
                await device.quiet()
    for device in (durable, passing):
        await device.disconnect()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_producer_of_rocketmq_is_asked_for_its_orphans(split: Split, is_there: bool) -> None:
    """Or, if it is not connected anywhere, another one at any gateway."""
    device = await split.client("b", b"device", 0)
    await device.subscribe((b"home/#", 1))
    async with (
        grpc.aio.insecure_channel(split.endpoints["a"]) as channel,
        grpc.aio.insecure_channel(split.endpoints["b"]) as other,
    ):
        wire = Wire(channel)
        stream = (wire if is_there else Wire(other)).telemetry()
        publishing = pb.Publishing(topics=[TOPIC])
        await stream.write(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))
        await stream.read()
        me = ME if is_there else (("x-mq-client-id", "somebody else"),)
        half = pb.Message(
            topic=TOPIC, body=b"half", system_properties={"message_id": "1", "message_type": pb.TRANSACTION}
        )
        await wire.call("SendMessage", pb.SendMessageRequest(messages=[half]), me)
        await device.quiet()
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert asked.message.body == b"half"
        end = pb.EndTransactionRequest(topic=TOPIC, transaction_id=asked.transaction_id, resolution=pb.COMMIT)
        assert (await wire.call("EndTransaction", end)).status.code == pb.OK
        assert [m.payload for m in await device.take(1)] == [b"half"]
    await device.disconnect()


async def test_a_rule_finds_entries_that_a_service_put(split: Split) -> None:
    engine = split.store._engine
    assert engine is not None
    everybody = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"$kv/devices/#")
    await append(engine, [control.RulesSet([everybody]).frame(b"")])
    about = {
        "topics": ["fleet/+"],
        "enrich": {"site": '$kv/devices/{{ levels["2"] }}'},
        "transform": {"template": "{{ enriched.site }}"},
        "topic": {"topic": "out"},
    }
    rule = control.EventRuleSet([b"fleet/+"], definition=json.dumps(about).encode())
    await append(engine, [rule.frame(b"r")])
    reader = await split.client("b", b"reader", 0)
    await reader.subscribe((b"out", 1))
    writer = await split.client("b", b"writer", 0)
    async with Client(split.endpoints["a"], name="registry") as client:
        for number, site in enumerate((b"north", b"south"), 1):
            await client.bucket("devices").put("7", site)
            await writer.publish(b"fleet/7", b"x", 1, number)
            assert [each.payload for each in await reader.take(1)] == [site]
    for device in (reader, writer):
        await device.disconnect()


async def test_a_retained_value_is_everybodys_and_its_end_too(split: Split) -> None:
    writer = await split.client("a", b"writer", 0)
    await writer.publish(b"kept/1", b"old", 1, 1, retain=True)
    await writer.publish(b"kept/1", b"new", 1, 2, retain=True)
    await writer.publish(b"kept/2", b"gone", 1, 3, retain=True)
    await writer.publish(b"kept/2", b"", 1, 4, retain=True)
    for name in "ab":
        reader = await split.client(name, b"reader", 0)
        await reader.subscribe((b"kept/#", 1))
        assert [(m.payload, m.retain) for m in await reader.take(1)] == [(b"new", True)]
        await reader.quiet()
        await reader.disconnect()
    async with Client(split.endpoints["a"]) as client:
        await client.send("kept/3", b"by a service", retain=True)
    reader = await split.client("b", b"reader", 0)
    await reader.subscribe((b"kept/3", 0))
    assert [m.payload for m in await reader.take(1)] == [b"by a service"]
    for each in (reader, writer):
        await each.disconnect()


async def test_inboxes_are_reached_across_gateways_without_no_matching_subscribers(split: Split) -> None:
    """A gateway does not know the clients of others: what it cannot know it does not say (0x10)."""
    held = await split.client("a", b"held", 0)
    away = await split.client("a", b"away")
    await away.disconnect()
    sender = await split.client("b", b"sender", 0)
    for number, name in enumerate((b"held", b"away", b"unknown"), 1):
        sender.send(packets.publish(5, b"$inbox/" + name, b"to " + name, 1, number))
        answer = await sender.expect(PUBACK)
        assert (answer.packet_id, answer.reason) == (number, 0)
    assert [m.payload for m in await held.take(1)] == [b"to held"]
    away = await split.client("b", b"away")
    assert (await away.packet()).kind == PUBLISH
    for each in (held, away, sender):
        await each.disconnect()


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_the_past_that_another_gateway_took_is_replayed_whole(split: Split, expiry: int) -> None:
    writer = await split.client("a", b"writer", 0)
    payloads = [b"%d" % number for number in range(20)]
    for number, payload in enumerate(payloads):
        await writer.publish(b"home/%d" % (number % 3), payload, 1, number + 1)
    reader = await split.client("b", b"reader", expiry)
    await reader.subscribe((b"$replay/earliest/home/#", 1))
    assert [m.payload for m in await reader.take(20)] == payloads
    await writer.publish(b"home/1", b"live", 1, 99)
    assert [m.payload for m in await reader.take(1)] == [b"live"]
    await reader.quiet()
    for each in (reader, writer):
        await each.disconnect()


def both(split: Split, **options: Any) -> tuple[Client, Client]:
    """A client at each gateway."""
    one, other = (Client(split.endpoints[name], **options) for name in "ab")
    return one, other


async def test_readers_and_members_that_wait_are_woken_from_another_gateway(split: Split) -> None:
    one, other = both(split, name="shop")
    async with one, other, other.consumer("g", "home") as member, other.pull_consumer("home") as reader:
        leased, read = asyncio.create_task(member.next(PATIENCE_S)), asyncio.create_task(reader.poll(PATIENCE_S))
        await other.groups()  # the questions are on their way before this one
        receipt = await one.send("home/1", b"now")
        for message in (await leased, *await read):
            assert message is not None
            assert (message.position, message.payload) == (receipt.position, b"now")
        device = await split.client("a", b"device", 0)
        waiting_for_device = asyncio.create_task(member.next(PATIENCE_S))
        await device.publish(b"home/2", b"by a device", 1, 1)
        message = await waiting_for_device
        assert message is not None
        await device.disconnect()


async def test_a_message_that_one_member_gives_back_wakes_the_member_of_another_gateway(split: Split) -> None:
    one, other = both(split)
    async with one, other, one.consumer("g", "home") as first, other.consumer("g", "home") as second:
        await one.send("home/1", b"again")
        message = await first.next(PATIENCE_S)
        assert message is not None
        waiting = asyncio.create_task(second.next(PATIENCE_S))
        await other.groups()
        await first.nack([message], 0.0)
        again = await waiting
        assert again is not None
        assert (again.payload, again.deliveries) == (b"again", 2)


async def test_members_of_two_gateways_keep_the_order_of_each_key_and_share_the_rest(split: Split) -> None:
    one, other = both(split)
    got: dict[str, list[int]] = defaultdict(list)
    by: Counter[str] = Counter()
    running: set[str] = set()

    async def handle(name: str, message: Delivery) -> None:
        key = message.ordering_key or ""
        assert key not in running, "an older message of the key is out"
        running.add(key)
        await asyncio.sleep(0)
        got[key].append(int(message.payload))
        by[name] += 1
        running.discard(key)

    async with (
        one,
        other,
        one.push_consumer("g", "home", partial(handle, "a"), ordered=True, concurrency=4),
        other.push_consumer("g", "home", partial(handle, "b"), ordered=True, concurrency=4),
    ):
        for start in range(0, 400, 40):
            numbers = range(start, start + 40)
            await one.send_many([OutgoingMessage("home/t", b"%d" % i, ordering_key=f"k{i % 8}") for i in numbers])
        await until(lambda: sum(map(len, got.values())) == 400)
    assert got == {f"k{k}": list(range(k, 400, 8)) for k in range(8)}
    assert by.keys() == {"a", "b"}


async def test_a_request_is_answered_from_another_gateway(split: Split) -> None:
    one, other = both(split)

    async def answer(message: Delivery) -> None:
        assert message.response_topic is not None
        await other.send(message.response_topic, b"is " + message.payload, correlation_data=message.correlation_data)

    async with one, other, other.push_consumer("lamps", "commands", answer):
        reply = await one.request("commands/lamp", b"on", reply_topic="replies/lamp", timeout=PATIENCE_S)
        assert reply.payload == b"is on"


async def test_rocketmqs_clients_pull_and_receive_at_another_gateway(split: Split) -> None:
    async with (
        grpc.aio.insecure_channel(split.endpoints["a"]) as channel,
        grpc.aio.insecure_channel(split.endpoints["b"]) as other,
    ):
        one, two = Wire(channel), Wire(other)
        sent = await one.send(b"1", b"2")
        assert [entry.offset for entry in sent.entries] == sorted({entry.offset for entry in sent.entries})
        route = await two.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC))
        found = [await pull(two, pb.MessageQueue(topic=TOPIC, id=queue.id), 0) for queue in route.message_queues]
        assert sorted(body for _, messages, _ in found for _, body in messages) == [b"1", b"2"]
        (received,) = await two.receive(batch_size=1)
        assert (await one.acknowledge(received.system_properties.receipt_handle)).status.code == pb.OK
        waiting = asyncio.create_task(two.receive(wait_ms=int(PATIENCE_S * 1000), batch_size=2))
        (rest,) = await waiting
        assert {received.body, rest.body} == {b"1", b"2"}
