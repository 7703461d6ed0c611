"""Shared subscriptions of whole nodes: with the clients people use, and over `kill -9`."""

import asyncio
import queue
import random
import subprocess
import threading
from collections import Counter
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.gateway.device import Device, Publisher
from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import PATIENCE_S, patience

FILTER = b"$share/g/home/#"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that start fast, and never find a member silent."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    monkeypatch.setenv("SLUICE_MQTT_SHARED_ACK_TIMEOUT", "3600")


class Worker:
    """A paho client that shares the work; it acknowledges by itself, or never."""

    def __init__(self, port: int, name: str, *, acknowledges: bool = True) -> None:
        self.messages: queue.Queue[bytes] = queue.Queue()
        subscribed = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=not acknowledges,
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message.payload)
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.on_connect = lambda *_: self.client.subscribe(FILTER.decode(), qos=1)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert subscribed.wait(PATIENCE_S)

    def take(self, count: int) -> list[bytes]:
        return [self.messages.get(timeout=PATIENCE_S) for _ in range(count)]

    def abort(self) -> None:
        """Close the socket without a word."""
        self.client.loop_stop()
        sock: Any = self.client.socket()
        sock.close()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def publish(port: int, count: int) -> list[bytes]:
    texts = [str(number).encode() for number in range(count)]
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="publisher")
    client.connect("127.0.0.1", port)
    client.loop_start()
    for sent in [client.publish("home/bath", text, qos=1) for text in texts]:
        sent.wait_for_publish(PATIENCE_S)
    client.disconnect()
    client.loop_stop()
    return texts


def test_paho_members_share_the_messages_evenly(node: NodeProcess) -> None:
    workers = [Worker(node.mqtt_port, f"w{number}") for number in range(4)]
    sent = publish(node.mqtt_port, 200)
    got = [worker.take(50) for worker in workers]
    assert sorted(payload for each in got for payload in each) == sorted(sent)
    for worker in workers:
        worker.close()
        assert worker.messages.empty()


def test_messages_of_a_broken_member_go_to_others(node: NodeProcess) -> None:
    dying = Worker(node.mqtt_port, "dying", acknowledges=False)
    others = [Worker(node.mqtt_port, f"w{number}") for number in range(2)]
    sent = publish(node.mqtt_port, 90)
    dying.take(30)
    dying.abort()
    got = [payload for worker in others for payload in worker.take(30)]
    left = {*sent} - {*got}
    assert len(left) == 30
    while left:
        for worker in others:
            while not worker.messages.empty():
                left.remove(worker.messages.get())
    for worker in others:
        worker.close()
        assert worker.messages.empty()


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_sub_members(node: NodeProcess, version: str, qos: str) -> None:
    command = [
        *("stdbuf", "-oL", program("mosquitto_sub"), "-h", "127.0.0.1", "-p", str(node.mqtt_port), "-V", version),
        *("-q", qos, "-d", "-t", FILTER.decode(), "-C", "10", "-W", "20", "-F", "message %p"),
    ]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    got: list[str] = []
    try:
        outputs = [iter(member.stdout.readline, "") for member in members if member.stdout is not None]
        for lines in outputs:
            while "SUBACK" not in next(lines):
                pass
        publish(node.mqtt_port, 30)
        for member, lines in zip(members, outputs, strict=True):
            got += [line.split()[1] for line in lines if line.startswith("message")]
            assert member.wait(20) == 0
    finally:
        for member in members:
            member.kill()
            member.wait()
            if member.stdout is not None:
                member.stdout.close()
    assert sorted(got) == sorted(map(str, range(30)))


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_aiomqtt_members(node: NodeProcess, version: aiomqtt.ProtocolVersion) -> None:
    async def work(client: aiomqtt.Client) -> list[object]:
        return [(await anext(aiter(client.messages))).payload for _ in range(10)]

    async with (
        patience(),
        aiomqtt.Client("127.0.0.1", node.mqtt_port, protocol=version) as first,
        aiomqtt.Client("127.0.0.1", node.mqtt_port, protocol=version) as second,
    ):
        await first.subscribe(FILTER.decode(), qos=1)
        await second.subscribe(FILTER.decode(), qos=1)
        sent = await asyncio.to_thread(publish, node.mqtt_port, 20)
        one, two = await asyncio.gather(work(first), work(second))
    assert sorted(one + two) == sorted(sent)


class Member(Device):
    """A device of a group: what it had with QoS 1 on an earlier connection others may have by now."""

    async def connect(self) -> None:
        await super().connect()
        self.earlier = {packet_id: payload for packet_id, payload in self.earlier.items() if packet_id in self.held}


class Crew:
    """Durable members, a publisher, and a node that is killed now and then."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        self.node = node
        self.chance = random.Random(seed)
        port = node.mqtt_port
        self.members = [Member(port, b"m%d" % number, 4 + number % 2, [1, 5, 100][number]) for number in range(3)]
        self.publisher = Publisher(port, b"publisher")

    async def begin(self) -> None:
        for number, member in enumerate(self.members):
            await member.connect()
            await member.subscribe(FILTER, [2, 2, 1][number])

    async def step(self, step: str) -> None:
        member = self.chance.choice(self.members)
        if step == "publish":
            count = self.chance.randrange(1, 20)
            await self.publisher.burst([b"home/x"] * count, self.chance.choices([1, 2], k=count))
        elif step == "kill":
            await asyncio.to_thread(self.node.kill)
            for each in self.members:
                await each.killed()
            if self.publisher.client is not None:
                await self.publisher.client.drop()
                self.publisher.client = None
            await asyncio.to_thread(self.node.start)
        elif step == "drop":
            await member.drop()
        elif member.client is None:
            await member.connect()
        else:
            await member.poll()
            member.acknowledge(self.chance.randrange(10), self.chance)

    async def end(self) -> None:
        """All are there until nothing is left; what was acknowledged came, with QoS 2 to one member and once."""
        wanted = {payload for _, payload, _ in self.publisher.sent}
        async with patience():
            while True:
                for member in self.members:
                    if member.client is None:
                        await member.connect()
                    await member.poll()
                    member.acknowledge(len(member.owed))
                seen = {payload for member in self.members for _, payload, _ in member.seen}
                if seen == wanted and not any(member.unsettled or member.earlier for member in self.members):
                    break
        twice = Counter(payload for member in self.members for _, payload, qos in member.seen if qos == 2)
        assert max(twice.values(), default=1) == 1


@pytest.mark.mqtt5("4.8.2-4", "4.8.2-5")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_random_members_over_kills(node: NodeProcess, seed: int) -> None:
    """QoS 1 at least once; QoS 2 exactly once, whoever has it."""
    crew = Crew(node, seed)
    await crew.begin()
    for _ in range(4):
        for step in crew.chance.choices(["publish", "acknowledge", "drop"], [4, 8, 1], k=15):
            await crew.step(step)
        await crew.step("kill")
    await crew.end()


async def test_members_over_a_kill(node: NodeProcess) -> None:
    """In the middle of the windows: what is not acknowledged comes when a member is back, not when leases run out."""
    crew = Crew(node, 0)
    await crew.begin()
    await crew.publisher.burst([b"home/x"] * 60, [1, 2] * 30)
    for member in crew.members:
        await member.poll()
        member.acknowledge(3)
    await crew.step("kill")
    await crew.end()
