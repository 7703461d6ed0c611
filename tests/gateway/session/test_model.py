"""One durable session under random publishes, acknowledgements and breaks, against what MQTT promises."""

import asyncio
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.config import load
from gateway.node.node import Node
from matcher.names import matches
from tests.gateway.device import Device, Publisher, check_delivery

STEPS = ["publish", "publish", "poll", "ack", "ack some", "shuffle", "drop", "disconnect", "take over", "subscribe"]
FILTERS = [b"a", b"b/c", b"b/+", b"+", b"#", b"b/#"]
TOPICS = [b"a", b"b/c", b"b/d"]


class Scenario:
    """A device and a publisher whose topics begin with `name`."""

    def __init__(self, port: int, name: bytes, seed: int, version: int, window: int) -> None:
        self.chance = random.Random(seed)
        self.name = name
        self.device = Device(port, name, version, window)
        self.publisher = Publisher(port, name + b"-publisher")
        self.filters: dict[bytes, int] = {}
        self.granted: dict[bytes, int] = {}  # topic → the highest QoS of the filters that match it
        self.burst: asyncio.Task[None] | None = None

    async def run(self, steps: list[str]) -> None:
        await self.device.connect()
        for topic_filter in self.chance.sample(FILTERS, self.chance.randint(1, 3)):
            await self.subscribe(topic_filter, self.chance.choice([1, 2]))
        for step in steps:
            await self.step(step)
        await self.idle()
        if self.device.client is None:
            await self.device.connect()
        await check_delivery(self.device, self.publisher.sent, self.granted)
        await self.device.disconnect()
        if self.publisher.client is not None:
            await self.publisher.client.disconnect()

    async def subscribe(self, topic_filter: bytes, qos: int) -> None:
        """A filter that is known keeps its QoS, so that the model knows the QoS of what is on its way."""
        topic_filter = self.name + b"/" + topic_filter
        qos = self.filters.setdefault(topic_filter, qos)
        await self.device.subscribe(topic_filter, qos)
        for topic in TOPICS:
            full = self.name + b"/" + topic
            if matches(topic_filter, full):
                self.granted[full] = max(self.granted.get(full, 0), qos)

    async def idle(self) -> None:
        if self.burst is not None:
            await self.burst
            self.burst = None

    async def step(self, step: str) -> None:
        device, chance = self.device, self.chance
        if step == "publish":
            await self.idle()
            if not self.granted:
                return
            topics = chance.choices(list(self.granted), k=chance.choice([1, 3, 30]))
            levels = [chance.choice([1, 2]) for _ in topics]
            self.burst = asyncio.create_task(self.publisher.burst(topics, levels))
            if chance.random() < 0.5:
                await self.idle()
            return
        if step == "drop":
            await device.drop()
            return
        if step == "disconnect":
            if device.client is not None:
                await device.disconnect()
            return
        if device.client is None or step == "take over":
            await device.connect()
        if step == "poll":
            await device.poll()
        elif step == "ack":
            device.acknowledge(len(device.owed))
        elif step == "ack some":
            device.acknowledge(chance.randint(1, 4))
        elif step == "shuffle":
            device.acknowledge(chance.randint(1, 20), chance)
        elif step == "subscribe":
            await self.idle()
            await self.subscribe(chance.choice(FILTERS), 1)


async def start(data_dir: Path) -> Node:
    free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
    node = Node(load(None, {**free, "data_dir": data_dir}, {}))
    await node.start()
    return node


@pytest.mark.mqtt5(
    "2.2.1-4", "3.3.4-9", "4.3.2-1", "4.3.2-3", "4.3.3-1", "4.3.3-3", "4.3.3-5", "4.4.0-1", "4.5.0-1", "4.6.0-5"
)
@pytest.mark.mqtt311("2.3.1-4", "4.3.2-1", "4.3.3-1", "4.4.0-1", "4.5.0-1", "4.6.0-6")
def test_a_durable_session_gets_every_message_in_order(tmp_path: Path) -> None:
    """MQTT-4.3.2-2, 4.3.3-8, 4.4.0-1, 4.5.0-1, 4.6.0-5: QoS 1 at least once, QoS 2 exactly once, in order."""
    numbers = itertools.count(1)
    with asyncio.Runner() as runner:
        node = runner.run(start(tmp_path / "data"))

        @settings(
            max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(
            st.integers(0, 1 << 30),
            st.lists(st.sampled_from(STEPS), min_size=5, max_size=40),
            st.sampled_from([4, 5]),
            st.sampled_from([1, 2, 5, 100]),
        )
        def check(seed: int, steps: list[str], version: int, window: int) -> None:
            scenario = Scenario(node.ports.mqtt, b"s%d" % next(numbers), seed, version, window)
            runner.run(scenario.run(steps))

        try:
            check()
        finally:
            runner.run(node.stop())
