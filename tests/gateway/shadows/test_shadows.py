"""Device shadows of a whole node: over MQTT with real clients, over HTTP, with several updaters, and after a crash."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import aiomqtt
import pytest

from gateway.node.clustered_node import ClusteredStoreNode
from gateway.node.node import Node
from gateway.rpc.limits import RpcLimits
from gateway.shadows import shadows as shadows_module
from gateway.shadows.shadows import BUCKET, ShadowMessage, Shadows
from gateway.shadows.topics import ShadowName
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.eventing.rules import engine_of, eventually, payloads, publish
from tests.gateway.people import set_rules
from tests.gateway.test_clustered_node import attached, leads, running
from tests.gateway.test_clustered_node import node as clustered
from tests.waiting import patience, until

V311, V5 = aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5


class Thing:
    """A client of MQTT that asks for a shadow, and takes what it hears."""

    def __init__(self, client: aiomqtt.Client, topic: str) -> None:
        self.client = client
        self.topic = topic

    async def ask(self, operation: str, document: object = None) -> None:
        payload = "" if document is None else json.dumps(document)
        await self.client.publish(f"{self.topic}/{operation}", payload, qos=1)

    async def heard(self, count: int = 1) -> dict[str, Any]:
        """The next messages, by what their topics have behind that of the shadow."""
        found: dict[str, Any] = {}
        async with patience():
            async for message in self.client.messages:
                assert isinstance(message.payload, bytes)
                found[str(message.topic).removeprefix(self.topic + "/")] = json.loads(message.payload)
                if len(found) == count:
                    break
        return found


@asynccontextmanager
async def thing(
    node: Node, name: str = "lamp", version: aiomqtt.ProtocolVersion = V311, answers: str = "+/+"
) -> AsyncIterator[Thing]:
    client = aiomqtt.Client("127.0.0.1", node.ports.mqtt, protocol=version, identifier=f"{name}-{version}")
    async with client:
        topic = f"$shadow/{name}"
        await client.subscribe(f"{topic}/{answers}", qos=1)
        yield Thing(client, topic)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("name", ["lamp", "lamp/name/net"])
async def test_a_device_and_an_application_share_a_shadow(
    node: Node, version: aiomqtt.ProtocolVersion, name: str
) -> None:
    async with thing(node, name, version) as device:
        await device.ask("get", {"clientToken": "g"})
        missing = (await device.heard())["get/rejected"]
        assert (missing["code"], missing["clientToken"]) == (404, "g")
        await device.ask("update", {"state": {"desired": {"on": True, "hue": 3}}, "clientToken": "u"})
        heard = await device.heard(3)
        accepted, delta, documents = (heard[f"update/{each}"] for each in ("accepted", "delta", "documents"))
        assert (accepted["state"], accepted["version"]) == ({"desired": {"on": True, "hue": 3}}, 1)
        assert accepted["metadata"]["desired"]["hue"] == {"timestamp": accepted["timestamp"]}
        assert (delta["state"], delta["version"]) == ({"on": True, "hue": 3}, 1)
        assert (documents["previous"], documents["current"]["version"]) == (None, 1)
        assert {each["clientToken"] for each in heard.values()} == {"u"}
        await device.ask("update", {"state": {"reported": {"on": True}}})
        heard = await device.heard(3)
        assert heard["update/delta"]["state"] == {"hue": 3}
        assert "clientToken" not in heard["update/delta"]
        assert heard["update/documents"]["previous"]["state"] == {"desired": {"on": True, "hue": 3}}
        await device.ask("update", {"state": {"desired": {"hue": None}}})
        assert set(await device.heard(2)) == {"update/accepted", "update/documents"}
        await device.ask("get")
        shadow = (await device.heard())["get/accepted"]
        assert shadow["state"] == {"desired": {"on": True}, "reported": {"on": True}}
        assert shadow["version"] == 3
        await device.ask("update", {"state": {"desired": {"on": False}}, "version": 2, "clientToken": "c"})
        conflict = (await device.heard())["update/rejected"]
        assert (conflict["code"], conflict["clientToken"]) == (409, "c")
        await device.ask("delete")
        assert (await device.heard())["delete/accepted"]["version"] == 3
        await device.ask("delete")
        assert (await device.heard())["delete/rejected"]["code"] == 404
        await device.ask("update", {"state": {"reported": {"on": True}}, "version": 0})
        heard = await device.heard(2)
        assert (heard["update/accepted"]["version"], heard["update/documents"]["previous"]) == (4, None)


async def test_requests_that_are_refused(make_node: MakeNode) -> None:
    node = await make_node(shadow__max_document=1024, shadow__max_depth=2)
    async with thing(node) as device:
        await device.ask("update", {"state": {"desired": {"a": {"b": {}}}}})
        assert (await device.heard())["update/rejected"]["message"] == "desired has more than 2 levels"
        await device.ask("update", {"state": {"desired": {"a": "x" * 600}}})
        await device.heard(3)
        await device.ask("update", {"state": {"reported": {"a": "x" * 600}}})
        assert (await device.heard())["update/rejected"]["code"] == 413
        await device.ask("get", {"clientToken": "x" * 2000})
        assert (await device.heard())["get/rejected"]["code"] == 413
        await device.ask("get", [])
        assert (await device.heard())["get/rejected"]["code"] == 400
    async with thing(node, "\N{BELL}" * 200, V5) as device:  # no name of a thing
        await device.ask("get")
        assert (await device.heard())["get/rejected"]["code"] == 400


async def test_buckets_that_are_full(make_node: MakeNode) -> None:
    node = await make_node(buckets__max_entries=1)
    async with thing(node) as device, thing(node, "other") as other:
        await device.ask("update", {"state": {"reported": {"a": 1}}})
        await device.heard(2)
        await other.ask("update", {"state": {"reported": {"a": 1}}})
        refused = (await other.heard())["update/rejected"]
        assert refused["code"] == 429
        assert "buckets.max_entries" in refused["message"]


async def ask(node: Node, verb: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{node.ports.http}/api/v1/things/{path}"
    async with aiohttp.ClientSession() as session, session.request(verb, url, json=body) as answer:
        return answer.status, await answer.json()


async def test_over_http_devices_hear_of_it(node: Node) -> None:
    await set_rules(node, "", "allow both $shadow/#")
    async with thing(node) as device:
        body = {"state": {"desired": {"on": True, "level": 2.5, "list": [1, None]}}}
        status, reply = await ask(node, "POST", "lamp/shadow", body)
        assert (status, reply["state"], reply["version"]) == (200, body["state"], "1")
        heard = await device.heard(3)
        assert heard["update/delta"]["state"] == {"on": True, "level": 2.5, "list": [1, None]}
        assert (await ask(node, "POST", "lamp/shadow", {"state": {}, "version": 7}))[0] == 409
        assert (await ask(node, "POST", "lamp/shadow", {}))[0] == 400
        assert (await ask(node, "POST", "lamp/shadow", {"name": "net", "state": {"reported": {"a": None}}}))[0] == 200
        assert (await ask(node, "GET", "lamp/shadows"))[1] == {"names": ["", "net"]}
        status, reply = await ask(node, "GET", "lamp/shadow")
        assert (status, reply["state"]["delta"]["on"]) == (200, True)
        assert (await ask(node, "DELETE", "lamp/shadow"))[1] == {"version": "1"}
        assert (await device.heard())["delete/accepted"]["version"] == 1
        assert (await ask(node, "GET", "lamp/shadow"))[0] == 404
        assert (await ask(node, "GET", "lamp/shadows"))[1] == {"names": ["net"]}
        assert (await ask(node, "GET", "a%2Fb/shadow"))[0] == 400
    await set_rules(node, "", "allow both $shadow/other/#")
    assert (await ask(node, "GET", "lamp/shadow"))[0] == 403


async def test_rules_of_topics_count(node: Node) -> None:
    await set_rules(node, "", "deny both $shadow/other/#")
    async with thing(node, "lamp", V5) as device:
        await device.client.publish("$shadow/other/update", '{"state": {"reported": {"a": 1}}}', qos=1)
        await device.ask("update", {"state": {"reported": {"a": 1}}})
        assert (await device.heard(2))["update/accepted"]["version"] == 1
    assert await payloads(engine_of(node), "$shadow/other/update") == []


async def test_of_two_updaters_with_the_same_version_one_wins(node: Node) -> None:
    await set_rules(node, "", "allow both $shadow/#")

    async def count(updater: str) -> None:
        """Add one to a number twenty times, by version."""
        for _ in range(20):
            while True:
                status, shadow = await ask(node, "GET", "meter/shadow")
                number = shadow["state"]["reported"]["n"] if status == 200 else 0
                version = int(shadow["version"]) if status == 200 else 0
                body = {"state": {"reported": {"n": number + 1, updater: True}}, "version": version}
                if (await ask(node, "POST", "meter/shadow", body))[0] == 200:
                    break

    await asyncio.gather(count("one"), count("other"))
    _, shadow = await ask(node, "GET", "meter/shadow")
    assert shadow["state"]["reported"] == {"n": 40, "one": True, "other": True}
    assert shadow["version"] == "40"


async def test_updates_over_mqtt_and_http_at_once_lose_nothing(node: Node) -> None:
    await set_rules(node, "", "allow both $shadow/#")
    async with thing(node, answers="update/accepted") as device:
        for number in range(30):
            await device.ask("update", {"state": {"reported": {f"m{number}": number}}})
            await ask(node, "POST", "lamp/shadow", {"state": {"desired": {f"h{number}": number}}})

        async def all_are_there() -> bool:
            return int((await ask(node, "GET", "lamp/shadow"))[1]["version"]) == 60

        await eventually(all_are_there)
        _, shadow = await ask(node, "GET", "lamp/shadow")
        assert shadow["state"]["reported"] == {f"m{number}": number for number in range(30)}
        assert shadow["state"]["desired"] == {f"h{number}": number for number in range(30)}


async def test_requests_wait_for_a_node_that_was_restarted(make_node: MakeNode) -> None:
    node = await make_node()
    async with thing(node) as device:
        await device.ask("update", {"state": {"reported": {"a": 1}}})
        await device.heard(2)
    await node._services._shadow_consumer.stop()
    await publish(node, "$shadow/lamp/update", '{"state": {"reported": {"b": 2}}}')
    await node.stop()
    again = await make_node()
    async with thing(again, answers="get/+") as device:
        await eventually(lambda: _version_is(again, 2))
        await device.ask("get")
        assert (await device.heard())["get/accepted"]["state"] == {"reported": {"a": 1, "b": 2}}


async def _version_is(node: Node | Engine, version: int, thing: bytes = b"lamp") -> bool:
    entry = await engine_of(node).entry(BUCKET, thing)
    return entry is not None and json.loads(entry.value)["version"] == version


async def test_a_message_that_comes_again_after_a_crash_is_answered_and_changes_nothing(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is killed between the change and its answer."""
    node = await make_node()
    stuck = asyncio.Event()

    async def never(_shadows: Shadows, answers: list[ShadowMessage]) -> None:
        if answers:
            stuck.set()
            await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Shadows, "publish", never)
        await publish(node, "$shadow/lamp/update", '{"state": {"reported": {"a": 1}}, "version": 0}')
        async with patience():
            await stuck.wait()
        config = node.config
        shadows = Shadows(engine_of(node), config.shadow, RpcLimits())
        await shadows.update(ShadowName(b"lamp"), b'{"state": {"reported": {"a": 2}}}')  # another one meanwhile
    copy = await crashed(make_node, node, "copy")
    answers = await eventually(lambda: payloads(engine_of(copy), "$shadow/lamp/update/accepted"))
    assert json.loads(answers[0])["state"] == {"reported": {"a": 1}}
    entry = await engine_of(copy).entry(BUCKET, b"lamp")
    assert entry is not None
    assert json.loads(entry.value)["state"] == {"reported": {"a": 2}}
    assert await payloads(engine_of(copy), "$shadow/lamp/update/rejected") == []


async def test_the_version_of_a_deleted_shadow_is_kept_for_a_while(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shadows = Shadows(engine_of(node), node.config.shadow, RpcLimits())
    name = ShadowName(b"lamp")
    for each in (name, ShadowName(b"other")):
        await shadows.update(each, b'{"state": {"reported": {"a": 1}}}')
    await shadows.delete(name)
    await shadows.forget_deleted()
    assert await engine_of(node).entry(BUCKET, b"lamp") is not None
    monkeypatch.setattr(shadows_module, "KEPT_S", -1)
    await shadows.forget_deleted()
    assert await engine_of(node).entry(BUCKET, b"lamp") is None
    assert await engine_of(node).entry(BUCKET, b"other") is not None


async def test_a_store_without_shadows_has_no_group_for_them(node: Node) -> None:
    await publish(node, "home/t", "$shadow/lamp/update")
    await publish(node, "$inbox/lamp", "on")
    assert not node._services._shadow_consumer._awake.is_set()
    assert await engine_of(node).groups(None, 10) == []


async def test_another_leader_of_a_cluster_goes_on(tmp_path: Path) -> None:
    one, other = clustered(tmp_path, "n1"), clustered(tmp_path, "n2")

    def engine(leader: ClusteredStoreNode) -> Engine:
        assert leader._served is not None
        return leader._served.engine

    async with running(one):
        await until(lambda: leads(one))
        await publish(engine(one), "$shadow/lamp/update", '{"state": {"reported": {"a": 1}}}')
        await eventually(lambda: _version_is(engine(one), 1))
        async with running(other), attached(one, "n2.g1/1", other.config.cluster.listen):
            await until(lambda: other._member.facts()["leader"] == "n1")
            await one.stop()
            await until(lambda: leads(other))
            await publish(engine(other), "$shadow/lamp/update", '{"state": {"reported": {"b": 2}}}')
            await eventually(lambda: _version_is(engine(other), 2))
