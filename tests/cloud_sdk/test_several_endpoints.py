"""A client of several nodes, whose node goes away: it goes on at another one, and loses and repeats nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_sdk import Client, OutgoingMessage
from cloud_sdk.errors import InvalidArgument, Unavailable
from cloud_sdk.transport.connection import endpoints_of
from gateway.auth.authority import Authority
from gateway.node.gateway_node import services_of
from gateway.node.rpc_server import RpcServer
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from sluice.demo.ports import lasting_ports
from store.engine import Engine
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.remote.wire.layout import NodeFacts
from tests.cloud_sdk.conftest import _SOCKETS, CONFIG
from tests.cloud_sdk.test_client import read_all
from tests.waiting import until


class Gateway:
    """A gateway that serves gRPC, for one store with others."""

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        (self.port,) = lasting_ports(1)
        self.endpoint = f"127.0.0.1:{self.port}"
        self.tells = ""  # the address that clients are told of
        self.server: RpcServer | None = None

    async def start(self) -> None:
        name, config = f"g{self.number}", RemoteConfig(grace_s=5)
        node = NodeFacts(services=self.tells)
        self.store = store = await RemoteStore.open(self.address, name, EventReceiver(), config, node=node)
        self.server = RpcServer(store, Authority(store, 0), services=lambda: services_of(store.nodes))
        assert await self.server.start("127.0.0.1", self.port) == self.port

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop(0)
            await self.store.close()


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[list[Gateway]]:
    engine = await Engine.open(tmp_path / "data", CONFIG)
    store = StoreServer(engine, Hub(engine), RemoteConfig(grace_s=5))
    address = f"unix:{_SOCKETS.name}/{id(engine)}"
    await store.start(address)
    gateways = [Gateway(address, number) for number in range(3)]
    for gateway in gateways:
        await gateway.start()
    yield gateways
    for gateway in gateways:
        await gateway.stop()
    await store.stop()
    await engine.close()


def endpoints(gateways: list[Gateway]) -> str:
    return ",".join(gateway.endpoint for gateway in gateways)


def used(client: Client, gateways: list[Gateway]) -> Gateway:
    """The gateway that the client uses."""
    return next(each for each in gateways if each.endpoint == client._connection._endpoints[client._connection._at])


async def test_sends_keep_their_order_and_are_stored_once_over_a_change_of_nodes(gateways: list[Gateway]) -> None:
    async with Client(endpoints(gateways), retry_seconds=20) as client:
        sends = [asyncio.create_task(client.send("home/1", b"0"))]
        for number in range(1, 2000):
            sends.append(asyncio.create_task(client.send("home/1", b"%d" % number)))
            if number % 20 == 0:
                await asyncio.sleep(0)
            if number in {700, 1400}:
                await until(sends[number - 700].done)
                await used(client, gateways).stop()
        await asyncio.gather(*sends)
        assert [message.payload for message in await read_all(client, "home")] == [b"%d" % each for each in range(2000)]


async def test_a_producer_that_waits_for_no_answer_moves_from_node_to_node(gateways: list[Gateway]) -> None:
    async with Client(endpoints(gateways), retry_seconds=20) as client:
        sends = [asyncio.create_task(client.send("home/1", bytes(1000))) for _ in range(10_000)]
        await until(sends[0].done)
        await used(client, gateways).stop()
        assert not sends[-1].done()
        await asyncio.gather(*sends)
        await used(client, gateways).stop()
        await client.send("home/1", b"")
        assert [len(message.payload) for message in await read_all(client, "home")] == [1000] * 10_000 + [0]


async def test_a_unit_of_work_is_stored_once_over_a_change_of_nodes(gateways: list[Gateway]) -> None:
    async with Client([each.endpoint for each in gateways], retry_seconds=20) as client:
        for _ in range(2):
            async with client.idempotent_producer("work", 1) as producer:
                for part in range(4):
                    messages = [OutgoingMessage("home/1", b"%d" % (part * 500 + each)) for each in range(500)]
                    await producer.send_many(messages)
                    if part == 1:
                        await used(client, gateways).stop()
        assert [message.payload for message in await read_all(client, "home")] == [b"%d" % each for each in range(2000)]


async def test_consumers_and_readers_go_on_at_another_node(gateways: list[Gateway]) -> None:
    async with Client(endpoints(gateways[:2]), retry_seconds=20) as client, Client(gateways[2].endpoint) as other:
        consumed: list[bytes] = []
        read: list[bytes] = []

        async def consume() -> None:
            async with client.consumer("g", "home", invisible_seconds=2) as consumer:
                async for message in consumer:
                    consumed.append(message.payload)
                    await message.ack()

        async def pull() -> None:
            async for message in client.pull_consumer("home"):
                read.append(message.payload)

        tasks = [asyncio.create_task(consume()), asyncio.create_task(pull())]
        await other.send("home/1", b"0")
        await until(lambda: consumed == read == [b"0"])
        await used(client, gateways).stop()
        await other.send("home/1", b"1")
        await until(lambda: read == [b"0", b"1"] and b"1" in consumed)
        assert [task for task in tasks if task.done()] == []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_stays_where_it_is_and_comes_back_when_no_other_node_is_left(gateways: list[Gateway]) -> None:
    two = gateways[:2]
    async with Client(endpoints(two), retry_seconds=20) as client:
        first = used(client, two)
        await client.parents()
        assert used(client, two) is first
        await first.stop()
        await client.parents()
        second = used(client, two)
        assert second is not first
        await first.start()
        await client.parents()
        assert used(client, two) is second
        await second.stop()
        await client.parents()
        assert used(client, two) is first


async def test_a_client_learns_of_other_nodes(gateways: list[Gateway]) -> None:
    for gateway in gateways:
        await gateway.stop()
        gateway.tells = gateway.endpoint
        await gateway.start()
    async with Client(gateways[0].endpoint, retry_seconds=20) as client:
        await client.parents()
        await until(lambda: set(client._connection._endpoints) == {each.endpoint for each in gateways})
        for _ in range(2):
            await used(client, gateways).stop()
            await client.send("home/1", b"x")
        assert len(await read_all(client, "home")) == 2


async def test_without_any_node_a_call_is_unavailable(gateways: list[Gateway]) -> None:
    async with Client(endpoints(gateways), retry_seconds=0.3) as client:
        for gateway in gateways:
            await gateway.stop()
        with pytest.raises(Unavailable):
            await client.parents()


def test_endpoints_are_separated_by_commas_or_in_a_sequence() -> None:
    assert endpoints_of("a:1, b:2,unix:/tmp/c") == endpoints_of(("a:1,b:2", "unix:/tmp/c", "a:1"))
    for wrong in ("a:1,b", "a:1,,b:2", "a:1,", (), ""):
        with pytest.raises(InvalidArgument):
            Client(wrong)
