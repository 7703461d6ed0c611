"""The management surface over HTTP: how requests are read, what is refused, and its OpenAPI description."""

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from gateway.management.methods import METHODS
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import store_messages
from tests.gateway.people import set_rules
from tests.gateway.raw import DISCONNECT, RawClient
from tests.openapi.description import FILE, text
from tests.waiting import patience, until


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Everybody may do everything."""
    made = await make_node()
    await set_rules(
        made, "", "allow both #", "allow * group:*", "allow * session:*", "allow * cluster:*", "allow LIST,GET topic:#"
    )
    return made


async def ask(
    node: Node, verb: str, path: str, body: object = None, content_type: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of an answer. body: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{node.ports.http}/api/v1/{path}"
    headers = {"Content-Type": content_type} if data is not None else {}
    async with aiohttp.ClientSession() as session, session.request(verb, url, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_names_with_slashes_and_signs_are_in_the_path(node: Node) -> None:
    await store_messages(node, (b"home/t", b"x"))
    status, topic = await ask(node, "GET", "topics/home%2Ft")
    assert (status, topic["topic"], topic["end"], topic["last"]["text"]) == (200, "home/t", "1", "x")
    client = await RawClient.connect(node.ports.mqtt, b"a/+:x %2F", 5)
    status, found = await ask(node, "GET", "clients/a%2F%2B%3Ax%20%252F")
    assert (status, found["client_id"], found["subscriptions"]) == (200, "a/+:x %2F", [])
    assert (await ask(node, "POST", "clients/a%2F%2B%3Ax%20%252F:kick", {}))[0] == 200
    assert (await client.expect(DISCONNECT)).reason == 0x98


async def test_fields_are_in_the_query_and_in_the_body(node: Node) -> None:
    body = {"text": "21", "qos": 1, "properties": [{"name": "key", "value": "k"}]}
    status, reply = await ask(node, "POST", "topics/home%2Ft/messages", body)
    assert (status, list(reply)) == (200, ["position"])
    status, reply = await ask(node, "GET", f"messages/{reply['position']}")
    assert (status, reply["payload"], reply["text"], reply["is_json"]) == (200, "MjE=", "21", False)
    assert (await ask(node, "GET", "clients?connected=true&limit=1"))[1] == {"clients": []}
    assert (await ask(node, "GET", "messages?parent=home&key=k"))[1]["messages"][0]["text"] == "21"
    for positions in ([7], ["7"]):  # 64-bit numbers may be numbers or texts
        assert (await ask(node, "POST", "timers:recall", {"positions": positions}))[1] == {"missing": ["7"]}


@pytest.mark.parametrize(
    ("verb", "path", "body", "says"),
    [
        ("GET", "topics?nothing=1", None, "ListTopics has no field 'nothing'"),
        ("GET", "topics?limit=x", None, "limit"),
        ("GET", "topics?limit=1&limit=2", None, "limit is there more than once"),
        ("GET", "topics?limit=-1", None, "limit"),
        ("GET", "clients?connected=yes", None, "connected"),
        ("GET", "topics/a?topic=b", None, "topic is in the path"),
        ("GET", "messages/x", None, "position"),
        ("POST", "timers:recall", b"{", "the body is not JSON"),
        ("POST", "timers:recall", b"[" * 100_000, "the body is not JSON"),
        ("POST", "timers:recall", [], "the body is not a JSON object"),
        ("POST", "timers:recall", {"nothing": 1}, "nothing"),
        ("POST", "timers:recall", {"positions": 7}, "positions"),
        ("POST", "timers:recall?positions=1", {}, "takes its fields in the body"),
        ("POST", "groups/g:reset", {"group": "h"}, "group is in the path"),
        ("POST", "timers:recall", b"x" * ((1 << 20) + 1), "the body is too large"),
        ("POST", "timers:recall", {"positions": [1] * 1001}, "positions has 1001 values"),
        ("PUT", "rules", {}, "say whose rules these are"),
        ("PUT", "rules", {"rules": ["allow both #"]}, "say whose rules these are"),
        ("POST", "transactions:end", {"positions": [1]}, "say whether to commit"),
        ("POST", "rules:check", b'{"does": "\\ud800"}', "the body is not JSON"),
        ("POST", "rules:check", b'{"does": 1e400}', "the body is not JSON"),
    ],
)
async def test_malformed_requests(node: Node, verb: str, path: str, body: object, says: str) -> None:
    status, answer = await ask(node, verb, path, body)
    assert (status, answer["code"]) == (400, "INVALID_ARGUMENT")
    assert says in answer["message"]


async def test_names_with_braces_and_long_ones_are_in_the_path(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"{6B29FC40-CA47}", 5)
    assert (await ask(node, "GET", "clients/%7B6B29FC40-CA47%7D"))[1]["client_id"] == "{6B29FC40-CA47}"
    assert (await ask(node, "POST", "clients/%7B6B29FC40-CA47%7D:kick", {}))[0] == 200
    await client.expect(DISCONNECT)
    topic = "é" * 32_767  # 64 KiB, each byte three letters of the path
    assert (await ask(node, "GET", f"topics/{quote(topic)}"))[1]["topic"] == topic
    assert (await ask(node, "GET", f"topics/{quote(topic + 'é')}"))[1]["code"] == "INVALID_ARGUMENT"


async def test_a_body_that_is_not_compressed_as_it_says(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    url = f"http://127.0.0.1:{node.ports.http}/api/v1/timers:recall"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=b"{}", headers=headers, skip_auto_headers=["Content-Encoding"]) as answer,
    ):
        assert (answer.status, (await answer.json())["code"]) == (400, "INVALID_ARGUMENT")
    assert "Traceback" not in caplog.text


async def test_a_client_that_is_slow_with_its_body_makes_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.management.http_api._BODY_SECONDS", 0.05)
    head = b"POST /api/v1/timers:recall HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", node.ports.http)
    writer.write(head + b"Content-Length: 9\r\n\r\n{")
    async with patience():
        answer = await reader.read()  # until the node closes
    assert b"504 Gateway Timeout" in answer
    assert b"the body did not arrive" in answer
    writer.close()


async def test_a_client_that_does_not_read_its_answer_makes_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.net.bounded_http._SEND_SECONDS", 0.05)
    (position,) = await store_messages(node, (b"t", b"x" * 3_000_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.ports.http, limit=1024)
    writer.write(b"GET /api/v1/messages/%d HTTP/1.1\r\nHost: x\r\n\r\n" % position * 8)
    await until(lambda: connections_of(node) == 1)
    await until(lambda: connections_of(node) == 0)
    with suppress(ConnectionResetError):
        assert len(await reader.read()) < 8 * 3_000_000
    writer.close()


def connections_of(node: Node) -> int:
    """Connections of the HTTP port."""
    assert node._services is not None
    server = node._services.http._server._runner.server
    assert server is not None
    return len(server.connections)


async def test_a_form_of_another_web_site_changes_nothing(node: Node) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, answer = await ask(node, "POST", "timers:recall", {}, content_type)
        assert (status, answer["code"]) == (400, "INVALID_ARGUMENT")
        assert "application/json" in answer["message"]


async def test_large_replies_come_whole(node: Node) -> None:
    await store_messages(node, *[(b"t", b"x" * 10_000) for _ in range(50)])
    status, answer = await ask(node, "GET", "topics/t/messages?offset=0")
    assert (status, len(answer["messages"])) == (200, 50)
    assert [int(each["offset"]) for each in answer["messages"]] == list(range(50))
    assert {name: answer[name] for name in answer if name != "messages"} == {"begin": "0", "end": "50", "next": "50"}


async def test_a_stranger_is_asked_for_a_password(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    url = f"http://127.0.0.1:{node.ports.http}/api/v1/"
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "store") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")
            assert (await answer.json())["code"] == "UNAUTHENTICATED"
        async with session.get(url + "openapi.json") as answer:
            assert await answer.read() == FILE.read_bytes()


def test_the_description_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `make proto`"


def test_the_description_is_valid_and_has_every_method() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    described = json.loads(FILE.read_text(encoding="utf-8"))
    validator.OpenAPIV31SpecValidator(described).validate()
    operations = {
        (verb.upper(), path): operation
        for path, verbs in described["paths"].items()
        for verb, operation in verbs.items()
    }
    assert set(operations) == {(method.verb, method.path) for method in METHODS}
    assert all(operation["x-requires"] and operation["summary"] for operation in operations.values())


async def test_paths_and_verbs_that_no_method_has(node: Node) -> None:
    for path in ("nothing", "", "groups/g/h/i"):
        status, answer = await ask(node, "GET", path)
        assert (status, answer["code"]) == (404, "NOT_FOUND")
    url = f"http://127.0.0.1:{node.ports.http}/api/v1/groups/g"
    async with aiohttp.ClientSession() as session, session.patch(url) as response:
        answer = await response.json()
        assert (response.status, response.headers["Allow"]) == (405, "DELETE, GET")
        assert answer["message"] == "/api/v1/groups/g takes DELETE, GET, and not PATCH"
