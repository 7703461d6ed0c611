"""Consumers: at least once, across members, leases and restarts."""

import asyncio

import pytest

from cloud_sdk import Client, ClientClosed, Consumer, InvalidArgument, OutgoingMessage


async def fill(client: Client, count: int, topics: int = 8) -> set[bytes]:
    messages = [OutgoingMessage(f"home/{i % topics}", b"%d" % i) for i in range(count)]
    await client.send_many(messages)
    return {message.payload for message in messages}


async def drain(consumer: Consumer, wait_seconds: float = 0.05) -> list[bytes]:
    payloads: list[bytes] = []
    while (message := await consumer.next(wait_seconds)) is not None:
        payloads.append(message.payload)
        await message.ack()
    return payloads


async def test_a_consumer_gets_everything_once(client: Client) -> None:
    sent = await fill(client, 1_000)
    async with client.consumer("g", "home", max_records=64) as consumer:
        received = await drain(consumer)
    assert (len(received), set(received)) == (1_000, sent)
    async with client.consumer("g", "home") as consumer:
        assert await drain(consumer) == []


async def test_members_share(node, client: Client) -> None:
    received: list[bytes] = []

    async def member() -> None:
        async with Client(node.endpoint) as own, own.consumer("g", "home", max_records=20) as consumer:
            async for message in consumer:
                received.append(message.payload)
                await message.ack()

    members = [asyncio.create_task(member()) for _ in range(3)]
    sent = await fill(client, 600)
    async with asyncio.timeout(20):
        while len(received) < 600:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for each in members:
        each.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    assert (len(received), set(received)) == (600, sent)


async def test_what_is_not_acknowledged_comes_again(client: Client) -> None:
    sent = await fill(client, 20)
    async with client.consumer("g", "home", invisible_seconds=0.2) as consumer:
        lost = await consumer.batch(5)
        assert {message.payload for message in lost} == sent
        again: set[bytes] = set()
        while again != sent:
            again.update(message.payload for message in await consumer.batch(5))


async def test_closing_gives_back_what_was_not_handed_out(client: Client) -> None:
    await fill(client, 10, topics=1)
    async with client.consumer("g", "home") as first:
        message = await anext(first)
        await message.ack()
    async with client.consumer("g", "home") as second:
        assert sorted(await drain(second)) == [b"%d" % i for i in range(1, 10)]
    with pytest.raises(ClientClosed):
        await second.next(0)


async def test_release_delivers_again_at_once(client: Client) -> None:
    await fill(client, 1)
    async with client.consumer("g", "home") as consumer:
        first = await anext(consumer)
        await first.release()
        second = await anext(consumer)
        assert (first.payload, first.lease != second.lease) == (second.payload, True)


async def test_a_batch_is_what_is_at_hand(client: Client) -> None:
    await fill(client, 30)
    async with client.consumer("g", "home") as consumer:
        batch = await consumer.batch(5)
        assert len(batch) == 30
        await consumer.ack(batch)
        await consumer.flush()
        assert await consumer.batch(0) == []


async def test_latest_means_from_now_on(client: Client) -> None:
    await fill(client, 5)
    async with client.consumer("g", "home", start="latest") as consumer:
        assert await consumer.next(0) is None
        await client.send("home/t", b"new")
        assert (await anext(consumer)).payload == b"new"


async def test_a_buffer_whose_leases_ran_out_is_not_handed_out(client: Client) -> None:
    await fill(client, 10, topics=1)
    async with client.consumer("g", "home", invisible_seconds=0.2) as slow, client.consumer("g", "home") as other:
        await anext(slow)
        assert len(await other.batch(20)) == 10
        assert await slow.next(0) is None


async def test_consuming_goes_on_after_a_restart(node, client: Client) -> None:
    sent = await fill(client, 300)
    received: list[bytes] = []
    async with client.consumer("g", "home", max_records=50) as consumer:
        for _ in range(100):
            message = await anext(consumer)
            received.append(message.payload)
            await message.ack()
        await consumer.flush()
        await node.stop()
        await node.start()
        async with asyncio.timeout(20):
            while len(set(received)) < 300:
                message = await anext(consumer)
                received.append(message.payload)
                await message.ack()
    assert set(received) == sent
    async with client.consumer("g", "home") as consumer:
        assert await drain(consumer) == []


async def test_wrong_arguments_have_names(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="start is one of"):
        client.consumer("g", "home", start="newest")
    for wrong in (
        client.consumer("", "home"),
        client.consumer("g", "home/t"),
        client.consumer("g", "home", invisible_seconds=0),
    ):
        with pytest.raises(InvalidArgument):
            await wrong.next(0)


async def test_flush_tells_of_acknowledgements_that_came_too_late(node, client: Client) -> None:
    await fill(client, 2, topics=1)
    async with client.consumer("g", "home", invisible_seconds=0.3) as consumer:
        first = await consumer.next(5)
        second = await consumer.next(5)
        assert first is not None and second is not None
        await first.ack()
        assert await consumer.flush() == 0
        again = await consumer.next(10)  # its lease ran out
        assert again is not None and again.payload == second.payload
        await second.ack()
        assert await consumer.flush() == 1
        await again.ack()
        assert await consumer.flush() == 0
    async with client.consumer("g", "home") as consumer:
        await fill(client, 1, topics=1)
        held = await consumer.next(5)
        assert held is not None
        await node.stop()
        await node.start()
        await held.ack()
        assert await consumer.flush() == 1
