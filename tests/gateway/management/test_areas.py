"""What the services of the management surface answer, and what they do."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from gateway.broker.service_directory import LocalServices
from gateway.config.config import load
from gateway.config.settings import settings_in_force
from gateway.management.areas.areas import areas_of
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import Action, Kind
from gateway.management.rights import NODE_USER, Manager
from gateway.management.surface import Management
from gateway.node.node import Node
from gateway.node.services import rpc_limits
from gateway.observe.service_clients import ServiceClients
from gateway.rpc.status import RequestError
from gateway.shadows.shadows import Shadows
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_RETAIN
from store.api import PopRequest, Start, dead_letter_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import engine_of, give_up, store_messages
from tests.gateway.people import login, set_user
from tests.gateway.raw import RawClient
from tests.gateway.session.test_durable import durable
from tests.waiting import patience, until


class Somebody:
    """A user who may do everything."""

    source, request = "127.0.0.1:1", ""

    def __init__(self, name: str) -> None:
        self.name = name

    async def is_super(self) -> bool:
        return True

    async def may(self, _action: Action, _kind: Kind, _name: str, _is_prefix: bool = False) -> bool:
        return True


class Surface:
    """The management surface of a node, for its own user."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._management = Management()
        engine, config = engine_of(node), node.config
        sources = {"a": {"messages_sent": 1, "dropped_qos0": 2}, "b": {"messages_sent": 3, "dropped_expired": 4}}
        node._authority.service_logins_failed |= {"http": 5, "grpc": 6}
        self._management.serve(
            areas_of(
                engine,
                node._sessions,
                LocalServices(ServiceClients(), node._sessions),
                rpc_limits(config),
                config,
                node.reload,
                lambda: sources,
                node._authority,
                node._services.rules,
                node._schemas,
                Shadows(engine, config.shadow, rpc_limits(config)),
            )
        )

    async def __call__(self, name: str, **fields: object) -> Message:
        return await self.as_manager(NODE_USER, name, **fields)

    async def as_manager(self, manager: Manager, name: str, /, **fields: object) -> Message:
        method = next(each for each in METHODS if each.name == name)
        return await self._management.call(method, method.request(**fields), manager)

    @property
    def calls(self) -> int:
        """Of users, under way."""
        return sum(map(len, self._management._calls.values()))

    async def refuses(self, code: grpc.StatusCode, name: str, **fields: object) -> str:
        with pytest.raises(RequestError) as refused:
            await self(name, **fields)
        assert refused.value.code is code, refused.value
        return str(refused.value)


@pytest.fixture
def surface(node: Node) -> Surface:
    return Surface(node)


# --- topics and messages


async def test_the_tree_of_topics(surface: Surface) -> None:
    await store_messages(surface.node, (b"a", b"1"), (b"a", b"2"), (b"a/b", b"3"), (b"a/b/c", b"4"), (b"/x", b"5"))
    reply = await surface("ListTopics")
    assert [(each.name, each.path, each.is_topic, each.has_children, each.messages) for each in reply.topics] == [
        ("", "", False, True, 0),
        ("a", "a", True, True, 2),
    ]
    reply = await surface("ListTopics", above="a/")
    assert [(each.path, each.messages) for each in reply.topics] == [("a/b", 1)]
    assert [each.path for each in (await surface("ListTopics", above="/")).topics] == ["/x"]
    await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "ListTopics", above="a")
    await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "ListTopics", limit=1001)
    first = await surface("SearchTopics", limit=2)
    rest = await surface("SearchTopics", after=first.after)
    assert [*first.topics, *rest.topics] == ["/x", "a", "a/b", "a/b/c"]
    assert not rest.HasField("after")
    assert (await surface("SearchTopics", prefix="a/")).topics == ["a/b", "a/b/c"]


async def test_one_topic(surface: Surface) -> None:
    await store_messages(surface.node, (b"home/t", b"kept"), flags=1 | FLAG_RETAIN)
    await store_messages(surface.node, (b"home/t", b"newest"))
    topic = await surface("GetTopic", topic="home/t")
    assert (topic.begin, topic.end, topic.parent) == (0, 2, "home")
    assert (topic.last.text, topic.last.offset, topic.retained.text) == ("newest", 1, "kept")
    assert sum(each.end for each in topic.partitions) == 2
    nothing = await surface("GetTopic", topic="home/none")
    assert (nothing.end, nothing.HasField("last"), nothing.HasField("retained")) == (0, False, False)
    await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "GetTopic", topic="home/#")


async def test_messages_by_offset_and_time_and_the_newest(surface: Surface) -> None:
    await store_messages(surface.node, *[(b"t", b"%d" % number) for number in range(10)])

    async def browse(**fields: object) -> list[str]:
        return [each.text for each in (await surface("BrowseTopic", topic="t", **fields)).messages]

    assert await browse(limit=3) == ["7", "8", "9"]
    assert await browse(offset=2, limit=2) == ["2", "3"]
    assert await browse(time_ms=0, limit=2) == ["0", "1"]
    assert await browse(time_ms=int(time.time() * 1000) + 60_000) == []
    reply = await surface("BrowseTopic", topic="t", offset=4, limit=1)
    assert (reply.begin, reply.end, reply.next, reply.messages[0].offset) == (0, 10, 5, 4)
    await surface.refuses(grpc.StatusCode.OUT_OF_RANGE, "BrowseTopic", topic="t", offset=11)
    partitions = (await surface("GetTopic", topic="t")).partitions
    (full,) = [each.partition for each in partitions if each.end]
    reply = await surface("BrowsePartition", parent="t", partition=full, offset=8)
    assert [(each.topic, each.offset) for each in reply.messages] == [("t", 8), ("t", 9)]
    text = await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "BrowsePartition", parent="t", partition=99)
    assert "'t' has 4" in text


@pytest.mark.parametrize(
    ("payload", "text", "is_json"),
    [
        (b'{"t": 21.5}', '{"t": 21.5}', True),
        (b"[1]", "[1]", True),
        (b"21.5", "21.5", False),
        (b"{no", "{no", False),
        ("é".encode(), "é", False),
        (b"\xff\x00", None, False),
        (b"", "", False),
    ],
)
async def test_payloads_are_decoded(surface: Surface, payload: bytes, text: str | None, is_json: bool) -> None:
    (position,) = await store_messages(surface.node, (b"t", payload))
    message = await surface("GetMessage", position=position)
    assert message.payload == payload
    assert (message.text if message.HasField("text") else None, message.is_json) == (text, is_json)
    assert [(each.name, each.value) for each in message.properties] == [("key", "k")]


async def test_long_payloads_are_cut_between_characters(surface: Surface) -> None:
    (position,) = await store_messages(surface.node, (b"t", "ééé".encode()))
    (message,) = (await surface("BrowseTopic", topic="t", max_payload=3)).messages
    assert (message.payload_size, message.payload, message.text, message.is_json) == (6, b"\xc3\xa9\xc3", "é", False)
    assert (await surface("GetMessage", position=position)).text == "ééé"
    large = b"x" * 100_000
    (position,) = await store_messages(surface.node, (b"t", large))
    assert len((await surface("BrowseTopic", topic="t", limit=1)).messages[0].payload) == 65_536
    assert (await surface("GetMessage", position=position)).payload == large


async def test_a_message_that_is_published_reaches_devices(surface: Surface) -> None:
    client = await RawClient.connect(surface.node.ports.mqtt, b"c", 5)
    await client.subscribe((b"home/t", 1))
    properties = [pb.UserProperty(name="key", value="order-1")]
    fields = {"topic": "home/t", "text": "21", "qos": 1, "content_type": "text/plain", "properties": properties}
    position = (await surface("PublishMessage", **fields)).position
    (message,) = await client.take(1)
    assert message.payload == b"21"
    await client.drop()
    stored = await surface("GetMessage", position=position)
    assert (stored.content_type, stored.qos, stored.text) == ("text/plain", 1, "21")
    (found,) = (await surface("FindMessages", parent="home", key="order-1")).messages
    assert found.position == position
    await surface("PublishMessage", topic="$delayed/1000/home/t", payload=b"later")
    (timer,) = (await surface("ListTimers")).messages
    assert timer.topic == "home/t"


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "home/#"},
        {"topic": ""},
        {"topic": "t", "qos": 3},
        {"topic": "$SYS/x"},
        {"topic": "$delayed/x/t"},
        {"topic": "/".join("a" * 100)},
        {"topic": "t", "content_type": "x" * 65_536},
        {"topic": "t", "properties": [pb.UserProperty(name="n", value="v")] * 257},
    ],
)
async def test_what_nobody_may_publish(surface: Surface, fields: dict[str, object]) -> None:
    assert await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "PublishMessage", **fields)


async def test_messages_with_a_key_come_in_pages(surface: Surface) -> None:
    stored = await store_messages(surface.node, *[(b"home/%d" % number, b"x") for number in range(5)])
    first = await surface("FindMessages", parent="home", key="k", limit=3)
    rest = await surface("FindMessages", parent="home", key="k", after=first.after)
    assert [each.position for each in [*first.messages, *rest.messages]] == stored
    await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "FindMessages", parent="home", key="")
    await surface.refuses(grpc.StatusCode.NOT_FOUND, "GetMessage", position=1 << 40)
    await surface.refuses(grpc.StatusCode.NOT_FOUND, "GetMessage", position=-1)


async def test_the_trace_of_a_message(surface: Surface) -> None:
    (position,) = await store_messages(surface.node, (b"home/t", b"x"))
    await give_up(surface.node, b"g", b"home", 1)
    reply = await surface("TraceMessage", position=position)
    assert [(each.kind, each.who, each.reason) for each in reply.events] == [
        ("STORED", "device", ""),
        ("LEASED", "g", ""),
        ("DEAD_LETTERED", "g", "FORWARDED"),
    ]


# --- groups


async def test_groups_and_how_far_they_are(surface: Surface) -> None:
    await store_messages(surface.node, *[(b"home/t", b"%d" % number) for number in range(6)])
    await give_up(surface.node, b"billing", b"home", 2)
    await give_up(surface.node, b"audit", b"home", 0)
    await store_messages(surface.node, (b"home/t", b"new"))
    groups = (await surface("ListGroups")).groups
    assert [(each.group, each.lag, each.unfinished, each.dead_letters) for each in groups] == [
        ("audit", 7, 6, 0),
        ("billing", 5, 4, 2),
    ]
    first = await surface("ListGroups", limit=1)
    assert [each.group for each in (await surface("ListGroups", after=first.after)).groups] == ["billing"]
    assert [each.group for each in (await surface("ListGroups", prefix="bill")).groups] == ["billing"]
    assert not (await surface("ListGroups", prefix="c")).groups
    group = await surface("GetGroup", group="billing")
    assert (group.queue_count, len(group.queues), group.dead_letters) == (4, 4, 2)
    (queue,) = [each for each in group.queues if each.lag]
    assert (queue.floor, queue.next, queue.unfinished, queue.lag) == (2, 6, 4, 5)
    assert 0 < queue.lag_seconds < 60
    assert all(each.lag_seconds == 0 for each in group.queues if not each.lag)
    await surface.refuses(grpc.StatusCode.NOT_FOUND, "GetGroup", group="none")
    await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "GetGroup", group="")


async def test_a_group_is_moved_and_deleted(surface: Surface) -> None:
    await store_messages(surface.node, *[(b"home/t", b"%d" % number) for number in range(6)])
    await give_up(surface.node, b"g", b"home", 1)

    async def lag(**fields: object) -> int:
        return sum(each.lag for each in (await surface("ResetGroup", group="g", **fields)).queues)

    (name,) = [each.queue for each in (await surface("GetGroup", group="g")).queues if each.lag]
    assert await lag(latest=True) == 0
    assert await lag(earliest=True) == 6
    assert await lag(offset=4, queue=name) == 2
    assert await lag(time_ms=0) == 6
    assert await lag(time_ms=int(time.time() * 1000) + 60_000, queue=name) == 0
    for wrong in ({}, {"offset": 4}, {"earliest": True, "queue": "other[0]"}):
        await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, "ResetGroup", group="g", **wrong)
    await surface.refuses(grpc.StatusCode.OUT_OF_RANGE, "ResetGroup", group="g", queue=name, offset=7)
    assert (await surface("GetGroup", group="g")).dead_letters == 1  # a reset leaves them
    await surface("DeleteGroup", group="g")
    await surface.refuses(grpc.StatusCode.NOT_FOUND, "DeleteGroup", group="g")


async def test_a_shared_subscription_cannot_be_moved(surface: Surface) -> None:
    client = await RawClient.connect(surface.node.ports.mqtt, b"c", 5)
    await client.subscribe((b"$share/g/home/#", 1))
    await store_messages(surface.node, (b"home/t", b"x"))
    await client.take(1)
    group = await surface("GetGroup", group="$share/g/home/#")
    assert [each.queue for each in group.queues] == ["home/#"]
    text = await surface.refuses(
        grpc.StatusCode.FAILED_PRECONDITION, "ResetGroup", group="$share/g/home/#", earliest=True
    )
    assert "goes on where its members are" in text
    await client.drop()


# --- dead letters


async def letters_of(surface: Surface, **fields: object) -> list[int]:
    return [each.offset for each in (await surface("ListDeadLetters", group="g", **fields)).dead_letters]


@pytest.fixture
async def given_up(surface: Surface) -> Surface:
    """A group `g` with five dead letters."""
    await store_messages(surface.node, *[(b"home/t", b"%d" % number) for number in range(6)])
    await give_up(surface.node, b"g", b"home", 5)
    return surface


async def test_dead_letters_are_listed_with_their_cause(given_up: Surface) -> None:
    reply = await given_up("ListDeadLetters", group="g")
    letter = reply.dead_letters[2]
    assert (letter.offset, letter.reason, letter.deliveries, letter.queue_offset) == (2, "FORWARDED", 1, 2)
    assert letter.queue.startswith("home[")
    assert (letter.message.text, letter.message.topic) == ("2", "home/t")
    assert 0 < letter.first_ms <= letter.last_ms
    first = await given_up("ListDeadLetters", group="g", limit=2)
    assert await letters_of(given_up, after=first.after) == [2, 3, 4]


async def test_some_dead_letters_are_deleted(given_up: Surface) -> None:
    reply = await given_up("DeleteDeadLetters", group="g", offsets=[3, 1, 9])
    assert (reply.deleted, reply.missing) == (2, [9])
    assert await letters_of(given_up) == [0, 2, 4]
    assert (await given_up("GetGroup", group="g")).dead_letters == 3
    reply = await given_up("DeleteDeadLetters", group="g", offsets=[1, 2])
    assert (reply.deleted, reply.missing) == (1, [1])
    reply = await given_up("DeleteDeadLetters", group="g", all=True)
    assert (reply.deleted, list(reply.missing)) == (2, [])
    assert await letters_of(given_up) == []
    for wrong in ({}, {"offsets": [1], "all": True}, {"offsets": range(1001)}):
        await given_up.refuses(grpc.StatusCode.INVALID_ARGUMENT, "DeleteDeadLetters", group="g", **wrong)


async def test_those_that_a_consumer_has_are_left_to_it_and_the_others_are_there_at_once(given_up: Surface) -> None:
    engine = engine_of(given_up.node)
    pop = PopRequest(b"g", (dead_letter_queue(b"g"),), 2, 1 << 20, 600_000, Start.EARLIEST)
    assert [run.offset for run in (await engine.pop(pop)).runs] == [0]
    reply = await given_up("DeleteDeadLetters", group="g", offsets=[1, 3])
    assert (reply.deleted, reply.missing) == (1, [1])
    popped = await engine.pop(pop)
    assert [(run.offset, run.count, run.deliveries) for run in popped.runs] == [(2, 1, 1), (4, 1, 1)]  # not counted


async def test_dead_letters_are_published_again(given_up: Surface) -> None:
    client = await RawClient.connect(given_up.node.ports.mqtt, b"c", 5)
    await client.subscribe((b"home/#", 1), (b"other", 1))
    assert (await given_up("RequeueDeadLetters", group="g", offsets=[2])).requeued == 1
    assert [(each.topic, each.payload) for each in await client.take(1)] == [(b"home/t", b"2")]
    assert (await given_up("RequeueDeadLetters", group="g", all=True, topic="other")).requeued == 4
    assert [(each.topic, each.payload) for each in await client.take(4)] == [
        (b"other", b"0"),
        (b"other", b"1"),
        (b"other", b"3"),
        (b"other", b"4"),
    ]
    assert await letters_of(given_up) == []
    await client.drop()


async def test_a_dead_letter_that_cannot_be_published_stays(given_up: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "no")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.management.areas.dead_letters.require_one", refuse)
        await given_up.refuses(grpc.StatusCode.PERMISSION_DENIED, "RequeueDeadLetters", group="g", all=True)
    assert await letters_of(given_up) == [0, 1, 2, 3, 4]
    assert (await given_up("RequeueDeadLetters", group="g", all=True)).requeued == 5


@pytest.mark.parametrize("topic", ["$SYS/x", "$delayed/5/x", "$share/g/x", "$replay/0/x", "$inbox/", "a/" * 100])
async def test_dead_letters_go_where_messages_may_be_published_only(given_up: Surface, topic: str) -> None:
    await given_up.refuses(grpc.StatusCode.INVALID_ARGUMENT, "RequeueDeadLetters", group="g", all=True, topic=topic)
    assert await letters_of(given_up) == [0, 1, 2, 3, 4]


async def test_no_group_begins_because_somebody_looks_for_its_dead_letters(given_up: Surface) -> None:
    for method, fields in (
        ("ListDeadLetters", {}),
        ("RequeueDeadLetters", {"all": True}),
        ("DeleteDeadLetters", {"offsets": [1]}),
    ):
        text = await given_up.refuses(grpc.StatusCode.NOT_FOUND, method, group="gg", **fields)
        assert text == "there is no group 'gg'"
    assert [each.group for each in (await given_up("ListGroups")).groups] == ["g"]
    await given_up("DeleteGroup", group="g")
    assert await letters_of(given_up) == [0, 1, 2, 3, 4]
    assert (await given_up("DeleteDeadLetters", group="g", all=True)).deleted == 5


async def test_all_dead_letters_but_those_that_a_consumer_has(given_up: Surface) -> None:
    engine = engine_of(given_up.node)
    await engine.pop(PopRequest(b"g", (dead_letter_queue(b"g"),), 2, 1 << 20, 600_000, Start.EARLIEST))
    reply = await given_up("RequeueDeadLetters", group="g", all=True)
    assert (reply.requeued, reply.leased) == (3, 2)
    reply = await given_up("DeleteDeadLetters", group="g", all=True)
    assert (reply.deleted, reply.leased) == (0, 2)


async def test_too_many_dead_letters_in_front_of_one(given_up: Surface) -> None:
    groups = engine_of(given_up.node)._groups
    groups._config = replace(groups._config, max_group_leases=3)
    fields = {"group": "g", "offsets": [4]}
    text = await given_up.refuses(grpc.StatusCode.FAILED_PRECONDITION, "DeleteDeadLetters", **fields)
    assert text == "3 older dead letters are in front of 4: handle those first"
    assert (await given_up("DeleteDeadLetters", group="g", offsets=[0, 1])).deleted == 2
    assert (await given_up("DeleteDeadLetters", **fields)).deleted == 1


# --- clients


async def test_clients_are_searched_by_prefix_user_and_connection(make_node: MakeNode) -> None:
    node = await make_node(mqtt__auth=["anonymous", "password"])
    surface = Surface(node)
    await set_user(node, "alice", b"wonderland")
    away = await durable(node, b"a-away", expiry=3600)
    await away.disconnect()
    await until(lambda: b"a-away" not in node._sessions.open_sessions)
    here, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"a-here")
    other, _ = await login(node.ports.mqtt, None, None, 5, b"b-other")

    async def names(**fields: object) -> list[str]:
        return [each.client_id for each in (await surface("ListClients", **fields)).clients]

    assert await names() == ["a-away", "a-here", "b-other"]
    assert await names(connected=True) == ["a-here", "b-other"]
    assert await names(prefix="a-") == ["a-away", "a-here"]
    assert await names(prefix="b", connected=True) == ["b-other"]
    assert await names(prefix="c") == []
    assert await names(user="alice") == ["a-here"]
    first = await surface("ListClients", limit=2)
    assert [each.client_id for each in first.clients] == ["a-away", "a-here"]
    assert await names(after=first.after) == ["b-other"]
    assert not (await surface("ListClients", limit=3, after="a-here")).HasField("after")
    client = await surface("GetClient", client_id="a-here")
    assert (client.user, client.connected, client.version) == ("alice", True, "5.0")
    for one in (here, other):
        await one.drop()


async def test_a_search_for_a_user_looks_at_a_bounded_number_of_sessions(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.management.areas.clients._MAX_LOOKED_AT", 2)
    clients = [await durable(surface.node, b"%d" % number) for number in range(5)]
    pages = [await surface("ListClients", user="alice")]
    while pages[-1].HasField("after"):
        pages.append(await surface("ListClients", user="alice", after=pages[-1].after))
    assert [page.after for page in pages] == ["1", "3", ""]
    assert not any(page.clients for page in pages)
    for client in clients:
        await client.drop()


# --- held messages, storage


async def test_timers_and_transactions(surface: Surface) -> None:
    timers = await store_messages(surface.node, (b"home/a", b"x"), (b"home/b", b"y"), flags=1 | FLAG_DELAYED)
    halves = await store_messages(surface.node, (b"home/c", b"z"), (b"home/d", b"z"), flags=1 | FLAG_HALF)
    first = await surface("ListTimers", limit=1)
    rest = await surface("ListTimers", after=first.after)
    assert [each.position for each in [*first.messages, *rest.messages]] == timers
    assert (await surface("RecallTimers", positions=[timers[0], halves[0]])).missing == [halves[0]]
    assert [each.topic for each in (await surface("ListTimers")).messages] == ["home/b"]
    assert [each.position for each in (await surface("ListTransactions")).messages] == halves
    assert not (await surface("EndTransactions", positions=halves[:1], commit=True)).missing
    assert not (await surface("EndTransactions", positions=halves[1:], commit=False)).missing
    assert (await surface("EndTransactions", positions=halves, commit=False)).missing == halves
    assert (await surface("GetTopic", topic="home/c")).end == 1
    assert (await surface("GetTopic", topic="home/d")).end == 0
    for name, fields in (("RecallTimers", {}), ("EndTransactions", {"commit": True})):
        await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, name, positions=[-1], **fields)
        await surface.refuses(grpc.StatusCode.INVALID_ARGUMENT, name, positions=range(1001), **fields)


async def test_the_state_of_the_store(surface: Surface) -> None:
    await store_messages(surface.node, (b"t", b"x"))
    store = await surface("GetStore")
    assert (store.begin, store.failed, len(store.segments)) == (0, False, 1)
    assert store.end > 0
    assert store.segments[0].bytes == store.log_bytes == 4 << 20
    assert store.retention.keep_bytes == 1 << 30


def test_settings_in_force_say_where_they_come_from_and_hide_secrets(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(
        '[mqtt]\nport = 1\nws_port = 2\n[cluster]\nname = "n1"\n'
        'listen = "127.0.0.1:7071"\nlog = "nats://me:hush@host:4222,you:hush2@other:4222/s"\n'
        '[cluster.options]\nsecret_access_key = "hush"\n'
        '[tier]\nstore = "s3://b"\n[tier.options]\nsecret_access_key = "hush"\n',
        encoding="utf-8",
    )
    config = load(file, {"host": "10.0.0.1"}, {"SLUICE_MQTT_WS_PORT": "3"})
    found = {each.name: (each.value, each.source) for each in settings_in_force(config)}
    assert found["mqtt.port"] == ("1", str(file))
    assert found["mqtt.ws_port"] == ("3", "the environment")
    assert found["host"] == ('"10.0.0.1"', "the command line")
    assert found["grpc.port"] == ("7070", "default")
    assert found["cluster.options"] == ('{"secret_access_key":"***"}', str(file))
    assert found["data_dir"] == ('"data"', "default")
    assert "hush" not in repr(found)
    assert "sources" not in found
    file.write_text('[tier]\nstore = "s3://b"\n[tier.options]\nsecret_access_key = "hush"\n', encoding="utf-8")
    found = {each.name: (each.value, each.source) for each in settings_in_force(load(file, {}, {}))}
    assert found["tier.options"] == ('{"secret_access_key":"***"}', str(file))


# --- bounds


async def test_calls_are_bounded_in_number_and_time(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()

    async def wait(*_: object) -> None:
        await waiting.wait()

    monkeypatch.setattr("gateway.management.areas.storage.StorageService.get_store", wait)
    users = [Somebody(name) for name in ("greedy", "other", "late")]
    for user, count in zip(users, (16, 16, 0), strict=True):
        calls = [asyncio.create_task(surface.as_manager(user, "GetStore")) for _ in range(count)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="16 of this user") as refused:
            await surface.as_manager(user, "GetStore")
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any(call.done() for call in calls)
    await surface("ListUsers")  # a person at the machine is served
    waiting.set()
    async with patience():
        while surface.calls:  # noqa: ASYNC110
            await asyncio.sleep(0)
    waiting.clear()
    monkeypatch.setattr("gateway.management.surface._SECONDS", 0.01)
    await surface.refuses(grpc.StatusCode.DEADLINE_EXCEEDED, "GetStore")
    await surface("ListUsers")


async def test_what_changes_something_is_in_the_log(surface: Surface, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.management")
    keys = pb.ScramKeys(iterations=4096, salt=bytes(16), stored_key=bytes(32), server_key=bytes(32))
    boss = Somebody("boss")
    await surface.as_manager(boss, "CreateUser", name="bob", keys=keys)
    await surface.as_manager(boss, "SetRules", user="bob", rules=["allow both x"])
    await surface.as_manager(boss, "ListUsers")
    assert [record.getMessage() for record in caplog.records] == [
        "management: CreateUser 'access' 'bob' for 'boss' from 127.0.0.1:1",
        "management: SetRules 'access' 'bob' for 'boss' from 127.0.0.1:1",
    ]
    long = await surface.refuses(grpc.StatusCode.NOT_FOUND, "GetClient", client_id="x" * 100_000)
    assert len(long) == 1000


async def test_a_node_that_does_not_lead_says_so() -> None:
    method = next(each for each in METHODS if each.name == "GetStore")
    with pytest.raises(RequestError, match="this node does not lead its cluster") as refused:
        await Management().call(method, pb.GetStoreRequest(), NODE_USER)
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE


async def test_figures_of_all_gateways_are_added_up(surface: Surface) -> None:
    await store_messages(surface.node, (b"a", b"1"), (b"a", b"2"))
    figures = await surface("GetFigures")
    assert isinstance(figures, pb.Figures)
    assert (figures.messages_sent, figures.messages_dropped, figures.logins_failed) == (4, 6, 11)
    assert (figures.messages_stored, figures.messages_received) == (2, 0)
    assert abs(figures.time_ms / 1000 - time.time()) < 600
    assert not figures.HasField("tier")
