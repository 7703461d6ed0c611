"""`delta-sink` and `iceberg-sink`: tables that other engines read, exactly once."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from aiohttp import web
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from connect.api import (
    ConnectError,
    InvalidSettings,
    Partition,
    RetriableError,
    SinkConnector,
    TransactionalSinkTask,
)
from connect.connectors.delta.sink import DeltaSink
from connect.connectors.iceberg.sink import IcebergSink
from sluice.demo.engine_servers import SeaweedServers, ServerMissing
from sluice.demo.ports import lasting_ports
from tests.connect.connectors.feeder import offsets
from tests.connect.connectors.harness import Context, reasons, sent, settings_of
from tests.connect.connectors.http_server import http_server

ROOT = Path(__file__).parents[4]
FLEET, PLANT = Partition("fleet", 0), Partition("plant", 2)


@dataclass
class Lake:
    """A table of one of the two kinds in a folder."""

    kind: str
    folder: Path

    @property
    def connector(self) -> SinkConnector:
        return DeltaSink() if self.kind == "delta" else IcebergSink()

    @property
    def given(self) -> dict[str, str]:
        if self.kind == "delta":
            return {"table.url": f"file://{self.folder}/table"}
        return {
            "iceberg.tables": "plant.messages",
            "iceberg.catalog.type": "sql",
            "iceberg.catalog.uri": f"sqlite:///{self.folder}/catalog.db",
            "iceberg.catalog.warehouse": f"file://{self.folder}/warehouse",
        }

    def arrow(self) -> Any:
        """The table as others see it."""
        if self.kind == "delta":
            return deltalake.DeltaTable(f"{self.folder}/table").to_pyarrow_table()
        catalog = SqlCatalog("iceberg", uri=f"sqlite:///{self.folder}/catalog.db")
        return catalog.load_table("plant.messages").scan().to_arrow()

    def query(self, text: str) -> list[Any]:
        """What DuckDB answers to a query of `lake`."""
        with duckdb.connect() as database:
            database.register("lake", self.arrow())
            found: list[Any] = database.sql(text).fetchall()
        return found

    @asynccontextmanager
    async def task(self, context: Context | None = None, **given: str) -> AsyncIterator[TransactionalSinkTask]:
        connector = self.connector
        task = connector.task()
        assert isinstance(task, TransactionalSinkTask)
        own = {name.replace("_", "."): text for name, text in given.items()}
        await task.start(settings_of(connector, self.given | own), context or Context())
        yield task
        await task.stop()


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


async def test_rows_are_read_by_other_engines(lake: Lake) -> None:
    context = Context()
    fields = "t:double,n=state.n:long,on=state.on:boolean,at:timestamp,name:string"
    async with lake.task(context, flush_bytes="1", fields=fields) as task:
        assert await task.open([FLEET, PLANT]) == {}
        first = {"t": 1, "state": {"n": 5, "on": True}, "at": "2026-05-28T20:26:40Z"}
        await task.put(
            [
                sent("fleet/a", first, 4, headers=[("unit", "C")], key="k"),
                sent("fleet/a", {"t": []}, 5),
                sent("plant/x/y", b'{"t": "2.5", "name": "x"}', 1, partition=PLANT),
            ]
        )
        assert task.committed() == {FLEET: 6, PLANT: 2}
    assert (reasons(context), context.stored_rejects) == (["t is no double: '[]'"], 1)
    rows = lake.query(
        'SELECT topic, levels, "key", "value", headers, t, n, "on", epoch_ms("at"), name, "partition", "offset", '
        'position, epoch_ms(stored_at), "date"::VARCHAR FROM lake ORDER BY topic'
    )
    assert rows == [
        (
            *("fleet/a", ["fleet", "a"], "k", json.dumps(first, separators=(",", ":"))),
            *([{"name": "unit", "value": "C"}], 1.0, 5, True, 1_780_000_000_000, None),
            *(0, 4, 4000, 1_780_000_000_004, "2026-05-28"),
        ),
        (
            *("plant/x/y", ["plant", "x", "y"], None, '{"t": "2.5", "name": "x"}', [], 2.5, None, None, None, "x"),
            *(2, 1, 1000, 1_780_000_000_001, "2026-05-28"),
        ),
    ]


async def test_a_commit_waits_for_its_interval(lake: Lake) -> None:
    async with lake.task(commit_interval_ms="1000000") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", 1, 0)])
        await task.put([])
        assert task.committed() == {}
    async with lake.task(commit_interval_ms="1") as task:
        assert await task.open([FLEET]) == {}  # what was kept is gone, and comes again
        await task.put([sent("fleet/a", 1, 0)])
        while not task.committed():
            await task.put([])
        assert task.committed() == {FLEET: 1}
        assert await task.open([FLEET]) == {FLEET: 1}
    assert lake.query("SELECT count(*) FROM lake") == [(1,)]


async def test_offsets_move_on_behind_messages_that_are_rejected(lake: Lake) -> None:
    context = Context()
    async with lake.task(context, commit_interval_ms="1", fields="t:double") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", b"\xff", 7)])
        while not task.committed():
            await task.put([])
        assert await task.open([FLEET]) == {FLEET: 8}
    assert context.stored_rejects == 1
    assert lake.query("SELECT count(*) FROM lake") == [(0,)]


async def test_a_task_that_comes_too_late_writes_nothing(lake: Lake) -> None:
    async with lake.task(flush_bytes="1") as late, lake.task(flush_bytes="1") as task:
        await late.open([FLEET])
        await task.open([FLEET])
        await task.put([sent("fleet/a", 1, 0)])
        with pytest.raises(RetriableError, match="another task writes fleet 0"):
            await late.put([sent("fleet/a", 1, 0)])
        assert await late.open([FLEET]) == {FLEET: 1}
        await late.put([sent("fleet/a", 2, 1)])
    assert lake.query('SELECT "offset" FROM lake ORDER BY 1') == [(0,), (1,)]


async def test_two_tasks_write_one_table(lake: Lake) -> None:
    """Each has its partition. A commit that meets another one is repeated by the worker."""

    async def write(task: TransactionalSinkTask, partition: Partition) -> None:
        at = (await task.open([partition])).get(partition, 0)
        while at < 6:
            with suppress(RetriableError):
                await task.put([sent(f"{partition.parent}/a", at, at, partition=partition)])
            at = (await task.open([partition])).get(partition, 0)

    async with lake.task(flush_bytes="1") as one, lake.task(flush_bytes="1") as other:
        await one.open([])  # creates the table
        await asyncio.gather(write(one, FLEET), write(other, PLANT))
    assert lake.query('SELECT topic, list_sort(list("offset")) FROM lake GROUP BY 1 ORDER BY 1') == [
        ("fleet/a", [0, 1, 2, 3, 4, 5]),
        ("plant/a", [0, 1, 2, 3, 4, 5]),
    ]


async def test_columns_are_added_if_that_is_allowed(lake: Lake) -> None:
    async with lake.task(flush_bytes="1") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", {"t": 1}, 0)])
    async with lake.task(flush_bytes="1", fields="t:double") as task:
        with pytest.raises(ConnectError, match="has no column 't'"):
            await task.open([FLEET])
    async with lake.task(flush_bytes="1", fields="t:double", auto_evolve="true") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", {"t": 2}, 1)])
    async with lake.task(flush_bytes="1") as task:  # a column that rows do not have is empty
        await task.open([FLEET])
        await task.put([sent("fleet/a", {"t": 3}, 2)])
    assert lake.query('SELECT t FROM lake ORDER BY "offset"') == [(None,), (2.0,), (None,)]


async def test_a_type_that_a_column_does_not_have_ends_the_task(lake: Lake) -> None:
    async with lake.task(flush_bytes="1", fields="t:double") as task:
        await task.open([FLEET])
        await task.put([sent("fleet/a", {"t": 1}, 0)])

    async def another_type() -> None:
        async with lake.task(flush_bytes="1", fields="t:string") as task:
            await task.open([FLEET])
            await task.put([sent("fleet/a", {"t": "warm"}, 1)])

    with pytest.raises(ConnectError) as raised:
        await another_type()
    assert not isinstance(raised.value, RetriableError)
    assert "\n" not in str(raised.value)


async def test_endpoints_at_private_addresses_are_refused() -> None:
    private = Context(is_private_allowed=False)
    for connector, given in (
        (DeltaSink(), {"table.url": "s3://b/t", "store.options": '{"endpoint": "http://127.0.0.1:9"}'}),
        (IcebergSink(), {"iceberg.tables": "a.b", "iceberg.catalog.uri": "http://127.0.0.1:9"}),
    ):
        with pytest.raises(ConnectError, match="private address"):
            await connector.task().start(settings_of(connector, given), private)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"iceberg.tables": "messages"}, "NAMESPACE.TABLE is expected"),
        ({"iceberg.catalog.properties": "{"}, "the properties are not JSON"),
        ({"iceberg.catalog.properties": '{"py-io-impl": "os"}'}, "the property 'py-io-impl' cannot be set"),
        ({"iceberg.catalog.properties": '{"s3.proxy-uri": "x"}'}, "the property 's3.proxy-uri' cannot be set"),
        ({"iceberg.catalog.properties": '{"adls.account-host": "x"}'}, "cannot be set"),
        ({"iceberg.catalog.properties": '{"s3.region": "x@127.0.0.1/"}'}, "s3.region is made of letters"),
        ({"iceberg.catalog.type": "sql", "iceberg.catalog.uri": "sqlite+pysqlite:////etc/x"}, "sqlite:///PATH or"),
        ({"iceberg.catalog.type": "sql", "iceberg.catalog.uri": "sqlite:////data/x?uri=true"}, "sqlite:///PATH or"),
        (
            {"iceberg.catalog.type": "sql", "iceberg.catalog.uri": "postgresql://db.example/x?host=/run"},
            "sqlite:///PATH or",
        ),
        ({"fields": "date:string"}, "there is already a column date"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(IcebergSink(), {"iceberg.tables": "a.b", "iceberg.catalog.uri": "https://h"} | given)
    assert problem in str(raised.value)


async def test_a_database_of_a_catalog_at_a_private_address_is_refused() -> None:
    given = {"iceberg.tables": "a.b", "iceberg.catalog.type": "sql", "iceberg.catalog.uri": "postgresql://127.0.0.1/x"}
    with pytest.raises(ConnectError, match="private address"):
        await IcebergSink().task().start(settings_of(IcebergSink(), given), Context(is_private_allowed=False))


@pytest.mark.parametrize("warehouse", ["relative", "file:relative", "file://host/folder", "hdfs://host/folder"])
async def test_a_warehouse_is_a_store_or_a_folder(tmp_path: Path, warehouse: str) -> None:
    lake = Lake("iceberg", tmp_path)
    with pytest.raises(ConnectError, match="files of a table cannot be at"):
        async with lake.task(iceberg_catalog_warehouse=warehouse):
            raise AssertionError


async def test_a_catalog_does_not_lead_the_worker_elsewhere(tmp_path: Path) -> None:
    """A table, too, says where its files are, and which addresses are asked."""
    lake = Lake("iceberg", tmp_path)
    async with lake.task() as task:
        await task.open([FLEET])
    catalog = SqlCatalog("iceberg", uri=f"sqlite:///{tmp_path}/catalog.db")
    table = catalog.load_table("plant.messages")
    for name, value, problem in (
        ("write.data.path", "hdfs://10.0.0.1/x", "files of a table cannot be at hdfs"),
        ("s3.endpoint", "http://10.0.0.1", "the catalog sets s3.endpoint"),
        ("s3.region", "x@10.0.0.1/", "the catalog is wrong: s3.region"),
    ):
        with table.transaction() as transaction:
            transaction.set_properties({name: value})
        async with lake.task() as task:
            with pytest.raises(ConnectError, match=problem):
                await task.open([FLEET])
        with table.transaction() as transaction:
            transaction.remove_properties(name)


async def test_a_catalog_that_redirects_is_not_followed(tmp_path: Path) -> None:
    async with http_server() as server:
        server.answer = lambda got: web.Response(status=302, headers={"Location": f"{server.url}/elsewhere"})
        task = IcebergSink().task()
        given = {"iceberg.tables": "a.b", "iceberg.catalog.uri": server.url}
        with pytest.raises(RetriableError):
            await task.start(settings_of(IcebergSink(), given), Context())
        assert [each.path for each in server.got] == ["/v1/config"]


@pytest.mark.slow
async def test_kill_9_loses_and_doubles_nothing(lake: Lake) -> None:
    """Processes that are killed before or after a commit, and continue."""
    chance = random.Random(5)
    patched = {
        "delta": "connect.connectors.delta.sink_task.write_deltalake",
        "iceberg": "pyiceberg.catalog.sql:SqlCatalog.commit_table",
    }
    kills = 0
    for attempt in range(6):
        arguments = {
            "connector": f"connect.connectors.{lake.kind}.sink:{type(lake.connector).__name__}",
            "given": lake.given | {"flush.bytes": "1"},
            "end": 300,
            "seed": attempt,
            "patched": patched[lake.kind],
            "steps": chance.randint(1, 4) if attempt < 5 else 0,
        }
        command = [sys.executable, "-m", "tests.connect.connectors.feeder", json.dumps(arguments)]
        ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        kills += ended.returncode != 0
    assert kills >= 3
    assert [row[0] for row in lake.query('SELECT "offset" FROM lake ORDER BY 1')] == offsets(0, 300)


@pytest.mark.slow
async def test_tables_in_s3(tmp_path: Path) -> None:
    """SeaweedFS has the files. A commit that meets another one fails there, too."""
    try:
        servers = SeaweedServers(tmp_path / "seaweedfs")
    except ServerMissing as error:
        pytest.skip(str(error))
    options = {name: str(value) for name, value in servers.options.items() if name != "allow_http"}
    s3 = {
        "s3.endpoint": options["endpoint"],
        "s3.region": options["region"],
        "s3.access-key-id": options["access_key_id"],
        "s3.secret-access-key": options["secret_access_key"],
    }
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    delta = {"table_url": servers.url("delta"), "store_options": json.dumps(options)}
    iceberg = {"iceberg_catalog_warehouse": servers.url("iceberg"), "iceberg_catalog_properties": json.dumps(s3)}
    with servers:
        for kind, given in (("delta", delta), ("iceberg", iceberg)):
            lake = Lake(kind, tmp_path)
            async with lake.task(flush_bytes="1", **given) as late, lake.task(flush_bytes="1", **given) as task:
                await late.open([FLEET])
                await task.open([FLEET])
                await task.put([sent("fleet/a", {"t": 1}, 0)])
                with pytest.raises(RetriableError, match="another task writes fleet 0"):
                    await late.put([sent("fleet/a", {"t": 1}, 0)])
                assert await late.open([FLEET]) == {FLEET: 1}
                await late.put([sent("fleet/a", {"t": 2}, 1)])
        stored = deltalake.DeltaTable(servers.url("delta"), storage_options=options | {"allow_http": "true"})
        assert sorted(stored.to_pyarrow_table()["offset"].to_pylist()) == [0, 1]
        table = SqlCatalog("iceberg", uri=catalog, **s3).load_table("plant.messages")
        assert sorted(table.scan().to_arrow()["offset"].to_pylist()) == [0, 1]
        for server in servers.servers:
            server.kill()


@pytest.mark.slow
async def test_a_rest_catalog(tmp_path: Path) -> None:
    """SeaweedFS has the catalog and the files."""
    try:
        servers = SeaweedServers(tmp_path / "seaweedfs")
    except ServerMissing as error:
        pytest.skip(str(error))
    (port,) = lasting_ports(1)
    for server in servers.servers:
        server._command = [each.replace("-port.iceberg=0", f"-port.iceberg={port}") for each in server._command]
    options = servers.options
    properties = {
        "oauth2-server-uri": f"http://127.0.0.1:{port}/v1/oauth/tokens",
        "credential": f"{options['access_key_id']}:{options['secret_access_key']}",
        "s3.endpoint": str(options["endpoint"]),
        "s3.region": str(options["region"]),
        "s3.access-key-id": str(options["access_key_id"]),
        "s3.secret-access-key": str(options["secret_access_key"]),
    }
    given = {
        "iceberg_catalog_type": "rest",
        "iceberg_catalog_uri": f"http://127.0.0.1:{port}",
        "iceberg_catalog_warehouse": "s3://lake/",
        "iceberg_catalog_properties": json.dumps(properties),
        "flush_bytes": "1",
    }
    lake = Lake("iceberg", tmp_path)
    with servers:
        command = [servers._program, "shell", f"-master={servers._master}"]
        script = b"s3tables.bucket -create -name lake -account 000000000000\n"
        await asyncio.to_thread(subprocess.run, command, input=script, capture_output=True, check=True)
        async with lake.task(**given) as late, lake.task(**given) as task:
            await late.open([FLEET])
            await task.open([FLEET])
            await task.put([sent("fleet/a", {"t": 1}, 0)])
            with pytest.raises(RetriableError, match="another task writes fleet 0"):
                await late.put([sent("fleet/a", {"t": 1}, 0)])
            assert await late.open([FLEET]) == {FLEET: 1}
            await late.put([sent("fleet/a", {"t": 2}, 1)])
        catalog = RestCatalog("x", uri=f"http://127.0.0.1:{port}", warehouse="s3://lake/", **properties)
        found = catalog.load_table("plant.messages").scan().to_arrow()
        assert sorted(found["offset"].to_pylist()) == [0, 1]
        wrong = given | {"iceberg_catalog_properties": json.dumps(properties | {"credential": "sluice:wrong"})}
        with pytest.raises(ConnectError) as raised:
            async with lake.task(**wrong) as task:
                await task.open([FLEET])
        assert "wrong" not in str(raised.value)
        for server in servers.servers:
            server.kill()
