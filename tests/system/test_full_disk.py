"""A disk that is full, a real one: a tmpfs of a few megabytes in a mount namespace of its own.

The node stops taking appends and says so; nothing that it acknowledged is lost; with room again, a start serves on.
"""

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.device import EVER
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, PUBACK, RawClient
from tests.gateway.raw import connect as connect_packet
from tests.system.conftest import NodeProcess
from tests.system.test_kill import stored

SEGMENT = 4 << 20
SIZE = 24 << 20
PAYLOAD = b"%d " + bytes(50_000)


class SmallDisk:
    """A tmpfs that is there as long as a process of its own; `root` is its name for us, `inside` for a node."""

    def __init__(self, folder: Path) -> None:
        self.inside = folder
        script = f"mount -t tmpfs -o size={SIZE} tmpfs '{folder}' && echo mounted && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            error = self._holder.communicate()[1].decode()
            pytest.skip(f"no file system can be mounted here: {error}")
        self.root = Path(f"/proc/{self._holder.pid}/root") / folder.relative_to("/")

    def command(self) -> list[str]:
        """The prefix of a command that runs it in the namespace of the disk."""
        target = str(self._holder.pid)
        return ["nsenter", "--user", "--mount", "--preserve-credentials", "--target", target, "--"]

    def close(self) -> None:
        self._holder.communicate()


class DiskNode(NodeProcess):
    """A node whose data folder is on a small disk."""

    def __init__(self, disk: SmallDisk, beside: Path) -> None:
        super().__init__(disk.inside / "data")
        self.log_path = beside / "node.log"
        self._disk = disk

    def command(self) -> list[str]:
        return [*self._disk.command(), *super().command()]

    def health(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/health", timeout=10) as answer:
                return answer.status, json.loads(answer.read())["status"]
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["status"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    (tmp_path / "disk").mkdir()
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture
def node(disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskNode]:
    """A running node on the disk."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(SEGMENT))
    node = DiskNode(disk, tmp_path)
    node.start()
    yield node
    if node.process is not None:
        node.kill()


def fill(disk: SmallDisk, room: int = 0) -> Path:
    """Write a file that leaves so many bytes of the disk."""
    path = disk.root / "somebody else's"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            file.truncate(file.tell() - room)
        free = os.statvfs(path)
        assert free.f_bavail * free.f_bsize <= room + (1 << 16)
    return path


async def publish_until_refused(node: DiskNode, first: int) -> int:
    """Publish numbered messages one by one until the node closes and says why. Returns how many it acknowledged."""
    client = await RawClient.open(node.mqtt_port, 5)
    client.send(connect_packet(5, b"p"))
    if (await client.expect(CONNACK)).reason:  # the log has failed already
        return 0
    number = first
    while True:
        client.send(wire.publish(5, b"load/p", PAYLOAD % number, 1, 1))
        packet = await client.packet()
        if packet.kind != PUBACK:
            assert (packet.kind, packet.reason) == (DISCONNECT, 0x83)  # implementation specific error
            await client.closed()
            return number - first
        number += 1


async def check_stored(node: DiskNode, acknowledged: int) -> None:
    """All that was acknowledged is there, once each, with no more behind it than one that was on its way."""
    found = (await stored(node.endpoint)).get("load/p", [])
    assert found == list(range(len(found)))
    assert acknowledged <= len(found) <= acknowledged + 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_backup_to_a_full_disk_fails_and_leaves_nothing(node: DiskNode, disk: SmallDisk) -> None:
    foreign = await asyncio.to_thread(fill, disk)
    made = await asyncio.create_subprocess_exec(
        *(*disk.command(), sys.executable, "-m", "sluice", "backup", "--data-dir", disk.inside / "data"),
        disk.inside / "backup",
        stderr=asyncio.subprocess.PIPE,
    )
    assert (await made.communicate())[1].startswith(b"sluice backup: ")
    assert made.returncode == 1
    assert sorted(path.name for path in disk.root.iterdir()) == ["data", foreign.name]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("room", [0, SEGMENT // 4])
async def test_a_full_disk_stops_the_log_and_a_start_with_room_continues(
    node: DiskNode, disk: SmallDisk, room: int
) -> None:
    """With no room at all the checkpoint of the views fails, a second after the last one. With some room the views go
    on, and the log fails when it needs another segment."""
    device = await RawClient.connect(node.mqtt_port, b"d", 5, False, expiry=EVER)
    await device.subscribe((b"load/#", 1))
    await device.disconnect()
    assert node.health() == (200, "ok")
    foreign = await asyncio.to_thread(fill, disk, room)
    acknowledged = await publish_until_refused(node, 0)
    if room:
        assert acknowledged > SEGMENT * 0.9 // len(PAYLOAD)
    assert node.health() == (503, "failed")
    assert "No space left on device" in node.log()
    if room:
        assert "log failed: [Errno 28] No space left on device" in node.log()
    publish = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sluice", "pub", "--protocol", "5", "--port", str(node.mqtt_port)),
        *("--topic", "load/p", "--message", "1", "--qos", "1"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert b"the log failed and refuses appends until a restart: " in (await publish.communicate())[1]

    # It answers what it has, and takes nothing more.
    await check_stored(node, acknowledged)
    client = await RawClient.open(node.mqtt_port, 5)
    client.send(connect_packet(5, b"late"))
    packet = await client.packet()
    if packet.kind == CONNACK and packet.reason == 0:
        client.send(wire.publish(5, b"load/late", b"0", 1, 1))
        packet = await client.packet()
    assert packet.kind != PUBACK
    assert await asyncio.to_thread(node.stop) == 0

    # While the disk is full it may start or not; it may not lose anything, or end in a way that nobody can read.
    try:
        await asyncio.to_thread(node.start)
        node.kill()
    except AssertionError:
        assert await asyncio.to_thread(node.stop) == 1
        assert "sluice: cannot serve: [Errno 28] No space left on device: '" in node.log()

    await asyncio.to_thread(foreign.unlink)
    await asyncio.to_thread(node.start)
    assert node.health() == (200, "ok")
    await check_stored(node, acknowledged)
    count = len((await stored(node.endpoint)).get("load/p", []))
    client = await RawClient.connect(node.mqtt_port, b"p", 5)
    await client.publish(b"load/p", PAYLOAD % count)
    device = await RawClient.connect(node.mqtt_port, b"d", 5, False, expiry=EVER)
    assert device.session_present
    numbers = [int(message.payload.split(b" ")[0]) for message in await device.take(count + 1)]
    assert numbers == list(range(count + 1))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_disk_filled_by_the_log_loses_nothing_over_restarts(node: DiskNode, disk: SmallDisk) -> None:
    """Nothing is lost however often it is started on a disk that is full, until there is room."""
    acknowledged = await publish_until_refused(node, 0)
    assert acknowledged > SIZE * 0.6 // len(PAYLOAD)
    assert node.health() == (503, "failed")
    for _ in range(3):
        node.kill()
        try:
            await asyncio.to_thread(node.start)
        except AssertionError:
            assert await asyncio.to_thread(node.stop) == 1
            assert "sluice: cannot serve" in node.log()
            break
        await check_stored(node, acknowledged)
        number = len((await stored(node.endpoint))["load/p"])
        acknowledged = number + await publish_until_refused(node, number)
