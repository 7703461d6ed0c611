"""The blocking client: the same calls, from threads and from forked processes."""

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import cloud_sdk as aio
from cloud_sdk import Child, ClientClosed, InvalidArgument, OffsetOutOfRange, OutgoingMessage
from cloud_sdk.blocking import Client
from tests.waiting import patience


@pytest.fixture
def endpoint(node) -> str:
    return node.endpoint


async def test_blocking_calls_return_what_the_asyncio_calls_return(endpoint: str) -> None:
    await asyncio.to_thread(_use, endpoint)


def _use(endpoint: str) -> None:
    with Client(endpoint, name="thread") as client:
        sent = client.send("home/1", b"0", properties={"a": "b"}, keys=["order-17"])
        assert [message.payload for message in client.find("home", key="order-17")] == [b"0"]
        assert client.message(sent.position).keys == ["order-17"]
        client.send_many([OutgoingMessage("home/1", b"%d" % i) for i in range(1, 50)])
        assert client.parents() == ["home"]
        assert client.topics() == ["home/1"]
        assert client.children("home/") == [Child("1", True, False)]
        bounds = next(each for each in client.partitions("home") if each.end)
        batch = client.pull("home", bounds.partition, bounds.begin, max_records=10)
        assert [message.payload for message in batch.messages()] == [b"%d" % i for i in range(10)]
        assert client.offset_at("home", bounds.partition, 0) == 0
        with pytest.raises(OffsetOutOfRange):
            client.pull("home", bounds.partition, 99)
        with client.consumer("g", "home", max_records=20) as consumer:
            first = next(consumer)
            assert (first.payload, first.properties, first.publisher) == (
                b"0",
                {"a": "b", "key": "order-17"},
                "thread",
            )
            first.ack()
            for expected, message in zip(range(1, 30), consumer, strict=False):
                assert message.payload == b"%d" % expected
                message.ack()
            consumer.flush()
        with client.consumer("g", "home") as consumer:
            rest = consumer.batch(5)
            assert {message.payload for message in rest} == {b"%d" % i for i in range(30, 50)}
            rest[0].release()
            consumer.ack(rest[1:])
            assert next(consumer).payload == rest[0].payload
            assert consumer.next(0) is None
    with pytest.raises(ClientClosed):
        client.parents()


async def test_a_message_that_fails_and_its_group(endpoint: str) -> None:
    def use() -> None:
        with Client(endpoint) as client:
            client.send_many([OutgoingMessage("home/1", b"%d" % i) for i in range(3)])
            with client.consumer("g", "home", max_deliveries=2) as consumer:
                first = consumer.batch(20)
                assert [each.deliveries for each in first] == [1, 1, 1]
                first[0].nack(0.0)
                consumer.nack(first[1:2], 0.0)
                consumer.flush()
                second = consumer.batch(20)
                assert [(each.offset, each.deliveries) for each in second] == [(0, 2), (1, 2)]
                assert second[0].extend(60)
                assert not first[0].extend(60)
                assert consumer.extend([first[1], first[2]], 0) == [first[1]]
                assert [each.payload for each in consumer.batch(20)] == [b"2"]
                with pytest.raises(InvalidArgument):
                    second[0].nack(-1.0)
                second[0].nack(None, "of no use")
                second[1].ack()
                consumer.flush()
                assert consumer.next(0) is None
            with client.dead_letters("g") as dead:
                letter = dead.next(20)
                assert letter is not None
                assert (letter.payload, letter.lease.partition) == (b"0", 0)
                assert letter.dead_letter is not None and letter.dead_letter.error == "of no use"
            (group,) = client.groups()
            assert (group.name, group.lag) == ("g", 2)  # a message, and a dead letter
            client.reset_group("g", None, start="latest")
            client.reset_group("g", "home", time_ms=0)
            (group,) = client.groups()
            assert group.lag == 3
            client.remove_group("g")
            assert client.groups() == []

    await asyncio.to_thread(use)


async def test_threads_share_a_client(endpoint: str) -> None:
    def work() -> list[int]:
        with Client(endpoint) as client:
            positions: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda: positions.extend(client.send("home/t", b"").position for _ in range(10))
                )
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return positions

    assert len(set(await asyncio.to_thread(work))) == 80


async def test_a_client_may_be_made_before_a_fork(endpoint: str) -> None:
    # In a process of its own: this one has threads, which a fork would not survive.
    script = """
import os, sys
from cloud_sdk.blocking import Client
client = Client(sys.argv[1])
children = []
for name in ("one", "two"):
    child = os.fork()
    if not child:
        client.send("forked/" + name, name.encode())
        client.close()
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
client.send("forked/parent", b"")
client.close()
sys.exit(any(codes))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, endpoint)
    try:
        async with patience():
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    async with aio.Client(endpoint) as client:
        assert sum(each.end for each in await client.partitions("forked")) == 3


async def test_a_client_that_was_used_before_a_fork_says_so(endpoint: str, monkeypatch) -> None:
    def use() -> None:
        with Client(endpoint) as client:
            client.parents()
            with monkeypatch.context() as child:
                child.setattr("os.getpid", lambda: -1)
                with pytest.raises(ClientClosed, match="forked"):
                    client.parents()
            assert client.parents() == []

    await asyncio.to_thread(use)


async def test_closing_a_client_raises_in_threads_that_wait(endpoint: str) -> None:
    def use() -> None:
        client = Client(endpoint)
        consumer = client.consumer("closed", "home")
        with ThreadPoolExecutor(2) as executor:
            waits = [executor.submit(consumer.next, 60), executor.submit(client.pull, "home", 0, 0, wait_seconds=60)]
            while not client.groups():
                pass
            client.close()
            assert [type(wait.exception()) for wait in waits] == [ClientClosed] * 2
        with pytest.raises(ClientClosed):
            consumer.next(0)
        with pytest.raises(ClientClosed):
            consumer.ack(())

    await asyncio.to_thread(use)


async def test_closing_leaves_no_task_behind(endpoint: str, caplog) -> None:
    def work() -> None:
        for _ in range(20):
            with Client(endpoint) as client:
                client.send("home/1", b"x")
        gc.collect()

    await asyncio.to_thread(work)
    assert "Task was destroyed" not in caplog.text


async def test_the_blocking_client_hands_out_no_buffered_message_with_an_expired_lease(endpoint: str) -> None:
    def work() -> None:
        with Client(endpoint) as client:
            client.send_many([OutgoingMessage("home/1", b"%d" % i) for i in range(10)])
            with client.consumer("g", "home", invisible_seconds=1) as slow, client.consumer("g", "home") as other:
                assert next(slow).payload == b"0"
                assert len(other.batch(20)) == 10
                assert slow.next(0) is None
                assert slow.batch(0) == []

    await asyncio.to_thread(work)
