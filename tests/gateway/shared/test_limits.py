"""Groups that have as many messages out as they may: settling some makes room for more."""

from dataclasses import replace

import pytest

from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import RawClient
from tests.gateway.session.test_durable import numbers, publish
from tests.gateway.sharing import GROUP, MAXIMUM, gather, members, together


def limit(node: Node, leases: int, window: int) -> None:
    """Have the store lease out no more messages of a group than these."""
    assert node._engine is not None
    groups = node._engine._groups
    groups._config = replace(groups._config, max_group_leases=leases, max_group_window=window)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_group_at_its_limit_continues_as_messages_are_acknowledged(node: Node, version: int, qos: int) -> None:
    limit(node, 4, 6)
    clients = await members(node, 2, version, qos)
    await publish(node, b"t/x", *numbers(0, 60), qos=qos)
    assert sorted(together(await gather(clients, 60))) == sorted(numbers(0, 60))


async def test_a_group_at_its_limit_continues_behind_dead_letters(node: Node) -> None:
    limit(node, 4, 100)
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    await small.subscribe((GROUP, 1))
    await publish(node, b"t/x", *[b"." * 200] * 12, b"fits")
    assert [message.payload for message in await small.take(1)] == [b"fits"]
