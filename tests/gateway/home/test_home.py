"""Home Assistant, Zigbee2MQTT, Tasmota and Node-RED: messages as their documentation shows them, played to a node."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, RawClient
from tests.waiting import patience

MESSAGES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "messages.json").read_text(encoding="utf-8"))
WILLS = {
    "zigbee2mqtt": ("zigbee2mqtt/bridge/state", b'{"state":"offline"}'),
    "tasmota": ("tele/tasmota_8A1B2C/LWT", b"Offline"),
    "home assistant": ("homeassistant/status", b"offline"),
    "node-red": ("nodered/status", b"offline"),
}
_WILL_RETAINED = 0x2E  # flags of CONNECT: a will of QoS 1 with retain, and a clean session
VERSIONS = pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])


def payload_of(message: dict[str, Any]) -> bytes:
    payload = message["payload"]
    return (payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)).encode()


@asynccontextmanager
async def client(node: Node, name: str, version: aiomqtt.ProtocolVersion) -> AsyncIterator[aiomqtt.Client]:
    topic, payload = WILLS.get(name, (f"{name}/status", b"offline"))
    will = aiomqtt.Will(topic, payload, qos=1, retain=True)
    async with aiomqtt.Client(
        "127.0.0.1", node.ports.mqtt, identifier=name.replace(" ", "-"), protocol=version, will=will
    ) as connected:
        yield connected


async def play(node: Node, version: aiomqtt.ProtocolVersion) -> None:
    for name in WILLS:
        async with client(node, name, version) as connected:
            for message in MESSAGES:
                if message["by"] == name:
                    await connected.publish(message["topic"], payload_of(message), qos=1, retain=message["retain"])


async def heard(node: Node, version: aiomqtt.ProtocolVersion, count: int, *filters: str) -> dict[str, bytes]:
    """The first messages of a new subscriber, which are retained, by topic."""
    found: dict[str, bytes] = {}
    async with client(node, "listener", version) as connected:
        await connected.subscribe([(each, 1) for each in filters])
        async with patience():
            async for message in connected.messages:
                assert message.retain
                assert isinstance(message.payload, bytes)
                found[str(message.topic)] = message.payload
                if len(found) == count:
                    break
    return found


@VERSIONS
async def test_retained_messages_pass_as_they_are(make_node: MakeNode, version: aiomqtt.ProtocolVersion) -> None:
    node = await make_node()
    await play(node, version)
    retained = {each["topic"]: payload_of(each) for each in MESSAGES if each["retain"]}
    assert await heard(node, version, len(retained), "#") == retained
    found = await heard(node, version, 2, "homeassistant/+/+/config", "homeassistant/+/+/+/config")
    assert found == {topic: each for topic, each in retained.items() if topic.endswith("config") and "home" in topic}
    await node.stop()
    again = await make_node()  # discovery outlives a restart of the node
    assert await heard(again, version, len(retained), "#") == retained
    async with client(again, "home assistant", version) as connected:  # an empty config removes a device
        await connected.publish("homeassistant/device/garage/config", b"", qos=1, retain=True)
    del retained["homeassistant/device/garage/config"]
    assert await heard(again, version, len(retained), "#") == retained


@pytest.mark.parametrize("name", WILLS)
async def test_a_lost_connection_marks_the_device_as_offline(node: Node, name: str) -> None:
    topic, payload = WILLS[name]
    lost = await RawClient.open(node.ports.mqtt)
    rest = wire.text(topic.encode()) + wire.text(payload)
    lost.send(wire.connect(4, b"gone", _WILL_RETAINED, rest=rest))
    await lost.expect(CONNACK)
    async with client(node, "watcher", aiomqtt.ProtocolVersion.V311) as watcher:
        await watcher.subscribe(topic, qos=1)
        lost.writer.close()
        async with patience():
            async for message in watcher.messages:
                assert message.payload == payload
                break
    assert await heard(node, aiomqtt.ProtocolVersion.V5, 1, topic) == {topic: payload}


async def test_commands_reach_devices_and_answers_come_back(node: Node) -> None:
    version = aiomqtt.ProtocolVersion.V311
    async with client(node, "tasmota", version) as device, client(node, "home assistant", version) as home:
        await device.subscribe([("cmnd/tasmota_8A1B2C/#", 0), ("cmnd/tasmotas/#", 0)])
        await home.subscribe("stat/+/POWER", qos=0)
        await home.publish("cmnd/tasmota_8A1B2C/POWER", "ON")
        async with patience():
            async for message in device.messages:
                assert (str(message.topic), message.payload) == ("cmnd/tasmota_8A1B2C/POWER", b"ON")
                break
            await device.publish("stat/tasmota_8A1B2C/POWER", "ON")
            async for message in home.messages:
                assert (str(message.topic), message.payload) == ("stat/tasmota_8A1B2C/POWER", b"ON")
                break
