"""Rules that read retained values of other topics."""

import json

import pytest

import record
from gateway.broker.append import append
from gateway.eventing.enrichment import MAX_VALUE
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.mqtt.properties import MessageProperties, build_message_block
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from record.layout import FLAG_RETAIN, Kind
from store.api import Retained
from store.errors import LogCorrupt
from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import (
    arrived,
    engine_of,
    letters_of,
    publish,
    rule,
    service,
    set_rule,
    settled,
)
from tests.gateway.eventing.test_rights import manager
from tests.gateway.people import set_rules

ENRICH = {"dev": 'devices/{{ levels["2"] }}/info', "site": "site"}


async def retain(node: Node, topic: str, value: object, expiry_s: int | None = None) -> None:
    block = build_message_block(MessageProperties(message_expiry=expiry_s))
    payload = json.dumps(value).encode()
    frame = record.frame(int(Kind.MESSAGE), 1 | FLAG_RETAIN, 0, topic.encode(), b"device", block, payload)
    await append(engine_of(node), [frame])


async def test_a_rule_sees_retained_values_in_patterns_sql_and_templates(node: Node) -> None:
    await retain(node, "devices/7/info", {"site": "north", "limit": 30})
    await retain(node, "site", "west")
    sql = 'SELECT payload.t, enriched.dev.site, enriched.site AS west FROM "fleet/+/temp" WHERE t > enriched.dev.limit'
    await set_rule(node, "sql", sql=sql, enrich=ENRICH, topic={"topic": "out/sql"})
    pattern = '{"enriched": {"dev": {"site": ["north"]}}}'
    about = {"topics": ["fleet/+/temp"], "enrich": ENRICH}
    await set_rule(node, "pattern", **about, pattern=pattern, topic={"topic": "out/{{ enriched.dev.site }}"})
    pattern = '{"enriched": {"dev": [{"exists": false}]}}'
    await set_rule(node, "none", **about, pattern=pattern, topic={"topic": "out/none"})
    await publish(node, "fleet/7/temp", '{"t": 31}', '{"t": 30}')
    await publish(node, "fleet/8/temp", '{"t": 99}')
    await settled(node, "sql", "pattern", "none")
    assert await arrived(node, "out/sql", 1) == ['{"t":31,"site":"north","west":"west"}']
    assert await arrived(node, "out/north", 2) == ['{"t": 31}', '{"t": 30}']
    assert await arrived(node, "out/none", 1) == ['{"t": 99}']
    await retain(node, "devices/8/info", {"site": "south", "limit": 98})
    await publish(node, "fleet/8/temp", '{"t": 99}')
    assert (await arrived(node, "out/sql", 2))[1] == '{"t":99,"site":"south","west":"west"}'


async def test_values_that_are_not_there_or_too_large(node: Node) -> None:
    await retain(node, "site", "x" * MAX_VALUE)
    await set_rule(node, "large", topics=["in"], enrich={"site": "site"}, topic={"topic": "out/large"})
    template = {"template": "{{ enriched.none }}"}
    await set_rule(
        node, "none", topics=["in"], enrich={"none": "none"}, transform=template, topic={"topic": "out/none"}
    )
    broken = {"none": "a/{{ data.none }}", "odd": "{{ data.odd }}", "old": "old"}
    template = {"template": "{{ enriched|length }}"}
    await retain(node, "old", 1, expiry_s=0)
    await set_rule(node, "left", topics=["in"], enrich=broken, transform=template, topic={"topic": "out/left"})
    await publish(node, "in", '{"odd": "a/#"}')
    await settled(node, "large", "none", "left")
    (letter,) = await letters_of(node, "large")
    assert letter.error == f"the value of 'site' has more than {MAX_VALUE} bytes"
    (letter,) = await letters_of(node, "none")
    assert "has no attribute 'none'" in letter.error
    assert await arrived(node, "out/left", 1) == ["0"]


async def test_a_test_shows_what_enriches_an_event(node: Node) -> None:
    await retain(node, "devices/7/info", {"site": "north"})
    await set_rule(node, "r", topics=["fleet/+/temp"], enrich=ENRICH, topic={"topic": "out"})
    request = pb.TestEventRuleRequest(name="r", json='{"subject": "fleet/7/temp", "data": 1}')
    reply = await service(node).test_event_rule(request, NODE_USER)
    shown = {each.name: (each.topic, each.value) for each in reply.lookups}
    assert shown == {"dev": ("devices/7/info", '{"site":"north"}'), "site": ("site", "")}
    assert (reply.matches, reply.topic) == (True, "out")


async def test_a_rule_reads_what_its_user_may_read(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    ann = await manager(node, "ann")
    await set_rules(node, "ann", "allow subscribe in/#", "allow subscribe devices/7/#", "allow publish out")
    about = {"topics": ["in/+"], "topic": {"topic": "out"}}
    with pytest.raises(RequestError, match="SUB topic:site"):
        await set_rule(node, "r", by=ann, **about, enrich={"site": "site"})
    await set_rule(node, "r", by=ann, **about, enrich={"dev": 'devices/{{ levels["2"] }}/info'})
    await publish(node, "in/7", "1")
    await publish(node, "in/8", "2")
    assert await arrived(node, "out", 1) == ["1"]
    await settled(node, "r")
    (letter,) = await letters_of(node, "r")
    assert letter.error == "the user of the rule may not read 'devices/8/info'"
    assert (await rule(node, "r")).figures.refused == 1


@pytest.mark.parametrize(
    ("enrich", "why"),
    [
        ({"a b": "x"}, "is not a name"),
        ({"a": "x/#"}, "may read"),
        ({"a": "$SYS/x"}, "may read"),
        ({"a": "{{ enriched.b }}"}, "before there are values"),
        ({"a": "{{ nothing }}"}, "there is no 'nothing'"),
        ({f"a{number}": "x" for number in range(5)}, "at most 4"),
    ],
)
async def test_an_enrichment_that_cannot_be_used_is_refused(node: Node, enrich: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        await set_rule(node, "r", topics=["a"], topic={"topic": "x"}, enrich=enrich)


async def test_an_event_whose_value_is_damaged_is_a_dead_letter(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def damaged(topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        raise LogCorrupt("00000000", 7, "a damaged record")

    monkeypatch.setattr(engine_of(node), "retained", damaged)
    await set_rule(node, "r", topics=["in"], enrich={"site": "site"}, topic={"topic": "out"})
    await publish(node, "in", "1")
    await settled(node, "r")
    (letter,) = await letters_of(node, "r")
    assert letter.error.startswith("the value of 'site' cannot be read: a damaged record in segment 00000000")
