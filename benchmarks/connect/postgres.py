"""The sink of PostgreSQL, beside COPY by psycopg."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.brokers import Launch, free_port, run
from benchmarks.connect.measuring import Stopwatch, Task
from cloud_sdk import Client, OutgoingMessage
from connect.api import Partition, Settings, SinkRecord, TransactionalSinkTask, read_settings
from connect.connectors.postgres.sink import PostgresSink
from connect.converters.json import JsonConverter
from connect.runtime.worker import Worker, WorkerSettings
from sluice.demo.postgres_server import PostgresServer

_BATCH: Final = 1000  # messages of a send and of a put, as `consumer.override.max.poll.records` has by default
_RIGHTS: Final = ("allow both #", "allow PUB,SUB topic:$kv/connect/#")


@contextmanager
def node() -> Iterator[str]:
    """A node whose connectors everybody may set. Gives its endpoint."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        ports = {front: free_port() for front in ("mqtt", "ws", "grpc", "http")}
        sluice = [sys.executable, "-m", "sluice"]
        data = ["--data-dir", str(folder / "data")]
        flags = [part for front, port in ports.items() for part in (f"--{front}-port", str(port))]
        broker = run("sluice", Launch([*sluice, "serve", *data, *flags], ""), ports["grpc"], folder)
        try:
            subprocess.run([*sluice, "acl", "set", *data, "--everybody", *_RIGHTS], check=True, capture_output=True)
            yield f"127.0.0.1:{ports['grpc']}"
        finally:
            broker.stop()


def postgres(messages: int) -> None:
    """The sink of PostgreSQL: a table with a column of JSONB, then one with a column for each field."""
    asyncio.run(_measure(messages))


async def _measure(messages: int) -> None:
    payloads = [
        json.dumps({"device": f"d{n % 1000}", "t": 20.5 + n % 7, "hum": n % 100, "ok": True, "note": "x" * 40}).encode()
        for n in range(messages)
    ]
    fields = {"table.columns": "fields", "message.columns": "stored_at"}
    with PostgresServer() as server:
        async with await psycopg.AsyncConnection.connect(server.uri, autocommit=True) as database:
            await _plain_copy(database, payloads)
            await _task_alone(server, "a task, JSONB", payloads, {})
            await _task_alone(server, "a task, a column for each field", payloads, fields)
            await _task_alone(
                server,
                "a task, an upsert by topic",
                payloads,
                {"insert.mode": "upsert", "pk.mode": "record_topic"},
            )
            with node() as endpoint:
                await _from_node(endpoint, server, database, payloads)


async def _plain_copy(database: "psycopg.AsyncConnection[object]", payloads: Sequence[bytes]) -> None:
    """Write the rows by the plain client, in transactions of the size that the sink has, without offsets."""
    await database.execute(
        "CREATE TABLE plain (topic text NOT NULL, key text, value jsonb, headers jsonb, stored_at timestamptz, "
        "position bigint)"
    )
    stopwatch = Stopwatch(len(payloads))
    for first in range(0, len(payloads), _BATCH):
        async with database.transaction(), database.cursor().copy("COPY plain FROM STDIN") as copy:
            for number, payload in enumerate(payloads[first : first + _BATCH], first):
                stored_at = datetime.fromtimestamp(1_780_000_000 + number / 1000, UTC)
                await copy.write_row((f"load/d{number % 1000}", None, payload.decode(), "[]", stored_at, number))
    stopwatch.stop("psycopg alone, COPY")


async def _task_alone(server: PostgresServer, name: str, payloads: Sequence[bytes], config: Mapping[str, str]) -> None:
    """A task and the converter, without a worker and a node."""
    given = {**server.settings, "auto.create": "true", "table.name.format": name.replace(",", ""), **config}
    settings: Settings = read_settings(PostgresSink.settings, given)
    converter = JsonConverter({})
    task = PostgresSink().task()
    assert isinstance(task, TransactionalSinkTask)
    await task.start(settings, Task())
    partition = Partition(name, 0)
    await task.open([partition])
    stopwatch = Stopwatch(len(payloads))
    for first in range(0, len(payloads), _BATCH):
        records = []
        for number, payload in enumerate(payloads[first : first + _BATCH], first):
            record = SinkRecord(
                f"load/d{number % 1000}",
                None,
                payload=payload,
                timestamp_ms=1_780_000_000_000 + number,
                position=number,
                partition=partition,
                offset=number,
            )
            record.value = converter.to_value(record)
            records.append(record)
        await task.put(records)
    while task.committed().get(partition) != len(payloads):
        await asyncio.sleep(0.001)
        await task.put([])
    stopwatch.stop(name)
    await task.stop()


async def _from_node(
    endpoint: str, server: PostgresServer, database: "psycopg.AsyncConnection[object]", payloads: Sequence[bytes]
) -> None:
    """A worker that reads messages of a node, which has them already."""
    config = {"name": "bench", "connector.class": "postgres-sink", "topics": "load/#", "auto.create": "true"}
    entry = {"config": {**config, **server.settings, "table.name.format": "worker"}, "state": "RUNNING"}
    settings = WorkerSettings(allowed_networks=["127.0.0.0/8"], heartbeat_s=1)
    async with Client(endpoint, name="bench") as client:
        for first in range(0, len(payloads), _BATCH):
            batch = enumerate(payloads[first : first + _BATCH], first)
            await client.send_many([OutgoingMessage(f"load/d{n % 1000}", payload) for n, payload in batch])
        worker = Worker(client, client.bucket("connect"), settings, "bench")
        work = asyncio.create_task(worker.run())
        await client.bucket("connect").put("connector/bench", json.dumps(entry).encode())
        done = "SELECT coalesce(sum(next_offset), 0) FROM sluice_offsets WHERE parent = 'load'"
        await _until(database, f"SELECT 0 < ({done})")
        stopwatch = Stopwatch(len(payloads))
        await _until(database, f"SELECT {len(payloads)} <= ({done})")
        stopwatch.stop("node, worker and PostgreSQL, JSONB")
        worker.stop()
        await work


async def _until(database: "psycopg.AsyncConnection[object]", condition: str) -> None:
    while await (await database.execute(condition)).fetchone() != (True,):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
