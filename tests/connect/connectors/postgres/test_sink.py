"""The sink: rows in a real PostgreSQL, each once, and bad ones alone."""

import asyncio
import math
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connect.api import ConnectError, Partition, RetriableError, SinkRecord
from connect.connectors.postgres.sink import PostgresSink
from connect.connectors.postgres.sink_task import PostgresSinkTask
from sluice.demo.postgres_server import PostgresServer
from tests.connect.connectors.harness import Context, reasons, sent, settings_of
from tests.gateway.authority import Authority
from tests.waiting import patience

Database = psycopg.AsyncConnection[Any]
Start = Callable[..., Any]
FLEET = Partition("fleet", 0)


@pytest.fixture
async def start(server: PostgresServer, database: Database) -> AsyncIterator[Start]:
    """Starts a task with settings, in a context of its own."""
    tasks: list[PostgresSinkTask] = []

    async def started(context: Context | None = None, **given: str) -> tuple[PostgresSinkTask, Context]:
        task, context = PostgresSinkTask(), context or Context()
        tasks.append(task)
        given = {name.replace("__", "."): text for name, text in given.items()}
        settings = settings_of(PostgresSink(), {**server.settings, "auto.create": "true", **given})
        await task.start(settings, context)
        await task.open([FLEET])
        return task, context

    yield started
    for task in tasks:
        await task.stop()


def sink_record(offset: int, value: Any, topic: str = "fleet/a/temp", **fields: Any) -> SinkRecord:
    return sent(topic, value, offset, position=1000 + offset, **fields)


async def put(task: PostgresSinkTask, records: Sequence[SinkRecord]) -> None:
    """Put records, and wait until PostgreSQL has them."""
    await task.put(records)
    async with patience():
        while any(task.committed().get(each.partition, 0) <= each.offset for each in records):
            await asyncio.sleep(0.001)
            await task.put([])


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    return await (await database.execute(query)).fetchall()


async def test_messages_are_rows_with_their_value_as_jsonb(start: Start, database: Database) -> None:
    task, context = await start()
    odd = 'a\tb\\n\n"é\\u0000'
    await put(
        task,
        [
            sink_record(0, {"t": 20.5, "note": odd}, key="k", headers=[("a", "b")], timestamp_ms=1_700_000_000_123),
            sink_record(1, None),
            sink_record(2, [1, None, True]),
        ],
    )
    assert context.rejected == []
    found = await rows(database, "SELECT topic, key, value, headers, position FROM fleet ORDER BY position")
    assert found == [
        ("fleet/a/temp", "k", {"t": 20.5, "note": odd}, [["a", "b"]], 1000),
        ("fleet/a/temp", None, None, [], 1001),
        ("fleet/a/temp", None, [1, None, True], [], 1002),
    ]
    assert await rows(database, "SELECT extract(epoch FROM stored_at)::text FROM fleet WHERE position = 1000") == [
        ("1700000000.123000",)
    ]
    assert task.committed() == {FLEET: 3}


async def test_a_new_task_goes_on_where_the_database_is(start: Start, database: Database) -> None:
    first, _ = await start()
    await put(first, [sink_record(offset, offset) for offset in range(10)])
    second, _ = await start()
    assert await second.open([FLEET, Partition("fleet", 1)]) == {FLEET: 10}
    await put(second, [sink_record(offset, offset) for offset in range(5, 15)])  # 5 to 9 come again
    assert await rows(database, "SELECT value FROM fleet ORDER BY position") == [(n,) for n in range(15)]


async def test_another_connector_has_offsets_of_its_own(start: Start, database: Database) -> None:
    await put((await start())[0], [sink_record(0, 1)])
    other, _ = await start(Context("other"))
    assert await other.open([FLEET]) == {}


async def test_of_two_tasks_with_the_same_partition_one_fails(start: Start, database: Database) -> None:
    zombie, _ = await start()
    task, _ = await start()
    messages = [sink_record(offset, offset) for offset in range(4)]
    await put(zombie, messages[:1])
    with pytest.raises(RetriableError):  # both began where nothing was
        await put(task, messages[:2])
    assert await task.open([FLEET]) == {FLEET: 1}
    await put(task, messages[1:3])
    with pytest.raises(RetriableError):
        await put(zombie, messages[1:4])
    assert await zombie.open([FLEET]) == {FLEET: 3}
    assert await rows(database, "SELECT value FROM fleet ORDER BY position") == [(0,), (1,), (2,)]


async def test_two_tasks_at_the_same_moment(start: Start, database: Database) -> None:
    tasks = [(await start())[0] for _ in range(4)]
    messages = [sink_record(offset, offset) for offset in range(500)]
    results = await asyncio.gather(*(put(task, messages) for task in tasks), return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == ["NoneType", *["RetriableError"] * 3], results
    assert await rows(database, "SELECT count(*), count(DISTINCT position) FROM fleet") == [(500, 500)]


async def test_bad_records_are_rejected_alone(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE fleet (id bigint, small smallint CHECK (small < 100), at timestamptz, t text)")
    task, context = await start(table__columns="fields")
    good = [sink_record(n, {"id": n, "small": 1, "at": "2026-11-28T08:00:00Z", "t": "x"}) for n in range(2000)]
    bad = {
        3: {"id": "text"},
        500: {"small": 40_000},
        501: {"small": 100},  # only PostgreSQL knows what is wrong with this one and the next
        1000: {"at": "no time"},
        1500: {"t": "\0"},
        1501: {"id": math.nan},
        1502: {"id": 2**63},
        1503: {"unknown": 1},
        1999: {"t": 1},
    }
    for offset, value in bad.items():
        good[offset].value = value
    good[7].value = "no object"
    await put(task, good)
    assert sorted(record.offset for record, _ in context.rejected) == sorted([*bad, 7])
    assert context.stored_rejects == len(context.rejected)
    assert await rows(database, "SELECT count(*), count(DISTINCT id) FROM fleet") == [(1990, 1990)]
    why = {record.offset: str(error) for record, error in context.rejected}
    assert why[3] == "id: a whole number is expected, not a text"
    assert "violates check constraint" in why[501]
    assert "invalid input syntax" in why[1000]
    assert task.committed() == {FLEET: 2000}


async def test_jsonb_that_postgresql_refuses(start: Start, database: Database) -> None:
    task, context = await start()
    values = [{"a": 1}, {"a": "\0"}, {"a": [math.inf]}, b'{"a":\n1}', b"{", b"\xff", {"a": None}, "x"]
    await put(task, [sink_record(n, value) for n, value in enumerate(values)])
    assert sorted(record.offset for record, _ in context.rejected) == [1, 2, 4, 5]
    assert await rows(database, "SELECT value FROM fleet ORDER BY position") == [
        ({"a": 1},),
        ({"a": 1},),
        ({"a": None},),
        ("x",),
    ]


async def test_all_rows_are_bad(start: Start, database: Database) -> None:
    task, context = await start()
    await put(task, [sink_record(n, b"{") for n in range(300)])
    assert len(context.rejected) == 300
    await put(task, [sink_record(300, 1)])
    assert await rows(database, "SELECT value FROM fleet") == [(1,)]


async def test_a_task_that_tolerates_nothing_commits_nothing(start: Start, database: Database) -> None:
    task, context = await start()
    context.is_tolerant = False
    with pytest.raises(ConnectError, match="invalid input syntax"):
        await put(task, [sink_record(0, 1), sink_record(1, b"{")])
    assert await task.open([FLEET]) == {}
    assert await rows(database, "SELECT * FROM fleet") == []


async def test_tables_and_columns_are_made_for_fields(start: Start, database: Database) -> None:
    task, context = await start(table__columns="fields", auto__evolve="true", message__columns="topic,stored_at")
    await put(task, [sink_record(0, {"t": 20, "ok": True, "gone": None}), sink_record(1, {"t": 20.5, "tags": ["a"]})])
    await put(task, [sink_record(2, {"gone": "back", "o": {"x": 1}})])
    assert context.rejected == []
    assert await rows(database, "SELECT t, ok, tags, gone, o FROM fleet ORDER BY t, gone") == [
        (20.0, True, None, None, None),
        (20.5, None, ["a"], None, None),
        (None, None, None, "back", {"x": 1}),
    ]
    many = {f"c{n}": n for n in range(600)}
    await put(task, [sink_record(3, many), sink_record(4, {"topic": "x"}), sink_record(5, {"ctid": 1, "": 2})])
    assert [record.offset for record, _ in context.rejected] == [3, 4, 5]


async def test_only_fields_of_the_list_are_stored_at(start: Start, database: Database) -> None:
    task, _ = await start(table__columns="fields", fields__whitelist="t,h", auto__evolve="true")
    await put(task, [sink_record(0, {"t": 1, "other": 2}), sink_record(1, {"h": 3, "other": 2})])
    assert await rows(database, "SELECT * FROM fleet ORDER BY t") == [(1.0, None), (None, 3.0)]


async def test_columns_of_many_types(start: Start, database: Database) -> None:
    await database.execute(
        "CREATE DOMAIN percent AS integer CHECK (value <= 100); CREATE TABLE fleet (i integer, n numeric, d date, "
        "u uuid, ip inet, b bytea, a text[], aa integer[], p percent, v varchar(3), "
        "g text GENERATED ALWAYS AS (v) STORED)"
    )
    task, context = await start(table__columns="fields")
    fields = {
        "i": 7.0,
        "n": "1.50",
        "d": "2026-11-28",
        "u": "c9a646d3-9c61-4cc2-8a1a-1c2a3c5d7e11",
        "ip": "::1",
        "b": b"\x00\xff",
        "a": ['x"y', "a\\b", None, "NULL", "{}"],
        "aa": [[1, 2], [3, 4]],
        "p": 100,
        "v": "abc",
    }
    await put(task, [sink_record(0, fields), sink_record(1, {"p": 101}), sink_record(2, {"v": "abcd"})])
    assert [record.offset for record, _ in context.rejected] == [1, 2]
    found = await rows(database, "SELECT i, n::text, d::text, u::text, host(ip), b, a, aa, p, v, g FROM fleet")
    assert found == [
        (7, "1.50", "2026-11-28", fields["u"], "::1", b"\x00\xff", fields["a"], fields["aa"], 100, "abc", "abc")
    ]
    await database.execute("DROP TABLE fleet; DROP DOMAIN percent")


async def test_an_upsert_keeps_the_last_value_of_each_topic(start: Start, database: Database) -> None:
    task, context = await start(insert__mode="upsert", pk__mode="record_topic")
    await put(task, [sink_record(n, n, f"fleet/{n % 3}") for n in range(100)])
    await put(task, [sink_record(100, {"x": 1}, "fleet/1"), sink_record(101, b"{", "fleet/2")])
    assert [record.offset for record, _ in context.rejected] == [101]
    assert await rows(database, "SELECT topic, value FROM fleet ORDER BY topic") == [
        ("fleet/0", 99),
        ("fleet/1", {"x": 1}),
        ("fleet/2", 98),
    ]


async def test_an_upsert_changes_the_columns_that_a_message_has(start: Start, database: Database) -> None:
    given = {"table.columns": "fields", "auto.evolve": "true", "insert.mode": "upsert"}
    task, context = await start(**given, pk__mode="record_value", pk__fields="id")
    await put(task, [sink_record(0, {"id": "a", "t": 1, "h": 1}), sink_record(1, {"id": "b", "t": 2})])
    changes = [{"id": "a", "t": 3}, {"h": 4, "id": "a"}, {"id": "a", "t": "x"}, {"t": 5}, {"id": "a", "t": 6}]
    await put(task, [sink_record(2 + n, value) for n, value in enumerate(changes)])
    assert [record.offset for record, _ in context.rejected] == [4, 5]
    assert await rows(database, "SELECT id, t, h FROM fleet ORDER BY id") == [("a", 6.0, 4.0), ("b", 2.0, None)]


async def test_an_upsert_keeps_its_order_while_columns_are_added(start: Start, database: Database) -> None:
    given = {"table.columns": "fields", "auto.evolve": "true", "insert.mode": "upsert"}
    task, _ = await start(**given, pk__mode="record_value", pk__fields="id")
    values = [{"id": 1, "t": 1}, {"id": 1, "t": 2, "new": 1}, {"id": 1, "t": 3}]
    await put(task, [sink_record(n, value) for n, value in enumerate(values)])
    assert await rows(database, "SELECT id, t, new FROM fleet") == [(1.0, 3.0, 1.0)]


async def test_an_upsert_of_which_one_message_is_bad(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE fleet (id integer PRIMARY KEY, at timestamptz, n integer)")
    task, context = await start(
        table__columns="fields", insert__mode="upsert", pk__mode="record_value", pk__fields="id"
    )
    values = [{"id": 1, "at": "2026-01-01"}, {"id": 1, "at": "never"}, {"id": 1, "n": 5}, {"id": 2, "n": 1}]
    await put(task, [sink_record(n, value) for n, value in enumerate(values)])
    assert [record.offset for record, _ in context.rejected] == [1]
    assert await rows(database, "SELECT id, at::date::text, n FROM fleet ORDER BY id") == [
        (1, "2026-01-01", 5),
        (2, None, 1),
    ]


async def test_many_tables_of_upserts(start: Start, database: Database) -> None:
    task, _ = await start(table__name__format="${topic}", insert__mode="upsert", pk__mode="record_topic")
    for turn in range(2):
        await put(task, [sink_record(turn * 40 + n, turn, f"fleet/{n}") for n in range(40)])
    assert await rows(database, 'SELECT value FROM "fleet/39"') == [(1,)]


async def test_a_table_without_a_unique_index(start: Start, database: Database) -> None:
    await database.execute("CREATE TABLE fleet (id integer)")
    task, _ = await start(table__columns="fields", insert__mode="upsert", pk__mode="record_value", pk__fields="id")
    with pytest.raises(ConnectError, match="no unique index on the columns id"):
        await put(task, [sink_record(0, {"id": 1})])


@pytest.mark.parametrize("topic", ['fleet"; DROP TABLE x; --', "fleet.a", "fleet'%s", "fleet\\", "FLEET é", "%(x)s"])
@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_hostile_topics_and_fields_are_names(start: Start, database: Database, topic: str, mode: str) -> None:
    given = {"table.columns": "fields", "insert.mode": mode, "pk.mode": "record_topic", "pk.fields": "of"}
    task, context = await start(table__name__format="public.${topic}", **given)
    await put(task, [sink_record(0, {topic: 1}, topic)])
    assert context.rejected == []
    assert await rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1") == sorted(
        [(topic,), ("sluice_offsets",)]
    )


async def test_names_that_are_too_long(start: Start, database: Database) -> None:
    task, context = await start(table__name__format="${topic}", table__columns="fields", auto__evolve="true")
    await put(
        task, [sink_record(0, {"a": 1}, "fleet/" + "é" * 30), sink_record(1, {"b" * 64: 1}), sink_record(2, {"a": 1})]
    )
    assert [record.offset for record, _ in context.rejected] == [0, 1]


async def test_a_missing_table_and_column(start: Start, database: Database) -> None:
    task, context = await start(auto__create="false")
    await put(task, [sink_record(0, 1)])
    assert "there is no table" in reasons(context)[0]
    await database.execute("CREATE TABLE fleet (topic text)")
    await put(task, [sink_record(1, 1)])
    assert 'no column "key", "value"' in reasons(context)[1]


async def test_a_table_that_is_dropped_is_made_again(start: Start, database: Database) -> None:
    task, _ = await start()
    await put(task, [sink_record(0, 1)])
    await database.execute("DROP TABLE fleet")
    with pytest.raises(RetriableError, match="a table was changed"):
        await put(task, [sink_record(1, 2)])
    await task.open([FLEET])
    await put(task, [sink_record(1, 2)])
    assert await rows(database, "SELECT value FROM fleet") == [(2,)]


async def test_a_lost_connection_can_be_tried_again(start: Start, database: Database) -> None:
    task, _ = await start()
    await put(task, [sink_record(0, 1)])
    await database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice-test-0'"
    )
    with pytest.raises(RetriableError):
        await put(task, [sink_record(1, 2)])
    assert await task.open([FLEET]) == {FLEET: 1}
    await put(task, [sink_record(1, 2)])
    assert await rows(database, "SELECT value FROM fleet ORDER BY position") == [(1,), (2,)]


async def test_errors_of_connections_have_one_line_and_no_secret(start: Start, server: PostgresServer) -> None:
    with pytest.raises(ConnectError, match="password authentication failed for user") as wrong:
        await start(connection__password="se-cret")
    assert not isinstance(wrong.value, RetriableError)
    with pytest.raises(ConnectError, match=r"database .* does not exist"):
        await start(connection__uri=f"postgresql://127.0.0.1:{server.port}/nothing")
    with pytest.raises(RetriableError) as away:
        await start(connection__uri="postgresql://127.0.0.1:1/postgres", connection__password="se-cret")
    for error in (wrong, away):
        assert "se-cret" not in str(error.value) and "\n" not in str(error.value)


def let_postgres_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if os.geteuid() == 0:
            shutil.chown(path, "postgres")


async def test_certificates_are_checked(start: Start, database: Database) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-postgres-") as name:
        authority = Authority(Path(name) / "authority")
        file, key = authority.issue("server", "localhost", "DNS:localhost", "IP:127.0.0.1")
        let_postgres_read(Path(name))
        with PostgresServer("ssl=on", f"ssl_cert_file={file}", f"ssl_key_file={key}") as secure:
            uri = f"postgresql://127.0.0.1:{secure.port}/postgres?sslmode=verify-full"
            trusted = {"ssl.truststore.location": str(authority.file)}
            task, _ = await start(**{**secure.settings, "connection.uri": uri, **trusted})
            await put(task, [sink_record(0, 1)])
            with pytest.raises(ConnectError, match="certificate verify failed") as error:
                await start(**{**secure.settings, "connection.uri": uri})
            assert not isinstance(error.value, RetriableError)


async def test_each_host_has_to_be_allowed(start: Start, server: PostgresServer) -> None:
    context = Context()
    await start(context, connection__uri=f"postgresql://localhost:{server.port},127.0.0.1:{server.port}/postgres")
    assert context.asked == [("localhost", server.port), ("127.0.0.1", server.port)]


@pytest.mark.parametrize("turns", [0, 1, 10, 100, 300])
async def test_a_task_that_is_opened_while_it_writes(start: Start, database: Database, turns: int) -> None:
    task, _ = await start()
    messages = [sink_record(n, "x" * 1000) for n in range(3000)]
    await task.put(messages)
    for _ in range(turns):
        await asyncio.sleep(0)
    at = (await task.open([FLEET])).get(FLEET, 0)
    await put(task, messages[at:])
    assert await rows(database, "SELECT count(*), count(DISTINCT position) FROM fleet") == [(3000, 3000)]


async def test_a_put_waits_while_much_waits(start: Start, database: Database) -> None:
    task, _ = await start(batch__size="10")
    async with database.transaction():
        await database.execute("CREATE TABLE fleet (topic text); LOCK TABLE fleet")
        await task.put([sink_record(n, n) for n in range(5)])
        putting = asyncio.create_task(task.put([sink_record(n, n) for n in range(5, 30)]))
        done, _ = await asyncio.wait([putting], timeout=0.2)
        assert not done
        putting.cancel()


async def test_a_batch_larger_than_a_transaction(start: Start, database: Database) -> None:
    task, _ = await start(batch__size="10")
    messages: list[SinkRecord] = [sink_record(n, n) for n in range(25)]
    await put(task, messages)
    assert await rows(database, "SELECT count(*) FROM fleet") == [(25,)]
