"""A connection rests after many filters, for longer than they took: one client does not keep the loop to itself."""

from collections.abc import Callable, Iterator

import pytest

from gateway.connection.connection import _MANY_FILTERS, _REST_S, _SHARED_FILTERS, Connection
from gateway.mqtt.reasons import ReasonCode
from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBREC, SUBACK, UNSUBACK, RawClient
from tests.waiting import until

MANY = [b"a/%d" % number for number in range(1024)]


class Rests:
    """A clock that stands still: a rest ends when a test says so."""

    def __init__(self, connection: Connection) -> None:
        flusher = connection.flusher
        self._flusher, self._later = flusher, flusher._call_later
        self.rests: list[tuple[float, Callable[[], None]]] = []
        flusher._call_later = self._hold  # type: ignore[assignment]

    def _hold(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds:
            self.rests.append((seconds, callback))
        else:
            self._later(0, callback)

    async def end(self, filters: int) -> None:
        """Wait until the connection rests after so many filters, and end it."""
        await until(lambda: self.rests)
        seconds, callback = self.rests.pop()
        assert seconds == pytest.approx(filters * _REST_S)
        assert not self.rests
        callback()

    def stop(self) -> None:
        self._flusher._call_later = self._later


@pytest.fixture
async def client(node: Node) -> RawClient:
    return await RawClient.connect(node.ports.mqtt, b"greedy", 5)


@pytest.fixture
def rests(node: Node, client: RawClient) -> Iterator[Rests]:
    rests = Rests(node._sessions.open_sessions[b"greedy"][1])
    yield rests
    rests.stop()


async def neighbour_is_served(node: Node) -> None:
    """As often as a client that does not rest would have been served several times."""
    other = await RawClient.connect(node.ports.mqtt, b"modest", 5)
    for _ in range(5):
        other.send(b"\xc0\x00")
        await other.expect(PINGRESP)
    await other.disconnect()


async def test_a_connection_rests_after_each_packet_with_many_filters(
    node: Node, client: RawClient, rests: Rests
) -> None:
    subscriptions = node._sessions.open_sessions[b"greedy"][0].subscriptions
    for round_number in range(3):
        client.send(wire.subscribe(5, 1, *[(each, 1) for each in MANY]), wire.unsubscribe(5, 2, *MANY))
        await client.expect(SUBACK)
        await neighbour_is_served(node)
        assert len(subscriptions) == len(MANY), round_number
        await rests.end(len(MANY))
        await client.expect(UNSUBACK)
        assert len(subscriptions) == 0
        client.send(b"\xc0\x00")
        await neighbour_is_served(node)
        await rests.end(len(MANY))
        await client.expect(PINGRESP)


async def test_a_connection_rests_after_many_packets_with_few_filters(client: RawClient, rests: Rests) -> None:
    for number in range(_MANY_FILTERS):
        assert await client.subscribe((b"t", 0), packet_id=number + 1) == b"\0"
    assert not rests.rests
    assert await client.subscribe((b"t", 0)) == b"\0"
    await rests.end(_MANY_FILTERS + 1)
    assert await client.subscribe((b"t", 0)) == b"\0"
    assert not rests.rests


async def test_shared_filters_count_for_more(client: RawClient, rests: Rests) -> None:
    """Each begins a group, and ends it."""
    shared = [b"$share/g%d/a/%d" % (number, number) for number in range(_MANY_FILTERS // _SHARED_FILTERS + 1)]
    await client.subscribe(*[(each, 1) for each in shared])
    await rests.end(_SHARED_FILTERS * len(shared))
    client.send(wire.unsubscribe(5, 2, *shared))
    await client.expect(UNSUBACK)
    await rests.end(_SHARED_FILTERS * len(shared))


@pytest.mark.parametrize("qos", [1, 2])
async def test_filters_behind_messages_count_when_they_are_handled(client: RawClient, rests: Rests, qos: int) -> None:
    many = wire.subscribe(5, 1, *[(each, 0) for each in MANY]), wire.unsubscribe(5, 2, *MANY)
    client.send(wire.publish(5, b"t", b"x", qos, 7), *many, b"\xc0\x00")
    kinds = {(await client.packet()).kind for _ in range(2)}
    assert kinds == {PUBACK if qos == 1 else PUBREC, SUBACK}
    await rests.end(len(MANY))
    await client.expect(UNSUBACK)
    await rests.end(len(MANY))
    await client.expect(PINGRESP)


async def test_a_client_that_leaves_while_its_connection_rests_is_gone(node: Node, client: RawClient, rests: Rests):
    client.send(wire.subscribe(5, 1, *[(each, 0) for each in MANY]))
    await client.expect(SUBACK)
    node._sessions.open_sessions[b"greedy"][1].close(ReasonCode.SERVER_SHUTTING_DOWN)
    await until(lambda: not node._sessions.open_sessions)
    await rests.end(len(MANY))
    assert not node._sessions.open_sessions
