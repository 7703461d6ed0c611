"""The connectors of PostgreSQL, run by a worker on a node."""

import asyncio
import json
from typing import Any

import psycopg

from cloud_sdk import Client
from sluice.demo.postgres_server import PostgresServer
from tests.connect.runtime.conftest import Connect, connect, node
from tests.waiting import patience

__all__ = ["connect", "node"]  # fixtures

Database = psycopg.AsyncConnection[Any]
SINK = {"connector.class": "postgres-sink", "topics": "fleet/#", "auto.create": "true"}
DEAD = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead/fleet"}
LOCAL = {"allowed_networks": ["127.0.0.0/8"]}


async def until_rows(database: Database, query: str, expected: list[tuple[Any, ...]]) -> None:
    async with patience():
        while True:
            try:
                found = await (await database.execute(query)).fetchall()
            except psycopg.errors.UndefinedTable:
                found = []
            if found == expected:
                return
            await asyncio.sleep(0.02)


async def stored(client: Client, parent: str) -> list[bytes]:
    found = []
    for bounds in await client.partitions(parent):
        batch = await client.pull(parent, bounds.partition, bounds.begin)
        found += [message.payload for message in batch.messages()]
    return found


async def test_bad_messages_are_dead_letters(connect: Connect, server: PostgresServer, database: Database) -> None:
    await connect.set("s", {**SINK, **DEAD, **server.settings})
    for payload in (b'{"a": 1}', b"no JSON", b'"\\u0000"', b"[2]"):
        await connect.client.send("fleet/a", payload)
    async with connect.worker(**LOCAL):
        await until_rows(database, "SELECT value FROM fleet ORDER BY position", [({"a": 1},), ([2],)])
    assert sorted(await stored(connect.client, "dead")) == [b'"\\u0000"', b"no JSON"]


async def test_a_task_that_tolerates_nothing_keeps_its_place(
    connect: Connect, server: PostgresServer, database: Database
) -> None:
    await database.execute("CREATE TABLE fleet (id integer)")
    fields = {"table.columns": "fields"}
    await connect.set("s", {**SINK, **fields, **server.settings})
    for number in (1, 3_000_000_000, 2):
        await connect.client.send("fleet/a", json.dumps({"id": number}).encode())
    async with connect.worker(**LOCAL) as worker:
        failed = await connect.until_state(worker, "s", "FAILED")
        assert failed["trace"].endswith("id: the number is out of range")
        await database.execute("ALTER TABLE fleet ALTER id TYPE bigint")
        await connect.set("s", {**SINK, **fields, **server.settings}, **{"0": 1})
        await until_rows(database, "SELECT id FROM fleet ORDER BY id", [(1,), (2,), (3_000_000_000,)])


async def test_wrong_passwords_and_networks_are_said(
    connect: Connect, server: PostgresServer, database: Database
) -> None:
    await connect.set("s", {**SINK, **server.settings, "connection.password": "se-cret"})
    await connect.client.send("fleet/a", b"1")
    async with connect.worker(**LOCAL) as worker:
        failed = await connect.until_state(worker, "s", "FAILED")
        assert "password authentication failed" in failed["trace"] and "se-cret" not in failed["trace"]
    async with connect.worker() as worker:
        failed = await connect.until_state(worker, "s", "FAILED")
        assert "connect.allowed_networks" in failed["trace"]


async def test_changes_go_through_the_log_into_another_table(
    connect: Connect, server: PostgresServer, database: Database
) -> None:
    await database.execute("CREATE TABLE cars (id integer PRIMARY KEY, name text); INSERT INTO cars VALUES (1, 'a')")
    source = {"connector.class": "postgres-source", "topic.prefix": "erp", "table.include.list": "public.cars"}
    copy = {
        "connector.class": "postgres-sink",
        "topics": "erp/#",
        "auto.create": "true",
        "auto.evolve": "true",
        "table.name.format": "copied_${level3}",
        "table.columns": "fields",
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "transforms": "after",
        "transforms.after.type": "ExtractField",
        "transforms.after.field": "after",
    }
    await connect.set("source", {**source, **server.settings})
    async with connect.worker(**LOCAL):
        await connect.set("copy", {**copy, **server.settings})
        await until_rows(database, "SELECT id, name FROM copied_cars", [(1.0, "a")])
        await database.execute("UPDATE cars SET name = 'b'; INSERT INTO cars VALUES (2, 'c')")
        await until_rows(database, "SELECT id, name FROM copied_cars ORDER BY id", [(1.0, "b"), (2.0, "c")])
    await until_rows(database, "SELECT 1 FROM pg_replication_slots WHERE active", [])
    await database.execute("SELECT pg_drop_replication_slot('sluice_source'); DROP PUBLICATION sluice_source")
