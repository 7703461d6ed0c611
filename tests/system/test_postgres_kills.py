"""`kill -9` of a node, a worker of connectors and PostgreSQL under load: the sink writes each message once, the source
loses no row."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import cloud_sdk
from sluice.demo.engine_servers import ServerMissing
from sluice.demo.postgres_server import PostgresServer
from tests.system.conftest import NodeProcess
from tests.system.test_access import sluice
from tests.system.tools import missing
from tests.waiting import patience

MESSAGES = 20  # of one send
RETRIES = {"errors.retry.delay.max.ms": "500"}


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except ServerMissing as error:
        missing(str(error))
        raise
    with server:
        yield server


class WorkerProcess:
    def __init__(self, endpoint: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.system.connect_worker", endpoint]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def worker(make_node: Callable[..., NodeProcess], tmp_path: Path) -> Iterator[tuple[NodeProcess, WorkerProcess]]:
    """A node, and a worker at it."""
    node = make_node()
    node.start()
    sluice(node.data_dir, "acl", "set", "--everybody", "allow both #", "allow PUB,SUB topic:$kv/connect/#")
    process = WorkerProcess(node.endpoint, tmp_path / "worker.log")
    process.start()
    yield node, process
    process.kill()


class Load:
    """Messages for the sink, and rows for the source, until they are told to stop."""

    def __init__(self, endpoint: str, uri: str) -> None:
        self._endpoint = endpoint
        self._uri = uri
        self.stopping = False
        self.sent = 0
        self.inserted = 0

    async def send(self) -> None:
        async with cloud_sdk.Client(self._endpoint, name="load", retry_seconds=60) as client:
            while not self.stopping:
                await client.send_many(
                    [
                        cloud_sdk.OutgoingMessage(f"load/d{n % 7}", json.dumps({"n": n}).encode())
                        for n in range(self.sent, self.sent + MESSAGES)
                    ]
                )
                self.sent += MESSAGES
                await asyncio.sleep(0.02)

    async def insert(self) -> None:
        insert = "INSERT INTO readings SELECT generate_series(%s::integer, %s::integer) ON CONFLICT DO NOTHING"
        while not self.stopping:
            with suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(self._uri, autocommit=True) as connection:
                    while not self.stopping:
                        await connection.execute(insert, (self.inserted, self.inserted + MESSAGES - 1))
                        self.inserted += MESSAGES
                        await asyncio.sleep(0.02)
            await asyncio.sleep(0.05)


async def query(server: PostgresServer, text: str) -> list[tuple[Any, ...]]:
    """Rows of a server that may be on its way up."""
    async with patience():
        while True:
            with suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(server.uri) as connection:
                    return await (await connection.execute(text)).fetchall()
            await asyncio.sleep(0.05)


async def stored(client: cloud_sdk.Client, parent: str) -> list[cloud_sdk.Message]:
    """All messages of a parent topic, in the order of their partitions."""
    found: list[cloud_sdk.Message] = []
    for bounds in await client.partitions(parent):
        offset = bounds.begin
        while offset < bounds.end:
            batch = await client.pull(parent, bounds.partition, offset, max_records=5000)
            found += batch.messages()
            offset = batch.next_offset
    return found


async def rows_of_sink(server: PostgresServer) -> int:
    found = await query(server, "SELECT to_regclass('load')")
    return 0 if found == [(None,)] else (await query(server, "SELECT count(*) FROM load"))[0][0]


async def rows_of_source(client: cloud_sdk.Client) -> list[int]:
    """The keys of the rows that were told of, in their order."""
    values = [json.loads(message.payload) for message in await stored(client, "pg")]
    return [value["after"]["k"] for value in values if value["op"] in "cr"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
async def test_nothing_is_lost_and_the_sink_writes_nothing_twice(
    worker: tuple[NodeProcess, WorkerProcess], database: PostgresServer, kills: int
) -> None:
    node, process = worker
    async with await psycopg.AsyncConnection.connect(database.uri) as connection:
        await connection.execute("CREATE TABLE readings (k integer PRIMARY KEY)")
    sink = {"connector.class": "postgres-sink", "topics": "load/#", "auto.create": "true"}
    source = {"connector.class": "postgres-source", "topic.prefix": "pg", "table.include.list": "public.readings"}
    async with cloud_sdk.Client(node.endpoint, name="test", retry_seconds=60) as client:
        for name, config in (("sink", sink), ("source", source)):
            fields = {"config": {"name": name, **database.settings, **RETRIES, **config}, "state": "RUNNING"}
            await client.bucket("connect").put(f"connector/{name}", json.dumps(fields).encode())

        load = Load(node.endpoint, database.uri)
        works = [asyncio.create_task(load.send()), asyncio.create_task(load.insert())]
        chance = random.Random(kills)
        victims = [("node", "worker", "database")[n % 3] for n in range(kills)]
        chance.shuffle(victims)
        for victim in victims:
            await both_go_on(client, database)
            await asyncio.sleep(chance.uniform(0, 0.5))  # the moment of the kill is the point of the test
            if victim == "node":
                node.kill()
                await asyncio.to_thread(node.start)
            elif victim == "worker":
                process.kill()
                process.start()
            else:
                database.kill()
                await asyncio.to_thread(database.start)
        await both_go_on(client, database)
        load.stopping = True
        await asyncio.gather(*works)

        messages = await stored(client, "load")
        await until_true(lambda: is_more(rows_of_sink(database), len(messages) - 1))
        await until_true(lambda: is_more(distinct_rows(client), load.inserted - 1))
        rows = Counter(position for (position,) in await query(database, "SELECT position FROM load"))
        assert rows == Counter(message.position for message in messages)
        assert {json.loads(message.payload)["n"] for message in messages} == set(range(load.sent))
        told = list(dict.fromkeys(await rows_of_source(client)))
        assert told == list(range(load.inserted))


async def both_go_on(client: cloud_sdk.Client, database: PostgresServer) -> None:
    """Wait until the sink and the source have done something since now."""
    rows, told = await rows_of_sink(database), await told_messages(client)
    await until_true(lambda: is_more(rows_of_sink(database), rows))
    await until_true(lambda: is_more(told_messages(client), told))


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    async with patience():
        while not await condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.1)


async def is_more(number: Awaitable[int], than: int) -> bool:
    return await number > than


async def distinct_rows(client: cloud_sdk.Client) -> int:
    return len(set(await rows_of_source(client)))


async def told_messages(client: cloud_sdk.Client) -> int:
    with suppress(cloud_sdk.SluiceError):
        return sum(bounds.end for bounds in await client.partitions("pg"))
    return 0
