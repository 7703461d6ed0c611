"""Workers that are killed while they carry messages: nothing is lost, and the tasks go on at another worker."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.connect.runtime.conftest import Connect
from tests.waiting import patience

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.connect.runtime.worker_process"
KILLS = 4
A_KILL = 400  # messages between two kills


class Workers:
    """Two worker processes. One that is killed is replaced."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._begun = 0

    async def begin(self) -> None:
        self._begun += 1
        name = f"w{self._begun}"
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", PROGRAM, self._connect.node.endpoint, name, str(self._connect.folder), cwd=ROOT
        )

    async def holder(self, task: str, other: str = "") -> str:
        """Wait for a worker that runs a task, and not the other one. Returns its name."""
        async with patience():
            while True:
                leases = await self._connect.entries(f"lease/{task}")
                name = str(leases[f"lease/{task}"]["worker"]).partition("-")[0] if leases else ""
                if name in self._processes and name != other:
                    return name
                await asyncio.sleep(0.05)

    async def pause_holder(self, task: str) -> None:
        """Let the process of the worker that runs a task stand still until another one has the task."""
        name = await self.holder(task)
        self._processes[name].send_signal(signal.SIGSTOP)
        await self.holder(task, name)
        self._processes[name].send_signal(signal.SIGCONT)

    async def kill_holder(self, task: str) -> None:
        """Kill the worker that runs a task, as soon as there is one, and begin another."""
        process = self._processes.pop(await self.holder(task))
        process.kill()
        await process.wait()
        await self.begin()

    async def end(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def two_workers(connect: Connect) -> AsyncIterator[Workers]:
    workers = Workers(connect)
    try:
        for _ in range(2):
            await workers.begin()
        yield workers
    finally:
        await workers.end()


async def test_a_sink_loses_nothing(connect: Connect) -> None:
    out = connect.folder / "out"
    config = {"connector.class": "file-sink", "topics": "home/#", "directory": str(out), "tasks.max": "2"}
    await connect.set("w", {**config, "content": "value", "consumer.override.max.poll.records": "50"})
    async with two_workers(connect) as workers:
        for kill in range(KILLS):
            for number in range(kill * A_KILL, (kill + 1) * A_KILL):
                await connect.client.send(f"home/{number % 7}", b"%d" % number)
            await workers.kill_holder(f"w/{kill % 2}")
        wanted = set(range(KILLS * A_KILL))

        def written() -> set[int]:
            lines = (line for path in out.glob("*") for line in path.read_text().splitlines())
            return {int(line) for line in lines if line}

        async with patience():  # leases of messages that a worker had end first
            while not written() >= wanted:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.2)
    assert written() == wanted


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "paused"])
async def test_a_source_loses_nothing(connect: Connect, is_killed: bool) -> None:
    inbox = connect.folder / "in"
    inbox.mkdir()
    config = {"connector.class": "file-source", "directory": str(inbox), "topic": "files/x", "poll.interval.ms": "10"}
    await connect.set("r", config)
    async with two_workers(connect) as workers:
        with (inbox / "a.jsonl").open("a") as file:
            for kill in range(KILLS):
                for number in range(kill * A_KILL, (kill + 1) * A_KILL):
                    file.write(json.dumps({"n": number}) + "\n")
                    if number % 50 == 0:
                        file.flush()
                        await asyncio.sleep(0.01)
                file.flush()
                await (workers.kill_holder if is_killed else workers.pause_holder)("r/0")
        found: list[int] = []
        async with patience(), connect.client.pull_consumer("files") as consumer:
            while not set(found) >= set(range(KILLS * A_KILL)):
                found += [json.loads(each.payload)["n"] for each in await consumer.poll(0.2)]
    first = dict.fromkeys(found)
    assert list(first) == sorted(first)  # in order, but for what came twice
