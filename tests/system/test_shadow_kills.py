"""Device shadows of a whole node: `kill -9` while updates come."""

import asyncio
import json
from pathlib import Path

import aiomqtt
import pytest

from tests.system.conftest import NodeProcess
from tests.waiting import patience

pytestmark = pytest.mark.slow

UPDATES = 60
KILL_AFTER = (15, 30, 45)


async def state(port: int) -> dict[str, object]:
    """The reported state of the shadow."""
    async with patience(), aiomqtt.Client("127.0.0.1", port) as client:
        await client.subscribe("$shadow/lamp/get/+", qos=1)
        await client.publish("$shadow/lamp/get", "", qos=1)
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            reported: dict[str, object] = json.loads(message.payload)["state"]["reported"]
            if f"n{UPDATES - 1}" in reported:
                return reported
            await client.publish("$shadow/lamp/get", "", qos=1)
    raise AssertionError


async def test_no_acknowledged_update_is_lost(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        for number in range(UPDATES):
            async with patience():
                while True:
                    try:
                        async with aiomqtt.Client("127.0.0.1", node.mqtt_port) as client:
                            document = {"state": {"reported": {f"n{number}": number, "last": number}}}
                            await client.publish("$shadow/lamp/update", json.dumps(document), qos=1)
                            break
                    except aiomqtt.MqttError:
                        await asyncio.sleep(0.05)
            if number in KILL_AFTER:
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
        expected = {f"n{number}": number for number in range(UPDATES)}
        assert await state(node.mqtt_port) == {**expected, "last": UPDATES - 1}
    finally:
        if node.process is not None:
            node.kill()
