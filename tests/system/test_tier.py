"""A node with its old segments in an object store: every reader sees one log, and `kill -9` loses nothing of it."""

import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sluice.demo.engine_servers import SeaweedServers, ServerMissing
from tests.gateway.raw import RawClient
from tests.system.conftest import NodeProcess
from tests.system.test_kill import Publisher, stored
from tests.waiting import until

SEGMENT = 2 << 20
LOCAL = 2 * SEGMENT
KILLS = 4
OLD = 200  # messages that are in the tier when they are read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["folder", "seaweedfs"])
def tier(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a tier, which nodes of the test have."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(SEGMENT))
    monkeypatch.setenv("SLUICE_STORE_TAIL_CACHE_BYTES", "0")
    monkeypatch.setenv("SLUICE_TIER_RETENTION_LOCAL_BYTES", str(LOCAL))
    if request.param == "folder":
        monkeypatch.setenv("SLUICE_TIER_STORE", f"file://{tmp_path}/tier")
        yield f"file://{tmp_path}/tier"
        return
    try:
        servers = SeaweedServers(tmp_path / "seaweedfs")
    except ServerMissing as error:
        pytest.skip(str(error))
    with servers:
        monkeypatch.setenv("SLUICE_TIER_STORE", servers.url("tier"))
        monkeypatch.setenv("SLUICE_TIER_OPTIONS", json.dumps(servers.options))
        yield servers.url("tier")
        for server in servers.servers:
            server.kill()


def figure(node: NodeProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics") as reply:
        found = re.search(rf"^{name} (\S+)$", reply.read().decode(), re.MULTILINE)
    return -1.0 if found is None else float(found[1])


async def fill(node: NodeProcess, size: int) -> None:
    client = await RawClient.connect(node.mqtt_port, b"filler")
    chance = random.Random(size)
    for _ in range(size // 50_000 + 1):
        await client.publish(b"filler", chance.randbytes(50_000))
    await client.disconnect()


async def test_all_readers_cross_the_border(make_node: Callable[..., NodeProcess], tier: str) -> None:
    node = make_node()
    await asyncio.to_thread(node.start)
    panel = await RawClient.connect(node.mqtt_port, b"panel", clean=False)
    await panel.subscribe((b"load/#", 1))
    await panel.drop()
    device = await RawClient.connect(node.mqtt_port, b"device")
    for number in range(OLD):
        await device.publish(b"load/old", b"%d" % number, retain=True)
    await fill(node, 6 * SEGMENT)
    await until(lambda: figure(node, "sluice_tier_local_begin") >= SEGMENT)
    for number in range(OLD, OLD + 20):
        await device.publish(b"load/old", b"%d" % number)
    expected = [b"%d" % number for number in range(OLD + 20)]
    assert figure(node, "sluice_store_log_begin") == 0
    assert figure(node, "sluice_tier_reads_total") == 0

    assert (await stored(node.endpoint))["load/old"] == list(range(OLD + 20))
    assert figure(node, "sluice_tier_reads_total") > 0
    panel = await RawClient.connect(node.mqtt_port, b"panel", clean=False)
    assert panel.session_present
    assert [message.payload for message in await panel.take(OLD + 20)] == expected
    viewer = await RawClient.connect(node.mqtt_port, b"viewer")
    await viewer.subscribe((b"$replay/earliest/load/#", 1))
    assert [message.payload for message in await viewer.take(OLD + 20)] == expected
    retained = await RawClient.connect(node.mqtt_port, b"retained")
    await retained.subscribe((b"load/#", 1))
    assert [message.payload for message in await retained.take(1)] == [b"%d" % (OLD - 1)]
    for client in (device, panel, viewer, retained):
        await client.disconnect()
    assert await asyncio.to_thread(node.stop) == 0
    assert "Traceback" not in node.log()


async def test_nothing_is_lost_when_uploads_and_removals_are_killed(
    make_node: Callable[..., NodeProcess], tier: str, tmp_path: Path
) -> None:
    node = make_node()
    await asyncio.to_thread(node.start)
    chance = random.Random(3)
    publishers = [Publisher(f"p{number}", node.mqtt_port) for number in range(4)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run(stop))
        for _ in range(KILLS):
            await fill(node, 3 * SEGMENT)
            await asyncio.sleep(chance.uniform(0, 0.5))  # the moment of the kill is the point of the test
            node.kill()
            await asyncio.to_thread(node.start)
        stop.set()
    await fill(node, 3 * SEGMENT)
    await until(lambda: figure(node, "sluice_tier_waiting_bytes") == 0)
    await until(lambda: figure(node, "sluice_tier_local_begin") >= 10 * SEGMENT)
    found = await stored(node.endpoint)
    for publisher in publishers:
        numbers = found[publisher.topic.decode()]
        assert publisher.acknowledged <= set(numbers)
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen)
    assert await asyncio.to_thread(node.stop) == 0
    assert "Traceback" not in node.log()
    config = tmp_path / "sluice.toml"
    config.write_text("")
    command = [*(sys.executable, "-m", "sluice", "log", "verify"), "--data-dir", str(node.data_dir), "--json"]
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    done = await asyncio.to_thread(run, [*command, "--config", config])
    assert done.returncode == 0, done.stdout + done.stderr
