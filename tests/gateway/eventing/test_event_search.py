"""Stored events are found by time, type, source and id."""

import json
import time

import pytest

from gateway.events.event import message_block
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from tests import waiting
from tests.gateway.eventing.rules import publish, service


def block(event_id: str, **attributes: str) -> bytes:
    fields = {"specversion": "1.0", "id": event_id, "source": "/meters", "type": "reading", **attributes}
    return message_block(fields, b"", [("key", event_id)])


async def page(node: Node, topic: str, **fields: object) -> pb.FindEventsReply:
    return await service(node).find_events(pb.FindEventsRequest(topic=topic, **fields), NODE_USER)  # type: ignore[arg-type]


async def found(node: Node, topic: str, limit: int = 3, **fields: object) -> list[str]:
    """The data of all events that are found, read in pages."""
    texts: list[str] = []
    after = None
    while True:
        reply = await page(node, topic, limit=limit, after=after, **fields)
        texts += [json.loads(each.event).get("data", "") for each in reply.events]
        if not reply.HasField("after"):
            return texts
        after = reply.after


async def test_events_are_found_in_the_order_of_the_log(node: Node) -> None:
    topics = [f"fleet/{number % 7}/temp" for number in range(40)]
    for number, topic in enumerate(topics):
        await publish(node, topic, str(number), block=block(f"e{number}", type="even" if number % 2 == 0 else "odd"))
    await publish(node, "fleet/1/speed", "99")
    await publish(node, "other/1/temp", "100")
    assert await found(node, "fleet/#") == [*range(40), 99]
    assert await found(node, "fleet/+/temp") == [*range(40)]
    assert await found(node, "fleet/3/temp") == [*range(3, 40, 7)]
    assert await found(node, "fleet/+/temp", type="odd") == [*range(1, 40, 2)]
    assert await found(node, "fleet/#", source="/clients/device") == [99]
    assert await found(node, "fleet/#", limit=1000) == [*range(40), 99]
    assert await found(node, "none/#") == []


async def test_an_event_is_found_by_its_id(node: Node) -> None:
    (first,) = await publish(node, "fleet/1/temp", "1", block=block("e1"))
    await publish(node, "fleet/2/temp", "2", block=block("e1", source="/others"))
    (plain,) = await publish(node, "fleet/2/temp", "3")
    assert await found(node, "fleet/#", id="e1") == [1, 2]
    assert await found(node, "fleet/#", id="e1", source="/others") == [2]
    assert await found(node, "fleet/1/temp", id="e1") == [1]
    assert await found(node, "fleet/#", id=str(plain)) == [3]
    assert await found(node, "fleet/#", id=str(first)) == [], "its id is another one"
    assert await found(node, "fleet/#", id="999999") == []


async def test_events_are_found_by_the_time_at_which_they_were_stored(node: Node) -> None:
    await publish(node, "fleet/1/temp", "1", "2", block=block("e1"))
    reply = await page(node, "fleet/#")
    until = reply.events[-1].time_ms + 1
    await waiting.until(lambda: time.time() * 1000 >= until)
    await publish(node, "fleet/2/temp", "3", block=block("e1"))
    assert await found(node, "fleet/#", until_ms=until) == [1, 2]
    assert await found(node, "fleet/#", since_ms=until) == [3]
    assert await found(node, "fleet/#", since_ms=until, id="e1") == [3]
    assert await found(node, "fleet/2/temp", since_ms=until + 60_000) == []


async def test_a_search_that_cannot_be_made_is_refused(node: Node) -> None:
    for topic in ("#", "+/x", "", "a/#/b"):
        with pytest.raises(RequestError, match="is not a topic filter whose first level has a name"):
            await page(node, topic)
    with pytest.raises(RequestError, match="after is not that of a page"):
        await page(node, "a", after="x")
