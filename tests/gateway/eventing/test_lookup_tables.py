"""Rules that look up entries of buckets."""

import asyncio
import json

import pytest

from gateway.broker.append import append
from gateway.eventing.enrichment import MAX_VALUE
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from sluice.commands.messages.rule import _steps
from store.api import BucketEntry, entry_subject
from store.control import EntryPut, EntryRemoved
from store.engine import Engine
from store.errors import TierUnavailable
from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import (
    arrived,
    definition,
    engine_of,
    eventually,
    letters_of,
    payloads,
    publish,
    rule,
    service,
    set_rule,
    settled,
)
from tests.gateway.eventing.test_rights import manager, trouble_of
from tests.gateway.people import set_rules

ENRICH = {"dev": '$kv/devices/{{ levels["2"] }}'}
OUT = {"topic": {"topic": "out"}}


async def put(node: Node | Engine, subject: str, value: object) -> None:
    """subject: the bucket, a slash and the key. value: JSON, unless it is bytes; None removes the entry."""
    bucket, _, key = subject.partition("/")
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    change = EntryRemoved() if value is None else EntryPut(data)
    await append(engine_of(node), [change.frame(entry_subject(bucket.encode(), key.encode()))])


async def test_a_rule_sees_entries_in_patterns_sql_and_templates(node: Node) -> None:
    await put(node, "devices/7", {"site": "north", "limit": 30})
    await put(node, "plant/name", "west")
    enrich = {**ENRICH, "plant": "$kv/plant/name"}
    sql = "SELECT payload.t, enriched.dev.site, enriched.plant AS west"
    sql += ' FROM "fleet/+/temp" WHERE t > COALESCE(enriched.dev.limit, 50)'
    await set_rule(node, "sql", sql=sql, enrich=enrich, topic={"topic": "out/sql"})
    about = {"topics": ["fleet/+/temp"], "enrich": enrich}
    pattern = '{"enriched": {"dev": {"site": ["north"]}}}'
    template = {"template": "{{ data.t }} of {{ enriched.dev.limit }}"}
    target = {"topic": "out/{{ enriched.dev.site }}"}
    await set_rule(node, "pattern", **about, pattern=pattern, transform=template, topic=target)
    pattern = '{"enriched": {"dev": [{"exists": false}]}}'
    await set_rule(node, "none", **about, pattern=pattern, topic={"topic": "out/none"})
    await publish(node, "fleet/7/temp", '{"t": 31}', '{"t": 30}')
    await publish(node, "fleet/8/temp", '{"t": 51}')
    await settled(node, "sql", "pattern", "none")
    assert sorted(await payloads(node, "out/sql")) == [
        '{"t":31,"site":"north","west":"west"}',
        '{"t":51,"site":null,"west":"west"}',
    ]
    assert await payloads(node, "out/north") == ["31 of 30", "30 of 30"]
    assert await payloads(node, "out/none") == ['{"t": 51}']


async def test_what_was_put_before_an_event_is_seen(node: Node) -> None:
    template = {"template": "{{ enriched.dev|default('gone') }}"}
    await set_rule(node, "r", topics=["fleet/+"], enrich=ENRICH, transform=template, **OUT)
    for number in (1, 2, 3):
        await put(node, "devices/7", number)
        await publish(node, "fleet/7", "x")
        await settled(node, "r")
    await put(node, "devices/7", None)
    await publish(node, "fleet/7", "x")
    assert await arrived(node, "out", 4) == ["1", "2", "3", "gone"]


async def test_an_entry_is_read_once_for_a_batch(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(node)
    read: list[bytes] = []
    entry = engine.entry

    async def noted(bucket: bytes, key: bytes) -> BucketEntry | None:
        read.append(bucket + b"/" + key)
        return await entry(bucket, key)

    monkeypatch.setattr(engine, "entry", noted)
    await set_rule(node, "r", topics=["fleet/+"], enrich=ENRICH, enabled=False, **OUT)
    await publish(node, "fleet/7", *["x"] * 100)
    await publish(node, "fleet/8", *["x"] * 100)
    await service(node).resume_event_rule(pb.ResumeEventRuleRequest(name="r"), NODE_USER)
    await arrived(node, "out", 200)
    assert sorted(read) == [b"devices/7", b"devices/8"], "the second one is not there, and is not asked for again"


async def test_values_that_are_no_json_or_too_large(node: Node) -> None:
    for key, value in (("text", b"hot {"), ("bytes", b"\xff"), ("large", b"1" * (MAX_VALUE + 1)), ("deep", b"[" * 9)):
        await put(node, f"devices/{key}", value)
    template = {"template": "{{ enriched.dev|default('none') }}"}
    await set_rule(node, "r", topics=["fleet/+"], enrich=ENRICH, transform=template, **OUT)
    for key in ("text", "bytes", "large", "deep"):
        await publish(node, f"fleet/{key}", "x")
    await settled(node, "r")
    assert await payloads(node, "out") == ["hot {", "none", "[[[[[[[[["]
    (letter,) = await letters_of(node, "r")
    assert letter.error == f"the value of '$kv/devices/large' has more than {MAX_VALUE} bytes"


async def test_an_event_does_not_choose_the_bucket(node: Node) -> None:
    """A template whose topic comes from the event alone reads no entries, and a key stays in its bucket."""
    await put(node, "secrets/a", "secret")
    await put(node, "devices/../secrets/a", "a key like any other")
    enrich = {"free": "{{ data }}", "dev": "$kv/devices/{{ data }}"}
    template = {"template": "{{ enriched|tojson }}"}
    await set_rule(node, "r", topics=["in"], enrich=enrich, transform=template, **OUT)
    long = "x" * 256
    await publish(node, "in", '"$kv/secrets/a"', '"../secrets/a"', '"a/#"', '""', '"a\\u0007"', f'"{long}"', "{}")
    assert await arrived(node, "out", 7) == ["{}", '{"dev":"a key like any other"}', *["{}"] * 5]


async def test_a_store_that_fails_loses_no_event(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule waits before it takes the event again: each time writes to the log."""
    engine = engine_of(node)
    entry, loop = engine.entry, asyncio.get_running_loop()
    tries: list[float] = []

    async def fails_once(bucket: bytes, key: bytes) -> BucketEntry | None:
        tries.append(loop.time())
        if len(tries) == 1:
            raise TierUnavailable("a test")
        return await entry(bucket, key)

    monkeypatch.setattr(engine, "entry", fails_once)
    await put(node, "devices/7", 1)
    await set_rule(node, "r", topics=["fleet/+"], enrich=ENRICH, transform={"template": "{{ enriched.dev }}"}, **OUT)
    await publish(node, "fleet/7", "x")
    assert await arrived(node, "out", 1) == ["1"]
    first, second = tries
    assert second - first > 0.4
    assert not await letters_of(node, "r")
    assert (await rule(node, "r")).figures.error == "a value cannot be looked up: a test"


async def test_the_user_of_a_rule_has_to_be_allowed_to_read_the_table(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    ann = await manager(node, "ann")
    await put(node, "devices/a/7", 1)
    about = {"topics": ["in/+"], **OUT}
    table = {"dev": '$kv/devices/a/{{ levels["2"] }}'}
    may = "allow subscribe in/#", "allow publish out"
    await set_rules(node, "ann", *may, "allow both #", "allow subscribe $kv/devices/b/#")
    for enrich, needed in ((table, r"\$kv/devices/a/#"), ({"dev": "$kv/devices/a/7"}, r"\$kv/devices/a/7")):
        with pytest.raises(RequestError, match=f"SUB topic:{needed}, and no rule allows it"):
            await set_rule(node, "r", by=ann, **about, enrich=enrich)
    request = pb.TestEventRuleRequest(definition=definition(**about, enrich=table), topic="in/7", json="{}")
    with pytest.raises(RequestError, match=r"SUB topic:\$kv/devices/a/7"):
        await service(node).test_event_rule(request, ann)
    await set_rules(node, "ann", *may, "allow subscribe $kv/devices/a/#")
    await set_rule(node, "r", by=ann, **about, enrich=table)
    await publish(node, "in/7", "1")
    assert await arrived(node, "out", 1) == ["1"]
    await settled(node, "r")
    await set_rules(node, "ann", *may)
    assert "may not read '$kv/devices/a/#'" in await eventually(lambda: trouble_of(node, "r"))
    await publish(node, "in/7", "2")
    assert (await rule(node, "r")).lag == 1, "nothing is lost meanwhile"
    await set_rules(node, "ann", *may, "allow subscribe $kv/devices/#")
    assert await arrived(node, "out", 2) == ["1", "2"]


async def test_a_test_shows_each_lookup(node: Node) -> None:
    await put(node, "devices/7", {"site": "north"})
    enrich = {**ENRICH, "none": "$kv/nothing/here", "odd": "$kv/devices/{{ data.no }}"}
    await set_rule(node, "r", topics=["fleet/+"], enrich=enrich, **OUT)
    request = pb.TestEventRuleRequest(name="r", json='{"subject": "fleet/7", "data": 1}')
    reply = await service(node).test_event_rule(request, NODE_USER)
    assert reply.matches
    assert sorted(_steps(reply)[1:4]) == [
        'enriched dev: $kv/devices/7 — {"site":"north"}',
        "enriched none: $kv/nothing/here — not there",
        "enriched odd: its topic cannot be made of this event — not there",
    ]
    await put(node, "devices/7", b"1" * (MAX_VALUE + 1))
    reply = await service(node).test_event_rule(request, NODE_USER)
    assert (reply.matches, "has more than" in reply.error) == (False, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$kv", "is not \\$kv/, the name of a bucket"),
        ("$kv/devices", "is not \\$kv/, the name of a bucket"),
        ("$kv/devices/", "is not \\$kv/, the name of a bucket"),
        ("$kv//a", "is not \\$kv/, the name of a bucket"),
        ("$kv/devices/+", "is not \\$kv/, the name of a bucket"),
        ("$kv/devices/a#/{{ data }}", "is not \\$kv/, the name of a bucket"),
        ("$kv/{{ data }}", "is not \\$kv/, the name of a bucket"),
        ("$kv/dev{{ data }}/a", "is not \\$kv/, the name of a bucket"),
        ("$kv/devices/{{ data", "enrich: a: "),
        ("$kv/devices/{{ nothing }}", "there is no 'nothing'"),
        ("$kv/devices/{{ enriched.b }}", "before there are values"),
        ("$kvs/devices/a", "may read"),
    ],
)
async def test_a_lookup_that_cannot_be_used_is_refused(node: Node, text: str, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        await set_rule(node, "r", topics=["a"], enrich={"a": text}, **OUT)
