"""The connectors for files, run by a worker on a node."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from connect.runtime.entries import TaskId
from tests.connect.runtime.conftest import Connect
from tests.waiting import patience, until


def lines(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*")) for line in path.read_text().splitlines()]


async def until_is(value: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with patience():
        while await value() != wanted:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


async def test_a_sink_writes_messages_to_a_file(connect: Connect) -> None:
    out = connect.folder / "out"
    await connect.set("w", {"connector.class": "file-sink", "topics": "home/+/t,home/log", "directory": str(out)})
    for number in range(5):
        await connect.client.send(f"home/{number}/t", json.dumps({"n": number}).encode(), keys=[f"k{number}"])
    await connect.client.send("home/other", b'"not wanted"')
    await connect.client.send("home/log", b'"last"')
    async with connect.worker() as worker:
        await until(lambda: len(lines(out)) == 6)
        found = [json.loads(line) for line in lines(out)]
        assert sorted(each["topic"] for each in found) == [*(f"home/{n}/t" for n in range(5)), "home/log"]
        assert {each["key"] for each in found} == {"k0", "k1", "k2", "k3", "k4", None}
        run = worker.running[TaskId("w", 0)]
        await until(lambda: run.fields()["records_out"] == 6)
        assert run.fields()["records_in"] == 7
    assert list(await connect.entries()) == ["connector/w"]
    (group,) = await connect.client.groups()
    assert (group.name, group.lag) == ("connect-w", 0)


async def test_a_source_publishes_lines_and_goes_on_behind_them(connect: Connect) -> None:
    inbox = connect.folder / "in"
    inbox.mkdir()
    (inbox / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": ')
    config = {"connector.class": "file-source", "directory": str(inbox), "topic": "files/{file}"}
    await connect.set("r", {**config, "poll.interval.ms": "10"})

    async def stored() -> list[bytes]:
        async with connect.client.pull_consumer("files") as consumer:
            return sorted(each.payload for each in await consumer.poll(0.1))

    async def offset() -> int:
        found = await connect.entries("offset/r/0/a.jsonl")
        return int(found["offset/r/0/a.jsonl"]["position"]) if found else 0

    async with connect.worker():
        await until_is(offset, 18)
    assert await stored() == [b'{"n":1}', b'{"n":2}']
    with (inbox / "a.jsonl").open("a") as file:
        file.write("3}\n")
    async with connect.worker():
        await until_is(offset, 27)
    assert await stored() == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
