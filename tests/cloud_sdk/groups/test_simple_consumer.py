"""Consumers: at least once, across members, leases and restarts."""

import asyncio
from typing import Any

import pytest

from cloud_sdk import (
    Client,
    ClientClosed,
    DeadLetter,
    DeadLetterReason,
    Happened,
    InvalidArgument,
    OffsetOutOfRange,
    OutgoingMessage,
    SimpleConsumer,
    Tls,
)
from gateway.rpc.limits import RpcLimits
from store.api import Appended
from store.control import TopicPartitions
from tests.cloud_sdk.conftest import AT_A_GATEWAY
from tests.waiting import patience, until

pytestmark = AT_A_GATEWAY


async def fill(client: Client, count: int, topics: int = 8) -> set[bytes]:
    messages = [OutgoingMessage(f"home/{i % topics}", b"%d" % i) for i in range(count)]
    await client.send_many(messages)
    return {message.payload for message in messages}


async def drain(consumer: SimpleConsumer, wait_seconds: float = 0.05) -> list[bytes]:
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


async def test_members_of_a_group_share_its_messages(node, client: Client) -> None:
    received: list[bytes] = []

    async def member() -> None:
        async with Client(node.endpoint) as own, own.consumer("g", "home", max_records=20) as consumer:
            async for message in consumer:
                received.append(message.payload)
                await message.ack()

    members = [asyncio.create_task(member()) for _ in range(3)]
    sent = await fill(client, 600)
    await until(lambda: len(received) >= 600)
    for each in members:
        each.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    assert (len(received), set(received)) == (600, sent)


async def test_unacknowledged_messages_come_again(client: Client) -> None:
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
        assert (first.deliveries, second.deliveries) == (1, 2)


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


async def test_no_buffered_message_with_an_expired_lease_is_handed_out(client: Client) -> None:
    await fill(client, 10, topics=1)
    async with client.consumer("g", "home", invisible_seconds=1) as slow, client.consumer("g", "home") as other:
        await anext(slow)
        assert len(await other.batch(20)) == 10
        assert await slow.next(0) is None


async def test_consuming_continues_after_a_restart(node, client: Client) -> None:
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
        async with patience():
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
    with pytest.raises(InvalidArgument, match="invisible_seconds is more than 0"):
        client.consumer("g", "home", invisible_seconds=0)
    for wrong in (client.consumer("", "home"), client.consumer("g", "home/t")):
        with pytest.raises(InvalidArgument):
            await wrong.next(0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
async def test_a_member_continues_with_partitions_that_its_parent_topic_gets(
    node, client: Client, ordered: bool, is_split: bool
) -> None:
    """A member that only began with new messages misses none; with `ordered`, each key stays in order. A gateway of its
    own keeps the member's stream while the store is restarted."""
    numbers = dict.fromkeys(range(10), -1)  # the last message of each topic
    async with client.consumer("g", "home", start="latest", ordered=ordered) as consumer:
        assert await consumer.next(0.05) is None
        await client.send_many([OutgoingMessage(f"home/{number}", b"0") for number in numbers])
        first = await consumer.batch()
        if is_split and not node.is_split:  # a gateway hears of it when the store was restarted
            committed: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            node.engine.append([TopicPartitions(32).frame(b"home")], committed.set_result)
            assert (await committed).error is None
        else:
            await node.restart(home=32)
        await client.send_many([OutgoingMessage(f"home/{number}", b"1") for number in numbers])
        await consumer.ack(first)
        came = [*first]
        async with patience():
            while len(came) < 20:
                batch = await consumer.batch()
                await consumer.ack(batch)
                came += batch
    for message in came:
        number = int(message.topic.split("/")[1])
        if ordered:
            assert int(message.payload) == numbers[number] + 1
        numbers[number] = int(message.payload)
    assert {message.partition for message in came}.difference(range(4))


async def test_flush_returns_acknowledgements_of_expired_leases(node, client: Client) -> None:
    await fill(client, 2, topics=1)
    async with client.consumer("g", "home", invisible_seconds=2) as consumer:
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
        assert await consumer.flush() == 0  # leases outlive the node
    async with client.consumer("g", "home") as consumer:
        assert await consumer.next(0) is None


async def test_a_message_that_fails_comes_later_and_then_becomes_a_dead_letter(client: Client) -> None:
    await fill(client, 3, topics=1)
    async with client.consumer("g", "home", max_deliveries=3) as consumer:
        for deliveries in (1, 2, 3):
            batch = await consumer.batch(20)
            assert [(each.offset, each.deliveries) for each in batch] == [
                (offset, deliveries) for offset in range(3) if deliveries == 1 or offset != 1
            ]
            assert all(each.dead_letter is None for each in batch)
            await consumer.nack([each for each in batch if each.offset != 1], 0.01, f"try {deliveries}")
            await consumer.ack([each for each in batch if each.offset == 1])
            await consumer.flush()
        assert await consumer.next(0.2) is None
        (group,) = await client.groups()
        assert (group.name, group.lag) == ("g", 0)
        async with client.dead_letters("g") as dead:
            letters = await dead.batch(20)
            assert [each.payload for each in letters] == [b"0", b"2"]
            queue = f"home[{batch[0].partition}]"
            for offset, each in zip((0, 2), letters, strict=True):
                found = each.dead_letter
                assert found is not None
                times = found.first_ms, found.last_ms
                assert each.store_time <= times[0] < times[1]
                assert found == DeadLetter("g", DeadLetterReason.FAILED, "try 3", 3, queue, offset, *times)
            await letters[0].ack()
            await letters[1].nack(0.0)
            again = await dead.next(20)
            assert again is not None
            assert (again.payload, again.deliveries) == (b"2", 2)
            await again.ack()
            assert await dead.flush() == 0
    (group,) = await client.groups()
    assert [(each.queue, each.floor) for each in group.queues if each.floor] == [
        ("dead letters of g", 2),
        (f"home[{batch[0].partition}]", 3),
    ]


@pytest.mark.parametrize("delay", [None, 3_600.0])
async def test_the_last_failed_delivery_makes_a_dead_letter_at_once(client: Client, delay: float | None) -> None:
    """An extension of the lease is no failure."""
    await fill(client, 1)
    async with client.dead_letters("g") as dead, client.consumer("g", "home", max_deliveries=1) as consumer:
        delivery = await anext(consumer)
        assert await delivery.extend(3_600)
        assert await dead.next(0) is None
        await delivery.nack(delay)
        letter = await dead.next(20)
        assert letter is not None
        assert letter.payload == delivery.payload


async def test_a_message_that_fails_with_an_error_and_without_a_delay_has_failed(client: Client) -> None:
    """Only the beginning of a long error is kept. It ends with a whole character."""
    await fill(client, 1)
    async with client.dead_letters("g") as dead, client.consumer("g", "home", max_deliveries=1) as consumer:
        await (await anext(consumer)).nack(0.0, "x" + "\u00e4" * 200 + "\ud800")
        letter = await dead.next(20)
        assert letter is not None and letter.dead_letter is not None
        assert letter.dead_letter.error == "x" + "\u00e4" * 127
        events = await client.trace(letter.position)
        (event,) = [each for each in events if each.happened is Happened.DEAD_LETTERED]
        assert (event.reason, event.error) == (DeadLetterReason.FAILED, letter.dead_letter.error)


async def test_a_waiting_consumer_of_dead_letters_is_woken(client: Client) -> None:
    await fill(client, 1)
    async with client.dead_letters("g") as dead, client.consumer("g", "home", max_deliveries=1) as consumer:
        waiting = asyncio.create_task(dead.next(20))
        first = await consumer.next(20)
        assert first is not None
        await first.release()
        await consumer.flush()  # or the node might look before it is given back
        assert await consumer.next(0.05) is None
        letter = await waiting
        assert letter is not None
        assert letter.payload == first.payload


async def test_a_lease_is_extended_as_long_as_it_is_held(client: Client) -> None:
    await fill(client, 1)
    async with client.consumer("g", "home", invisible_seconds=5) as one, client.consumer("g", "home") as other:
        mine = await one.next(20)
        assert mine is not None
        assert await mine.extend(0.1)
        theirs = await other.next(20)
        assert theirs is not None
        assert (theirs.offset, theirs.deliveries) == (mine.offset, 2)
        assert not await mine.extend(60)
        assert await one.extend([mine, theirs], 60) == [mine]
        for wrong in (-1, 13 * 3_600):
            with pytest.raises(InvalidArgument):
                await mine.extend(wrong)
            with pytest.raises(InvalidArgument):
                await mine.nack(wrong)


async def test_a_wait_that_is_cancelled_loses_no_acknowledgement(client: Client) -> None:
    await fill(client, 3, topics=1)
    async with client.consumer("g", "home") as consumer:
        batch = await consumer.batch(20)
        await consumer.ack(batch[:2])
        await consumer.nack(batch[2:], 60)
        waiting = asyncio.create_task(consumer.next(20))
        await asyncio.sleep(0)  # they are on their way with the call
        assert consumer._member.unsent == 0
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert await consumer.flush() == 0
        (group,) = await client.groups()
        assert group.lag == 1
        assert await consumer.next(0) is None


async def test_messages_that_come_when_a_wait_is_cancelled_are_there_for_the_next(client: Client) -> None:
    """Whenever it is cancelled: before the request is written, while the node looks, when they are there."""
    for turns in range(30):
        (sent,) = await fill(client, 1)
        async with client.consumer(f"g{turns}", "home", invisible_seconds=600) as consumer:
            await client.reset_group(f"g{turns}", "home", start="latest")
            waiting = asyncio.create_task(consumer.next(20))
            await client.send("home/0", sent)
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait((waiting,))
            message = await consumer.next(20) if waiting.cancelled() else waiting.result()
            assert message is not None
            assert (message.payload, message.deliveries) == (sent, 1)
            await message.ack()
            assert await consumer.flush() == 0


async def test_closing_gives_back_messages_that_no_call_received(client: Client) -> None:
    async with client.consumer("g", "home", invisible_seconds=600) as consumer:
        waiting = asyncio.create_task(consumer.next(20))
        await until(lambda: consumer._member._batch is not None)
        wanted = consumer._member._batch
        waiting.cancel()
        await asyncio.wait((waiting,))
        await client.send("home/0", b"x")
        await asyncio.wait((wanted,))
    async with client.consumer("g", "home") as consumer:
        message = await consumer.next(20)
        assert message is not None
        assert message.payload == b"x"


async def test_a_refused_settlement_does_not_end_the_consumer(node, client: Client) -> None:
    await node.stop()
    node.limits = RpcLimits(max_invisible_ms=60_000)  # less than the SDK knows of
    await node.start()
    await fill(client, 3, topics=1)
    async with client.consumer("g", "home") as consumer:
        batch = await consumer.batch(20)
        await consumer.ack(batch[:1])
        await consumer.nack(batch[1:2], 3_600)
        with pytest.raises(InvalidArgument, match="a delay is at most"):
            await consumer.flush()
        call = consumer._member._call
        assert call is not None and not call.done()
        await consumer.ack(batch)
        assert await consumer.flush() == 0


async def test_without_a_delay_a_failed_message_stays_away_as_the_node_says(client: Client) -> None:
    await fill(client, 1)
    async with client.consumer("g", "home") as consumer:
        first = await consumer.next(20)
        assert first is not None
        await first.nack()
        await consumer.flush()
        assert await consumer.next(0.2) is None


async def test_a_group_is_reset_and_removed(client: Client) -> None:
    sent = await fill(client, 20)
    async with client.consumer("g", "home") as consumer:
        assert set(await drain(consumer)) == sent
        await consumer.flush()
        await client.reset_group("g", "home")
        assert set(await drain(consumer)) == sent
        await consumer.flush()
        await client.reset_group("g", "home", start="latest")
        assert await drain(consumer) == []
        bounds = max(await client.partitions("home"), key=lambda each: each.end)
        await client.reset_group("g", "home", offsets={bounds.partition: bounds.end - 1})
        assert len(await drain(consumer)) == 1
        await consumer.flush()
        await client.reset_group("g", "home", offsets={})
        assert await drain(consumer) == []
        with pytest.raises(OffsetOutOfRange):
            await client.reset_group("g", "home", offsets={bounds.partition: bounds.end + 1})
        with pytest.raises(InvalidArgument, match="no partition 99"):
            await client.reset_group("g", "home", offsets={99: 0})
        waiting = asyncio.create_task(consumer.batch(20))
        await client.send("home/last", b"last")
        await (await waiting)[0].ack()
        await consumer.flush()
    await client.remove_group("g")
    assert await client.groups() == []
    async with client.consumer("g", "home") as consumer:
        assert set(await drain(consumer)) == {*sent, b"last"}


async def test_groups_come_in_pages(node, client: Client) -> None:
    names = [f"g{i:03d}" for i in range(150)]
    for name in names:
        async with client.consumer(name, "home") as consumer:
            assert await consumer.next(0) is None
    assert [group.name for group in await client.groups()] == names
    await node.stop()
    node.limits = type(node.limits)(max_groups=10)
    await node.start()
    assert [group.name for group in await client.groups()] == names


async def test_settlements_made_while_a_consumer_closes_are_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 3, topics=1)
    async with client.consumer("g", "home", invisible_seconds=600) as consumer:
        batch = await consumer.batch(20)
    member = consumer._member
    end_stream = member._end_stream

    async def end_then_acknowledge() -> None:
        monkeypatch.undo()
        await end_stream()
        assert member._is_sending
        await consumer.ack(batch[1:])

    monkeypatch.setattr(member, "_end_stream", end_then_acknowledge)
    await consumer.ack(batch[:1])
    async with patience():
        while (await client.groups())[0].lag:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_consumer_that_could_not_connect_says_why_each_time_and_closes(node) -> None:
    async with Client(node.endpoint, tls=Tls(ca_file="/nowhere"), retry_seconds=20) as client:
        consumer = client.consumer("g", "home")
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="/nowhere"):
                await consumer.next(0)
        assert consumer._member._batch is None
        await consumer.close()


async def test_a_stream_does_not_end_with_an_acknowledgement_before_a_batch_that_is_on_its_way(
    node, client: Client, monkeypatch
) -> None:
    """Of a consumer that closes: the batch is given back."""
    await fill(client, 2, topics=1)
    asked, settles, pops = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settle, pop = node.engine.settle, node.engine.pop

    async def slow_settle(*given: Any, **options: Any) -> Any:
        await settles.wait()
        return await settle(*given, **options)

    async def slow_pop(*given: Any, **options: Any) -> Any:
        asked.set()
        await pops.wait()
        return await pop(*given, **options)

    consumer = client.consumer("g", "home", max_records=1, invisible_seconds=600)
    first = await anext(consumer)
    monkeypatch.setattr(node.engine, "settle", slow_settle)
    monkeypatch.setattr(node.engine, "pop", slow_pop)
    await first.ack()
    await until(lambda: not consumer._member.unsent)
    waiting = asyncio.create_task(consumer.next(20))
    await asked.wait()
    waiting.cancel()
    await asyncio.wait((waiting,))
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    settles.set()
    await until(lambda: not consumer._member._is_sending)
    pops.set()
    await closing
    async with client.consumer("g", "home") as other:
        second = await other.next(20)
        assert second is not None
        assert second.payload != first.payload


async def test_a_message_that_can_never_be_handled_is_a_dead_letter_at_once(client: Client) -> None:
    for number in range(3):
        await client.send("jobs/a", b"%d" % number)
    async with client.consumer("workers", "jobs") as consumer:
        first, second, third = await consumer.batch()
        await consumer.nack([first], error="no number", last=True)
        await second.nack(last=True)
        await third.ack()
        assert await consumer.flush() == 0
        assert await consumer.next(0.05) is None
    async with client.dead_letters("workers") as letters:
        found = [(each.payload, each.dead_letter) for each in await letters.batch()]
    assert [(payload, letter and (letter.reason, letter.error, letter.deliveries)) for payload, letter in found] == [
        (b"0", (DeadLetterReason.FAILED, "no number", 1)),
        (b"1", (DeadLetterReason.FAILED, "", 1)),
    ]
