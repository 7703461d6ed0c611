"""Commits with more deliveries than one turn of the loop makes: every session gets every message, once and in order."""

import asyncio

import pytest

from gateway.node.node import Node
from tests.gateway.delivery.test_router import session, subscribe
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers

SUBSCRIBERS = 90
MESSAGES = 100  # in one read, so in one commit


async def publish_at_once(node: Node, *payloads: bytes) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher", 5)
    client.send(*[wire.publish(5, b"t/x", payload, 1, number + 1) for number, payload in enumerate(payloads)])
    for _ in payloads:
        await client.expect(PUBACK)
    await client.disconnect()


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_session_that_could_catch_up_between_two_turns_waits(node: Node, is_durable: bool) -> None:
    """Else it would read, and get from the store, what the router is about to offer it."""
    client = await (durable if is_durable else clean)(node, b"c", receive_maximum=20)
    await client.subscribe((b"t/#", 1))
    await publish_at_once(node, *numbers(0, 25))
    unanswered = [await client.message() for _ in range(20)]
    for number in range(2000):
        subscribe(node._router, session(number), b"t/x")
    publishing = asyncio.create_task(publish_at_once(node, *numbers(25, 60)))
    while not node._router.is_delivering:  # noqa: ASYNC110  each turn of the loop counts
        await asyncio.sleep(0)
    client.send(*[ack(PUBACK, message.packet_id) for message in unanswered])
    got = unanswered + await client.take(40)
    await publishing
    assert [message.payload for message in got] == numbers(0, 60)
    await client.quiet()


@pytest.mark.parametrize("is_durable", [False, True])
async def test_sessions_that_fall_behind_meanwhile(node: Node, is_durable: bool) -> None:
    """Those with little room read on from the store, and begin when all others have the commit."""
    clients = []
    for number in range(SUBSCRIBERS):
        options = {"receive_maximum": 7} if number % 2 else {}
        connect = durable if is_durable else clean
        clients.append(await connect(node, b"c%d" % number, **options))
        assert await clients[-1].subscribe((b"t/+", 1), (b"t/x", number % 2)) == bytes([1, number % 2])
    payloads = numbers(0, MESSAGES)
    taking = [asyncio.create_task(client.take(MESSAGES)) for client in clients]
    await publish_at_once(node, *payloads)
    for taken in taking:
        assert [message.payload for message in await taken] == payloads
    for client in clients:
        await client.quiet()


async def clean(node: Node, client_id: bytes, **options: int) -> RawClient:
    return await RawClient.connect(node.ports.mqtt, client_id, 5, **options)


async def test_a_session_that_ends_meanwhile_continues_where_it_was(node: Node) -> None:
    clients = [await durable(node, b"c%d" % number) for number in range(SUBSCRIBERS)]
    for client in clients:
        await client.subscribe((b"t/#", 1))
    payloads = numbers(0, MESSAGES)
    publishing = asyncio.create_task(publish_at_once(node, *payloads))
    got = []
    for number in (0, SUBSCRIBERS - 1):
        first = await clients[number].message()  # not acknowledged
        await clients[number].drop()
        clients[number] = await durable(node, b"c%d" % number)
        got.append(first.payload)
    await publishing
    assert got == [payloads[0]] * 2
    for client in clients:
        assert [message.payload for message in await client.take(MESSAGES)] == payloads


async def test_a_client_that_publishes_and_unsubscribes_in_one_write_gets_its_messages(node: Node) -> None:
    others = [await clean(node, b"c%d" % number) for number in range(SUBSCRIBERS)]
    for other in others:
        await other.subscribe((b"t/#", 0))
    client = await clean(node, b"own")
    await client.subscribe((b"t/#", 0))
    payloads = numbers(0, MESSAGES)
    client.send(*[wire.publish(5, b"t/x", payload) for payload in payloads], wire.unsubscribe(5, 9, b"t/#"))
    assert [(await client.message()).payload for _ in payloads] == payloads
