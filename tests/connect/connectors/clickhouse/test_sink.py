"""`clickhouse-sink`: the requests that ClickHouse's HTTP interface is documented to take."""

import json

import pytest
from aiohttp import web

from connect.api import ConnectError, InvalidSettings
from connect.connectors.clickhouse.sink import ClickHouseSink
from tests.connect.connectors.harness import Context, reasons, sent, settings_of, started
from tests.connect.connectors.http_server import Got, Server


def given(server: Server, **more: str) -> dict[str, str]:
    own = {"hostname": "127.0.0.1", "port": str(server.port), "ssl": "false", "password": "secret"}
    return own | more | {"retry.backoff.ms": "1"}


async def test_rows_are_inserted_in_batches(server: Server) -> None:
    settings = given(server, table="t_${level2}", **{"metadata.columns": "stored_at,position", "database": "iot"})
    settings["clickhouseSettings"] = "async_insert=0,input_format_skip_unknown_fields=0"
    async with started(ClickHouseSink(), Context(), **settings) as task:
        await task.put([sent("fleet/a", {"t": 1}, 1), sent("fleet/b`", b'{"t": 2}', 2), sent("fleet/a", {"t": 3}, 3)])
    first, second = server.got
    assert (first.method, first.path) == ("POST", "/")
    token = first.query.pop("insert_deduplication_token")
    assert first.query == {
        "query": "INSERT INTO `t_a` FORMAT JSONEachRow",
        "database": "iot",
        "async_insert": "0",
        "input_format_skip_unknown_fields": "0",
        "date_time_input_format": "best_effort",
        "wait_end_of_query": "1",
    }
    assert (first.headers["x-clickhouse-user"], first.headers["x-clickhouse-key"]) == ("default", "secret")
    assert [json.loads(line) for line in first.body.splitlines()] == [
        {"t": 1, "stored_at": "2026-05-28T20:26:40.001Z", "position": 1000},
        {"t": 3, "stored_at": "2026-05-28T20:26:40.003Z", "position": 3000},
    ]
    assert second.query["query"] == "INSERT INTO `t_b\\`` FORMAT JSONEachRow"
    assert second.query["insert_deduplication_token"] != token


async def test_a_repeated_batch_has_the_same_token(server: Server) -> None:
    server.answer = lambda got: web.Response(status=503 if len(server.got) == 1 else 200)
    async with started(ClickHouseSink(), Context(), **given(server, **{"row.format": "record"})) as task:
        await task.put([sent("fleet/a", {"t": n}, n) for n in range(3)])
        await task.put([sent("fleet/a", {"t": n}, n) for n in range(3)])
    tokens = [got.query["insert_deduplication_token"] for got in server.got]
    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    assert json.loads(server.got[0].body.splitlines()[2])["value"] == {"t": 2}


async def test_a_row_that_clickhouse_cannot_read_is_rejected_alone(server: Server) -> None:
    def answer(got: Got) -> web.Response:
        text = "Code: 27. DB::Exception: Cannot parse input: expected 'number'. (CANNOT_PARSE_INPUT_ASSERTION_FAILED)"
        return web.Response(status=400, text=text) if b'"bad"' in got.body else web.Response()

    server.answer = answer
    context = Context()
    async with started(ClickHouseSink(), context, **given(server)) as task:
        await task.put([sent("fleet/a", {"t": "bad" if n == 2 else n}, n) for n in range(5)])
        await task.put([sent("fleet/a", "no object", 9)])
    assert [record.offset for record, _ in context.rejected] == [2, 9]
    assert "CANNOT_PARSE_INPUT" in reasons(context)[0]
    assert reasons(context)[1] == "the value is not a JSON object"
    rows = [line for got in server.got if b'"bad"' not in got.body for line in got.body.splitlines()]
    assert len(rows) == 4


async def test_a_table_that_is_not_there_ends_the_task(server: Server) -> None:
    server.answer = lambda got: web.Response(status=404, text="Code: 60. DB::Exception: Table iot.t does not exist.")
    async with started(ClickHouseSink(), Context(), **given(server)) as task:
        with pytest.raises(ConnectError, match="status 404: Code: 60"):
            await task.put([sent("fleet/a", {})])


def test_settings_that_the_sink_needs_cannot_be_overridden() -> None:
    with pytest.raises(InvalidSettings, match="and none of query"):
        settings_of(ClickHouseSink(), {"hostname": "h", "clickhouseSettings": "query=DROP"})
