"""Connections never take the descriptors that the store needs."""

import asyncio
import resource

import pytest

from gateway.listen import mqtt_front as front
from gateway.net import descriptors
from tests.gateway.raw import CONNACK, RawClient, connect
from tests.waiting import patience, until


@pytest.mark.parametrize(
    ("soft", "hard", "room"),
    [
        (1024, 1024, 256),
        (1024, 20_000, 20_000 - 1024),
        (100, 100, 25),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1 << 30),
    ],
)
def test_the_room_is_what_the_store_leaves(monkeypatch, soft: int, hard: int, room: int) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert descriptors.room_for_connections(0) == room
    assert descriptors.room_for_connections(76) == (room if room in (25, 256, 1 << 30) else room - 76)
    assert limits[-1] == (hard, hard)


def test_a_limit_that_cannot_be_raised_stays(monkeypatch) -> None:
    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    assert descriptors.room_for_connections(0) == 256
    assert descriptors.room_for_services(1000) == 128
    assert descriptors.room_for_services(7) == 7


async def test_connections_beyond_the_room_are_refused_and_that_is_said(monkeypatch, make_node, caplog) -> None:
    monkeypatch.setattr(front, "room_for_connections", lambda _: 1)
    node = await make_node()
    first = await RawClient.connect(node.ports.mqtt, b"1")
    for _ in range(3):
        refused = await RawClient.open(node.ports.mqtt, 5)
        refused.send(connect(5, b"2"))
        assert (await refused.expect(CONNACK)).reason == 0x97
        await refused.closed()
    assert node.counters.connections_refused == 3
    assert [r.message for r in caplog.records if "refusing" in r.message] == [
        "listener mqtt: refusing connections: open files of the process allow 1 (see LimitNOFILE)"
    ]
    await first.quiet()


@pytest.mark.parametrize("front", ["http", "ws"])
async def test_connections_that_say_nothing_are_bounded(make_node, front: str) -> None:
    node = await make_node()
    port = getattr(node.ports, front)
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(150)]
    closed = 150 - (64 if front == "http" else 128)
    await until(lambda: sum(map(is_closed, opened)) >= closed)
    assert sum(map(is_closed, opened)) == closed
    for _, writer in opened:
        writer.close()
    async with patience():
        while not await answers(port):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_closed(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Whether the node has closed a connection on which it wrote nothing."""
    return stream[0].at_eof() or stream[0].exception() is not None


async def answers(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n")
        return (await reader.read(8)).startswith(b"HTTP/1.1")
    except ConnectionError:
        return False
    finally:
        writer.close()
