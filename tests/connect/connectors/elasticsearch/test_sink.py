"""`elasticsearch-sink`: the requests and answers of Elasticsearch's bulk API as it is documented."""

import json
from typing import Any

import pytest
from aiohttp import web

from connect.api import ConnectError, RetriableError
from connect.connectors.elasticsearch.sink import ElasticsearchSink
from tests.connect.connectors.harness import Context, reasons, sent, started
from tests.connect.connectors.http_server import Got, Server


def lines(got: Got) -> list[Any]:
    return [json.loads(line) for line in got.body.splitlines()]


def answered(got: Got, status: dict[str, int] | None = None) -> web.Response:
    """What Elasticsearch answers. status: of documents with another id than 201 Created."""
    items = []
    for action in lines(got)[::2]:
        ((method, about),) = action.items()
        code = (status or {}).get(about["_id"], 201)
        error = {"error": {"type": "mapper_parsing_exception", "reason": "failed to parse"}} if code >= 300 else {}
        items.append({method: {"status": code, **error}})
    return web.json_response({"errors": any(status or {}), "items": items})


async def test_documents_are_written_in_bulk(server: Server) -> None:
    server.answer = answered
    given = {"connection.url": server.url + "/", "index": "iot-${level2}", "timestamp.field": "@timestamp"}
    given |= {"connection.username": "u", "connection.password": "p"}
    async with started(ElasticsearchSink(), Context(), **given) as task:
        await task.put([sent("fleet/A B", {"t": 1}, 4), sent("fleet/c", b'{"@timestamp": "x"}', 5)])
    (got,) = server.got
    assert (got.method, got.path) == ("POST", "/_bulk")
    assert got.query["filter_path"].startswith("errors,items.*.status")
    assert (got.headers["content-type"], got.headers["authorization"]) == ("application/x-ndjson", "Basic dTpw")
    assert got.body.endswith(b"\n")
    assert lines(got) == [
        {"index": {"_index": "iot-a-b", "_id": "4000"}},
        {"t": 1, "@timestamp": "2026-05-28T20:26:40.004Z"},
        {"index": {"_index": "iot-c", "_id": "5000"}},
        {"@timestamp": "x"},
    ]


async def test_each_document_has_its_own_outcome(server: Server) -> None:
    """One is refused for good, one exists, and one has to wait: it alone is sent again."""

    def answer(got: Got) -> web.Response:
        return answered(got, {"1000": 400, "2000": 409, "3000": 429} if len(server.got) == 1 else {})

    server.answer = answer
    context = Context()
    given = {"connection.url": server.url, "write.method": "create", "retry.backoff.ms": "1"}
    async with started(ElasticsearchSink(), context, **given) as task:
        await task.put([sent("fleet/a", {"t": n}, n) for n in range(5)])
    assert [record.offset for record, _ in context.rejected] == [1]
    assert reasons(context) == ["status 400: mapper_parsing_exception: failed to parse"]
    assert [each["create"]["_id"] for each in lines(server.got[1])[::2]] == ["3000"]


async def test_documents_that_have_to_wait_for_long_come_again(server: Server) -> None:
    server.answer = lambda got: answered(got, {"0": 429})
    given = {"connection.url": server.url, "max.retries": "1", "retry.backoff.ms": "1"}
    async with started(ElasticsearchSink(), Context(), **given) as task:
        with pytest.raises(RetriableError, match="1 documents have to wait"):
            await task.put([sent("fleet/a", {})])


async def test_a_request_that_is_too_large_is_sent_in_halves(server: Server) -> None:
    server.answer = lambda got: answered(got) if len(got.body) < 200 else web.Response(status=413)
    context = Context()
    async with started(ElasticsearchSink(), context, connection_url=server.url) as task:
        await task.put([sent("fleet/a", {"t": "x" * (300 if n == 2 else 10)}, n) for n in range(6)])
    assert [record.offset for record, _ in context.rejected] == [2]
    accepted = [each["index"]["_id"] for got in server.got if len(got.body) < 200 for each in lines(got)[::2]]
    assert accepted == ["0", "1000", "3000", "4000", "5000"]


async def test_keys_may_be_ids(server: Server) -> None:
    server.answer = answered
    context = Context()
    given = {"connection.url": server.url, "key.ignore": "false", "connection.api.key": "abc"}
    async with started(ElasticsearchSink(), context, **given) as task:
        await task.put([sent("fleet/a", {}, key="k"), sent("fleet/a", {}, 1), sent("+/x", {}, 2, key="k")])
    assert lines(server.got[0])[0] == {"index": {"_index": "fleet", "_id": "k"}}
    assert server.got[0].headers["authorization"] == "ApiKey abc"
    assert reasons(context) == [
        "the key of the message is not an id of 1 to 512 bytes",
        "'+' cannot be the name of an index",
    ]


async def test_another_node_is_asked_when_one_is_away(server: Server) -> None:
    server.answer = answered
    given = {"connection.url": f"http://127.0.0.1:1,{server.url}", "retry.backoff.ms": "1"}
    async with started(ElasticsearchSink(), Context(), **given) as task:
        await task.put([sent("fleet/a", {})])
    assert len(server.got) == 1


@pytest.mark.parametrize("text", ["<html>", "{}", '{"items": []}', '{"items": [{"index": {}}]}'])
async def test_another_answer_ends_the_task(server: Server, text: str) -> None:
    server.answer = lambda got: web.Response(text=text)
    async with started(ElasticsearchSink(), Context(), connection_url=server.url) as task:
        with pytest.raises(ConnectError, match="the answer is"):
            await task.put([sent("fleet/a", {})])
