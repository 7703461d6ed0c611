"""Device shadows of a whole node, and of a store with gateways: `kill -9` while updates come."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from cloud_sdk import Client
from tests.system.conftest import NodeProcess
from tests.system.test_split import Split, split
from tests.waiting import patience, until

__all__ = ["split"]  # the fixture

pytestmark = pytest.mark.slow

UPDATES = 60
KILL_AFTER = (15, 30, 45)
WRITERS = 4  # of the split node
UPDATES_OF_A_WRITER = 25
STORE_KILLS_AFTER = (30, 60)


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


class Writer:
    """A client that updates the shadow, one update after the other. One without PUBACK is published again."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self.acknowledged = 0

    def update(self, number: int) -> dict[str, Any]:
        field = f"w{self._number}"
        state = {"reported": {field: number, f"{field}n{number}": 1}, "desired": {field: number + number % 2}}
        return {"state": state, "clientToken": f"{self._number}-{number}"}

    async def run(self) -> None:
        while self.acknowledged < UPDATES_OF_A_WRITER:
            try:
                async with aiomqtt.Client("127.0.0.1", self._port) as client:
                    while self.acknowledged < UPDATES_OF_A_WRITER:
                        payload = json.dumps(self.update(self.acknowledged))
                        await client.publish("$shadow/lamp/update", payload, qos=1)
                        self.acknowledged += 1
            except aiomqtt.MqttError:
                await asyncio.sleep(0.05)


async def messages(split: Split) -> dict[str, list[dict[str, Any]]]:
    """All requests and answers about the shadow, by what is behind its name, once the last update is carried out."""
    found: dict[str, list[dict[str, Any]]] = {}
    read: dict[int, int] = {}  # by partition, how far
    ends: dict[int, int] = {}
    asked = False
    async with (
        patience(),
        Client(split.gateways["a"].endpoint, retry_seconds=20) as client,
        client.pull_consumer("$shadow") as consumer,
    ):
        while not ends or any(read.get(number, 0) < end for number, end in ends.items()):
            for each in await consumer.poll(0.5):
                kind = each.topic.removeprefix("$shadow/lamp/")
                found.setdefault(kind, []).append(json.loads(each.payload or b"{}"))
                read[each.partition] = each.offset + 1
            if not asked:
                await client.send("$shadow/lamp/get", b"")  # it is carried out behind all updates
                asked = True
            if "get/accepted" in found and not ends:  # answers to updates before it may be in other partitions
                ends = {each.partition: each.end for each in await client.partitions("$shadow")}
    return found


def delta_of(state: dict[str, dict[str, int]]) -> dict[str, int]:
    reported = state["reported"]
    return {name: value for name, value in state["desired"].items() if reported.get(name) != value}


async def test_each_update_counts_once_when_the_store_of_gateways_is_killed(split: Split) -> None:
    writers = [Writer(split.port("ab"[number % 2]), number) for number in range(WRITERS)]
    async with patience(), asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run())
        for count in STORE_KILLS_AFTER:
            await until(lambda count=count: sum(each.acknowledged for each in writers) >= count)  # type: ignore[misc]
            await asyncio.to_thread(split.store.kill)
            await asyncio.to_thread(split.store.start)
    found = await messages(split)
    updates = found["update"]
    assert {each["clientToken"] for each in updates} == {
        writer.update(number)["clientToken"] for writer in writers for number in range(UPDATES_OF_A_WRITER)
    }
    states: list[dict[str, dict[str, int]]] = [{}]  # by version
    for update in updates:
        merged = {section: {**states[-1].get(section, {}), **update["state"][section]} for section in update["state"]}
        states.append(merged)
    (shadow,) = found["get/accepted"]
    assert shadow["version"] == len(updates)  # each has raised the version once
    assert {section: shadow["state"][section] for section in states[-1]} == states[-1]
    assert {each["clientToken"] for each in found["update/accepted"]} == {each["clientToken"] for each in updates}
    assert "update/rejected" not in found
    versions = [each["current"]["version"] for each in found["update/documents"]]
    assert versions == sorted(set(versions))
    for each in found["update/documents"]:
        version = each["current"]["version"]
        assert each["current"]["state"] == states[version]
        assert (each["previous"] or {"version": 0})["version"] == version - 1
        assert (each["previous"] or {"state": {}})["state"] == states[version - 1]
    assert found["update/delta"]
    assert [each["state"] for each in found["update/delta"]] == [
        delta_of(states[each["version"]]) for each in found["update/delta"]
    ]
