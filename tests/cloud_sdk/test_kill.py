"""A node killed with SIGKILL while messages are sent and consumed: nothing acknowledged is lost."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import pytest

from cloud_sdk import Bucket, Client, OutgoingMessage, RevisionConflict
from gateway.broker.append import append
from store import control
from store.api import Action, Resource, Rule
from store.config import StoreConfig
from store.engine import Engine
from tests.waiting import patience, until

NODE = """
import asyncio, sys
from pathlib import Path
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from store.config import StoreConfig
from store.engine import Engine

async def main():
    engine = await Engine.open(Path(sys.argv[1]), StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0))
    print(await server.start("127.0.0.1", int(sys.argv[2])), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start(path: str, port: int) -> tuple[Process, int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, path, str(port), stdout=PIPE)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


@pytest.mark.slow
async def test_nothing_is_lost_when_the_node_is_killed_under_load(tmp_path) -> None:
    process, port = await start(str(tmp_path), 0)
    acknowledged: set[bytes] = set()
    received: set[bytes] = set()
    sending = True

    async def sender(client: Client, number: int) -> None:
        count = 0
        while sending:
            payload = b"%d-%d" % (number, count)
            await client.send(f"home/{number}", payload)
            acknowledged.add(payload)
            count += 1

    async def receiver(client: Client) -> None:
        async with client.consumer("g", "home", invisible_seconds=5) as consumer:
            async for message in consumer:
                received.add(message.payload)
                await message.ack()

    async def wait_for_more(than: int) -> None:
        await until(lambda: len(acknowledged) > than)

    try:
        async with Client(f"127.0.0.1:{port}", retry_seconds=30) as client:
            senders = [asyncio.create_task(sender(client, number)) for number in range(20)]
            receivers = [asyncio.create_task(receiver(client)) for _ in range(2)]
            for _ in range(3):
                await wait_for_more(len(acknowledged) + 500)
                process.kill()
                await process.wait()
                process, _ = await start(str(tmp_path), port)
            await wait_for_more(len(acknowledged) + 100)
            sending = False
            await asyncio.gather(*senders)
            async with patience():
                while not acknowledged <= received:
                    assert not any(each.done() for each in receivers)
                    await asyncio.sleep(0.05)
            for each in receivers:
                each.cancel()
            await asyncio.gather(*receivers, return_exceptions=True)
            stored: list[bytes] = []
            for partition in await client.partitions("home"):
                offset = partition.begin
                while offset < partition.end:
                    batch = await client.pull("home", partition.partition, offset)
                    stored += (message.payload for message in batch)
                    offset = batch.next_offset
            assert len(stored) == len(set(stored)) and acknowledged <= set(stored)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
async def test_the_state_of_a_group_survives_every_kill(tmp_path) -> None:
    """Acknowledgements out of order, leases, deliveries and dead letters."""
    process, port = await start(str(tmp_path), 0)

    async def kill() -> None:
        nonlocal process
        await client.send("office/0", b"")  # what was leased before is in the log with it
        process.kill()
        await process.wait()
        process, _ = await start(str(tmp_path), port)

    try:
        async with Client(f"127.0.0.1:{port}", retry_seconds=30) as client:
            await client.send_many([OutgoingMessage("home/0", b"%d" % i) for i in range(20)])
            async with client.consumer("g", "home", max_deliveries=3, invisible_seconds=600) as consumer:
                first = await consumer.batch(20)
                assert [message.offset for message in first] == list(range(20))
                await consumer.ack(first[1::2])
                assert await consumer.flush() == 0
                await kill()
                assert await consumer.next(0) is None  # what is left is still out
                await consumer.ack(first[0:10:2])
                await consumer.nack(first[10::2], 0.0)
                assert await consumer.flush() == 0
                for deliveries in (2, 3):
                    await kill()
                    again = await consumer.batch(20)
                    assert [(each.offset, each.deliveries) for each in again] == [
                        (offset, deliveries) for offset in range(10, 20, 2)
                    ]
                    await kill()
                    await consumer.nack(again, 0.0)
                    assert await consumer.flush() == 0
                assert await consumer.next(0) is None
            await kill()
            async with client.dead_letters("g") as dead:
                letters = await dead.batch(20)
                assert [each.payload for each in letters] == [b"%d" % i for i in range(10, 20, 2)]
                assert [each.offset for each in letters] == list(range(5))
                await dead.ack(letters)
            (group,) = await client.groups()
            assert group.lag == 0
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
async def test_acknowledged_messages_never_come_again(tmp_path) -> None:
    process, port = await start(str(tmp_path), 0)
    sent: set[bytes] = set()
    settled: set[bytes] = set()
    sending = True

    async def sender(client: Client, number: int) -> None:
        count = 0
        while sending:
            payloads = [b"%d-%d" % (number, count + i) for i in range(20)]
            await client.send_many([OutgoingMessage(f"home/{number}", payload) for payload in payloads])
            sent.update(payloads)
            count += 20

    async def receiver(client: Client) -> None:
        async with client.consumer("g", "home", max_records=50, invisible_seconds=4, max_deliveries=200) as consumer:
            while True:
                before = set(settled)  # a crash forgets the last leases, and others may get these messages as well
                batch = await consumer.batch()
                # What is sent again because no answer came may be in the log twice: another offset, another message.
                got = {b"%d/%d" % (each.partition, each.offset) for each in batch}
                assert not got & before
                await consumer.ack(batch)
                if await consumer.flush() == 0:  # else some came too late, and belong to others by now
                    settled.update(got)
                received.update(each.payload for each in batch)

    received: set[bytes] = set()
    try:
        async with Client(f"127.0.0.1:{port}", retry_seconds=30) as client:
            senders = [asyncio.create_task(sender(client, number)) for number in range(4)]
            receivers = [asyncio.create_task(receiver(client)) for _ in range(4)]
            async with asyncio.timeout(100):
                for _ in range(4):
                    more = len(settled) + 1_000
                    while len(settled) < more:
                        assert not any(each.done() for each in (*senders, *receivers))
                        await asyncio.sleep(0.01)
                    process.kill()
                    await process.wait()
                    process, _ = await start(str(tmp_path), port)
                sending = False
                await asyncio.gather(*senders)
                while not sent <= received:
                    assert not any(each.done() for each in receivers)
                    await asyncio.sleep(0.05)
            for each in receivers:
                each.cancel()
            await asyncio.gather(*receivers, return_exceptions=True)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
async def test_counting_by_revisions_survives_every_kill(tmp_path) -> None:
    """Each of some services adds one by compare-and-set, again and again. The sum is the number of times that they were
    told that they had."""
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=4 << 20))
    everybody = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"$kv/#")
    await append(engine, [control.RulesSet([everybody]).frame(b"")])
    await engine.close()
    process, port = await start(str(tmp_path), 0)
    added, adding = 0, True

    async def add(bucket: Bucket) -> None:
        nonlocal added
        while adding:
            entry = await bucket.get("sum")
            number, revision = (0, 0) if entry is None else (int(entry.value), entry.revision)
            with suppress(RevisionConflict):
                await bucket.put("sum", b"%d" % (number + 1), revision=revision)
                added += 1

    async def wait_for_more(than: int) -> None:
        await until(lambda: added > than)

    try:
        async with Client(f"127.0.0.1:{port}", retry_seconds=30) as client:
            tasks = [asyncio.create_task(add(client.bucket("a"))) for _ in range(5)]
            for _ in range(3):
                await wait_for_more(added + 50)
                process.kill()
                await process.wait()
                process, _ = await start(str(tmp_path), port)
            await wait_for_more(added + 20)
            adding = False
            await asyncio.gather(*tasks)
            entry = await client.bucket("a").get("sum")
            assert entry is not None
            assert int(entry.value) == added
    finally:
        process.kill()
        await process.wait()
