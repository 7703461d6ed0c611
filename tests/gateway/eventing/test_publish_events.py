"""`POST /events`: CloudEvents over HTTP, whose id makes them be stored once."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.eventing.rules import events_of, payloads
from tests.gateway.people import set_rules, set_user

EVENT = {"specversion": "1.0", "id": "e1", "source": "/meters", "type": "reading", "subject": "in/a", "data": {"t": 1}}
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
ANN = {"Authorization": "Basic " + b64encode(b"ann:secret").decode()}
BOB = {"Authorization": "Basic " + b64encode(b"bob:secret").decode()}


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    made = await make_node(http__auth=["password"])
    await set_user(made, "ann", b"secret")
    await set_rules(made, "ann", "allow publish in/#")
    return made


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=ANN) as made:
        yield made


async def post(
    node: Node, client: aiohttp.ClientSession, body: object, kind: str = STRUCTURED, query: str = "", **headers: str
) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://127.0.0.1:{node.ports.http}/events{query}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(url, data=data, headers={"Content-Type": kind, **named}) as answer:
        return answer.status, await answer.json()


async def test_events_in_all_modes(node: Node, client: aiohttp.ClientSession) -> None:
    status, reply = await post(node, client, EVENT)
    assert (status, reply["repeated_events"]) == (200, 0)
    batch = [{**EVENT, "id": "e2"}, {**EVENT, "id": "e3", "subject": "in/b", "data": "text", "datacontenttype": "a/b"}]
    status, reply = await post(node, client, batch, BATCH)
    assert (status, len(reply["positions"])) == (200, 2)
    attributes = {"ce_specversion": "1.0", "ce_id": "e4", "ce_source": "/m", "ce_type": "t", "ce_site": "n%C3%B6rd"}
    status, _ = await post(node, client, b"21.5", "text/plain", "?topic=in/a", **attributes)
    assert status == 200
    first, _, last = await events_of(node, "in/a")
    assert first.publisher == b"ann"
    assert first.attributes | {"time": ""} == {
        **{name: value for name, value in EVENT.items() if name not in ("specversion", "data")},
        "datacontenttype": "application/json",
        "key": "e1",
        "time": "",
    }
    assert first.body == {"t": 1}
    assert (last.payload, last.attributes["site"], last.attributes["datacontenttype"]) == (
        b"21.5",
        "nörd",
        "text/plain",
    )
    assert await payloads(node, "in/b") == ["text"]


async def test_an_event_is_stored_once(node: Node, client: aiohttp.ClientSession, make_node: MakeNode) -> None:
    replies = await asyncio.gather(*[post(node, client, EVENT) for _ in range(5)])
    positions = {tuple(reply["positions"]) for _, reply in replies}
    assert len(positions) == 1
    assert sum(reply["repeated_events"] for _, reply in replies) == 4
    status, reply = await post(node, client, [EVENT, {**EVENT, "id": "e2"}, {**EVENT, "id": "e2"}], BATCH)
    assert (status, reply["repeated_events"]) == (200, 2)
    assert reply["positions"][0] == next(iter(positions))[0]
    assert reply["positions"][1] == reply["positions"][2]
    # The same id of another source is another event.
    await post(node, client, {**EVENT, "source": "/others"})
    assert len(await events_of(node, "in/a")) == 3
    # Nobody keeps out the events of others.
    await set_user(node, "bob", b"secret")
    await set_rules(node, "bob", "allow publish in/#")
    async with aiohttp.ClientSession(headers=BOB) as bob:
        status, reply = await post(node, bob, EVENT)
        assert (status, reply["repeated_events"]) == (200, 0)
    # Another process finds it in the log.
    again = await crashed(make_node, node, "again", http__auth=["password"])
    status, reply = await post(again, client, EVENT)
    assert (status, reply["repeated_events"]) == (200, 1)
    assert tuple(reply["positions"]) in positions


async def _post_id(node: Node, event_id: bytes) -> bytes:
    """Post an event in binary mode with these bytes as its id. Returns the first line of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.ports.http)
    given = [b"ce-specversion: 1.0", b"ce-source: /m", b"ce-type: t", b"ce-subject: in/a", b"ce-id: " + event_id]
    basic = ANN["Authorization"].encode()
    head = [b"POST /events HTTP/1.1", b"Host: x", b"Content-Length: 0", b"Authorization: " + basic, *given, b"", b""]
    writer.write(b"\r\n".join(head))
    line = await reader.readline()
    writer.close()
    return line.strip()


async def test_events_that_are_refused(node: Node, client: aiohttp.ClientSession) -> None:
    for body, kind, expected, why in (
        ({**EVENT, "specversion": "2"}, STRUCTURED, 400, "specversion is 1.0"),
        ({**EVENT, "subject": "in/#"}, STRUCTURED, 400, "its topic 'in/#' is none"),
        ({**EVENT, "subject": "$SYS/x"}, STRUCTURED, 400, "is none to publish to"),
        ({**EVENT, "subject": "out/a"}, STRUCTURED, 403, "PUB topic:out/a"),
        (EVENT, "application/json", 400, "this is no event"),
        ([EVENT, {**EVENT, "id": ""}], BATCH, 400, "'id' is required"),
    ):
        status, reply = await post(node, client, body, kind)
        assert (status, why in reply["message"]) == (expected, True), reply
    status, reply = await post(node, client, EVENT, query="?subject=x")
    assert (status, "may have a topic" in reply["message"]) == (400, True)
    status_line = await _post_id(node, b"\xff")
    assert status_line.endswith(b" 400 Bad Request"), "bytes in a header that are no UTF-8"
    async with aiohttp.ClientSession() as nobody:
        status, _ = await post(node, nobody, EVENT)
        assert status == 401
    assert not await events_of(node, "in/a"), "all of a batch are stored, or none"
