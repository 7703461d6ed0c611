"""A node killed with SIGKILL while messages are sent and consumed: nothing acknowledged is lost."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from cloud_sdk import Client

NODE = """
import asyncio, sys
from pathlib import Path
from gateway.rpc import RpcServer
from store.config import StoreConfig
from store.engine import Engine

async def main():
    engine = await Engine.open(Path(sys.argv[1]), StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine)
    print(await server.start("127.0.0.1", int(sys.argv[2])), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start(path: str, port: int) -> tuple[Process, int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, path, str(port), stdout=PIPE)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


@pytest.mark.slow
async def test_kill_under_load(tmp_path) -> None:
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
        async with asyncio.timeout(30):
            while len(acknowledged) <= than:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

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
            async with asyncio.timeout(40):
                while not acknowledged <= received:
                    assert not any(each.done() for each in receivers)
                    await asyncio.sleep(0.05)
            for each in receivers:
                each.cancel()
            await asyncio.gather(*receivers, return_exceptions=True)
    finally:
        process.kill()
        await process.wait()
