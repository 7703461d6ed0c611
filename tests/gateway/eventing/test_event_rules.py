"""Event rules of a whole node: what they publish and send, what fails, and what outlives a crash."""

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gateway.broker.service_directory import LocalServices
from gateway.events.event import RULES
from gateway.management.areas.groups import GroupsService
from gateway.management.areas.messages import MessagesService
from gateway.management.areas.services import Machines
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.mqtt.properties import user_property
from gateway.node.node import Node
from gateway.node.services import rpc_limits
from gateway.observe.service_clients import ServiceClients
from gateway.rpc.status import RequestError
from store.api import Appended, topic_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.eventing.rules import (
    LOOPBACK,
    arrived,
    endpoint,
    engine_of,
    events_of,
    eventually,
    letters_of,
    payloads,
    publish,
    rule,
    service,
    set_rule,
    settled,
)
from tests.waiting import until

HOT = 'SELECT payload.t AS t, topic_level(2) AS truck FROM "fleet/+/temp" WHERE t > 30'


async def test_a_rule_publishes_what_it_selects_and_nothing_else(node: Node) -> None:
    await publish(node, "fleet/7/temp", '{"t": 99}')  # before the rule
    await set_rule(node, "hot", sql=HOT, topic={"topic": "alerts/hot"})
    await publish(node, "fleet/7/temp", '{"t": 31}', '{"t": 30}', "no JSON", '{"t": "31"}', b"\xff")
    await publish(node, "fleet/7/speed", '{"t": 99}')
    await publish(node, "fleet/8/temp", '{"t": 40.5}')
    await settled(node, "hot")
    assert await arrived(node, "alerts/hot", 2) == ['{"t":31,"truck":"7"}', '{"t":40.5,"truck":"8"}']
    (event, _) = await events_of(node, "alerts/hot")
    assert event.publisher == b"$rule/hot"
    assert event.attributes["datacontenttype"] == "application/json"
    assert event.rules == ["hot"]
    found = await rule(node, "hot")
    figures = found.figures
    assert (figures.matched, figures.unmatched, figures.delivered, found.lag) == (2, 4, 2, 0)
    await service(node).delete_event_rule(pb.DeleteEventRuleRequest(name="hot"), NODE_USER)
    await publish(node, "fleet/7/temp", '{"t": 99}')
    assert (await engine_of(node).groups(None, 10)) == []
    with pytest.raises(RequestError, match="there is no event rule"):
        await rule(node, "hot")


@pytest.mark.parametrize(
    ("topics", "published"),
    [(["home/a"], "home/a"), (["home/+"], "home/a"), (["home/a", "away/#"], "home/a"), (["+/a"], "home/a")],
)
async def test_a_rule_begins_now_or_in_the_past(node: Node, topics: list[str], published: str) -> None:
    before = await publish(node, published, "1", "2")
    away = await publish(node, "home/a/b", "other")
    await set_rule(node, "new", topics=topics, topic={"topic": "x/new"})
    if topics == ["+/a"]:
        with pytest.raises(RequestError, match="there is no past"):
            await set_rule(node, "all", topics=topics, topic={"topic": "x/all"}, start="earliest")
        return
    await set_rule(node, "all", topics=topics, topic={"topic": "x/all"}, start="earliest")
    await set_rule(node, "later", topics=topics, topic={"topic": "x/later"}, start=1 << 52)
    await publish(node, published, "3")
    assert sorted(await arrived(node, "x/all", 3)) == ["1", "2", "3"]
    assert await arrived(node, "x/new", 1) == ["3"]
    assert await arrived(node, "x/later", 1) == ["3"]
    # A rule that is set again goes on where it was, unless it is told otherwise.
    await set_rule(node, "new", topics=topics, topic={"topic": "x/new"}, pattern='{"data": [3, 4]}')
    await publish(node, published, "4")
    assert await arrived(node, "x/new", 2) == ["3", "4"]
    await set_rule(node, "new", topics=topics, topic={"topic": "x/again"}, start="earliest")
    assert sorted(await arrived(node, "x/again", 4)) == ["1", "2", "3", "4"]
    assert before
    assert away


async def test_transforms_and_templates_of_topics(node: Node) -> None:
    about = {"topics": ["room/+/state"], "pattern": json.dumps({"levels": {"2": [{"prefix": "r"}]}})}
    await set_rule(node, "whole", **about, topic={"topic": "out/whole", "qos": 0, "retain": True})
    await set_rule(node, "part", **about, topic={"topic": "out/part"}, transform={"path": "$.a[0]"})
    await set_rule(node, "constant", **about, topic={"topic": "out/constant"}, transform={"constant": "ping"})
    text = '{"room": "{{ levels["2"] }}", "a": {{ data.a }}}'
    topic = {"topic": "out/{{ levels['2'] }}"}
    await set_rule(node, "template", **about, topic=topic, transform={"template": text})
    block = user_property(b"site", b"north")
    await publish(node, "room/r1/state", '{"a": ["x", 2]}', block=block)
    await publish(node, "room/q1/state", '{"a": ["y", 2]}')
    assert await arrived(node, "out/part", 1) == ['"x"']
    assert await arrived(node, "out/constant", 1) == ["ping"]
    assert await arrived(node, "out/r1", 1) == ['{"room": "r1", "a": ["x",2]}']
    assert await arrived(node, "out/whole", 1) == ['{"a": ["x", 2]}']
    (event,) = await events_of(node, "out/whole")
    assert event.field("retain")
    assert event.field("qos") == 0
    assert event.properties.user == [("site", "north"), (RULES, "whole")]
    (constant,) = await events_of(node, "out/constant")
    assert constant.properties.content_type == "text/plain; charset=utf-8"


async def test_an_event_that_cannot_be_handled_is_a_dead_letter_with_its_cause(node: Node) -> None:
    await set_rule(node, "strict", topics=["a/b"], topic={"topic": "out"}, transform={"template": "{{ data.x + 1 }}"})
    await publish(node, "a/b", '{"x": 1}', "{}", '{"x": 2}')
    assert await arrived(node, "out", 2) == ["2", "3"]
    await settled(node, "strict")
    (letter,) = await letters_of(node, "strict")
    assert letter.reason == "FAILED"
    assert "has no attribute 'x'" in letter.error
    found = await rule(node, "strict")
    assert (found.dead_letters, found.figures.refused) == (1, 1)
    assert found.figures.error == letter.error


async def test_a_paused_rule_falls_behind_and_goes_on(node: Node) -> None:
    await set_rule(node, "r", topics=["a/#"], topic={"topic": "out"}, enabled=False)
    await publish(node, "a/1", "1", "2")
    found = await rule(node, "r")
    assert (found.enabled, found.lag) == (False, 2)
    await service(node).resume_event_rule(pb.ResumeEventRuleRequest(name="r"), NODE_USER)
    assert await arrived(node, "out", 2) == ["1", "2"]
    await service(node).pause_event_rule(pb.PauseEventRuleRequest(name="r"), NODE_USER)
    await publish(node, "a/1", "3")
    # It stays paused when its topics change, and it begins again then.
    await set_rule(node, "r", topics=["a/1"], topic={"topic": "out"}, start="earliest")
    assert (await rule(node, "r")).lag == 3
    await set_rule(node, "r", topics=["a/1"], topic={"topic": "out"}, enabled=True)
    assert await arrived(node, "out", 5) == ["1", "2", "1", "2", "3"]


async def test_a_rule_is_moved_as_any_group(node: Node) -> None:
    await set_rule(node, "r", topics=["a/b"], topic={"topic": "out"})
    await publish(node, "a/b", "1", "2")
    await arrived(node, "out", 2)
    await settled(node, "r")
    services = LocalServices(ServiceClients(), node._sessions)
    groups = GroupsService(engine_of(node), rpc_limits(node.config), services)
    await groups.reset_group(pb.ResetGroupRequest(group="$rule/r", earliest=True), NODE_USER)
    assert await arrived(node, "out", 4) == ["1", "2", "1", "2"]


async def test_what_became_of_an_event_is_in_its_trace(node: Node) -> None:
    await set_rule(node, "yes", topics=["a/+"], topic={"topic": "out"})
    await set_rule(node, "no", topics=["a/b"], topic={"topic": "out"}, pattern='{"data": ["other"]}')
    (position,) = await publish(node, "a/b", "x")
    await settled(node, "yes", "no")
    services = LocalServices(ServiceClients(), node._sessions)
    machines = Machines(services, node._sessions)
    surface = MessagesService(engine_of(node), rpc_limits(node.config), machines)

    async def ends() -> dict[str, str]:
        trace = await surface.trace_message(pb.TraceMessageRequest(position=position), NODE_USER)
        found = {each.who: each.member for each in trace.events if each.kind == "FINISHED"}
        return found if len(found) == 2 else {}

    assert await eventually(ends) == {"$rule/yes": "matched", "$rule/no": "no match"}


async def test_what_was_taken_before_a_crash_comes_again_at_once(make_node: MakeNode) -> None:
    node = await make_node(events__webhook_networks=LOOPBACK)
    async with endpoint() as hook:
        hook.statuses = [503] * 1000
        await set_rule(node, "send", topics=["a/#"], webhook={"url": hook.url})
        await set_rule(node, "copy", topics=["a/#"], topic={"topic": "out"})
        await publish(node, "a/1", *map(str, range(50)))
        await arrived(node, "out", 50)
        await until(lambda: len(hook.got) >= 1)
        hook.statuses, hook.got = [], []
        again = await crashed(make_node, node, "again", events__webhook_networks=LOOPBACK)
        await publish(again, "a/1", "50")

        async def has_all() -> bool:  # some are there twice
            return set(await payloads(again, "out")) == set(map(str, range(51)))

        await eventually(has_all)

        def missing() -> set[str]:
            return set(map(str, range(51))) - {body.decode() for _, body in hook.got}

        await until(lambda: not missing())


async def test_requests_are_signed_and_tried_again(make_node: MakeNode, tmp_path: Path) -> None:
    secret = b"0123456789abcdef01234567"
    file = tmp_path / "secrets"
    file.write_text(f"# name secret\nbilling whsec_{b64encode(secret).decode()}\n", encoding="utf-8")
    file.chmod(0o600)
    settings = {"store__retry_delays_s": [1], "events__webhook_networks": LOOPBACK}
    node = await make_node(**settings, events__webhook_secrets=str(file))
    async with endpoint() as hook:
        hook.statuses = [500, 429]
        target = {"url": hook.url, "secret": "billing", "headers": {"Authorization": "Bearer x"}}
        await set_rule(node, "send", topics=["a/#"], webhook=target)
        await publish(node, "a/1", '{"x": 1}')
        await until(lambda: len(hook.got) == 3)
        await settled(node, "send")
        headers, body = hook.got[-1]
        assert body == b'{"x": 1}'
        assert (headers["ce-subject"], headers["ce-source"], headers["ce-specversion"]) == (
            "a/1",
            "/clients/device",
            "1.0",
        )
        assert headers["Authorization"] == "Bearer x"
        assert len({each["webhook-id"] for each, _ in hook.got}) == 1, "a repeated request has the same id"
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        version, _, signature = headers["webhook-signature"].partition(",")
        assert version == "v1"
        assert hmac.compare_digest(b64decode(signature), hmac.digest(secret, signed, "sha256"))
        found = await rule(node, "send")
        assert (found.figures.delivered, found.figures.failed) == (1, 2)
        assert found.figures.error.startswith("status 429: not now")
        # Headers may be credentials: they are not shown, and stay as they are if the rule is set so again.
        assert dict(found.definition.webhook.headers) == {"Authorization": "***"}
        await set_rule(node, "send", topics=["a/#"], webhook={**target, "headers": {"Authorization": "***"}})
        await publish(node, "a/1", "2")
        await until(lambda: len(hook.got) == 4)
        assert hook.got[-1][0]["Authorization"] == "Bearer x"
        with pytest.raises(RequestError, match="no secret 'other'"):
            await set_rule(node, "send", topics=["a/#"], webhook={**target, "secret": "other"})
        tested = await service(node).test_event_rule(
            pb.TestEventRuleRequest(name="send", json='{"subject": "a/1", "data": 1}'), NODE_USER
        )
        assert tested.request.headers["webhook-signature"] == "v1,…"
        assert tested.request.headers["Authorization"] == "***"


async def test_batches_and_structured_requests(make_node: MakeNode) -> None:
    node = await make_node(events__webhook_networks=LOOPBACK)
    async with endpoint() as hook:
        await set_rule(
            node,
            "batch",
            topics=["a/#"],
            pattern='{"data": {"x": [{"numeric": ["<", 5]}]}}',
            transform={"path": "$.x"},
            webhook={"url": hook.url, "batch": 10, "in_flight": 1},
        )
        positions = await publish(node, "a/1", *[json.dumps({"x": number}) for number in range(7)])
        await settled(node, "batch")
        found = [event for _, body in hook.got for event in json.loads(body)]
        assert [event["data"] for event in found] == [0, 1, 2, 3, 4]
        assert [event["id"] for event in found] == [str(each) for each in positions[:5]]
        assert hook.got[0][0]["Content-Type"].startswith("application/cloudevents-batch+json")
        hook.got.clear()
        await set_rule(node, "one", topics=["b"], webhook={"url": hook.url, "mode": "structured", "rate": 1000})
        await publish(node, "b", b"\xff\x00")
        await until(lambda: hook.got)
        assert json.loads(hook.got[0][1])["data_base64"] == b64encode(b"\xff\x00").decode()


async def test_an_event_that_is_never_accepted_is_a_dead_letter(make_node: MakeNode) -> None:
    settings = {"store__retry_delays_s": [1], "store__max_deliveries": 2}
    node = await make_node(**settings, events__webhook_networks=LOOPBACK)
    async with endpoint() as hook:
        hook.statuses = [400, 301]
        hook.headers = {"Location": "http://127.0.0.1:1/"}
        await set_rule(node, "send", topics=["a"], webhook={"url": hook.url})
        await publish(node, "a", "x")
        letters = await eventually(lambda: letters_of(node, "send"))
        assert letters[0].error == "status 301: not now", "redirections are not followed"
        assert letters[0].deliveries == 2


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:1/x", "http://[::ffff:10.0.0.1]/", "http://169.254.169.254/latest", "http://[::]/"),
        *("http://127.1/", "http://2130706433/", "http://0/", "http://[::127.0.0.1]/", "http://[::ffff:0:127.0.0.1]/"),
    ],
)
async def test_webhooks_to_private_addresses_are_refused(node: Node, url: str) -> None:
    with pytest.raises(RequestError, match="is not a public address"):
        await set_rule(node, "send", topics=["a"], webhook={"url": url})


async def test_a_name_of_a_private_address_is_refused_when_it_is_used(node: Node) -> None:
    async with endpoint() as hook:
        await set_rule(node, "send", topics=["a"], webhook={"url": hook.url.replace("127.0.0.1", "localhost")})
        await publish(node, "a", "x")

        async def error() -> str:
            return (await rule(node, "send")).figures.error

        assert "is not a public address" in await eventually(error)
        assert not hook.got


async def test_many_rules_each_get_what_is_theirs(node: Node) -> None:
    for number in range(100):
        await set_rule(node, f"r{number}", topics=[f"t/{number % 10}/+"], topic={"topic": f"out/{number}"})
    await publish(node, "t/3/x", *map(str, range(20)))
    matching = [number for number in range(100) if number % 10 == 3]
    for number in matching:
        assert await arrived(node, f"out/{number}", 20) == list(map(str, range(20)))
    await settled(node, *[f"r{number}" for number in matching])
    figures = [(await rule(node, f"r{number}")).figures.matched for number in range(100)]
    assert [number for number, count in enumerate(figures) if count] == matching
    bounds = await engine_of(node).bounds(topic_queue(b"out/4"))
    assert bounds.end == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topics": ["a"]}, "one target"),
        ({"topics": [], "topic": {"topic": "x"}}, "1 to 16 topic filters"),
        ({"topics": ["a/+", "a/b"], "topic": {"topic": "x"}}, "match some topic both"),
        ({"topics": ["$SYS/#"], "topic": {"topic": "x"}}, "not for rules"),
        ({"topics": ["$share/g/a"], "topic": {"topic": "x"}}, "is not a topic filter"),
        ({"topics": ["a"], "sql": HOT, "topic": {"topic": "x"}}, "and not both"),
        ({"topics": ["a"], "topic": {"topic": "x/#"}}, "may publish to"),
        ({"topics": ["a"], "topic": {"topic": "$SYS/x"}}, "may publish to"),
        ({"topics": ["a"], "pattern": "{", "topic": {"topic": "x"}}, "pattern: it is not JSON"),
        ({"topics": ["a"], "webhook": {"url": "ftp://x"}}, "is not a URL"),
        ({"topics": ["a"], "webhook": {"url": "https://u:p@example.com"}}, "no user and password"),
        ({"topics": ["a"], "webhook": {"url": "https://x.example", "batch": 0}}, "batch is 1 to 1000"),
        ({"topics": ["a"], "webhook": {"url": "https://x.example", "headers": {"Host": "y"}}}, "may set"),
        ({"topics": ["a"], "webhook": {"url": "https://x.example", "mode": "odd"}}, "cannot be read"),
    ],
)
async def test_a_definition_that_cannot_be_used_is_refused(node: Node, fields: dict[str, object], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        await set_rule(node, "r", **fields)


async def test_outputs_that_are_larger_than_their_events_wait_in_the_log(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pop has all of these events, whose outputs have 12 MB."""
    sent: list[int] = []
    engine = engine_of(node)
    append = engine.append

    def counted(frames: Sequence[bytes], done: Callable[[Appended], None]) -> None:
        sent.append(sum(map(len, frames)))
        append(frames, done)

    monkeypatch.setattr(engine, "append", counted)
    template = "{% for _ in data %}" + "x" * 500 + "{% endfor %}"
    about = {"topics": ["in/a"], "topic": {"topic": "out/long"}, "transform": {"template": template}}
    await publish(node, "in/a", *[json.dumps([0] * 400)] * 60)
    await set_rule(node, "long", **about, start="earliest")
    await settled(node, "long")
    lengths = [len(each.payload) for each in await events_of(node, "out/long")]
    assert len(lengths) == 60
    assert min(lengths) == 200_000
    assert max(sent) < 9_000_000 < sum(sent)
    assert (await rule(node, "long")).figures.delivered == 60
