"""The end of a client, and of a consumer in its own handler: what becomes of what is open.

Leases are of an hour: what is not given back does not come again within a test.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cloud_sdk import Client, ClientClosed, Delivery, Message, OutgoingMessage, blocking
from tests.cloud_sdk.conftest import Node
from tests.waiting import patience

HOUR = 3_600.0


@pytest.fixture(autouse=True)
async def nothing_is_left(node: Node, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, and no word in the log but warnings that a test looks for."""
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    before = asyncio.all_tasks()
    with caplog.at_level(logging.WARNING):
        yield
    left = [task for task in asyncio.all_tasks() - before if "cloud_sdk" in repr(task)]
    assert (left, faults) == ([], [])
    assert not [each for each in caplog.records if each.levelno > logging.WARNING or each.name == "asyncio"]


async def send(node: Node, *payloads: bytes) -> None:
    async with Client(node.endpoint) as sender:
        await sender.send_many([OutgoingMessage("home/t", each) for each in payloads])


async def unfinished(node: Node) -> int:
    async with Client(node.endpoint) as asker:
        return sum(group.lag for group in await asker.groups())


async def comes(node: Node, count: int) -> dict[bytes, int]:
    """The messages that another member of the group gets, with their numbers of deliveries."""
    got: dict[bytes, int] = {}
    async with (
        patience(),
        Client(node.endpoint) as client,
        client.consumer("g", "home", invisible_seconds=HOUR) as other,
    ):
        while len(got) < count:
            got.update({each.payload: each.deliveries for each in await other.batch(20)})
    return got


class Handler:
    """A handler that tells when it begins, and may be held up."""

    def __init__(self, then: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self._then = then

    async def __call__(self, delivery: Delivery) -> None:
        self.began.set()
        try:
            await self.may_end.wait()
            if self._then is not None:
                await self._then(delivery)
        except asyncio.CancelledError:
            self.cancelled.append(delivery.payload)
            raise
        self.ended.append(delivery.payload)


async def test_a_client_that_ends_lets_handlers_end_and_gives_back_what_none_has_begun_with(node: Node) -> None:
    await send(node, b"0", b"1")
    client = Client(node.endpoint)

    async def then(_: Delivery) -> None:
        await client.send("garden/t", b"of the handler")

    handler = Handler(then)
    pushed = client.push_consumer("g", "home", handler, concurrency=1, invisible_seconds=HOUR)
    await pushed.__aenter__()
    await handler.began.wait()
    closing = asyncio.create_task(client.close())
    assert await comes(node, 1) == {b"1": 1}
    assert not closing.done()
    handler.may_end.set()
    await closing
    assert handler.ended == [b"0"]
    assert await unfinished(node) == 1  # what the other has
    async with Client(node.endpoint) as reader:
        assert [each.payload for each in await reader.pull_consumer("garden").poll(20)] == [b"of the handler"]
    await pushed.close()
    with pytest.raises(ClientClosed):
        await pushed.wait()


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_given_back(node: Node) -> None:
    await send(node, b"0")
    client, handler = Client(node.endpoint), Handler()
    pushed = client.push_consumer("g", "home", handler, invisible_seconds=HOUR)
    await pushed.__aenter__()
    await handler.began.wait()
    await client.close(timeout=0)
    assert (handler.cancelled, handler.ended) == ([b"0"], [])
    assert await comes(node, 1) == {b"0": 2}


@pytest.mark.parametrize("whose", ["client", "consumer"])
async def test_an_end_that_is_cancelled_cancels_handlers(node: Node, whose: str) -> None:
    await send(node, b"0")
    client, handler = Client(node.endpoint), Handler()
    pushed = client.push_consumer("g", "home", handler, invisible_seconds=HOUR)
    await pushed.__aenter__()
    await handler.began.wait()
    closing = asyncio.create_task((client if whose == "client" else pushed).close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await comes(node, 1) == {b"0": 2}
    await pushed.close()
    await client.close()
    assert handler.cancelled == [b"0"]


async def test_a_client_that_ends_sends_what_a_simple_consumer_settled(node: Node) -> None:
    await send(node, b"0", b"1", b"2", b"3")
    async with Client(node.endpoint) as client:
        consumer = client.consumer("g", "home", invisible_seconds=HOUR)
        deliveries = [await consumer.next(20) for _ in range(3)]
        done, again, kept = [each for each in deliveries if each is not None]
        await done.ack()
        await again.release()
    assert kept.payload == b"2"  # stays leased
    assert await comes(node, 2) == {b"1": 2, b"3": 1}
    assert await unfinished(node) == 3
    await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.next(0)


async def test_a_client_ends_though_its_node_is_gone(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await send(node, b"0", b"1")
    client = Client(node.endpoint, retry_seconds=HOUR)
    consumer = client.consumer("g", "home", invisible_seconds=HOUR)
    pushed = client.push_consumer("h", "home", (handler := Handler()), concurrency=1)
    await pushed.__aenter__()
    await handler.began.wait()
    delivery = await consumer.next(20)
    assert delivery is not None
    await node.stop()
    await delivery.ack()
    sending = asyncio.create_task(client.send("home/t", b"x"))
    asking = asyncio.create_task(client.groups())
    await asyncio.sleep(0)
    handler.may_end.set()
    await client.close(timeout=0)
    for waiting in (sending, asking):
        with pytest.raises(ClientClosed):
            await waiting
    await pushed.close()


async def test_closing_a_client_sends_accepted_messages(node: Node) -> None:
    client = Client(node.endpoint)
    sends = [asyncio.create_task(client.send("home/t", b"%d" % number)) for number in range(100)]
    work = client.idempotent_producer("work", 1)
    sends.append(asyncio.create_task(work.send_many([OutgoingMessage("home/t", b"work")])))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await client.close()
    await asyncio.gather(*sends)
    async with Client(node.endpoint) as reader:
        assert sum(each.end for each in await reader.partitions("home")) == 101
    await work.close()


async def test_a_closing_client_begins_nothing_new(node: Node) -> None:
    client = Client(node.endpoint)
    consumer, reader = client.consumer("g", "home"), client.pull_consumer("home")
    pushed, work = client.push_consumer("g", "home", Handler()), client.idempotent_producer("work", 1)
    await client.close()
    await client.close()
    for begins in (consumer.next(0), reader.poll(0), pushed.__aenter__(), work.send_many([OutgoingMessage("a", b"")])):
        with pytest.raises(ClientClosed):
            await begins
    for each in (consumer, reader, pushed, work):
        await each.close()


@pytest.mark.parametrize("how", ["itself", "in a task", "with others"])
async def test_a_handler_closes_its_own_consumer(node: Node, how: str) -> None:
    await send(node, b"0", b"1", b"2")

    async def then(delivery: Delivery) -> None:
        if delivery.payload == b"0":
            if how == "itself":
                await pushed.close()
            elif how == "in a task":
                await asyncio.create_task(pushed.close())
            else:
                await asyncio.gather(pushed.close(), pushed.close())

    handler = Handler(then)
    async with Client(node.endpoint) as client:
        concurrency = 2 if how == "with others" else 1
        pushed = client.push_consumer("g", "home", handler, concurrency=concurrency, invisible_seconds=HOUR)
        async with pushed:
            await handler.began.wait()
            handler.may_end.set()
            await pushed.wait()
    assert b"0" in handler.ended
    left = {b"0", b"1", b"2"} - set(handler.ended)
    assert set(await comes(node, len(left))) == left
    assert await unfinished(node) == len(left)


async def test_a_handler_closes_its_client(node: Node) -> None:
    await send(node, b"0", b"1")

    async def then(_: Delivery) -> None:
        await client.close()

    client, handler = Client(node.endpoint), Handler(then)
    async with client, client.push_consumer("g", "home", handler, concurrency=1, invisible_seconds=HOUR) as pushed:
        await handler.began.wait()
        handler.may_end.set()
        await pushed.wait()
    assert handler.ended == [b"0"]
    assert await comes(node, 1) == {b"1": 1}
    assert await unfinished(node) == 1


async def test_a_broadcast_handler_closes_its_own_consumer(node: Node) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.payload)
        await consumer.close()

    async with Client(node.endpoint) as client:
        for _ in range(3):
            consumer = client.broadcast_consumer("home", handle, member="m", start="earliest")
            if not seen:
                await send(node, b"0", b"1", b"2")
            async with consumer:
                await consumer.wait()
    assert seen == [b"0", b"1", b"2"]


def _blocking(node: Node, whose: str) -> list[bytes]:
    seen: list[bytes] = []
    began = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.payload)
        began.set()
        (client if whose == "client" else pushed).close()

    with blocking.Client(node.endpoint) as client:
        pushed = client.push_consumer("g", "home", handle, concurrency=1, invisible_seconds=HOUR)
        with pushed:
            assert began.wait(30)
            if whose == "consumer":
                pushed.wait()
    return seen


@pytest.mark.parametrize("whose", ["client", "consumer"])
async def test_a_blocking_handler_closes_its_consumer_or_its_client(node: Node, whose: str) -> None:
    await send(node, b"0", b"1")
    assert await asyncio.to_thread(_blocking, node, whose) == [b"0"]
    assert await comes(node, 1) == {b"1": 1}
    assert await unfinished(node) == 1


def _left_first(node: Node) -> None:
    client = blocking.Client(node.endpoint)
    consumer, reader = client.consumer("g", "home", invisible_seconds=HOUR), client.pull_consumer("home")
    pushed = client.push_consumer("h", "home", lambda _: None)
    checks = blocking.Client(node.endpoint, name="named").transaction_checks(lambda _: None)  # type: ignore[arg-type,return-value]
    pushed.__enter__()
    delivery = consumer.next(20)
    assert delivery is not None
    delivery.ack()
    assert reader.poll(20)
    client.close()
    for each in (consumer, reader, pushed, client, checks):
        each.close()


async def test_a_blocking_client_may_be_left_first(node: Node) -> None:
    await send(node, b"0", b"1")
    await asyncio.to_thread(_left_first, node)
    assert await comes(node, 1) == {b"1": 1}
