"""Two clusters of Sluice that copy messages to one another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud_sdk import Client, Message, OutgoingMessage
from connect.api import InvalidSettings, Partition, RetriableError, SinkRecord
from connect.connectors.common.clusters import CLUSTER
from connect.connectors.sluice.sink import SluiceSink
from gateway.broker.append import append
from store import control
from store.api import Action, Resource, Rule
from tests.cloud_sdk.conftest import Node
from tests.connect.connectors.harness import Context, again, reasons, sent, settings_of, started
from tests.waiting import patience


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    made = (Node(tmp_path / "north"), Node(tmp_path / "south"))
    for each in made:
        await each.start()
    yield made
    for each in made:
        await each.stop()


@asynccontextmanager
async def sink(context: Context, source: str, target: str, node: Node, **more: str) -> AsyncIterator[Any]:
    given = {"source_cluster_alias": source, "target_cluster_alias": target, "sluice_host": node.endpoint, **more}
    async with patience(), started(SluiceSink(), context, **given) as task:
        yield task


async def stored(node: Node, parent: str, count: int) -> list[Message]:
    """So many messages of a parent topic, and that there are no more."""
    async with patience(), Client(node.endpoint) as client, client.pull_consumer(parent) as consumer:
        found: list[Message] = []
        while len(found) < count:
            found += await consumer.poll(0.1)
        assert not await consumer.poll(0.1)
        return found


def as_record(message: Message) -> SinkRecord:
    """What a worker makes of a message."""
    return SinkRecord(
        message.topic,
        message.payload,
        headers=message.user_properties,
        timestamp_ms=message.store_time,
        content_type=message.content_type,
        response_topic=message.response_topic,
        correlation_data=message.correlation_data,
        message_expiry=message.all_properties.message_expiry,
        qos=message.qos,
        retain=message.retain,
        position=message.position,
        partition=Partition("plant", message.partition),
        offset=message.offset,
    )


async def test_both_sites_have_each_message_once_with_id_time_and_origin(sites: tuple[Node, Node]) -> None:
    north, south = sites
    options: Any = {"qos": 2, "retain": True, "content_type": "a/b", "response_topic": "r", "correlation_data": b"c"}
    async with Client(north.endpoint) as client:
        own = OutgoingMessage("plant/n", b"north", properties=[("x", "1")], message_expiry=900, keys=["k"], **options)
        (receipt,) = await client.send_many([own])
    async with Client(south.endpoint) as client:
        await client.send("plant/s", b"south")
    (from_north,) = await stored(north, "plant", 1)
    (from_south,) = await stored(south, "plant", 1)
    async with (
        sink(Context("a"), "north", "south", south) as to_south,
        sink(Context("b"), "south", "north", north) as to_north,
    ):
        await to_south.put([as_record(from_north)])
        await to_north.put([as_record(from_south)])
        at_south = {each.payload: each for each in await stored(south, "plant", 2)}
        at_north = {each.payload: each for each in await stored(north, "plant", 2)}
        # Each sees the other's now, and sends none back.
        await to_south.put([as_record(each) for each in at_north.values() if each.payload == b"south"])
        await to_north.put([as_record(each) for each in at_south.values() if each.payload == b"north"])
        await stored(south, "plant", 2)
        await stored(north, "plant", 2)
    copy = at_south[b"north"]
    assert copy.user_properties == [
        ("x", "1"),
        ("key", "k"),
        (CLUSTER, "north,south"),
        ("sluice-id", f"north:{receipt.position}"),
        ("sluice-time", str(receipt.store_time)),
    ]
    assert (copy.topic, copy.qos, copy.retain, copy.content_type) == ("plant/n", 2, True, "a/b")
    assert (copy.response_topic, copy.correlation_data, copy.keys) == ("r", b"c", ["k"])
    assert 800 < (copy.all_properties.message_expiry or 0) <= 900
    assert dict(at_north[b"south"].user_properties)["sluice-id"] == f"south:{from_south.position}"


async def test_messages_go_on_to_a_third_site_with_their_first_id(sites: tuple[Node, Node]) -> None:
    headers = [(CLUSTER, "east,north"), ("sluice-id", "east:7"), ("sluice-time", "1")]
    async with sink(Context(), "north", "south", sites[1], topic_mapping="# -> copy/{1}") as task:
        await task.put([sent("a/b", b"", 9, headers=headers), sent("a/c", b"", headers=[(CLUSTER, "south,north")])])
    (copy,) = await stored(sites[1], "copy", 1)
    assert copy.user_properties == [*headers[1:], (CLUSTER, "east,north,south")]


async def test_single_messages_are_rejected_and_a_site_that_is_away_is_waited_for(
    sites: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connect.connectors.sluice.sink._RETRY_S", 0.2)
    context = Context()
    south = sites[1]
    async with sink(context, "north", "south", south) as task:
        await task.put([sent("a/1", b""), sent("$SYS/x", b""), sent("a/2", object()), sent("a/3", b"")])
        assert {each.topic for each in await stored(south, "a", 2)} == {"a/1", "a/3"}
        assert reasons(context)[0] == "'$SYS/x' is reserved: topics that begin with $ belong to their cluster"
        assert len(context.rejected) == 2
        await south.stop()
        with pytest.raises(RetriableError, match=f"Sluice at {south.endpoint}: "):
            await task.put([sent("a/4", b"")])
        await south.start()
        await again(lambda: task.put([sent("a/4", b"")]))
    assert {each.topic for each in await stored(south, "a", 3)} == {"a/1", "a/3", "a/4"}


async def test_a_message_that_the_other_site_forbids_has_no_others_sent_twice(sites: tuple[Node, Node]) -> None:
    context, south = Context(), sites[1]
    deny = Rule(False, int(Action.PUB), int(Resource.TOPIC), b"a/no")
    anything = Rule(True, int(Action.PUB | Action.SUB), int(Resource.TOPIC), b"#")
    await append(south.engine, [control.RulesSet([deny, anything]).frame(b"")])
    async with sink(context, "north", "south", south) as task:
        await task.put([sent(topic, b"") for topic in ("a/1", "a/no", "a/2", "a/3")])
        await task.put([sent("a/4", b"")])
    assert sorted(each.topic for each in await stored(south, "a", 4)) == ["a/1", "a/2", "a/3", "a/4"]
    assert [record.topic for record, _ in context.rejected] == ["a/no"]
    assert reasons(context) == [f"Sluice at {south.endpoint} refuses the message: the topic may not be published to"]


def test_both_clusters_need_a_name() -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_of(SluiceSink(), {"sluice.host": "south"})
    assert str(caught.value) == (
        "sluice.host: HOST:PORT is expected, not 'south'; source.cluster.alias: a value is required; "
        "target.cluster.alias: a value is required"
    )
