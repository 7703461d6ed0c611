"""`sluice backup` of a node under load, with either of the two killed; what it makes is restored and served."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store.repair.verify import audit
from tests.gateway.device import EVER
from tests.gateway.raw import RawClient
from tests.system.conftest import NodeProcess
from tests.system.test_kill import Publisher, stored
from tests.waiting import until

SEGMENT = 4 << 20
RETAINED = 4 * SEGMENT


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that segments fill, and go, within a test."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(SEGMENT))


class Load:
    """Publishers that go on until told to stop; a context."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self.publishers = [Publisher(f"p{number}", node.mqtt_port) for number in range(4)]
        self._stop = asyncio.Event()

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(publisher.run(self._stop)) for publisher in self.publishers]
        self._filling = asyncio.create_task(self._fill())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks, self._filling)

    def acknowledged(self) -> dict[str, set[int]]:
        return {publisher.topic.decode(): set(publisher.acknowledged) for publisher in self.publishers}

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = sum(len(numbers) for numbers in self.acknowledged().values()) + count
        await until(lambda: sum(len(numbers) for numbers in self.acknowledged().values()) >= wanted)

    async def _fill(self) -> None:
        """Megabytes beside the numbers, so that segments come and go."""
        while not self._stop.is_set():
            with suppress(OSError, AssertionError, asyncio.IncompleteReadError, TimeoutError):
                client = await RawClient.connect(self._node.mqtt_port, b"filler")
                while not self._stop.is_set():
                    await client.publish(b"filler", bytes(100_000))
                await client.disconnect()
            await asyncio.sleep(0.02)


def backup_command(node: NodeProcess, target: Path) -> list[str]:
    return [sys.executable, "-m", "sluice", "backup", "--data-dir", str(node.data_dir), str(target)]


async def back_up(node: NodeProcess, target: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *backup_command(node, target), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def check_served(make_node: Callable[..., NodeProcess], backup: Path, expected: dict[str, set[int]]) -> None:
    """A node over what is restored from the backup has all that was acknowledged when it began."""
    data = backup.with_name(backup.name + "-restored")
    restored = await asyncio.create_subprocess_exec(*(sys.executable, "-m", "sluice", "restore", backup, data))
    assert await restored.wait() == 0
    node = make_node(data.name)
    assert node.data_dir == data
    await asyncio.to_thread(node.start)
    found = await stored(node.endpoint)
    for topic, numbers in expected.items():
        assert numbers <= set(found[topic]), f"{topic}: acknowledged messages are not in the backup"
        first_seen = list(dict.fromkeys(found[topic]))
        assert first_seen == sorted(first_seen), f"{topic}: out of order"
    assert await asyncio.to_thread(node.stop) == 0
    assert "Traceback" not in node.log()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_backups_of_a_node_under_load(node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path):
    made: list[tuple[Path, dict[str, set[int]]]] = []
    async with Load(node) as load:
        for number in range(4):
            await load.more(300)
            acknowledged = load.acknowledged()
            target = tmp_path / f"backup{number}"
            out = await back_up(node, target)
            assert "the log from 0 to" in out
            made.append((target, acknowledged))
    for target, acknowledged in made:
        found = audit(target)
        assert (found.damage, found.torn) == ([], 0)
        await check_served(make_node, target, acknowledged)
    assert list((node.data_dir / "staging").iterdir()) == []
    assert "Traceback" not in node.log()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_backups_while_retention_takes_what_they_copy(
    make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The command is stopped when the stage is there, and goes on when all of it has gone from the log."""
    monkeypatch.setenv("SLUICE_STORE_RETENTION_BYTES", str(RETAINED))
    node = make_node()
    await asyncio.to_thread(node.start)
    async with Load(node) as load:
        await load.more(300)
        acknowledged = load.acknowledged()
        process = await staged(node, tmp_path / "backup")
        segments = {path.name for path in (node.data_dir / "log").glob("*.log")}
        await until(lambda: not segments & {path.name for path in (node.data_dir / "log").glob("*.log")})
        process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(process.wait, 60) == 0
    found = audit(tmp_path / "backup")
    assert (found.damage, found.torn) == ([], 0)
    await check_served(make_node, tmp_path / "backup", acknowledged)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", ["node", "command"])
async def test_either_is_killed_in_the_middle(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path, killed: str
):
    target = tmp_path / "backup"
    async with Load(node) as load:
        await load.more(300)
        acknowledged = load.acknowledged()
        process = await staged(node, target)
        if killed == "node":
            node.kill()
            process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(process.wait, 60) == 0
            await asyncio.to_thread(node.start)
            await load.more(100)
        else:
            process.kill()
            await asyncio.to_thread(process.wait, 60)
            assert not target.exists()
            assert len(list((node.data_dir / "staging").iterdir())) == 1
            await load.more(100)
            await back_up(node, target)
        assert list((node.data_dir / "staging").iterdir()) == []
    assert not target.with_name("backup.unfinished").exists()
    await check_served(make_node, target, acknowledged)


async def staged(node: NodeProcess, target: Path) -> "subprocess.Popen[bytes]":
    """A backup that is stopped when it has begun to copy from its stage."""
    unfinished = target.with_name(target.name + ".unfinished")
    return await asyncio.to_thread(_stopped, backup_command(node, target), unfinished.exists)


def _stopped(command: list[str], is_time: Callable[[], bool]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not is_time():
        assert process.poll() is None
        time.sleep(0.0005)
    process.send_signal(signal.SIGSTOP)
    while (state := Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert state != "Z", "it was done before it could be stopped"
        time.sleep(0.0005)
    return process


async def test_a_session_is_restored_with_what_it_had_not_seen(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
):
    device = await RawClient.connect(node.mqtt_port, b"d", 5, False, expiry=EVER)
    await device.subscribe((b"t/+", 1))
    await device.disconnect()
    publisher = await RawClient.connect(node.mqtt_port, b"p")
    for number in range(20):
        await publisher.publish(b"t/x", b"%d" % number)
    await back_up(node, tmp_path / "backup")
    await publisher.publish(b"t/x", b"after the backup")
    await check_served(make_node, tmp_path / "backup", {})
    restored = make_node("backup-restored")
    await asyncio.to_thread(restored.start)
    device = await RawClient.connect(restored.mqtt_port, b"d", 5, False, expiry=EVER)
    assert device.session_present
    assert [message.payload for message in await device.take(20)] == [b"%d" % number for number in range(20)]
    await device.drop()


async def test_a_node_that_does_not_answer_and_a_folder_that_is_held(node: NodeProcess, tmp_path: Path):
    """A socket that is gone is no reason to copy a folder that somebody writes to."""
    (node.data_dir / "admin.sock").unlink()
    process = await asyncio.create_subprocess_exec(
        *backup_command(node, tmp_path / "backup"), stderr=asyncio.subprocess.PIPE
    )
    assert b"in use by another process" in (await process.communicate())[1]
    assert process.returncode == 1
    assert not (tmp_path / "backup").exists()
