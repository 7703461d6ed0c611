"""Messages that are held: for a time, and for the end of their transaction."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cloud_sdk import (
    Client,
    Decision,
    Happened,
    InvalidArgument,
    Message,
    MessagesRejected,
    OutgoingMessage,
    Receipt,
    SimpleConsumer,
    TransactionEnded,
)
from cloud_sdk.blocking import Client as BlockingClient
from tests.cloud_sdk.conftest import AT_A_GATEWAY
from tests.waiting import patience

pytestmark = AT_A_GATEWAY


@pytest.fixture
async def consumer(client: Client) -> AsyncIterator[SimpleConsumer]:
    async with client.consumer("g", "home") as consumer:
        yield consumer


async def test_a_delayed_message_comes_at_its_time_and_not_before(client: Client, consumer: SimpleConsumer) -> None:
    began = time.time()
    receipt = await client.send("home/t", b"later", deliver_after=2)
    sent = time.time()
    (timer,) = await client.timers()
    assert (timer.position, timer.topic, timer.publisher) == (receipt.position, "home/t", "tester")
    assert began + 1.999 <= timer.due_ms / 1_000 <= sent + 2.001
    await client.send("home/t", b"now")
    assert [delivery.payload async for delivery in _some(consumer, 2)] == [b"now", b"later"]
    assert time.time() >= timer.due_ms / 1_000
    assert await client.timers() == []


async def test_a_delayed_message_can_be_recalled_until_its_time(client: Client, consumer: SimpleConsumer) -> None:
    away = await client.send("home/t", b"away", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    kept = await client.send("home/t", b"kept", deliver_after=0.2)
    assert await client.recall([away.position]) == []
    assert await client.recall([away.position, 12345]) == [away.position, 12345]
    assert [delivery.payload async for delivery in _some(consumer, 1)] == [b"kept"]
    assert await client.recall([kept.position]) == [kept.position]
    assert await consumer.next(0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        OutgoingMessage("home/t", b"", deliver_after=1, deliver_at=datetime.now(UTC)),
        OutgoingMessage("home/t", b"", deliver_after=-1e12),
        OutgoingMessage("home/t", b"", deliver_after=5_000_000),
        OutgoingMessage("home/t", b"", tag="a b"),
    ],
)
async def test_messages_that_cannot_be_held_are_refused(client: Client, wrong: OutgoingMessage) -> None:
    with pytest.raises(InvalidArgument):
        await client.send_many([wrong])


async def test_messages_that_are_not_rejected_are_part_of_the_transaction(
    client: Client, consumer: SimpleConsumer
) -> None:
    topics = ("home/a", "$SYS/x", "home/a")
    for commit in (False, True):
        async with client.transaction() as transaction:
            with pytest.raises(MessagesRejected, match=r"^message 1: ") as caught:
                await transaction.send_many([OutgoingMessage(topic, b"%d" % commit) for topic in topics])
            assert list(caught.value.positions) == list(transaction.handles)
            assert len(transaction.handles) == 2
            if not commit:
                await transaction.rollback()
    assert [delivery.payload async for delivery in _some(consumer, 2)] == [b"1", b"1"]
    assert await consumer.next(0) is None


async def test_a_transaction_delivers_all_its_messages_or_none(client: Client, consumer: SimpleConsumer) -> None:
    async with client.transaction() as transaction:
        await transaction.send("home/a", b"1", keys=["order"])
        await transaction.send_many([OutgoingMessage("home/a", b"2"), OutgoingMessage("home/a", b"3")])
        assert await consumer.next(0) is None
    assert [delivery.payload async for delivery in _some(consumer, 3)] == [b"1", b"2", b"3"]
    assert [message.payload for message in await client.find("home", key="order")] == [b"1"]
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with client.transaction() as transaction:
            await transaction.send("home/a", b"never")
            raise ZeroDivisionError
    with pytest.raises(TransactionEnded):
        await transaction.commit()
    async with client.transaction():
        pass
    await client.send("home/a", b"end")
    assert [delivery.payload async for delivery in _some(consumer, 1)] == [b"end"]


async def test_a_transaction_that_is_delayed_as_well_waits_for_both(client: Client, consumer: SimpleConsumer) -> None:
    async with client.transaction() as transaction:
        receipt = await transaction.send("home/a", b"x", deliver_after=0.3)
    assert [timer.position for timer in await client.timers()] == [receipt.position]
    assert [delivery.payload async for delivery in _some(consumer, 1)] == [b"x"]
    happened = [event.happened for event in await client.trace(receipt.position)]
    assert happened[:3] == [Happened.STORED, Happened.COMMITTED, Happened.ENTERED]


async def test_transactions_need_a_name(node) -> None:
    async with Client(node.endpoint) as nameless:
        for use in (nameless.transaction, lambda: nameless.transaction_checks(None)):  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="name"):
                use()


async def test_orphans_are_asked_for_until_somebody_knows(node) -> None:
    await node.stop()
    node.config = replace(node.config, transaction_check_s=0.1)
    await node.start()
    fates = {b"keep": Decision.COMMIT, b"drop": Decision.ROLLBACK, b"ask": Decision.UNKNOWN}
    asked: list[bytes] = []

    async def check(message: Message) -> Decision:
        asked.append(message.payload)
        if message.payload == b"ask" and asked.count(b"ask") == 3:
            return Decision.COMMIT
        if message.payload == b"fail" and asked.count(b"fail") == 1:
            raise ZeroDivisionError
        if message.payload == b"fail" and asked.count(b"fail") == 2:
            raise asyncio.CancelledError  # what it waits for, a call of another client say, was cancelled
        return fates.get(message.payload, Decision.COMMIT)

    receipts: list[Receipt] = []
    async with Client(node.endpoint, name="shop") as dead:
        for payload in (*fates, b"fail"):
            receipts.append(await dead.transaction().send("home/t", payload))
    async with Client(node.endpoint, name="shop") as client, client.consumer("g", "home") as consumer:
        async with client.transaction_checks(check):
            got = {delivery.payload async for delivery in _some(consumer, 3)}
            assert got == {b"keep", b"ask", b"fail"}
            with pytest.raises(TransactionEnded):  # noqa: PT012
                async with client.transaction() as own:
                    await own.send("home/t", b"own")
                    await asyncio.sleep(0.3)  # asked about, and left alone: it is running
                    assert b"own" not in asked
                    await _rolled_back_by_somebody(node, own.handles[0])
        assert asked.count(b"ask") >= 3 and asked.count(b"fail") >= 3  # a late answer: it is asked again
        events = [event.happened for event in await client.trace(receipts[1].position)]
        assert events == [Happened.STORED, Happened.ROLLED_BACK]


async def test_the_checker_survives_a_restart_of_the_node(node) -> None:
    await node.stop()
    node.config = replace(node.config, transaction_check_s=0.1)
    await node.start()
    asked = asyncio.Event()

    async def check(message: Message) -> Decision:
        asked.set()
        return Decision.COMMIT

    async with Client(node.endpoint, name="shop") as client, client.transaction_checks(check):
        await node.stop()
        await node.start()
        async with Client(node.endpoint, name="shop") as dead:
            await dead.transaction().send("home/t", b"x")
        async with patience():
            await asked.wait()


@pytest.mark.parametrize("closes", ["checks", "client"])
async def test_a_checker_may_close_its_checks_or_client(node, closes: str) -> None:
    """The answer about the message is sent before."""
    await node.stop()
    node.config = replace(node.config, transaction_check_s=0.1)
    await node.start()
    asked: list[bytes] = []

    async def check(message: Message) -> Decision:
        asked.append(message.payload)
        await (checks if closes == "checks" else client).close()
        await asyncio.sleep(0)  # nothing of it is cancelled
        return Decision.COMMIT

    async with Client(node.endpoint, name="shop") as dead:
        for payload in (b"1", b"2"):
            await dead.transaction().send("home/t", payload)
    async with patience(), Client(node.endpoint, name="shop") as client, client.transaction_checks(check) as checks:
        assert checks._task is not None
        await asyncio.wait([checks._task])
    async with Client(node.endpoint) as other, other.consumer("g", "home") as consumer:
        assert [delivery.payload async for delivery in _some(consumer, 1)] == asked


@pytest.mark.parametrize("closes", ["checks", "client"])
async def test_a_blocking_checker_may_close_its_checks_or_client(node, closes: str) -> None:
    await node.stop()
    node.config = replace(node.config, transaction_check_s=0.1)
    await node.start()
    asked: list[bytes] = []

    def work() -> None:
        answered = threading.Event()

        def check(message: Message) -> Decision:
            asked.append(message.payload)
            (checks if closes == "checks" else client).close()
            answered.set()
            return Decision.COMMIT

        with BlockingClient(node.endpoint, name="shop") as client, client.transaction_checks(check) as checks:
            assert answered.wait(30)

    async with Client(node.endpoint, name="shop") as dead:
        await dead.transaction().send("home/t", b"1")
    await asyncio.to_thread(work)
    async with Client(node.endpoint) as other, other.consumer("g", "home") as consumer:
        assert [delivery.payload async for delivery in _some(consumer, 1)] == [b"1"]
    assert asked == [b"1"]


async def test_the_blocking_client_has_delayed_messages_and_transactions(node) -> None:
    def work() -> None:
        asked: list[bytes] = []

        def check(message: Message) -> Decision:
            asked.append(message.payload)
            return Decision.COMMIT

        with BlockingClient(node.endpoint, name="shop") as client, client.transaction_checks(check):
            away = client.send("home/t", b"away", deliver_after=60)
            assert [timer.position for timer in client.timers()] == [away.position]
            assert client.recall([away.position]) == []
            with client.transaction() as transaction:
                receipt = transaction.send("home/t", b"1")
                assert list(transaction.handles) == [receipt.position]
            with pytest.raises(KeyError), client.transaction() as transaction:  # noqa: PT012
                transaction.send_many([OutgoingMessage("home/t", b"2")])
                raise KeyError
            with client.consumer("g", "home") as consumer:
                assert [each.payload for each in consumer.batch(5)] == [b"1"]
            assert Happened.COMMITTED in [event.happened for event in client.trace(receipt.position)]
        assert asked == []

    await asyncio.to_thread(work)


async def _rolled_back_by_somebody(node, handle: int) -> None:
    assert await node.engine.end_transaction([handle], False) == []


async def _some(consumer: SimpleConsumer, count: int):
    """The next messages, acknowledged."""
    async with patience():
        for _ in range(count):
            delivery = await anext(consumer)
            yield delivery
            await delivery.ack()


async def test_a_checker_that_is_not_async_is_refused(node) -> None:
    def check(message: Message) -> Decision:
        return Decision.COMMIT

    async with Client(node.endpoint, name="shop") as client:
        with pytest.raises(InvalidArgument, match="a checker is an async function"):
            client.transaction_checks(check)
