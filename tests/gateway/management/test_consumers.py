"""Messages that programs without an SDK publish and receive over HTTP."""

import asyncio
import logging
from base64 import b64encode
from typing import Any

import pytest

from cloud_sdk import Client
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.management.test_http_api import ask
from tests.gateway.people import set_rules
from tests.waiting import patience

RECEIVE, ACKNOWLEDGE = "groups/g/messages:receive", "groups/g/messages:acknowledge"


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Everybody may publish and be a member of groups."""
    made = await make_node()
    await set_rules(made, "", "allow both #", "allow * group:*")
    return made


async def publish(node: Node, *topics: str) -> list[int]:
    """Messages of these topics, with their numbers. Returns their positions."""
    messages = [{"topic": topic, "text": str(number), "qos": 1} for number, topic in enumerate(topics)]
    status, reply = await ask(node, "POST", "messages:publish", {"messages": messages})
    assert status == 200, reply
    return list(map(int, reply["positions"]))


async def receive(node: Node, **fields: object) -> list[dict[str, Any]]:
    status, reply = await ask(node, "POST", RECEIVE, {"parent": "home", "from_earliest": True, **fields})
    assert status == 200, reply
    found: list[dict[str, Any]] = reply["messages"]
    return found


async def settle(node: Node, **fields: object) -> list[str]:
    """Returns the receipts that had expired."""
    status, reply = await ask(node, "POST", ACKNOWLEDGE, {"parent": "home", **fields})
    assert status == 200, reply
    expired: list[str] = reply["expired"]
    return expired


def texts(received: list[dict[str, Any]]) -> list[str]:
    return sorted(each["message"]["text"] for each in received)


async def test_what_is_published_is_received_and_acknowledged(node: Node) -> None:
    positions = await publish(node, "home/a", "home/b", "home/a")
    assert positions == sorted(positions)
    received = await receive(node)
    assert texts(received) == ["0", "1", "2"]
    by_position = {int(each["message"]["position"]): each for each in received}
    assert list(by_position) and set(by_position) == set(positions)
    assert {each["deliveries"] for each in received} == {1}
    assert by_position[positions[1]]["message"]["topic"] == "home/b"
    assert await receive(node) == [], "all of them are leased"
    receipts = [each["receipt"] for each in received]
    assert await settle(node, done=receipts) == []
    assert sorted(await settle(node, done=receipts)) == sorted(receipts), "they are finished already"


async def test_bytes_properties_and_delays(node: Node) -> None:
    message = {"topic": "home/a", "payload": b64encode(b"\xff\0").decode(), "content_type": "x/y"}
    message |= {"properties": [{"name": "key", "value": "k"}]}
    held = {"topic": "$delayed/1000/home/a", "text": "later"}
    status, _ = await ask(node, "POST", "messages:publish", {"messages": [message, held]})
    assert status == 200
    (received,) = await receive(node)
    found = received["message"]
    assert (found["payload"], found["content_type"]) == (message["payload"], "x/y")
    assert found["properties"] == message["properties"]
    assert "text" not in found


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"topic": "home/#", "text": "x"}, "message 2 of 2: 'home/#' is not a topic"),
        ({"topic": "home/a", "qos": 3}, "message 2 of 2: a QoS is 0, 1 or 2"),
        ({"topic": "$SYS/x", "text": "x"}, "message 2 of 2: "),
        ({"topic": "$delayed/x/home", "text": "x"}, "message 2 of 2: "),
        ({"topic": "home/a", "content_type": "x" * 70_000}, "message 2 of 2: "),
    ],
)
async def test_a_call_stores_all_messages_or_none(node: Node, second: dict[str, object], says: str) -> None:
    messages = [{"topic": "home/a", "text": "x"}, second]
    status, reply = await ask(node, "POST", "messages:publish", {"messages": messages})
    assert (status, reply["code"]) == (400, "INVALID_ARGUMENT")
    assert says in reply["message"]
    assert await receive(node) == []


async def test_a_topic_that_may_not_be_published_to_refuses_all(node: Node) -> None:
    await set_rules(node, "", "allow both home/#", "allow * group:*")
    messages = [{"topic": "home/a", "text": "x"}, {"topic": "away/a", "text": "x"}]
    status, reply = await ask(node, "POST", "messages:publish", {"messages": messages})
    assert (status, reply["code"]) == (403, "PERMISSION_DENIED")
    assert await receive(node) == []


@pytest.mark.parametrize("count", [0, 1001])
async def test_the_number_of_messages_of_a_call(node: Node, count: int) -> None:
    messages = [{"topic": "home/a", "text": "x"}] * count
    assert (await ask(node, "POST", "messages:publish", {"messages": messages}))[0] == 400


async def test_a_call_waits_for_a_message(node: Node) -> None:
    waiting = asyncio.create_task(receive(node, wait_ms=20_000))
    await publish(node, "home/a")
    async with patience():
        assert texts(await waiting) == ["0"]


async def test_failed_messages_come_again_and_are_dead_letters_at_last(node: Node) -> None:
    await publish(node, "home/a", "home/b")
    first, second = await receive(node)
    failed = [{"receipt": first["receipt"], "delay_ms": 0, "error": "no room"}]
    assert await settle(node, failed=failed, unhandled=[second["receipt"]]) == []
    again: list[dict[str, Any]] = []
    async with patience():
        while len(again) < 2:
            again += await receive(node, wait_ms=1_000, max_deliveries=2)
    assert {each["message"]["text"]: each["deliveries"] for each in again} == {
        first["message"]["text"]: 2,
        second["message"]["text"]: 1,
    }
    receipts = {each["message"]["text"]: each["receipt"] for each in again}
    last = {"receipt": receipts[first["message"]["text"]], "delay_ms": 0, "error": "no room"}
    assert await settle(node, failed=[last], done=[receipts[second["message"]["text"]]], max_deliveries=2) == []
    status, reply = await ask(node, "GET", "groups/g/dead-letters")
    assert status == 200
    (letter,) = reply["dead_letters"]
    assert (letter["reason"], letter["error"], letter["deliveries"]) == ("FAILED", "no room", 2)


async def test_members_of_the_sdk_share_the_group(node: Node) -> None:
    await publish(node, *["home/a"] * 5)
    taken = await receive(node, limit=2)
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client, client.consumer("g", "home") as consumer:
        others = await consumer.batch(5.0)
        await consumer.ack(others)
    assert len(taken) == 2
    assert sorted(texts(taken) + [each.payload.decode() for each in others]) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        (RECEIVE, {"parent": "home/x"}, "is not a parent topic"),
        (RECEIVE, {"parent": "home", "wait_ms": 20_001}, "waits at most 20000 ms"),
        (RECEIVE, {"parent": "home", "lease_ms": 1 << 31}, "a lease has at most"),
        (RECEIVE, {"parent": "home", "limit": 1001}, "at most 1000"),
        (RECEIVE, {"parent": "home", "max_deliveries": 1 << 20}, "max_deliveries"),
        ("groups/$share%2Fg%2Fhome/messages:receive", {"parent": "home"}, "belongs to an MQTT shared subscription"),
        (ACKNOWLEDGE, {"parent": "home", "done": ["0-1"]}, "'0-1' is not a receipt"),
        (ACKNOWLEDGE, {"parent": "home", "done": ["0-1-1-"]}, "is not a receipt"),
        (ACKNOWLEDGE, {"parent": "home", "done": ["0--1"]}, "is not a receipt"),
        (ACKNOWLEDGE, {"parent": "home", "done": ["0-1-256"]}, "is not a receipt"),
        (ACKNOWLEDGE, {"parent": "home", "done": [f"0-{10**19}-1"]}, "is not a receipt"),
        (ACKNOWLEDGE, {"parent": "home", "done": ["999-1-1"]}, "there is no partition 999"),
        (ACKNOWLEDGE, {"parent": "home", "failed": [{"receipt": "0-1-1", "error": "x" * 257}]}, "at most 256 bytes"),
        (ACKNOWLEDGE, {"parent": "home", "failed": [{"receipt": "0-1-1", "delay_ms": 1 << 31}]}, "a delay is at most"),
    ],
)
async def test_requests_that_are_wrong(node: Node, path: str, fields: dict[str, object], says: str) -> None:
    status, reply = await ask(node, "POST", path, fields)
    assert (status, reply["code"]) == (400, "INVALID_ARGUMENT")
    assert says in reply["message"]


async def test_traffic_leaves_no_lines(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.management")
    await publish(node, "home/a")
    await settle(node, done=[each["receipt"] for each in await receive(node)])
    assert not caplog.records


async def test_waiting_consumers_leave_room_for_administration(node: Node) -> None:
    body = {"parent": "home", "wait_ms": 20_000}
    waiting = {asyncio.create_task(ask(node, "POST", RECEIVE, body)) for _ in range(17)}
    async with patience():
        (refused,), waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result()[0] == 429
    assert (await ask(node, "GET", "groups"))[0] == 200
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
