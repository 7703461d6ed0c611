"""Consumers that call handlers: of groups, in order, and for everybody."""

import asyncio
import threading
from collections import defaultdict
from functools import partial

import pytest

from cloud_sdk import Client, Delivery, Happened, InvalidArgument, Message, OutgoingMessage, TryAgain
from cloud_sdk.blocking import Client as BlockingClient
from tests.cloud_sdk.conftest import AT_A_GATEWAY
from tests.waiting import patience, until

pytestmark = AT_A_GATEWAY


async def test_messages_are_handled_concurrently_and_acknowledged(client: Client) -> None:
    running = most = 0
    got: list[bytes] = []
    gate = asyncio.Event()

    async def handle(message: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running < 5:
            await gate.wait()
        gate.set()
        running -= 1
        got.append(message.payload)

    await client.send_many([OutgoingMessage(f"home/{i % 7}", b"%d" % i) for i in range(100)])
    async with client.push_consumer("g", "home", handle, concurrency=5):
        await until(lambda: len(got) == 100)
    assert sorted(got) == sorted(b"%d" % i for i in range(100))
    assert most == 5
    (group,) = await client.groups()
    assert group.lag == 0


async def test_a_slow_message_holds_up_no_other_and_its_lease_is_kept(client: Client) -> None:
    got: list[bytes] = []
    release = asyncio.Event()

    async def handle(message: Delivery) -> None:
        assert message.deliveries == 1
        if message.payload == b"0":
            await release.wait()
        got.append(message.payload)

    await client.send_many([OutgoingMessage("home/t", b"%d" % i) for i in range(20)])
    async with client.push_consumer("g", "home", handle, concurrency=2, invisible_seconds=1.5):
        await until(lambda: len(got) == 19)
        await asyncio.sleep(3.2)  # two leases
        release.set()
        await until(lambda: len(got) == 20)
    assert sorted(got) == sorted(b"%d" % i for i in range(20))


async def test_a_handler_that_fails_gets_its_message_again_and_in_the_end_not(client: Client) -> None:
    got: list[tuple[bytes, int]] = []

    async def handle(message: Delivery) -> None:
        got.append((message.payload, message.deliveries))
        if message.payload == b"bad":
            raise TryAgain(0.01)

    await client.send_many([OutgoingMessage("home/t", b"bad"), OutgoingMessage("home/t", b"good")])
    async with client.push_consumer("g", "home", handle, max_deliveries=3), client.dead_letters("g") as dead:
        letter = await dead.next(20)
        assert letter is not None and letter.payload == b"bad"
        assert letter.dead_letter is not None and letter.dead_letter.error.endswith("TryAgain: try again after 0.01 s")
    assert sorted(got) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]


@pytest.mark.parametrize("is_cause", [False, True])
async def test_a_dead_letter_has_the_exception_of_its_handler(client: Client, is_cause: bool) -> None:
    async def handle(message: Delivery) -> None:
        error = KeyError("serial number")
        if is_cause:
            raise TryAgain(1.0) from error
        raise error

    await client.send("home/t", b"bad")
    async with client.push_consumer("g", "home", handle, max_deliveries=1), client.dead_letters("g") as dead:
        letter = await dead.next(20)
        assert letter is not None and letter.dead_letter is not None
        assert letter.dead_letter.error == "KeyError: 'serial number'"


async def test_a_handler_that_raises_anything_else_waits_as_the_node_says(client: Client, caplog) -> None:
    tried = asyncio.Event()

    async def handle(message: Delivery) -> None:
        tried.set()
        raise ZeroDivisionError

    await client.send("home/t", b"secret payload")
    async with client.push_consumer("g", "home", handle):
        await tried.wait()
    (group,) = await client.groups()
    assert group.lag == 1
    assert "ZeroDivisionError" in caplog.text and "secret" not in caplog.text


async def nobody_answers() -> None:
    """A call that a handler waits for may be cancelled, such as one of another client."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def try_again(after_s: float) -> None:
    raise TryAgain(after_s)


@pytest.mark.parametrize("fails", [nobody_answers, partial(try_again, -0.1), partial(try_again, 13 * 3_600)])
async def test_no_failure_of_a_handler_ends_a_consumer(client: Client, fails) -> None:
    got: list[bytes] = []

    async def handle(message: Delivery | Message) -> None:
        got.append(message.payload)
        if message.payload == b"bad":
            await fails()

    async with (
        client.push_consumer("g", "home", handle, concurrency=1),
        client.broadcast_consumer("home", handle, attempts=1),
    ):
        for payload in (b"bad", b"good", b"and later"):
            await client.send("home/t", payload)
            await until(lambda payload=payload: got.count(payload) == 2)


async def test_messages_of_a_key_come_in_order_across_failures(client: Client) -> None:
    got: dict[str, list[int]] = defaultdict(list)
    failed: set[bytes] = set()
    running: set[str] = set()

    async def handle(message: Delivery) -> None:
        key = message.ordering_key or ""
        assert key not in running
        running.add(key)
        try:
            await asyncio.sleep(0)
            if int(message.payload) % 7 == 0 and message.payload not in failed:
                failed.add(message.payload)
                raise TryAgain(0.02)
            got[key].append(int(message.payload))
        finally:
            running.discard(key)

    await client.send_many([OutgoingMessage("home/t", b"%d" % i, ordering_key=f"k{i % 4}") for i in range(60)])
    async with (
        client.push_consumer("g", "home", handle, ordered=True, concurrency=4),
        client.push_consumer("g", "home", handle, ordered=True, concurrency=4),
    ):
        await until(lambda: sum(map(len, got.values())) == 60)
    assert got == {f"k{k}": list(range(k, 60, 4)) for k in range(4)}


async def test_a_consumer_that_is_closed_lets_its_handlers_end_and_gives_the_rest_back(client: Client) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    got: list[bytes] = []

    async def handle(message: Delivery) -> None:
        begun.set()
        await release.wait()
        got.append(message.payload)

    await client.send_many([OutgoingMessage("home/t", b"%d" % i) for i in range(5)])
    consumer = client.push_consumer("g", "home", handle, concurrency=1)
    async with consumer:
        await begun.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        release.set()
        await closing
    assert got == [b"0"]
    async with client.consumer("g", "home") as rest:
        assert sorted(each.payload for each in await rest.batch(5)) == [b"1", b"2", b"3", b"4"]


async def test_an_error_that_repeating_cannot_mend_ends_the_consumer(client: Client, caplog) -> None:
    async def handle(message: Delivery) -> None: ...

    async with client.push_consumer("g", "home", handle, sql="a =") as consumer:
        with pytest.raises(InvalidArgument, match="column 4"):
            await consumer.wait()
        assert "receives no more messages: column 4" in caplog.text
    with pytest.raises(InvalidArgument):
        client.push_consumer("g", "home", handle, concurrency=0)


async def test_a_push_consumer_survives_a_restart_of_the_node(node, client: Client) -> None:
    got: list[bytes] = []

    async def handle(message: Delivery) -> None:
        got.append(message.payload)

    async with client.push_consumer("g", "home", handle):
        await client.send("home/t", b"1")
        await until(lambda: got == [b"1"])
        await node.stop()
        await node.start()
        await client.send("home/t", b"2")
        await until(lambda: b"2" in got)


async def test_every_broadcast_consumer_gets_all_and_continues_where_it_was(client: Client) -> None:
    got: dict[str, list[bytes]] = {"a": [], "b": []}

    def handler(name: str):
        async def handle(message: Message) -> None:
            got[name].append(message.payload)
            if message.payload == b"bad" and got[name].count(b"bad") < 2:
                raise TryAgain(0)

        return handle

    await client.send("home/t", b"before")
    async with (
        client.broadcast_consumer("home", handler("a"), member="node-a"),
        client.broadcast_consumer("home", handler("b"), sql="to IS NULL OR to = 'b'"),
    ):
        await client.send("home/t", b"1")
        await client.send("home/t", b"bad", properties={"to": "a"})
        await until(lambda: got == {"a": [b"1", b"bad", b"bad"], "b": [b"1"]})
        await until_committed(client, "node-a", 3)
    await client.send("home/t", b"meanwhile")
    async with client.broadcast_consumer("home", handler("a"), member="node-a"):
        await until(lambda: got["a"] == [b"1", b"bad", b"bad", b"meanwhile"])


async def until_committed(client: Client, group: str, count: int) -> None:
    async with patience():
        while sum((await client.committed_offsets(group, "home")).values()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_broadcast_that_keeps_failing_is_left_out(client: Client) -> None:
    got: list[bytes] = []

    async def handle(message: Message) -> None:
        got.append(message.payload)
        if message.payload == b"bad":
            raise TryAgain(0)

    async with client.broadcast_consumer("home", handle, attempts=2):
        await client.send("home/t", b"bad")
        await client.send("home/t", b"good")
        await until(lambda: got == [b"bad", b"bad", b"good"])


async def test_handlers_of_the_blocking_client_run_in_threads(node) -> None:
    def work() -> None:
        got: list[bytes] = []
        done = threading.Event()

        def handle(message: Message) -> None:
            assert threading.current_thread().name.startswith("sluice-handler")
            got.append(message.payload)
            if len(got) == 40:
                done.set()

        with BlockingClient(node.endpoint) as client:
            with (
                client.broadcast_consumer("home", handle),
                client.push_consumer("g", "home", handle, concurrency=3),
            ):
                client.send_many([OutgoingMessage("home/t", b"%d" % i) for i in range(20)])
                assert done.wait(30)
            assert sorted(got) == sorted(2 * [b"%d" % i for i in range(20)])
            with client.push_consumer("g", "home", handle, tags="||") as wrong, pytest.raises(InvalidArgument):
                wrong.wait()

    await asyncio.to_thread(work)


async def test_messages_that_a_closing_consumer_gave_back_go_to_others(client: Client) -> None:
    """The handler that runs takes longer than a lease, whose extension is not for what was given back."""
    release, begun = asyncio.Event(), asyncio.Event()

    async def handler(_: Delivery) -> None:
        begun.set()
        await release.wait()

    await client.send_many([OutgoingMessage("orders/x", b"%d" % number) for number in range(3)])
    consumer = client.push_consumer("g", "orders", handler, concurrency=1, invisible_seconds=3)
    async with client.consumer("g", "orders") as other:
        await consumer.__aenter__()
        await begun.wait()
        await until(lambda: len(consumer._unsettled) >= 3)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(1.2)  # an extension later
        got = await other.batch(0)
        release.set()
        await closing
    assert len(got) == 2


async def test_a_broadcast_consumer_continues_after_a_gap_and_repeats_nothing(client: Client) -> None:
    got: list[bytes] = []

    async def handle(message: Message) -> None:
        got.append(message.payload)

    async def send(what: bytes) -> None:
        await client.send_many([OutgoingMessage(f"home/{n}", b"%s %d" % (what, n)) for n in range(40)])

    await send(b"first")
    async with client.broadcast_consumer("home", handle, start="earliest") as broadcast:
        await until(lambda: len(got) == 40)
        reader = broadcast._consumer
        gone = next(each.partition for each in await client.partitions("home") if each.end)
        await reader.seek({gone: 1_000})  # where there is nothing
        await send(b"second")  # which ends the wait
        await until(lambda: reader._positions is not None and reader._positions[gone] < 1_000)
        await send(b"third")
        await until(lambda: sum(each.startswith(b"third") for each in got) == 40)
    assert len(got) == len(set(got))


async def test_messages_behind_a_dead_letter_of_their_key_are_handled(client: Client) -> None:
    """They are given back each time the first one fails. No handler saw them, so these deliveries do not count."""
    handled: list[tuple[bytes, int]] = []

    async def handle(message: Delivery) -> None:
        if message.payload == b"0":
            raise TryAgain(0)
        handled.append((message.payload, message.deliveries))

    await client.send_many([OutgoingMessage("home/t", b"%d" % i) for i in range(5)])
    async with client.push_consumer("g", "home", handle, ordered=True, max_deliveries=3):
        await until(lambda: len(handled) == 4)
    assert handled == [(b"%d" % i, 1) for i in range(1, 5)]
    async with client.dead_letters("g") as letters:
        assert [each.payload for each in await letters.batch(5)] == [b"0"]


async def test_a_message_that_waits_for_its_ordering_key_is_not_traced_as_passed(client: Client):
    waiting = [await client.send(f"home/{number}", b"", ordering_key="same") for number in range(2)]
    others = [await client.send(f"home/{number}", b"") for number in range(16)]
    async with client.consumer("g", "home", max_records=1, ordered=True) as consumer:
        leased = [await consumer.next(5) for _ in range(1 + len(others))]
        first = next(each for each in leased if each is not None and each.ordering_key)
        await first.ack()
        second = await consumer.next(5)
        assert second is not None and (second.topic, second.ordering_key) == ("home/1", "same")
        await second.ack()
    events = [event.happened for event in await client.trace(waiting[1].position)]
    assert events == [Happened.STORED, Happened.LEASED, Happened.FINISHED]
