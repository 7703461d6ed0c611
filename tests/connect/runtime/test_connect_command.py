"""`sluice connect` as a process."""

import asyncio
import signal
import sys

import pytest

from sluice.cli import main
from tests.connect.runtime.conftest import Connect
from tests.waiting import patience


async def test_it_runs_connectors_until_it_is_told_to_stop(connect: Connect) -> None:
    out = connect.folder / "out"
    await connect.set("w", {"connector.class": "file-sink", "topics": "home/#", "directory": str(out)})
    await connect.client.send("home/t", b"1")
    flags = ("--host", connect.node.endpoint, "--allow-folder", str(connect.folder), "--name", "site-1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sluice", "connect", *flags, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("sluice connect: worker site-1-")
        async with patience():
            while not list(out.glob("*")):  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)
        (worker,) = (await connect.entries("worker/")).values()
        assert "file-sink" in worker["plugins"]
        process.send_signal(signal.SIGTERM)
        async with patience():
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert list(await connect.entries()) == ["connector/w"]


def test_wrong_settings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "--allow-network", "10.0.0.0/99"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sluice connect: connect.allowed_networks: ")
    assert main(["connect", "--host", "nowhere"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sluice connect: ")
