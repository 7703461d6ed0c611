"""Every program of `examples/` does what it says, against a node in a process of its own."""

import asyncio
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cloud_sdk import Client
from tests.system.conftest import NodeProcess
from tests.waiting import patience

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    path = tmp_path_factory.mktemp("examples")
    config = path / "sluice.toml"
    config.write_text("[store]\ntransaction_check_s = 1\n")
    node = NodeProcess(path / "data", "--config", str(config))
    node.start()
    yield node
    node.kill()


@asynccontextmanager
async def running(name: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """An example as a process, which is gone behind the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "examples" / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(name: str, *arguments: str, code: int = 0) -> str:
    """The output of an example."""
    async with patience(), running(name, *arguments) as process:
        out, errors = await process.communicate()
        assert process.returncode == code, errors.decode()
        return out.decode()


def test_every_example_is_in_the_list() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\| \[([a-z_]+\.py)\]\(\1\)", page) == [
        "fleet_telemetry.py",
        "command_response.py",
        "delayed_reminder.py",
        "transactional_outbox.py",
        "sql_subscription.py",
        "spark_notebook.py",
        "delta_merge.py",
        "remaining_life.py",
    ]
    assert len(EXAMPLES) == 8


async def test_fleet_telemetry(node: NodeProcess) -> None:
    async with running("fleet_telemetry.py", node.endpoint, "--messages", "30") as process:
        async with aiomqtt.Client("127.0.0.1", node.mqtt_port, identifier="truck") as vehicle:
            for number in range(30):
                await vehicle.publish(f"fleet/truck-{number % 2}/speed", str(60 + number % 2), qos=1)
                await vehicle.publish(f"fleet/truck-{number % 2}/fuel", "not a speed", qos=1)
        async with patience():
            out, _ = await process.communicate()
    assert out.decode().splitlines() == [
        "truck-0: 60.0 km/h over 15 messages",
        "truck-1: 61.0 km/h over 15 messages",
    ]


async def test_command_and_response(node: NodeProcess) -> None:
    mqtt5 = aiomqtt.Client("127.0.0.1", node.mqtt_port, identifier="lamp-1", protocol=aiomqtt.ProtocolVersion.V5)
    async with mqtt5 as lamp:
        await lamp.subscribe("devices/lamp-1/commands", qos=1)

        async def answer() -> None:
            async for command in lamp.messages:
                properties = Properties(PacketTypes.PUBLISH)
                properties.CorrelationData = command.properties.CorrelationData
                await lamp.publish(
                    command.properties.ResponseTopic, b"is " + command.payload, qos=1, properties=properties
                )
                return

        device = asyncio.create_task(answer())
        assert await run("command_response.py", node.endpoint, "lamp-1", "on") == "lamp-1 answered: is on\n"
        await device
    out = await run("command_response.py", node.endpoint, "nobody", "on", "--timeout", "0.2", code=1)
    assert out.startswith("nobody did not answer")


async def test_delayed_reminder(node: NodeProcess) -> None:
    lines = (await run("delayed_reminder.py", node.endpoint, "--seconds", "1")).splitlines()
    assert [line.split(" is due")[0] for line in lines[:2]] == ["reminders/tea", "reminders/meeting"]
    assert lines[2] == "the meeting is called off"
    assert re.fullmatch(r"after \d+\.\d s: the tea is ready", lines[3])


async def test_transactional_outbox(node: NodeProcess, tmp_path: Path) -> None:
    database = tmp_path / "orders.db"
    async with Client(node.endpoint) as client, client.consumer("shipping", "shop") as consumer:
        await run("transactional_outbox.py", node.endpoint, str(database), "tea", "milk")
        await run("transactional_outbox.py", node.endpoint, str(database), "jam", "bread", "--crash", code=1)
        got = [await consumer.next(20) for _ in range(3)]
        assert [each.payload for each in got if each is not None] == [b"tea", b"milk", b"jam"]
        assert await consumer.next(0) is None
        async with running("transactional_outbox.py", node.endpoint, str(database), "--serve", "60") as process:
            orphan = await consumer.next(30)
            assert orphan is not None and orphan.payload == b"bread"
            assert process.stdout is not None
            assert b"it is stored" in await process.stdout.readline()
    with closing(sqlite3.connect(database)) as orders:
        assert [item for (item,) in orders.execute("SELECT item FROM orders ORDER BY rowid")] == [
            *("tea", "milk", "jam", "bread"),
        ]


async def test_sql_subscription(node: NodeProcess) -> None:
    assert (await run("sql_subscription.py", node.endpoint)).splitlines() == ["hz: 10", "hz: 15", "hz: 20"]
    out = await run("sql_subscription.py", node.endpoint, "region = AND price > 5")
    assert out.splitlines()[0] == "column 10: expected a value, found AND"
    assert out.splitlines()[2].index("^") == 2 + 9
