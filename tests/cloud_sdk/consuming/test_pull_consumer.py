"""Readers by offset, selections evaluated by the node, searches by time, and what became of a message."""

import asyncio
import time
from typing import Any

import pytest

from cloud_sdk import (
    Batch,
    Client,
    Decision,
    Happened,
    InvalidArgument,
    Message,
    NoAnswer,
    OffsetOutOfRange,
    OutgoingMessage,
    Unavailable,
)
from cloud_sdk.blocking import Client as BlockingClient
from cloud_sdk.consuming.partition_reader import PartitionReader
from cloud_sdk.consuming.pull_consumer import PullConsumer
from tests.cloud_sdk.conftest import AT_A_GATEWAY, Node
from tests.waiting import patience

pytestmark = AT_A_GATEWAY


def order(number: int) -> OutgoingMessage:
    return OutgoingMessage(
        f"shop/{'eu' if number % 2 else 'us'}/orders",
        b"%d" % number,
        tag="paid" if number % 3 == 0 else "open",
        properties={"price": str(number), "region": "hz" if number % 4 == 0 else "sh"},
    )


async def take(consumer: PullConsumer, count: int) -> list[int]:
    got: list[int] = []
    async with patience():
        while len(got) < count:
            got += (int(message.payload) for message in await consumer.poll())
    return sorted(got)


async def test_a_reader_continues_where_it_seeks(client: Client) -> None:
    await client.send_many([order(number) for number in range(20)])
    middle = int(time.time() * 1_000) + 1
    await asyncio.sleep(0.01)
    await client.send_many([order(number) for number in range(20, 30)])
    async with client.pull_consumer("shop", max_records=7) as consumer:
        assert await take(consumer, 30) == list(range(30))
        assert sum((await consumer.positions()).values()) == 30
        assert set((await consumer.lag()).values()) == {0}
        assert await consumer.poll(0) == []
        await consumer.seek_to_time(middle)
        assert sum((await consumer.lag()).values()) == 10
        assert await take(consumer, 10) == list(range(20, 30))
        await consumer.seek_to("earliest")
        assert await take(consumer, 30) == list(range(30))
        await consumer.seek_to("latest")
        await client.send_many([order(99)])
        assert await take(consumer, 1) == [99]
        with pytest.raises(InvalidArgument):
            await consumer.seek({77: 0})
        await consumer.seek({0: 1_000})
        with pytest.raises(OffsetOutOfRange):  # noqa: PT012
            while True:
                await consumer.poll()


async def test_some_partitions_and_the_offsets_of_a_group(client: Client) -> None:
    await client.send_many([order(number) for number in range(10)])
    used = [each.partition for each in await client.partitions("shop") if each.end]
    async with client.pull_consumer("shop", partitions=used[:1], group="r") as consumer:
        first = await consumer.poll()
        assert {message.partition for message in first} == {used[0]}
        await consumer.commit()
    async with client.pull_consumer("shop", group="r") as consumer:
        rest = await take(consumer, 10 - len(first))
        assert sorted([*rest, *(int(message.payload) for message in first)]) == list(range(10))
        await consumer.commit({used[0]: 0})
    assert (await client.committed_offsets("r", "shop"))[used[0]] == 0
    async with client.pull_consumer("shop", partitions=[99]) as consumer:
        with pytest.raises(InvalidArgument, match="99"):
            await consumer.poll()
    with pytest.raises(InvalidArgument, match="without a group"):
        await client.pull_consumer("shop").commit()


async def test_readers_continue_with_partitions_that_a_parent_topic_gets(node: Node, client: Client) -> None:
    """Without a restart of theirs; what entered a new partition before they knew of it is not passed over."""
    await client.send("shop/0", b"0")
    async with (
        client.pull_consumer("shop", start="latest", group="r") as consumer,
        client.pull_consumer("shop", partitions=[0, 1]) as some,
    ):
        assert await consumer.poll(0) == []
        await consumer.commit()
        await some.poll(0)
        await node.restart(shop=16)
        await client.send_many([OutgoingMessage(f"shop/{number}", b"%d" % number) for number in range(1, 100)])
        assert await take(consumer, 99) == list(range(1, 100))
        assert len(await consumer.positions()) == len(await consumer.lag()) == 16
        assert len(await some.positions()) == 2
    async with client.pull_consumer("shop", start="latest", group="r") as again:
        assert await take(again, 99) == list(range(1, 100))


async def test_a_trace_finds_a_message_in_any_partition(node: Node, client: Client) -> None:
    await node.restart(shop=16)
    receipts = await client.send_many([OutgoingMessage(f"shop/{number}", b"x") for number in range(30)])
    queues = {(await client.trace(receipt.position))[0].queue for receipt in receipts}
    assert all(queue.startswith("shop[") for queue in queues)
    assert len(queues) > 4


async def test_the_node_selects_for_readers_and_for_groups(client: Client) -> None:
    await client.send_many([order(number) for number in range(60)])
    wanted = [
        ({"topic_filter": "shop/eu/#"}, [n for n in range(60) if n % 2]),
        ({"topic_filter": "+/+/orders", "tags": "paid || refunded"}, list(range(0, 60, 3))),
        ({"sql": "region = 'hz' AND price BETWEEN 10 AND 20"}, [12, 16, 20]),
        ({"topic_filter": "shop/us/orders", "tags": "open", "sql": "price > 50"}, [52, 56, 58]),
    ]
    for index, (selection, numbers) in enumerate(wanted):
        async with client.pull_consumer("shop", **selection) as reader:  # type: ignore[arg-type]
            assert await take(reader, len(numbers)) == numbers
        async with client.consumer(f"g{index}", "shop", **selection) as consumer:  # type: ignore[arg-type]
            got: list[int] = []
            while len(got) < len(numbers):
                deliveries = await consumer.batch()
                got += (int(each.payload) for each in deliveries)
                await consumer.ack(deliveries)
            assert sorted(got) == numbers
            assert await consumer.next(0) is None
    assert all(group.lag <= 60 - 3 for group in await client.groups())


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"sql": "price > AND"}, "column 9: expected a value, found AND"),
        ({"tags": "a | b"}, "column 1"),
        ({"topic_filter": "shop/#/x"}, "not a topic filter"),
        ({"topic_filter": "home/#"}, "nothing below the parent topic 'shop'"),
    ],
)
async def test_a_wrong_selection_is_pointed_at(client: Client, selection, message: str) -> None:
    async with client.consumer("g", "shop", **selection) as consumer:
        with pytest.raises(InvalidArgument, match=message):
            await consumer.next(0)
    with pytest.raises(InvalidArgument, match=message):
        await client.pull("shop", 0, 0, **selection)


async def test_a_reader_that_wants_little_waits_and_is_woken(client: Client) -> None:
    async with client.pull_consumer("shop", start="latest", sql="price = 7") as consumer:
        waiting = asyncio.create_task(consumer.poll(30))
        await client.send_many([order(number) for number in range(7)])
        await client.send_many([order(7)])
        assert [message.payload for message in await waiting] == [b"7"]


async def test_find_between_returns_the_messages_of_a_time(client: Client) -> None:
    await client.send_many([order(number) for number in range(5)])
    from_ms = int(time.time() * 1_000) + 1
    await asyncio.sleep(0.005)
    await client.send_many([order(number) for number in range(5, 15)])
    until_ms = int(time.time() * 1_000) + 1
    await asyncio.sleep(0.005)
    await client.send_many([order(number) for number in range(15, 20)])
    found = await client.find_between("shop", from_ms, until_ms)
    assert [int(message.payload) for message in found] == list(range(5, 15))
    some = await client.find_between("shop", from_ms, until_ms, limit=2, sql="price > 8")
    assert [int(message.payload) for message in some] == [9, 10]


async def test_the_trace_of_a_message_names_its_groups_and_their_members(node, client: Client) -> None:
    receipt = (await client.send_many([order(0)]))[0]
    async with client.consumer("ok", "shop") as consumer:
        delivery = await consumer.next(5)
        assert delivery is not None
        await delivery.nack(0)
        await consumer.flush()
    async with Client(node.endpoint, name="second") as second, second.consumer("ok", "shop") as consumer:
        delivery = await consumer.next(5)
        assert delivery is not None
        await delivery.extend(60)
        await delivery.ack()
    async with client.consumer("picky", "shop", tags="open") as consumer:
        assert await consumer.next(0) is None
    async with client.consumer("bad", "shop", max_deliveries=1) as consumer, client.dead_letters("bad") as dead:
        delivery = await consumer.next(5)
        assert delivery is not None
        await delivery.nack(0)
        await consumer.flush()
        assert await consumer.next(0) is None
        letter = await dead.next(5)
        assert letter is not None
        await letter.ack()
    events = await client.trace(receipt.position)
    assert (events[0].happened, events[0].who) == (Happened.STORED, "tester")
    assert (events[0].time_ms, events[0].position) == (receipt.store_time, receipt.position)
    queue = events[0].queue
    assert queue.startswith("shop[")
    told = [(event.who, event.happened, event.member) for event in events[1:]]
    assert told == [
        ("ok", Happened.LEASED, "tester"),
        ("ok", Happened.POSTPONED, "tester"),
        ("ok", Happened.LEASED, "second"),
        ("ok", Happened.POSTPONED, "second"),
        ("ok", Happened.FINISHED, "second"),
        ("picky", Happened.PASSED, ""),
        ("bad", Happened.LEASED, "tester"),
        ("bad", Happened.POSTPONED, "tester"),
        ("bad", Happened.DEAD_LETTERED, ""),  # the node did it
        ("bad", Happened.LEASED, "tester"),
        ("bad", Happened.FINISHED, "tester"),
    ]
    assert {event.queue for event in events if event.who == "ok"} == {queue}
    assert events[-1].queue == "dead letters of bad"
    positions = [event.position for event in events]
    assert positions == sorted(positions)


async def test_a_trace_continues_over_pages(node, client: Client) -> None:
    await node.stop()
    node.limits = type(node.limits)(max_trace_bytes=2_000)
    await node.start()
    receipt = (await client.send_many([order(1)]))[0]
    async with client.consumer("g", "shop", max_records=1) as consumer:
        delivery = await consumer.next(5)
        await client.send_many([order(number) for number in range(200)])
        assert delivery is not None
        await delivery.ack()
        await consumer.flush()
        for _ in range(20):
            later = await consumer.next(5)
            assert later is not None
            await later.ack()
            await consumer.flush()
    events = await client.trace(receipt.position)
    assert [event.happened for event in events] == [Happened.STORED, Happened.LEASED, Happened.FINISHED]


async def test_each_request_gets_its_own_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lamp(stop: asyncio.Event) -> None:
        async with client.consumer("lamps", "lamp") as commands:
            while not stop.is_set():
                for command in await commands.batch(0.2):
                    await client.send(
                        command.response_topic or "",
                        b"done " + command.payload,
                        correlation_data=command.correlation_data,
                    )
                    await command.ack()

    stop = asyncio.Event()
    device = asyncio.create_task(lamp(stop))
    words = [b"%d" % i for i in range(30)]
    answers = await asyncio.gather(*(client.request("lamp/1", word, timeout=30) for word in words))
    assert [answer.payload for answer in answers] == [b"done " + word for word in words]
    stop.set()
    await device
    commands = []

    async def send(topic: str, payload: bytes, **options: Any) -> None:
        commands.append((topic, payload, options["response_topic"], options["message_expiry"]))

    monkeypatch.setattr(client, "send", send)
    with pytest.raises(NoAnswer):
        await client.request("lamp/1", b"x", timeout=0.3)
    assert commands == [("lamp/1", b"x", "$inbox/tester", 1)]
    assert not client._replies._topics


async def test_the_blocking_client_reads_partitions(node) -> None:
    def work() -> None:
        with BlockingClient(node.endpoint, name="b") as client:
            client.send_many([order(number) for number in range(10)])
            with client.pull_consumer("shop", group="r", tags="paid") as reader:
                got: list[Message] = []
                while len(got) < 4:
                    got += reader.poll()
                assert sorted(int(message.payload) for message in got) == [0, 3, 6, 9]
                assert {message.tag for message in got} == {"paid"}
                reader.commit()
                assert sum(client.committed_offsets("r", "shop").values()) == sum(reader.positions().values())
                assert set(reader.lag().values()) == {0}
                reader.seek_to("earliest")
                assert next(iter(reader)).tag == "paid"
                reader.seek_to_time(0)
                reader.seek({0: 0})
            client.commit_offsets("r", "shop", {0: 0})
            assert len(client.find_between("shop", 0, 1 << 50, limit=3)) >= 3
            with pytest.raises(NoAnswer):
                client.request("lamp/1", b"x", timeout=0.05)
        assert Decision("commit") is Decision.COMMIT

    await asyncio.to_thread(work)


async def spread(client: Client) -> tuple[int, int]:
    """Two partitions that have messages."""
    await client.send_many([OutgoingMessage(f"shop/{n}", b"%d" % n) for n in range(40)])
    first, second, *_ = [each.partition for each in await client.partitions("shop") if each.end]
    return first, second


async def test_a_partition_that_cannot_be_read_takes_nothing_of_the_others_along(client: Client) -> None:
    first, second = await spread(client)
    ends = {each.partition: each.end for each in await client.partitions("shop")}
    for fails, reads in ((first, second), (second, first)):
        async with client.pull_consumer("shop", partitions=[first, second]) as consumer:
            await consumer.seek({fails: 1_000})
            consumer._reads.clear()
            for partition, offset in (await consumer.positions()).items():
                consumer._start_read(partition, offset)
            await asyncio.wait(consumer._reads.values())  # both are there when it looks
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll()
            assert await consumer.positions() == {fails: 1_000, reads: 0}
            await consumer.skip_gone()
            assert await consumer.positions() == {fails: ends[fails], reads: 0}
            assert len(await take(consumer, 1)) == ends[reads]


async def test_a_request_after_failed_ones_is_answered(client: Client, monkeypatch) -> None:
    async def pull(*_: object, **__: object) -> Batch:
        raise Unavailable("the node is away")

    replies = client._replies
    with monkeypatch.context() as patched:
        patched.setattr(PartitionReader, "pull", pull)
        first = await replies.expect("answers/x", b"1")
        with pytest.raises(Unavailable):
            await first
    second = await replies.expect("answers/x", b"2")  # before the first has left
    replies.forget("answers/x", b"1")
    await client.send("answers/x", b"here", correlation_data=b"2")
    async with patience():
        assert (await second).payload == b"here"
    replies.forget("answers/x", b"2")
    assert not replies._topics
