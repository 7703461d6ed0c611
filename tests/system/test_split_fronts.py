"""Cloud services at gateways whose processes, and whose store, are killed: what was acknowledged is there, in order,
and where the receipt says."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pytest

from cloud_sdk import Client, Decision, Delivery, Message, Unavailable
from tests.system.conftest import NodeProcess
from tests.system.test_supervised import children
from tests.waiting import PATIENCE_S, patience, until

pytestmark = pytest.mark.slow

SENDERS = 6
KEYS = 4


class Services:
    """Services that send and consume all the time, over connections that the kernel spreads over the gateways."""

    def __init__(self, stack: AsyncExitStack, endpoint: str) -> None:
        self._stack = stack
        self._endpoint = endpoint
        self.sent: dict[bytes, int] = {}  # payload → position, of what was acknowledged
        self.consumed: set[bytes] = set()
        self.ordered: dict[str, list[int]] = defaultdict(list)
        self.committed: set[bytes] = set()  # transactions that were said to be
        self._is_sending = True
        self._senders: list[asyncio.Task[None]] = []

    async def client(self, name: str = "") -> Client:
        return await self._stack.enter_async_context(Client(self._endpoint, name=name, retry_seconds=PATIENCE_S))

    async def start(self) -> None:
        for _ in range(3):
            members = await self.client()
            await self._stack.enter_async_context(
                members.push_consumer("all", "home", self._consume, invisible_seconds=3)
            )
            await self._stack.enter_async_context(
                members.push_consumer("ordered", "home", self._consume_in_order, ordered=True, invisible_seconds=3)
            )
        checking = await self.client("shop")
        await self._stack.enter_async_context(checking.transaction_checks(self._decide))
        self._senders = [asyncio.create_task(self._send(await self.client(), number)) for number in range(SENDERS)]
        self._senders.append(asyncio.create_task(self._trade(await self.client("shop"))))

    async def stop_sending(self) -> None:
        self._is_sending = False
        async with patience():
            await asyncio.gather(*self._senders)

    async def _send(self, client: Client, sender: int) -> None:
        count = 0
        while self._is_sending:
            payload = b"%d %d" % (sender, count)
            receipt = await client.send(f"home/{sender}", payload, ordering_key=f"k{sender % KEYS} {sender}")
            self.sent[payload] = receipt.position
            count += 1

    async def _trade(self, client: Client) -> None:
        """Send halves; whoever checks commits them."""
        count = 0
        while self._is_sending:
            payload = b"trade %d" % count
            with suppress(Unavailable):
                await client.transaction().send("trades/1", payload)
                self.committed.add(payload)
            count += 1
            await asyncio.sleep(0.02)

    async def _decide(self, _: Message) -> Decision:
        return Decision.COMMIT

    async def _consume(self, message: Delivery) -> None:
        self.consumed.add(message.payload)

    async def _consume_in_order(self, message: Delivery) -> None:
        numbers = self.ordered[message.ordering_key or ""]
        number = int(message.payload.split()[1])
        if number not in numbers:  # it may come again when its acknowledgement was lost
            numbers.append(number)


async def stored(client: Client, parent: str) -> list[Message]:
    found: list[Message] = []
    for partition in await client.partitions(parent):
        offset = partition.begin
        while offset < partition.end:
            batch = await client.pull(parent, partition.partition, offset)
            found += batch
            offset = batch.next_offset
    return found


async def test_services_at_gateways_lose_nothing_when_processes_are_killed(
    make_node: Callable[..., NodeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_STORE_TRANSACTION_CHECK_S", "1")
    node = make_node("node", "--gateways", "2")
    await asyncio.to_thread(node.start)
    async with AsyncExitStack() as stack:
        services = Services(stack, node.endpoint)
        await services.start()
        for name in ("g1", "store", "g2", "store"):
            count, old = len(services.sent), children(node)
            await until(lambda count=count: len(services.sent) > count + 300)
            os.kill(old[name], signal.SIGKILL)
            await until(lambda name=name, old=old: children(node)[name] != old[name])
        count = len(services.sent)
        await until(lambda: len(services.sent) > count + 300)
        await services.stop_sending()
        await until(lambda: services.sent.keys() <= services.consumed)
        await until(lambda: sum(map(len, services.ordered.values())) >= len(services.sent))
        client = await services.client()
        messages = {each.payload: each for each in await stored(client, "home")}
        assert services.sent.keys() <= messages.keys()
        assert len(await stored(client, "home")) == len(messages), "a message was stored twice"
        wrong = {p: at for p, at in services.sent.items() if at >= 0 and at != messages[p].position}
        assert wrong == {}
        for key, numbers in services.ordered.items():
            assert numbers == sorted(numbers), key
        async with patience():
            while not services.committed <= {each.payload for each in await stored(client, "trades")}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert await asyncio.to_thread(node.stop) == 0
