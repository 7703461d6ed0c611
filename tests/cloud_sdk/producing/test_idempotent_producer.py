"""Producers that come back: work that is begun again, by whoever, is stored once."""

import asyncio

import pytest

from cloud_sdk import Client, InvalidArgument, OutgoingMessage, Receipt
from cloud_sdk.blocking import Client as BlockingClient
from cloud_sdk.message import STORED
from store.api import topic_queue
from tests.cloud_sdk.conftest import Node


def messages(first: int, last: int) -> list[OutgoingMessage]:
    return [OutgoingMessage("results/x", b"%d" % number) for number in range(first, last)]


async def do(client: Client, number: int, *calls: list[OutgoingMessage]) -> list[list[Receipt]]:
    """A whole piece of work."""
    async with client.idempotent_producer("work", number) as producer:
        return [await producer.send_many(call) for call in calls]


async def stored(node: Node) -> int:
    return (await node.engine.bounds(topic_queue(b"results/x"))).end


async def known(node: Node) -> list[bytes]:
    return [row.producer for row in await node.engine.producers(None, 10)]


async def until_known(node: Node, expected: list[bytes]) -> None:
    """That a producer has ended is appended when its stream has ended."""
    while await known(node) != expected:  # noqa: ASYNC110  of what has no events
        await asyncio.sleep(0.01)


async def test_work_that_is_done_again_is_completed(node: Node, client: Client) -> None:
    """Requests have at most 2,048 records: the first attempt stores some of the calls, and the second all."""
    async with client.idempotent_producer("work", 7) as first:
        await first.send_many(messages(0, 5_000))
    assert await stored(node) == 5_000
    await node.stop()  # and what is known of it is known to the store
    await node.start()
    async with Client(node.endpoint) as other, other.idempotent_producer("work", 7) as again:
        assert set(await again.send_many(messages(0, 5_000))) == {STORED}
        receipts = await again.send_many(messages(5_000, 6_000))
        assert STORED not in receipts
    assert await stored(node) == 6_000
    async with client.idempotent_producer("work", 8) as following:
        await following.send_many(messages(0, 1))
    with pytest.raises(InvalidArgument, match="unit 8 of the work was done before this one, number 7"):
        await do(client, 7, messages(0, 5_000))
    assert await stored(node) == 6_001


async def test_work_that_is_not_the_same_is_refused(node: Node, client: Client) -> None:
    """Wherever it differs: nothing is stored twice, and nothing that is not stored is taken for stored in silence."""
    work = [*messages(0, 3_000), *messages(3_000, 6_000)]
    await do(client, 7, work[:3_000], work[3_000:5_000])
    await node.stop()  # and what is known of it is known to the store
    await node.start()
    first_half, second_half = work[:3_000], work[3_000:]
    others = [
        ([*first_half[1::-1], *first_half[2:]], second_half),
        (first_half, [*second_half[:1_999], second_half[0], *second_half[2_000:]]),
        (first_half, second_half[:1_500]),
        (first_half[:2_000], [*first_half[2_000:], *second_half]),
    ]
    async with Client(node.endpoint) as other:
        for calls in others:
            with pytest.raises(InvalidArgument, match="when this work was done before"):
                await do(other, 7, *calls)
        with pytest.raises(InvalidArgument, match="had more messages"):
            await do(other, 7, first_half)
        assert await stored(node) == 5_000
        *_, rest = await do(other, 7, first_half, work[3_000:5_000], work[5_000:])
        assert STORED not in rest
    assert await stored(node) == 6_000


async def test_messages_that_are_held_for_a_while_are_the_same_later(node: Node, client: Client) -> None:
    def work(delay: float) -> list[OutgoingMessage]:
        return [OutgoingMessage("results/x", b"", deliver_after=delay)]

    for _ in range(2):
        await do(client, 0, work(3_600.0))
    with pytest.raises(InvalidArgument, match="other messages"):
        await do(client, 0, work(3_601.0))


async def test_names_are_apart_and_can_be_forgotten(node: Node, client: Client) -> None:
    for name in ("a", "b", "a"):
        async with client.idempotent_producer(name, 0) as producer:
            await producer.send_many(messages(0, 10))
    assert await stored(node) == 20
    assert await known(node) == [b"returning//61", b"returning//62"]
    await client.forget_producer("a")
    await client.forget_producer("never")
    await until_known(node, [b"returning//62"])
    async with client.idempotent_producer("a", 0) as producer:
        await producer.send_many(messages(0, 10))
    assert await stored(node) == 30


async def test_two_producers_at_once_store_the_work_once(node: Node, client: Client) -> None:
    async with Client(node.endpoint) as other:
        older = client.idempotent_producer("work", 0)
        await older.send_many(messages(0, 10))
        newer = other.idempotent_producer("work", 0)
        await newer.send_many(messages(0, 10))
        await newer.send_many(messages(10, 20))
        assert set(await older.send_many(messages(10, 20))) == {STORED}
        await newer.close()
        await older.close()
    assert await stored(node) == 20


async def test_empty_work_and_invalid_names(client: Client) -> None:
    async with client.idempotent_producer("work", 0) as producer:
        assert await producer.send_many([]) == []
    for name, number in (("", 0), ("x" * 65, 0), ("x", -1), ("x", 1 << 39)):
        with pytest.raises(InvalidArgument):
            client.idempotent_producer(name, number)


async def test_the_blocking_client_sends_once(node: Node) -> None:
    def work() -> None:
        with BlockingClient(node.endpoint) as client:
            for _ in range(2):
                with client.idempotent_producer("work", 0) as producer:
                    producer.send_many(messages(0, 3))
            client.forget_producer("work")

    await asyncio.to_thread(work)
    assert await stored(node) == 3
    await until_known(node, [])


async def test_a_client_with_a_longer_name_may_repeat_the_work(node: Node) -> None:
    """Requests end where 512 KiB are full: at the same message, whoever sends them."""
    work = [OutgoingMessage("results/x", b"%0400d" % number) for number in range(2_000)]
    refused = OutgoingMessage("results/x", b"", deliver_after=60 * 86_400)
    async with Client(node.endpoint, name="worker-9") as client:
        with pytest.raises(InvalidArgument, match="it is due"):
            await do(client, 7, [*work, refused])
    begun = await stored(node)
    assert 0 < begun < 2_000
    for name in ("worker-10", "w" * 64):
        async with Client(node.endpoint, name=name) as client:
            await do(client, 7, work)
    assert await stored(node) == 2_000
