"""Cloud services at the store, devices at two gateways: transactions, retained values and inboxes cross between."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from cloud_sdk import Client, Decision, Message
from gateway.config.config import load
from gateway.node.gateway_node import GatewayNode
from gateway.node.store_node import StoreNode
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from tests.gateway.mqtt import wire as packets
from tests.gateway.raw import PUBACK, PUBLISH, RawClient
from tests.gateway.rocketmq.test_rocket_service import TOPIC, Wire

EVER = 0xFFFF_FFFF
FREE = {"mqtt.port": 0, "mqtt.ws_port": -1, "http.port": 0, "grpc.port": 0, "store.segment_size": 4 << 20}


class Split:
    """A store and two gateways, all in the test's own loop and over sockets."""

    def __init__(self, folder: Path, notify: str) -> None:
        self._folder = folder
        self._notify = notify
        self._nodes: list[StoreNode | GatewayNode] = []
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        role = {"split.role": "store", "split.listen": "127.0.0.1:0", "store.transaction_check_s": 1}
        store = StoreNode(load(None, {**FREE, **role, "data_dir": self._folder / "data"}, {}))
        self._nodes.append(store)
        ports = await store.start()
        self.endpoint = f"127.0.0.1:{ports.grpc}"
        for name in "ab":
            own = {"split.role": "gateway", "split.store": ports.addresses["store"], "split.notify": self._notify}
            gateway = GatewayNode(load(None, {**FREE, **own, "split.place": name}, {}))
            self._nodes.append(gateway)
            self.ports[name] = (await gateway.start()).mqtt

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

    async with Client(split.endpoint, name="shop") as dead:
        for payload in fates:
            await dead.transaction().send("home/orphan", payload)
    async with Client(split.endpoint, name="shop") as client:
        async with client.transaction() as own:
            await own.send("home/own", b"own")
        async with client.transaction_checks(check):
            for device in (durable, passing):
                assert [m.payload for m in await device.take(2)] == [b"own", b"keep"]
                await device.quiet()
    for device in (durable, passing):
        await device.disconnect()


async def test_a_producer_of_rocketmq_is_asked_for_its_orphans(split: Split) -> None:
    device = await split.client("b", b"device", 0)
    await device.subscribe((b"home/#", 1))
    async with grpc.aio.insecure_channel(split.endpoint) as channel:
        wire = Wire(channel)
        stream = wire.telemetry()
        publishing = pb.Publishing(topics=[TOPIC])
        await stream.write(pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing)))
        await stream.read()
        await wire.send(b"half", message_type=pb.TRANSACTION)
        await device.quiet()
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert asked.message.body == b"half"
        end = pb.EndTransactionRequest(topic=TOPIC, transaction_id=asked.transaction_id, resolution=pb.COMMIT)
        assert (await wire.call("EndTransaction", end)).status.code == pb.OK
        assert [m.payload for m in await device.take(1)] == [b"half"]
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
    async with Client(split.endpoint) as client:
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
