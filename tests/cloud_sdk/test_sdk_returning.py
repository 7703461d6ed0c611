"""Producers that come back: work that is begun again, by whoever, is stored once."""

import asyncio

import pytest

from cloud_sdk import Client, InvalidArgument, OutgoingMessage
from cloud_sdk.blocking import Client as BlockingClient
from cloud_sdk.message import STORED
from store.api import topic_queue
from tests.cloud_sdk.conftest import Node


def messages(first: int, last: int) -> list[OutgoingMessage]:
    return [OutgoingMessage("results/x", b"%d" % number) for number in range(first, last)]


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
    async with client.returning_producer("work", 7) as first:
        await first.send_many(messages(0, 5_000))
    assert await stored(node) == 5_000
    await node.stop()  # and what is known of it is known to the store
    await node.start()
    async with Client(node.endpoint) as other, other.returning_producer("work", 7) as again:
        assert set(await again.send_many(messages(0, 5_000))) == {STORED}
        receipts = await again.send_many(messages(5_000, 6_000))
        assert STORED not in receipts
    assert await stored(node) == 6_000
    async with client.returning_producer("work", 8) as following:
        await following.send_many(messages(0, 1))
    async with client.returning_producer("work", 7) as late:
        assert set(await late.send_many(messages(0, 5_000))) == {STORED}
    assert await stored(node) == 6_001


async def test_names_are_apart_and_can_be_forgotten(node: Node, client: Client) -> None:
    for name in ("a", "b", "a"):
        async with client.returning_producer(name, 0) as producer:
            await producer.send_many(messages(0, 10))
    assert await stored(node) == 20
    assert await known(node) == [b"returning//61", b"returning//62"]
    await client.forget_producer("a")
    await client.forget_producer("never")
    await until_known(node, [b"returning//62"])
    async with client.returning_producer("a", 0) as producer:
        await producer.send_many(messages(0, 10))
    assert await stored(node) == 30


async def test_two_at_once_store_it_once(node: Node, client: Client) -> None:
    async with Client(node.endpoint) as other:
        older = client.returning_producer("work", 0)
        await older.send_many(messages(0, 10))
        newer = other.returning_producer("work", 0)
        await newer.send_many(messages(0, 10))
        await newer.send_many(messages(10, 20))
        assert set(await older.send_many(messages(10, 20))) == {STORED}
        await newer.close()
        await older.close()
    assert await stored(node) == 20


async def test_a_piece_without_messages_and_names_that_are_none(client: Client) -> None:
    async with client.returning_producer("work", 0) as producer:
        assert await producer.send_many([]) == []
    for name, number in (("", 0), ("x" * 65, 0), ("x", -1), ("x", 1 << 39)):
        with pytest.raises(InvalidArgument):
            client.returning_producer(name, number)


async def test_the_blocking_face(node: Node) -> None:
    def work() -> None:
        with BlockingClient(node.endpoint) as client:
            for _ in range(2):
                with client.returning_producer("work", 0) as producer:
                    producer.send_many(messages(0, 3))
            client.forget_producer("work")

    await asyncio.to_thread(work)
    assert await stored(node) == 3
    await until_known(node, [])
