"""Clients of a node that is drained."""

from collections import Counter

import pytest

from gateway.net.weighted import in_any_order, in_turn, one_of
from gateway.node.draining import Draining
from gateway.node.gateway_node import devices_of, services_of
from gateway.node.node import Node
from store.remote.wire.layout import NodeFacts
from tests.gateway.connection.test_slow_disk import slow_disk
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, RawClient
from tests.waiting import until


@pytest.mark.usefixtures("interpreted_flushes")
async def test_what_a_client_has_sent_is_acknowledged_before_it_has_to_go(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends then is not read, so it is not accepted without an acknowledgement."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    go_on = slow_disk(monkeypatch)
    client.send(wire.publish(5, b"t", b"1", 1, 1))
    await until(lambda: b"c" in node._sessions.open_sessions)
    _, connection = node._sessions.open_sessions[b"c"]
    await until(lambda: connection.uncommitted)
    draining = Draining(node._sessions)
    draining.begin(100)
    await until(lambda: connection.leaving)
    client.send(wire.publish(5, b"t", b"2", 1, 2))
    go_on.set()
    assert (await client.expect(PUBACK)).packet_id == 1
    goodbye = await client.expect(DISCONNECT)
    assert goodbye.reason == 0x9C
    assert 0x1C not in dict(goodbye.properties), "no other node is known"
    draining.end()
    await RawClient.connect(node.ports.mqtt, b"c", 5)


async def test_clients_are_moved_a_few_at_a_time(node: Node) -> None:
    clients = [await RawClient.connect(node.ports.mqtt, b"%d" % number, 5) for number in range(3)]
    draining = Draining(node._sessions)
    draining.begin(1)
    assert (await clients[0].expect(DISCONNECT)).reason == 0x9C
    assert set(node._sessions.open_sessions) == {b"1", b"2"}
    draining.begin(1000)
    for client in clients[1:]:
        await client.expect(DISCONNECT)
    draining.end()


N1 = NodeFacts("a:1", "a:7070", "a:1883", 3)
N2 = NodeFacts("b:1", "b:7070", "b:1883", 1)
N3 = NodeFacts("c:1", "c:7070", "", 0)


def test_clients_are_told_of_nodes_that_are_not_drained() -> None:
    drained = NodeFacts("a:1", "a:7070", "a:1883", 3, True)
    assert devices_of([N1, N2, N3], N2) == [("a:1883", 3)]
    assert devices_of([drained, N1, N2], N2) == [], "one of its gateways has said so"
    assert services_of([N1, N2, N3]) == [("a:7070", 3), ("b:7070", 1), ("c:7070", 0)]
    assert services_of([drained, N1, N2]) == [("b:7070", 1)]
    assert services_of([drained]) == [("a:7070", 3)], "there is no other"


def test_nodes_are_chosen_by_their_weights() -> None:
    places = [("a", 3), ("b", 1), ("c", 0)]
    chosen = Counter(one_of(places) for _ in range(4000))
    assert chosen["c"] == 0
    assert 2 < chosen["a"] / chosen["b"] < 4.5
    orders = Counter(tuple(in_any_order(places)) for _ in range(4000))
    assert set(orders) == {("a", "b", "c"), ("b", "a", "c")}
    assert 2 < orders["a", "b", "c"] / orders["b", "a", "c"] < 4.5
    assert in_turn(places) == ["a", "a", "a", "b"]
    unweighted = [("a", 0), ("b", 0)]
    assert {one_of(unweighted) for _ in range(100)} == {"a", "b"}
    assert in_turn(unweighted) == ["a", "b"]
    assert one_of([]) == ""
    assert in_any_order([]) == in_turn([]) == []
