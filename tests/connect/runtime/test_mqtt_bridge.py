"""The MQTT bridge in both directions, on a node, with workers that are killed, and mosquitto as the other broker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest

from tests.connect.connectors.servers import Mosquitto
from tests.connect.runtime.conftest import Connect
from tests.connect.runtime.test_kills import two_workers
from tests.waiting import patience

pytestmark = pytest.mark.slow

KILLS = 4
A_KILL = 300  # messages in each direction between two kills


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path / "mosquitto")
    server.start()
    yield server
    server.stop()


async def test_nothing_is_lost_or_goes_around_when_workers_are_killed(connect: Connect, broker: Mosquitto) -> None:
    server = {"mqtt.server.uri": f"tcp://127.0.0.1:{broker.port}"}
    out = {"connector.class": "mqtt-sink", "topics": "ours/#,theirs/#", "source.cluster.alias": "here", **server}
    await connect.set("out", {**out, "topic.mapping": "ours/# -> site/{1}", "consumer.override.max.poll.records": "50"})
    back = {"connector.class": "mqtt-source", "mqtt.topics": "theirs/#,site/#", "target.cluster.alias": "here"}
    await connect.set("in", {**back, **server})
    wanted = {b"%d" % number for number in range(KILLS * A_KILL)}
    seen: set[bytes] = set()

    async def watch() -> None:
        async with aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.subscribe("site/#", qos=1)
            watching.set()
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                seen.add(message.payload)
                if seen >= wanted:
                    return

    watching = asyncio.Event()
    watcher = asyncio.create_task(watch())
    async with (
        two_workers(connect) as workers,
        aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5) as publisher,
        asyncio.timeout(240),
    ):
        await watching.wait()
        while not (await connect.entries("lease/in/0")):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)
        await until_subscribed(connect, publisher)
        for kill in range(KILLS):
            for number in range(kill * A_KILL, (kill + 1) * A_KILL):
                await connect.client.send(f"ours/{number % 7}", b"%d" % number)
                await publisher.publish(f"theirs/{number % 7}", b"%d" % number, qos=1)
            await workers.kill_holder(("in/0", "out/0")[kill % 2])
        found: list[bytes] = []
        async with connect.client.pull_consumer("theirs") as consumer:
            while not set(found) >= wanted:
                found += [each.payload for each in await consumer.poll(0.2)]
        await watcher
    # What came from there was not sent back, and what was sent there did not come back.
    assert not await connect.client.topics("site/")


async def until_subscribed(connect: Connect, publisher: aiomqtt.Client) -> None:
    """Wait until the source has a session at the broker: what is published before that is nobody's."""
    async with patience(), connect.client.pull_consumer("theirs") as consumer:
        while True:
            await publisher.publish("theirs/first", b"0", qos=1)
            try:
                if await consumer.poll(0.2):
                    return
            except Exception:  # noqa: BLE001  there is no such topic yet
                await asyncio.sleep(0.05)
