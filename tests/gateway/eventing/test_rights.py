"""What a rule may do, which is what its user may do."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from gateway.broker.append import append
from gateway.eventing.secrets import WebhookSecrets, WebhookSecretsError
from gateway.management.rights import NODE_USER, RemoteManager
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from store import control
from store.errors import StoreFailed
from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import (
    LOOPBACK,
    arrived,
    endpoint,
    engine_of,
    eventually,
    letters_of,
    payloads,
    publish,
    rule,
    set_rule,
    settled,
)
from tests.gateway.people import set_rules, set_user
from tests.waiting import until


async def manager(node: Node, name: str) -> RemoteManager:
    """A new user of that name, as it calls the management surface."""
    await set_user(node, name, b"secret")
    pages = node._services.http.pages
    assert pages is not None
    basic = "Basic " + b64encode(name.encode() + b":secret").decode()
    caller = await pages._callers.identify(basic, None, "127.0.0.1:1")
    return RemoteManager(pages.authority, caller, "127.0.0.1:1")


async def trouble_of(node: Node, name: str) -> str:
    return (await rule(node, name)).trouble


async def test_a_rule_runs_with_the_rights_of_its_user(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    ann = await manager(node, "ann")
    about = {"topics": ["in/+"], "topic": {"topic": "out/a"}}
    await set_rules(node, "ann", "allow subscribe in/#")
    with pytest.raises(RequestError, match="PUB topic:out/a"):
        await set_rule(node, "r", by=ann, **about)
    await set_rules(node, "ann", "allow publish out/#")
    with pytest.raises(RequestError, match="SUB topic:in/"):
        await set_rule(node, "r", by=ann, **about)
    await set_rules(node, "ann", "allow subscribe in/#", "allow publish out/#")
    await set_rule(node, "r", by=ann, **about)
    await publish(node, "in/1", "1")
    assert await arrived(node, "out/a", 1) == ["1"]
    await settled(node, "r")
    await set_rules(node, "ann", "allow publish out/#")
    assert "may not read 'in/+'" in await eventually(lambda: trouble_of(node, "r"))
    await publish(node, "in/1", "2")
    assert (await rule(node, "r")).lag == 1, "nothing is lost meanwhile"
    await set_rules(node, "ann", "allow subscribe in/#")
    letters = await eventually(lambda: letters_of(node, "r"))
    assert "may not publish to 'out/a'" in letters[0].error
    await set_rules(node, "ann", "allow subscribe in/#", "allow publish out/#")
    await publish(node, "in/1", "3")
    assert await arrived(node, "out/a", 2) == ["1", "3"]


RESERVED = (
    "$shadow/lamp/update/accepted",
    "$shadow/lamp/name/lid/get/rejected",
    "$shadow/lamp/update",
    "$delayed/1/$shadow/lamp/update/accepted",
    "$share/g/$shadow/lamp/update/accepted",
    "$inbox/lamp",
    "$kv/shadow/lamp",
    "$SYS/uptime",
)


@pytest.mark.parametrize("rights", ["allow publish out/#", "allow both $shadow/#"])
async def test_no_rule_answers_for_a_shadow(make_node: MakeNode, rights: str) -> None:
    """Nor changes one, whoever has set the rule, and wherever its topic comes from."""
    node = await make_node(http__auth=["password"])
    ann = await manager(node, "ann")
    await set_rules(node, "ann", "allow subscribe in/#", rights)
    for topic in (*RESERVED, "$shadow/lamp/{{ data }}"):
        for by in (ann, NODE_USER):
            with pytest.raises(RequestError, match="is not a topic that a rule may publish to"):
                await set_rule(node, "r", by=by, topics=["in/+"], topic={"topic": topic})
    about = {"topics": ["in/+"], "transform": {"constant": '{"state": {"desired": {"on": true}}}'}}
    await set_rule(node, "ann", by=ann, **about, topic={"topic": "{{ data }}"})
    await set_rule(node, "node", **about, topic={"topic": "{{ data }}"})
    await publish(node, "in/1", *[json.dumps(topic) for topic in RESERVED])
    await settled(node, "ann", "node")
    for name in ("ann", "node"):
        letters = await letters_of(node, name)
        assert len(letters) == len(RESERVED)
        assert all("is not a topic that a rule may publish to" in each.error for each in letters)
    assert not [topic for topic in RESERVED if await payloads(node, topic)]
    assert await engine_of(node).entry(b"shadow", b"lamp") is None


async def test_a_ban_of_its_user_stops_a_rule(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    ann = await manager(node, "ann")
    await set_rules(node, "ann", "allow subscribe in/#", "allow publish out/#")
    await set_rule(node, "r", by=ann, topics=["in/+"], topic={"topic": "out/a"})
    await append(engine_of(node), [control.BanSet().frame(b"user:ann")])
    assert await eventually(lambda: trouble_of(node, "r")) == "its user 'ann' is banned"
    await publish(node, "in/1", "1")
    assert (await rule(node, "r")).lag == 1
    await append(engine_of(node), [control.BanEnded().frame(b"user:ann")])
    assert await arrived(node, "out/a", 1) == ["1"]


async def test_a_secret_is_for_the_users_that_its_file_names(make_node: MakeNode, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    secret = f"whsec_{b64encode(b'0123456789abcdef01234567').decode()}"
    _write(file, f"ours {secret} ann role:accounting")
    node = await make_node(
        http__auth=["password"], events__webhook_networks=LOOPBACK, events__webhook_secrets=str(file)
    )
    people = {name: await manager(node, name) for name in ("ann", "bob", "eve")}
    for name in people:
        await set_rules(node, name, "allow subscribe in/#")
    await append(engine_of(node), [control.RoleSet().frame(b"accounting")])
    await append(engine_of(node), [control.UserChanged(roles=[b"accounting"]).frame(b"bob")])
    async with endpoint() as hook:
        about = {"topics": ["in/+"], "webhook": {"url": hook.url, "secret": "ours"}}
        await set_rule(node, "of-ann", by=people["ann"], **about)
        await set_rule(node, "of-bob", by=people["bob"], **about)
        await set_rule(node, "of-node", **about)
        with pytest.raises(RequestError, match="no secret 'ours' that 'eve' may use"):
            await set_rule(node, "of-eve", by=people["eve"], **about)
        await append(engine_of(node), [control.UserChanged().frame(b"bob")])
        await eventually(lambda: trouble_of(node, "of-bob"))
        await publish(node, "in/1", "1")
        await settled(node, "of-ann", "of-node")
        assert (
            await trouble_of(node, "of-bob")
            == "the file events.webhook_secrets has no secret 'ours' that 'bob' may use"
        )
        assert len(hook.got) == 2
        assert all("webhook-signature" in headers for headers, _ in hook.got)
        _write(file, f"ours {secret} bob")
        node._services.rules.reload()
        await until(lambda: len(hook.got) == 3)
        assert "'ann'" in await eventually(lambda: trouble_of(node, "of-ann"))


def test_a_file_of_secrets_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    for text in ("ours", "ours secret", "ours whsec_YQ=="):
        _write(file, text)
        with pytest.raises(WebhookSecretsError, match="line 1: a line is a name, a secret"):
            WebhookSecrets(str(file))


async def test_a_removed_rule_ends_although_the_store_failed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await set_rule(node, "r", topics=["in/+"], topic={"topic": "out/a"})
    await until(lambda: node._services.rules.find(b"r") is not None)
    rules = node._services.rules
    failing = [True]
    event_rule = engine_of(node).event_rule

    async def fails_once(name: bytes) -> object:
        if failing:
            failing.clear()
            raise StoreFailed("a test")
        return await event_rule(name)

    monkeypatch.setattr(rules._store, "event_rule", fails_once)
    await append(engine_of(node), [control.EventRuleRemoved().frame(b"r")])
    await until(lambda: rules.find(b"r") is None)
    assert not failing
    await publish(node, "in/1", "1")
    assert await payloads(node, "out/a") == []


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
