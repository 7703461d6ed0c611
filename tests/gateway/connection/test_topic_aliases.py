"""Topic aliases that the server gives (section 3.3.2.3.4): only where allowed, and only where they save bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.aliases import TopicAliases
from gateway.node.node import Node, Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBLISH, PUBREC, PUBREL, Message, RawClient, ack
from tests.waiting import patience

TOPIC = b"factory/line/3/temperature"


def allowing(maximum: int) -> bytes:
    return b"\x22" + wire.u16(maximum)


class Reader:
    """A client's memory of the aliases it was given: fails where one is unknown or above the maximum."""

    def __init__(self, client: RawClient, maximum: int) -> None:
        self.client = client
        self.maximum = maximum
        self.names: dict[int, bytes] = {}
        self.used = 0  # messages that came without a name
        self.bytes = 0

    async def message(self) -> Message:
        """The next message, with its topic."""
        packet = await self.client.expect(PUBLISH)
        self.bytes += packet.size
        message = self.client.parse(packet)
        aliases = [value for identifier, value in wire.properties(message.properties) if identifier == 0x23]
        if aliases:
            (alias,) = aliases
            assert isinstance(alias, int)
            assert 1 <= alias <= self.maximum
            if message.topic:
                self.names[alias] = message.topic
            else:
                self.used += 1
                message.topic = self.names[alias]
        assert message.topic
        return message


@pytest.mark.mqtt5("3.1.2-26", "3.3.2-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [0, 100])
async def test_frequent_topics_get_an_alias(ports: Ports, qos: int, expiry: int) -> None:
    """Never above the client's maximum; the topic that was used longest ago loses its alias. QoS 2 goes without."""
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, allowing(2), expiry=expiry)
    await client.subscribe((b"#", qos))
    reader = Reader(client, 2)
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    plan = [0] * 4 + [1, 0] * 3 + [2] * 3 + [0, 1, 2] * 2 + [2, 2, 1, 1, 1]
    for number in plan:
        topic = TOPIC + b"/%d" % number
        await publisher.publish(topic, topic, 2, properties=wire.pair(b"a", b"b"))
        message = await reader.message()
        assert (message.topic, message.qos) == (topic, qos)
        assert (0x26, (b"a", b"b")) in wire.properties(message.properties)
        if message.qos:
            client.send(ack(PUBACK if qos == 1 else PUBREC, message.packet_id))
        if message.qos == 2:
            client.send(ack(7, (await client.expect(PUBREL)).packet_id))
    if qos == 2:
        assert not reader.names
        return
    assert sorted(reader.names) == [1, 2]
    assert reader.used > len(plan) // 3


@pytest.mark.mqtt5("3.1.2-27")
@pytest.mark.parametrize("asked", [b"", allowing(0)])
async def test_a_client_without_topic_alias_maximum_gets_no_alias(ports: Ports, asked: bytes) -> None:
    client = await RawClient.connect(ports.mqtt, b"c", 5, properties=asked)
    await client.subscribe((b"#", 1))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    for _ in range(5):
        await publisher.publish(TOPIC, b"x")
        message = (await client.take(1))[0]
        assert (message.topic, message.properties) == (TOPIC, b"")


async def test_aliases_can_be_disabled(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_topic_aliases=0)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=allowing(9))
    await client.subscribe((TOPIC, 0))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for _ in range(3):
        await publisher.publish(TOPIC, b"x")
        assert (await client.message()).properties == b""


@pytest.mark.mqtt5("3.3.2-7")
async def test_aliases_end_with_their_connection(ports: Ports) -> None:
    """Also for what is sent again: the new connection has to hear the name first."""
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, allowing(9), expiry=100)
    await client.subscribe((TOPIC, 1))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    reader = Reader(client, 9)
    for _ in range(4):
        await publisher.publish(TOPIC, b"x")
        await reader.message()
    assert reader.used
    await client.drop()
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, allowing(9), expiry=100)
    reader = Reader(client, 9)
    for _ in range(4):
        assert (await reader.message()).dup
    for _ in range(4):
        await publisher.publish(TOPIC, b"x")
        assert (await reader.message()).topic == TOPIC
    assert reader.used


async def test_subscribers_of_one_message_have_aliases_of_their_own(ports: Ports) -> None:
    """They share the encoding, not the number: here two topics come in another order to each."""
    readers = []
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    for number in range(4):
        client = await RawClient.connect(ports.mqtt, b"c%d" % number, 5, properties=allowing(9))
        await client.subscribe((b"+/+/%d/#" % (number % 2), 1), (b"both/#", number % 3), packet_id=1)
        readers.append(Reader(client, 9))
    for topic in (b"a/topic/0/x", b"b/topic/1/x", b"c/topic/1/x") * 2 + (b"both/of/them",) * 5:
        await publisher.publish(topic, b"payload", 2, properties=wire.pair(b"k", b"v"))
    for number, reader in enumerate(readers):
        own = [b"a/topic/0/x"] * 2 if number % 2 == 0 else [b"b/topic/1/x", b"c/topic/1/x"] * 2
        messages = [await reader.message() for _ in range(len(own) + 5)]
        assert [m.topic for m in messages] == own + [b"both/of/them"] * 5
        assert [m.qos for m in messages[-5:]] == [number % 3] * 5
        assert {m.payload for m in messages} == {b"payload"}
        assert reader.used == (0 if number % 3 == 2 else 3)
    assert sorted(readers[0].names) != sorted(readers[1].names)


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
async def test_a_message_that_is_left_out_gives_no_alias(node: Node) -> None:
    """The client would not know the name. At the limit there is no room for naming one either."""
    limit = len(wire.publish(5, TOPIC, bytes(100), 1)) + 1
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=allowing(9) + b"\x27" + wire.u32(limit))
    await client.subscribe((TOPIC, 1))
    reader = Reader(client, 9)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for size in (200, 200, 100, 100, 101, 50, 50, 50, 120, 50):
        await publisher.publish(TOPIC, bytes(size))
    sizes = []
    for _ in range(8):
        message = await reader.message()
        sizes.append(len(message.payload))
        client.send(ack(PUBACK, message.packet_id))
    await client.quiet()
    assert sizes == [100, 100, 101, 50, 50, 50, 120, 50]  # 120 fits by its alias
    assert reader.used == 3
    assert node.counters.dropped_oversized == 2


async def test_subscription_identifiers_and_a_running_expiry_go_with_an_alias(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await RawClient.connect(ports.mqtt, b"c", 5, properties=allowing(9))
    client.send(wire.subscribe(5, 1, (TOPIC, 0), properties=b"\x0b\xc8\x01"))
    await client.packet()
    plain = await RawClient.connect(ports.mqtt, b"d", 5, properties=allowing(9))
    await plain.subscribe((TOPIC, 0))
    readers = [Reader(client, 9), Reader(plain, 9)]
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    for _ in range(4):
        await publisher.publish(TOPIC, b"x", properties=b"\x02" + wire.u32(60))
        found = [wire.properties((await reader.message()).properties) for reader in readers]
        assert (0x0B, 200) in found[0]
        assert all((0x02, 60) in each for each in found)
    assert [reader.used for reader in readers] == [2, 2]


async def test_an_alias_makes_a_stream_smaller(ports: Ports) -> None:
    """By nearly all of the topic's bytes."""
    sizes = []
    for maximum in (0, 5):
        client = await RawClient.connect(ports.mqtt, b"c", 5, properties=allowing(maximum))
        await client.subscribe((TOPIC, 0))
        reader = Reader(client, maximum)
        publisher = await RawClient.connect(ports.mqtt, b"p", 5)
        publisher.send(*[wire.publish(5, TOPIC, b"20.5", 0) for _ in range(100)])
        async with patience():
            for _ in range(100):
                await reader.message()
        sizes.append(reader.bytes)
    assert sizes[0] - sizes[1] == 98 * (len(TOPIC) - 3) - 3


@given(st.integers(1, 4), st.lists(st.sampled_from([b"%d/topic" % i for i in range(8)] + [b"abc"]), max_size=60))
def test_aliases_on_the_wire_resolve_to_the_right_topics(maximum: int, topics: list[bytes]) -> None:
    aliases = TopicAliases(maximum)
    client: dict[int, bytes] = {}
    for topic in topics:
        alias = aliases.known(topic)
        if alias:
            assert client[alias] == topic
            continue
        alias = aliases.give(topic)
        assert 0 <= alias <= maximum
        if alias:
            assert len(topic) > 3
            client[alias] = topic
    assert len(aliases._seen) <= maximum


def test_topics_that_come_once_take_no_aliases_away() -> None:
    aliases = TopicAliases(2)
    for topic in (b"one/a", b"two/b"):
        assert aliases.give(topic) == 0
        assert aliases.give(topic) > 0
    assert all(aliases.give(b"once/%d" % i) == 0 for i in range(1000))
    assert (aliases.known(b"one/a"), aliases.known(b"two/b")) == (1, 2)
    assert (aliases.give(b"third/c"), aliases.give(b"third/c")) == (0, 1), "that of the one used longest ago"
    assert aliases.known(b"one/a") == 0
