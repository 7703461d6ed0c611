"""Helpers for tests of shared subscriptions: members, their messages, and the lag of groups."""

import asyncio

from gateway.node.node import Node
from tests.gateway.raw import Message, RawClient
from tests.waiting import PATIENCE_S, patience, until

GROUP = b"$share/g/t/#"
MAXIMUM = b"\x27"  # the property Maximum Packet Size


async def members(node: Node, count: int, version: int = 5, qos: int = 1, **options: int) -> list[RawClient]:
    found = []
    for number in range(count):
        client = await RawClient.connect(node.ports.mqtt, b"m%d" % number, version, **options)
        assert await client.subscribe((GROUP, qos)) == bytes([qos])
        found.append(client)
    return found


async def held(client: RawClient, count: int) -> list[Message]:
    """The next messages, not acknowledged; no more come."""
    found = [await client.message() for _ in range(count)]
    await client.quiet()
    return found


async def gather(clients: list[RawClient], count: int) -> list[list[bytes]]:
    """Have all of them acknowledge what comes, until there are so many messages in all. What each got."""
    got: list[list[bytes]] = [[] for _ in clients]
    enough = asyncio.Event()

    async def read(client: RawClient, own: list[bytes]) -> None:
        while True:
            own.extend([message.payload for message in await client.take(1)])
            if sum(map(len, got)) >= count:
                enough.set()

    tasks = [asyncio.create_task(read(client, own)) for client, own in zip(clients, got, strict=True)]
    waits = asyncio.create_task(enough.wait())
    done, _ = await asyncio.wait([waits, *tasks], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
    for task in [*tasks, waits]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert waits in done, f"{sum(map(len, got))} of {count} came"
    return got


def together(got: list[list[bytes]]) -> list[bytes]:
    return [payload for each in got for payload in each]


async def groups(node: Node) -> dict[bytes, int]:
    """The groups there are, with what each has not finished."""
    assert node._engine is not None
    return {each.group: sum(queue.lag for queue in each.queues) for each in await node._engine.groups(None, 100)}


async def until_groups(node: Node, wanted: dict[bytes, int]) -> None:
    async with patience():
        while await groups(node) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_tick(node: Node, number: int) -> None:
    """Four rounds are `mqtt.shared_ack_timeout`."""
    await until(lambda: node._sessions.shared_subscriptions._ticks >= number)
