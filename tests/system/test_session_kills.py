"""Sessions over `kill -9` of the node: QoS 2 exactly once at every step of the exchange, nothing lost, order kept."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.gateway.device import EVER, Device
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBCOMP, PUBREC, PUBREL, RawClient, ack
from tests.gateway.session.test_model import STEPS, Scenario
from tests.system.conftest import NodeProcess

ROUNDS = 2
STEPS_IN = ["publish", "pubrec", "pubrel", "pubcomp"]  # the last packet of the exchange that was sent or came
STEPS_OUT = STEPS_IN


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that start fast."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))


async def kill(node: NodeProcess) -> None:
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)


async def expect_sent(device: Device, count: int) -> None:
    """The device's application has got that many messages, and no more come."""
    device.acknowledge(len(device.owed))
    while len(device.seen) < count or device.unsettled or device.earlier:
        await device.read()
        device.acknowledge(len(device.owed))
    await device.poll()
    assert [payload for _, payload, _ in device.seen] == [b"%d" % i for i in range(count)]


@pytest.mark.mqtt5("4.3.3-10", "4.3.3-11", "4.4.0-1")
@pytest.mark.mqtt311("4.1.0-1", "4.3.3-2")
@pytest.mark.parametrize("step", STEPS_IN)
@pytest.mark.parametrize("version", [4, 5])
async def test_inbound_qos_2_is_exactly_once(node: NodeProcess, version: int, step: str) -> None:
    """MQTT-4.3.3-10, 4.4.0-1: the client goes on where it was."""
    watcher = Device(node.mqtt_port, b"watcher", 5, 10)
    await watcher.connect()
    await watcher.subscribe(b"t", 2)
    expiry = {"expiry": EVER} if version == 5 else {}
    for number in range(ROUNDS):
        client = await RawClient.connect(node.mqtt_port, b"d", version, False, **expiry)
        assert client.session_present == (number > 0)
        client.send(wire.publish(version, b"t", b"%d" % number, 2, 7))
        if step != "publish":
            await client.expect(PUBREC)
        if step in {"pubrel", "pubcomp"}:
            client.send(ack(PUBREL, 7))
        if step == "pubcomp":
            await client.expect(PUBCOMP)
        await kill(node)
        await client.drop()
        client = await RawClient.connect(node.mqtt_port, b"d", version, False, **expiry)
        assert client.session_present
        if step == "publish":
            client.send(wire.publish(version, b"t", b"%d" % number, 2, 7, dup=True))
            assert (await client.expect(PUBREC)).packet_id == 7
        if step != "pubcomp":
            client.send(ack(PUBREL, 7))
            assert (await client.expect(PUBCOMP)).packet_id == 7
        await client.disconnect()
    await watcher.killed()
    await watcher.connect()
    await expect_sent(watcher, ROUNDS)


@pytest.mark.mqtt5("4.3.3-3", "4.3.3-5", "4.4.0-1")
@pytest.mark.mqtt311("4.3.3-1", "4.4.0-1")
@pytest.mark.parametrize("step", STEPS_OUT)
@pytest.mark.parametrize("version", [4, 5])
async def test_outbound_qos_2_is_exactly_once(node: NodeProcess, version: int, step: str) -> None:
    """MQTT-4.3.3-8, 4.4.0-1: under the packet id of before, from the step that was recorded."""
    device = Device(node.mqtt_port, b"d", version, 3)
    await device.connect()
    await device.subscribe(b"t", 2)
    for number in range(ROUNDS):
        publisher = await RawClient.connect(node.mqtt_port, b"p")
        await publisher.publish(b"t", b"%d" % number, 2)
        await publisher.disconnect()
        while len(device.seen) == number:
            await device.read()
        if step != "publish":
            device.acknowledge(len(device.owed))
        if step in {"pubrel", "pubcomp"}:
            while device.held:
                await device.read()
        if step == "pubcomp":
            device.acknowledge(len(device.owed))
        await kill(node)
        await device.drop()  # strict: the node has to know every packet id of QoS 2
        await device.connect()
        await expect_sent(device, number + 1)


@pytest.mark.mqtt5("3.1.2-23")
async def test_a_session_and_what_it_missed_survive_a_kill(node: NodeProcess) -> None:
    device = Device(node.mqtt_port, b"d", 5, 10)
    await device.connect()
    await device.subscribe(b"t/+", 1)
    publisher = await RawClient.connect(node.mqtt_port, b"p")
    for number in range(30):
        await publisher.publish(b"t/x", b"%d" % number)
    await kill(node)
    await device.killed()
    await publisher.drop()
    await device.connect()
    assert device.client is not None
    assert device.client.session_present
    await expect_sent(device, 30)
    await kill(node)
    await device.killed()
    await device.connect()
    publisher = await RawClient.connect(node.mqtt_port, b"p")
    await publisher.publish(b"t/x", b"last")
    while device.seen[-1][1] != b"last":
        await device.read()
        device.acknowledge(1)


class KilledScenario(Scenario):
    """A scenario whose node is killed now and then."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        super().__init__(node.mqtt_port, b"s%d" % seed, seed, 4 + seed % 2, [1, 5, 100][seed % 3])
        self.node = node

    async def step(self, step: str) -> None:
        if step != "kill":
            await super().step(step)
            return
        await self.idle()
        await kill(self.node)
        await self.device.killed()
        if self.publisher.client is not None:
            await self.publisher.client.drop()
            self.publisher.client = None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 20))])
async def test_random_sessions_over_kills(node: NodeProcess, seed: int) -> None:
    """MQTT-4.3.2-2, 4.3.3-8, 4.6.0-5: QoS 1 at least once, QoS 2 exactly once, first deliveries in order."""
    chance = random.Random(seed)
    steps = [step for _ in range(5) for step in [*chance.choices(STEPS, k=10), "kill"]]
    await KilledScenario(node, seed).run(steps)


async def test_sigterm_says_goodbye_and_ends_with_0(node: NodeProcess) -> None:
    """DISCONNECT 0x8B (section 4.13); what was accepted is there after the start."""
    client = await RawClient.connect(node.mqtt_port, b"d", 5, False, expiry=EVER)
    old = await RawClient.connect(node.mqtt_port, b"old", 4)
    await client.subscribe((b"t", 1))
    client.send(wire.publish(5, b"t", b"x", 1, 1))
    await client.packet()
    await client.packet()
    stopping = asyncio.create_task(asyncio.to_thread(node.stop))
    assert (await client.expect(14)).reason == 0x8B
    await client.closed()
    await old.closed()
    assert await stopping == 0
    assert "Traceback" not in node.log()
    await asyncio.to_thread(node.start)
    client = await RawClient.connect(node.mqtt_port, b"d", 5, False, expiry=EVER)
    assert client.session_present
    message = (await client.take(1))[0]
    assert (message.payload, message.dup) == (b"x", True)


def test_a_second_node_on_the_same_folder_refuses(node: NodeProcess, make_node: Callable[..., NodeProcess]) -> None:
    second = make_node()
    with pytest.raises(AssertionError, match="the node ended before it was ready"):
        second.start()
    assert second.stop() == 1
    assert "sluice: cannot serve" in second.log()
    assert "Traceback" not in second.log()


@pytest.mark.parametrize("front", ["mqtt_port", "ws_port", "grpc_port", "http_port"])
def test_a_port_in_use_is_named(node: NodeProcess, make_node: Callable[..., NodeProcess], front: str) -> None:
    second = make_node("second")
    setattr(second, front, getattr(node, front))
    with pytest.raises(AssertionError, match="the node ended before it was ready"):
        second.start()
    assert second.stop() == 1
    assert "sluice: cannot serve" in second.log()
    assert str(getattr(node, front)) in second.log()
    assert "Traceback" not in second.log()
