"""A closed session leaves nothing in memory."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gateway.connection.connection import Connection
from gateway.node.node import Node
from gateway.session.session import Session
from tests.gateway.raw import RawClient
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP
from tests.waiting import patience


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector does not run: cycles of references stay."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.usefixtures("no_collector")
async def test_a_closed_session_does_not_wait_for_the_garbage_collector(node: Node, is_durable: bool, qos: int) -> None:
    """Also with messages in flight, with a backlog, and as a member of a group."""
    before = [each for each in gc.get_objects() if isinstance(each, (Session, Connection))]  # of earlier tests
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.subscribe((b"t/+", 0))
    for number in range(3):
        name = b"c%d" % number
        client = await (durable(node, name) if is_durable else RawClient.connect(node.ports.mqtt, name, 5))
        await client.subscribe((b"t/+", qos))
        await client.subscribe((GROUP, qos))
        await publish(node, b"t/x", *numbers(0, 100), qos=2)
        await client.message()
        await client.drop()
    async with patience():
        while left(before) != [b"other"] * 2:
            await publish(node, b"t/x", b"last")  # the router forgets the routes of before
            await asyncio.sleep(0.1)


def left(before: list[object]) -> list[bytes]:
    """The client ids of the sessions and connections that came into memory since, but those of publishers."""
    known = set(map(id, before))
    new = [each for each in gc.get_objects() if isinstance(each, (Session, Connection)) and id(each) not in known]
    return [each.client_id for each in new if each.client_id != b"publisher"]
