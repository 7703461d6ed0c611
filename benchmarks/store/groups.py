"""Groups: what it costs to lease messages and to settle them, in the store and over gRPC."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.store.load import PARENTS, Load, uniform
from benchmarks.store.works import CONFIG, Figures, run
from cloud_sdk import Client
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from store.api import PopRequest, Receipts, Start, partition_queue
from store.engine import Engine

MEMBERS = 64  # of one group, four on each parent
TOPICS = 10_000
COUNT = 100_000  # messages: fewer than the tail cache holds

Member = Callable[[int], Awaitable[int]]


def pops(batch: int) -> Callable[[Path, float], Figures]:
    """Members on the store's own loop, `batch` messages at a time. Everything is counted."""

    async def body(folder: Path, scale: float) -> Figures:
        engine = await filled(folder, scale)

        async def member(number: int) -> int:
            queues = [partition_queue(b"site%d" % (number % PARENTS), i) for i in range(CONFIG.partitions)]
            count = 0
            while True:
                popped = await engine.pop(PopRequest(b"g", queues, batch, 1 << 20, 60_000, Start.EARLIEST))
                if not popped.runs:
                    return count
                receipts = [Receipts(each.queue, each.offset, each.count, each.deliveries) for each in popped.runs]
                await engine.settle(b"g", receipts)
                count += sum(each.count for each in popped.runs)

        began, used = time.perf_counter(), time.process_time()
        count = await all_of(member)
        took, used = time.perf_counter() - began, time.process_time() - used
        await engine.close()
        return {"messages_per_second": count / took, "cpu_us": used / count * 1e6}

    return lambda folder, scale: run(body(folder, scale))


def consumers(batch: int) -> Callable[[Path, float], Figures]:
    """Measure groups over gRPC: consumers of the SDK run in a process of their own. `cpu_us` is the node's."""

    async def body(folder: Path, scale: float) -> Figures:
        engine = await filled(folder, scale)
        server = RpcServer(engine, Authority(engine, 0))
        port = await server.start("127.0.0.1", 0)
        used = time.process_time()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.store.groups", str(port), str(batch)), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        used = time.process_time() - used
        count, took, theirs = (float(word) for word in output.split())
        states = [each for group in await engine.groups(None, 1) for each in group.queues]
        assert count == sum(each.floor for each in states), "not everything was settled"
        await server.stop()
        await engine.close()
        return {
            "messages_per_second": count / took,
            "cpu_us": used / count * 1e6,
            "client_cpu_us": theirs / count * 1e6,
        }

    return lambda folder, scale: run(body(folder, scale))


async def filled(folder: Path, scale: float) -> Engine:
    engine = await Engine.open(folder, CONFIG)
    await Load(engine.append, uniform(TOPICS), int(COUNT * scale)).run()
    return engine


async def all_of(member: Member) -> int:
    return sum(await asyncio.gather(*(member(number) for number in range(MEMBERS))))


async def consume(port: int, batch: int) -> None:
    async with Client(f"127.0.0.1:{port}") as client:

        async def member(number: int) -> int:
            count = 0
            async with client.consumer("g", f"site{number % PARENTS}", max_records=batch) as consumer:
                while deliveries := await consumer.batch(0):
                    await consumer.ack(deliveries)
                    count += len(deliveries)
            return count

        began, used = time.perf_counter(), time.process_time()
        count = await all_of(member)
    print(count, time.perf_counter() - began, time.process_time() - used, flush=True)


if __name__ == "__main__":
    asyncio.run(consume(int(sys.argv[1]), int(sys.argv[2])))
