"""`sqlite-sink`: rows and offsets in one transaction."""

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from connect.api import ConnectError, Partition, RetriableError, TransactionalSinkTask
from connect.connectors.sqlite import sink as sink_module
from connect.connectors.sqlite.sink import SqliteSink
from tests.connect.connectors.feeder import offsets
from tests.connect.connectors.harness import Context, reasons, sent, settings_of

ROOT = Path(__file__).parents[4]
FLEET, PLANT = Partition("fleet", 0), Partition("plant", 2)


@asynccontextmanager
async def sink(folder: Path, context: Context | None = None, **given: str) -> AsyncIterator[TransactionalSinkTask]:
    own = {name.replace("_", "."): text for name, text in given.items()}
    task = SqliteSink().task()
    assert isinstance(task, TransactionalSinkTask)
    settings = settings_of(SqliteSink(), {"connection.path": f"{folder}/messages.db"} | own)
    await task.start(settings, context or Context())
    yield task
    await task.stop()


def query(folder: Path, text: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "messages.db")) as database:
        return database.execute(text).fetchall()


async def test_rows_have_typed_columns(tmp_path: Path) -> None:
    context = Context()
    fields = "t:double,n:long,on=state.on:boolean,at:timestamp"
    async with sink(tmp_path, context, fields=fields, table_name_format='m "${level1}"') as task:
        assert await task.open([FLEET, PLANT]) == {}
        value = {"t": 1, "n": 5, "state": {"on": True}, "at": 1_780_000_000_000}
        await task.put(
            [
                sent("fleet/a", value, 4, headers=[("unit", "C")], key="k"),
                sent("fleet/a", {"n": 1.5}, 5),
                sent("plant/x", b'{"t": "2.5"}', 1, partition=PLANT),
            ]
        )
        await task.put([])
        assert task.committed() == {FLEET: 6, PLANT: 2}
    assert (reasons(context), context.stored_rejects) == (["n is no long: '1.5'"], 1)
    assert query(tmp_path, 'SELECT * FROM "m ""fleet"""') == [
        (
            *("fleet/a", '["fleet","a"]', "k", json.dumps(value, separators=(",", ":")), None, '[["unit","C"]]'),
            *("2026-05-28T20:26:40.004Z", 0, 4, 4000, 1.0, 5, 1, "2026-05-28T20:26:40+00:00"),
        )
    ]
    assert query(tmp_path, 'SELECT value, t FROM "m ""plant"""') == [('{"t": "2.5"}', 2.5)]


async def test_a_task_that_comes_too_late_writes_nothing(tmp_path: Path) -> None:
    async with sink(tmp_path) as late, sink(tmp_path) as task:
        await late.open([FLEET])
        await task.open([FLEET])
        await task.put([sent("fleet/a", b"\xff", 0)])
        with pytest.raises(RetriableError, match="another task writes"):
            await late.put([sent("fleet/a", 1, 0), sent("fleet/a", 1, 1)])
        assert await late.open([FLEET, PLANT]) == {FLEET: 1}
        await late.put([sent("fleet/a", 2, 1)])
    assert query(tmp_path, "SELECT value, value_base64 FROM fleet") == [(None, "/w=="), ("2", None)]


async def test_columns_are_added_if_that_is_allowed(tmp_path: Path) -> None:
    async with sink(tmp_path) as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", {"t": 1}, 0)])
    async with sink(tmp_path, fields="t:double") as task:
        await task.open([FLEET])
        with pytest.raises(ConnectError, match="has no column 't'"):
            await task.put([sent("fleet/a", {"t": 2}, 1)])
    async with sink(tmp_path, fields="t:double", auto_evolve="true") as task:
        assert await task.open([FLEET]) == {FLEET: 1}
        await task.put([sent("fleet/a", {"t": 2}, 1)])
    assert query(tmp_path, "SELECT t FROM fleet") == [(None,), (2.0,)]


async def test_another_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_BUSY_S", 0.01)
    async with sink(tmp_path) as task:
        await task.open([FLEET])
        with closing(sqlite3.connect(tmp_path / "messages.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(RetriableError, match="database is locked"):
                await task.put([sent("fleet/a", 1, 0)])
        await task.put([sent("fleet/a", 1, 0)])
    assert query(tmp_path, "SELECT count(*) FROM fleet") == [(1,)]


async def test_tables_are_bounded_and_not_those_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_MAX_TABLES", 3)
    context = Context()
    async with sink(tmp_path, context, table_name_format="${level2}") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/sqlite_master", 1, 0), sent("fleet/sluice_offsets", 1, 1), sent("fleet/a", 1, 2)])
        await task.put([sent("fleet/b", 1, 3), sent("fleet/c", 1, 4)])
        with pytest.raises(ConnectError, match="more than 3 tables"):
            await task.put([sent("fleet/d", 1, 5)])
    assert len(context.rejected) == 2


async def test_a_file_that_is_no_database_ends_the_task(tmp_path: Path) -> None:
    (tmp_path / "messages.db").write_text("this is no database, whatever it is called" * 100)
    async with sink(tmp_path) as task:
        with pytest.raises(ConnectError, match="file is not a database"):
            await task.open([FLEET])


@pytest.mark.slow
async def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    kills = 0
    for attempt in range(9):
        arguments = {
            "connector": "connect.connectors.sqlite.sink:SqliteSink",
            "given": {"connection.path": f"{tmp_path}/messages.db"},
            "end": 600,
            "seed": attempt,
            "patched": "connect.connectors.sqlite.sink:SqliteSinkTask._write",
            "steps": chance.randint(1, 6) if attempt < 8 else 0,
        }
        command = [sys.executable, "-m", "tests.connect.connectors.feeder", json.dumps(arguments)]
        ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        kills += ended.returncode != 0
    assert kills >= 6
    assert [row[0] for row in query(tmp_path, 'SELECT "offset" FROM fleet ORDER BY 1')] == offsets(0, 600)
