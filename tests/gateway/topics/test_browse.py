"""`$topics/<levels>/+`: what topics there are, by subscribing, once and in pages."""

import json

import pytest

from gateway.node.node import Node
from gateway.topics.browse import parent_levels
from tests.gateway.conftest import MakeNode
from tests.gateway.people import set_rules
from tests.gateway.raw import PINGRESP, PUBLISH, RawClient

TOPICS = (b"home/bath/temp", b"home/bath", b"home/kitchen/temp", b"home/kitchen/light/1", b"plant", b"$own/x")


@pytest.fixture
async def filled(node: Node) -> Node:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic in TOPICS:
        await publisher.publish(topic, b"x")
    await publisher.publish(b"$inbox/lamp", b"x")
    return node


async def told(client: RawClient) -> list[tuple[bytes, object]]:
    """The messages received so far."""
    found = []
    client.send(b"\xc0\x00")
    while (packet := await client.packet()).kind != PINGRESP:
        assert packet.kind == PUBLISH
        message = client.parse(packet)
        assert (message.retain, message.qos) == (True, 0)
        found.append((message.topic, json.loads(message.payload)))
    return found


@pytest.mark.parametrize(
    ("topic_filter", "above"),
    [
        (b"$topics/+", b""),
        (b"$topics/#", b""),
        (b"$topics/home/+", b"home/"),
        (b"$topics//+", b"/"),
        (b"$topics/$own/#", b"$own/"),
        *[(name, None) for name in (b"$topics", b"$topics/", b"$topics/home", b"$topics/+/temp", b"$topics/+/+")],
        *[(name, None) for name in (b"$topics/$inbox/+", b"$topics/$inbox/a/#")],
    ],
)
def test_requests_are_parsed(topic_filter: bytes, above: bytes | None) -> None:
    assert parent_levels(topic_filter) == above


@pytest.mark.parametrize("expiry", [0, 100])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_plus_below_topics_lists_the_next_level(filled: Node, version: int, expiry: int) -> None:
    properties = {"expiry": expiry} if version == 5 else {}
    client = await RawClient.connect(filled.ports.mqtt, b"c", version, not expiry, **properties)
    assert await client.subscribe((b"$topics/+", 2), (b"$topics/home/+", 1), (b"$topics/nothing/+", 0)) == b"\0\0\0"
    assert await told(client) == [
        (b"$topics/home", {"topic": False, "children": True}),
        (b"$topics/plant", {"topic": True, "children": False}),
        (b"$topics/home/bath", {"topic": True, "children": True}),
        (b"$topics/home/kitchen", {"topic": False, "children": True}),
    ]
    assert not filled._sessions.open_sessions[b"c"][0].subscriptions
    assert await client.unsubscribe(b"$topics/+") in (b"", b"\x11")


async def test_all_topics_below_a_level_are_listed(filled: Node) -> None:
    client = await RawClient.connect(filled.ports.mqtt, b"c")
    await client.subscribe((b"$topics/home/#", 0))
    below = [b"home/bath", b"home/bath/temp", b"home/kitchen/light/1", b"home/kitchen/temp"]
    assert await told(client) == [(b"$topics/" + name, {"topic": True}) for name in below]
    await client.subscribe((b"$topics/#", 0), (b"$topics/$own/#", 0))
    names = [name for name, _ in await told(client)]
    assert names == [b"$topics/" + name for name in (*below, b"plant", b"$own/x")]


@pytest.mark.parametrize("mark", [b"+", b"#"])
async def test_many_come_in_pages(node: Node, mark: bytes) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for i in range(300):
        await publisher.publish(b"many/%03d/x" % i if mark == b"+" else b"many/%03d" % i, b"")
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"$topics/many/" + mark, 0))
    names = [(await client.message()).topic for _ in range(300)]
    assert names == [b"$topics/many/%03d" % i for i in range(300)]
    await client.quiet()


async def test_invalid_requests_are_refused(filled: Node) -> None:
    client = await RawClient.connect(filled.ports.mqtt, b"c", 5)
    assert await client.subscribe((b"$topics/home", 0), (b"$topics/+/x", 0), (b"$topics/$inbox/+", 0)) == b"\x8f" * 3
    assert await client.subscribe((b"$share/g/$topics/+", 0)) == b"\x8f"


async def test_requests_are_as_many_as_subscriptions(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_subscriptions=3)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    requests = [(b"$topics/%d/+" % i, 0) for i in range(5)]
    assert sorted(await client.subscribe(*requests)) == [0, 0, 0, 0x97, 0x97]


async def test_names_of_topics_that_may_not_be_read_are_not_listed(make_node: MakeNode) -> None:
    node = await make_node()
    await set_rules(node, "", "deny subscribe secret/#")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    names = ((b"$topics/secret/+", 0), (b"$topics/#", 0), (b"$topics/home/+", 0))
    assert await client.subscribe(*names) == b"\x87\x87\0"
