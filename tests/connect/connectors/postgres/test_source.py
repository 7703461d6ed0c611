"""The source: rows and changes of a real PostgreSQL as messages, none lost when a task ends anywhere."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import psycopg
import pytest

from connect.api import ConnectError, RetriableError, SourceRecord
from connect.connectors.postgres.source import PostgresSource
from connect.connectors.postgres.source_task import PostgresSourceTask
from sluice.demo.postgres_server import PostgresServer
from tests.connect.connectors.harness import Context, settings_of
from tests.waiting import patience

Database = psycopg.AsyncConnection[Any]
Start = Callable[..., Any]


@pytest.fixture
async def start(server: PostgresServer, database: Database) -> AsyncIterator[Start]:
    """Starts a task. The slot and the publication of the test go with it."""
    tasks: list[PostgresSourceTask] = []

    async def started(context: Context | None = None, **given: str) -> PostgresSourceTask:
        task = PostgresSourceTask()
        tasks.append(task)
        given = {name.replace("__", "."): text for name, text in given.items()}
        settings = settings_of(PostgresSource(), {**server.settings, "topic.prefix": "pg", **given})
        await task.start(settings, context or Context())
        return task

    yield started
    for task in tasks:
        await task.stop()
    await database.execute("DROP PUBLICATION IF EXISTS sluice_test")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE NOT active"
    await until_slots_are_free(database)
    await database.execute(f"SELECT pg_drop_replication_slot(slot_name) FROM ({slots}) AS s")


async def until_rows(database: Database, query: str, expected: list[tuple[Any, ...]]) -> None:
    async with patience():
        while await rows(database, query) != expected:  # noqa: ASYNC110 (it is a condition of the server)
            await asyncio.sleep(0.01)


async def until_slots_are_free(database: Database) -> None:
    await until_rows(database, "SELECT 1 FROM pg_replication_slots WHERE active", [])


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    return await (await database.execute(query)).fetchall()


async def read(task: PostgresSourceTask, count: int, context: Context | None = None) -> list[SourceRecord]:
    """So many records at least, which the log has then, if a context is given."""
    found: list[SourceRecord] = []
    async with patience():
        while len(found) < count:
            batch = await task.poll()
            found.extend(batch)
            if context is not None and batch:
                await store(task, context, batch)
    return found


async def store(task: PostgresSourceTask, context: Context, batch: Sequence[SourceRecord]) -> None:
    offset = batch[-1].offset
    assert offset is not None
    context.offsets[""] = offset
    await task.committed(batch)


def told(record: SourceRecord) -> tuple[str, Any, Any]:
    return record.value["op"], record.value["before"], record.value["after"]


async def test_rows_come_first_and_then_changes(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE cars (id integer PRIMARY KEY, name text)")
    await database.execute("INSERT INTO cars VALUES (1, 'a'), (2, 'b')")
    task = await start()
    await database.execute("INSERT INTO cars VALUES (3, 'c')")
    await database.execute("UPDATE cars SET name = 'x' WHERE id = 1")
    await database.execute("UPDATE cars SET id = 20 WHERE id = 2")
    await database.execute("DELETE FROM cars WHERE id = 3")
    found = await read(task, 7)
    assert [told(each) for each in found] == [
        ("r", None, {"id": 1, "name": "a"}),
        ("r", None, {"id": 2, "name": "b"}),
        ("c", None, {"id": 3, "name": "c"}),
        ("u", None, {"id": 1, "name": "x"}),
        ("d", {"id": 2}, None),
        ("c", None, {"id": 20, "name": "b"}),
        ("d", {"id": 3}, None),
    ]
    assert {each.topic for each in found} == {"pg/public/cars"}
    assert [each.key for each in found] == ["1", "2", "3", "1", "2", "20", "3"]
    source = found[2].value["source"]
    assert source["table"] == "cars" and source["txId"] > 0 and source["lsn"] > 0 and source["snapshot"] == "false"
    assert found[2].timestamp_ms == source["ts_ms"]
    assert found[0].value["source"]["snapshot"] == "true"


async def test_values_of_types(start: Start, database: Database) -> None:
    await database.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN volt AS double precision")
    await database.execute(
        "CREATE TABLE t (k integer PRIMARY KEY, b boolean, i bigint, f real, d double precision, n numeric, s text, "
        "bin bytea, at timestamptz, ts timestamp, day date, j jsonb, js json, a integer[], ta text[], na numeric[][], "
        "m mood, ma mood[], v volt, u uuid, g integer GENERATED ALWAYS AS (k + 1) STORED)"
    )
    insert = (
        "INSERT INTO t VALUES (%s, true, 9007199254740993, 0.1, 'NaN', 12345678901234567890.10, 'é\t\n\\', '\\x00ff', "
        "'2026-11-28 09:00:00.5+01', '2026-11-28 08:00', '2026-11-28', '{\"a\": [1, null]}', '1.5', '{1,NULL}', "
        "%s, '[0:0][1:2]={{1.0,2}}', 'ok', '{ok}', 1.5, 'c9a646d3-9c61-4cc2-8a1a-1c2a3c5d7e11')"
    )
    texts = ['x"y', "a\\b", None, "NULL", "{,}", ""]
    await database.execute(insert, (1, texts))
    task = await start()
    await database.execute(insert, (2, texts))
    await database.execute("INSERT INTO t (k, a, at) VALUES (3, '{}', 'infinity')")
    snapshot, change, nulls = await read(task, 3)
    expected = {
        "b": True,
        "i": 9007199254740993,
        "f": 0.1,
        "d": "NaN",
        "n": "12345678901234567890.10",
        "s": "é\t\n\\",
        "bin": base64.b64encode(b"\x00\xff").decode(),
        "at": "2026-11-28T08:00:00.5Z",
        "ts": "2026-11-28T08:00:00",
        "day": "2026-11-28",
        "j": {"a": [1, None]},
        "js": 1.5,
        "a": [1, None],
        "ta": texts,
        "na": [["1.0", "2"]],
        "m": "ok",
        "ma": ["ok"],
        "v": 1.5,
        "u": "c9a646d3-9c61-4cc2-8a1a-1c2a3c5d7e11",
    }
    assert snapshot.value["after"] == {"k": 1, **expected}
    assert change.value["after"] == {"k": 2, **expected}
    assert nulls.value["after"] == {"k": 3, **dict.fromkeys(expected), "a": [], "at": "infinity"}
    await database.execute("DROP TABLE t; DROP TYPE mood; DROP DOMAIN volt")


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
async def test_large_values_that_an_update_leaves(start: Start, database: Database, identity: str) -> None:
    await database.execute(
        f"CREATE TABLE t (k integer PRIMARY KEY, n integer, s text); ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    await database.execute("ALTER TABLE t ALTER s SET STORAGE EXTERNAL")
    task = await start(snapshot__mode="never")
    text = "x" * 100_000
    await database.execute("INSERT INTO t VALUES (1, 1, %s)", (text,))
    await database.execute("UPDATE t SET n = 2")
    _, update = await read(task, 2)
    if identity == "FULL":
        assert told(update) == ("u", {"k": 1, "n": 1, "s": text}, {"k": 1, "n": 2, "s": text})
    else:
        assert told(update) == ("u", None, {"k": 1, "n": 2, "s": "__debezium_unavailable_value"})
    assert update.key == "1"


async def test_keys_of_several_columns_and_of_none(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE two (b text, a integer, PRIMARY KEY (a, b)); CREATE TABLE none (a integer)")
    task = await start()
    await database.execute("INSERT INTO two VALUES ('x', 1); INSERT INTO none VALUES (1)")
    two, none = await read(task, 2)
    assert two.key in ('{"a":1,"b":"x"}', '{"b":"x","a":1}')
    assert none.key is None


async def test_a_task_goes_on_within_a_transaction(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY)")
    context = Context()
    task = await start(context, max__batch__size="100")
    for first in (0, 1000):
        await database.execute(f"INSERT INTO t SELECT generate_series({first}, {first + 999})")
    first = len(await read(task, 300, context))
    await task.poll()  # some more, which are not stored
    await task.stop()
    await until_slots_are_free(database)
    task = await start(context)
    found = await read(task, 2000 - first, context)
    assert [each.value["after"]["k"] for each in found] == list(range(first, 2000))


async def test_the_slot_moves_on_when_changes_are_stored_and_not_before(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY); CREATE TABLE other (k integer)")
    context = Context()
    task = await start(context, table__include__list="public[.]t")
    slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    before = await rows(database, slot)
    await database.execute("INSERT INTO t VALUES (1)")
    batch = await read(task, 1)
    await database.execute("INSERT INTO other VALUES (1)")
    polling = asyncio.create_task(task.poll())
    await database.execute("INSERT INTO t VALUES (2)")
    async with patience():
        second = await polling
    assert await rows(database, slot) == before
    await store(task, context, [*batch, *second])

    polling = asyncio.create_task(task.poll())
    confirmed = f"SELECT confirmed_flush_lsn > '{before[0][0]}' FROM pg_replication_slots"
    await until_rows(database, confirmed, [(True,)])
    polling.cancel()


async def test_a_cancelled_poll_loses_nothing(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY); INSERT INTO t SELECT generate_series(0, 99)")
    task = await start(max__batch__size="10")
    found = await read(task, 50)
    polling = asyncio.create_task(task.poll())
    await asyncio.sleep(0)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    found += await read(task, 100 - len(found))
    assert [each.value["after"]["k"] for each in found] == list(range(100))
    polling = asyncio.create_task(task.poll())
    await asyncio.sleep(0)
    polling.cancel()
    await database.execute("INSERT INTO t VALUES (100)")
    assert (await read(task, 1))[0].value["after"] == {"k": 100}


@pytest.mark.parametrize("rows_before", [0, 100])
async def test_a_lost_connection_can_be_tried_again(start: Start, database: Database, rows_before: int) -> None:
    await database.execute(
        f"CREATE TABLE t (k integer PRIMARY KEY); INSERT INTO t SELECT generate_series(1, {rows_before})"
    )
    task = await start(max__batch__size="10")
    found = await read(task, 50) if rows_before else []
    await database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice-test-0'"
    )
    await database.execute("INSERT INTO t VALUES (1000)")
    failures = 0
    async with patience():
        while not found or found[-1].value["after"]["k"] != 1000:
            try:
                found += await task.poll()
            except RetriableError:
                failures += 1
    assert failures
    assert {each.value["after"]["k"] for each in found} == {*range(1, rows_before + 1), 1000}


async def test_a_snapshot_that_was_interrupted_begins_again(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
    context = Context()
    task = await start(context, max__batch__size="10")
    await read(task, 50, context)
    await task.stop()
    await database.execute("INSERT INTO t VALUES (101)")
    task = await start(context)
    found = await read(task, 102)
    assert [each.value["after"]["k"] for each in found] == [*range(1, 102), 101]
    assert found[100].offset is not None and "lsn" in found[100].offset


async def test_a_large_transaction_comes_in_parts(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY, s text)")
    task = await start()
    await database.execute("INSERT INTO t SELECT n, repeat(md5(n::text), 40) FROM generate_series(1, 20000) AS n")
    sizes = []
    async with patience():
        while sum(sizes) < 20_000:
            sizes.append(len(await task.poll()))
    assert max(sizes) <= 2048


async def test_truncate_and_tables_that_are_left_out(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer); CREATE TABLE other (k integer); INSERT INTO other VALUES (1)")
    task = await start(table__include__list=r"public\.t", skipped__operations="c")
    await database.execute("INSERT INTO other VALUES (2); INSERT INTO t VALUES (1)")
    await database.execute("TRUNCATE t")
    assert [told(each) for each in await read(task, 1)] == [("t", None, None)]


async def test_columns_that_are_added(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer PRIMARY KEY)")
    task = await start()
    await database.execute("INSERT INTO t VALUES (1)")
    await database.execute("ALTER TABLE t ADD COLUMN s text")
    await database.execute("INSERT INTO t VALUES (2, 'x')")
    assert [each.value["after"] for each in await read(task, 2)] == [{"k": 1}, {"k": 2, "s": "x"}]


async def test_names_that_topics_cannot_have(start: Start, database: Database) -> None:
    await database.execute(
        'CREATE TABLE "a/b+c#""\'%s" ("x""y" integer PRIMARY KEY); INSERT INTO "a/b+c#""\'%s" VALUES (1)'
    )
    task = await start(publication__name='it\'s "odd"')
    await database.execute('INSERT INTO "a/b+c#""\'%s" VALUES (2)')
    found = await read(task, 2)
    assert {each.topic for each in found} == {"pg/public/a_b_c_\"'%s"}
    assert [each.value["after"] for each in found] == [{'x"y': 1}, {'x"y': 2}]
    await database.execute('DROP PUBLICATION "it\'s ""odd"""')


async def test_a_slot_that_is_gone_is_an_error(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer)")
    with pytest.raises(ConnectError, match="the replication slot sluice_test is gone"):
        await start(Context(offsets={"": {"lsn": 1, "change": 1}}))


async def test_what_is_missing_is_said(start: Start, database: Database) -> None:
    with pytest.raises(ConnectError, match="no table of the database matches"):
        await start(table__include__list="nothing")
    with pytest.raises(ConnectError, match="the publication sluice_test is missing"):
        await start(publication__autocreate__mode="disabled")


async def test_a_second_task_has_to_wait(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE t (k integer)")
    first = await start(snapshot__mode="never")
    with pytest.raises(RetriableError, match="is active"):
        await start(snapshot__mode="never")
    await first.stop()
