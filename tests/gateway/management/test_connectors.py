"""Connectors on the management surface, and below `/connect` as Kafka Connect's REST API has them."""

import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from cloud_sdk import Client
from connect.plugins import CONNECTORS
from gateway.broker.append import append
from gateway.node.node import Node
from store.api import entry_subject
from store.control import EntryPut
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import engine_of
from tests.gateway.people import set_rules

BUCKET = b"connect"
FILE = {"connector.class": "file-sink", "topics": "sensors/#", "directory": "out"}


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Everybody may manage connectors."""
    made = await make_node()
    await set_rules(made, "", "allow * cluster:connectors", "allow * topic:#", "allow * group:*")
    return made


async def ask(node: Node, verb: str, path: str, body: object = None) -> tuple[int, Any]:
    """The status and the JSON of an answer; None: it has no body."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{node.ports.http}/{path}"
    async with aiohttp.ClientSession() as session, session.request(verb, url, data=data, headers=headers) as answer:
        text = await answer.read()
        return answer.status, json.loads(text) if text else None


async def connect(node: Node, verb: str, path: str, body: object = None) -> tuple[int, Any]:
    return await ask(node, verb, f"connect/{path}", body)


async def put_entry(node: Node, key: str, value: Mapping[str, Any]) -> None:
    """What a worker writes."""
    change = EntryPut(json.dumps(value).encode(), token=b"%d" % time.monotonic_ns())
    await append(engine_of(node), [change.frame(entry_subject(BUCKET, key.encode()))])


async def entry_of(node: Node, key: str) -> Any:
    found = await engine_of(node).entry(BUCKET, key.encode())
    return None if found is None else json.loads(found.value)


def heartbeat(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"host": "h1", "version": "1", "plugins": [], "tasks": list(tasks)}


async def test_the_life_of_a_connector(node: Node) -> None:
    assert await connect(node, "GET", "connectors") == (200, [])
    status, made = await connect(node, "POST", "connectors", {"name": "archive", "config": {**FILE, "tasks.max": 2}})
    config = {**FILE, "tasks.max": "2", "name": "archive"}
    assert (status, made) == (201, {"name": "archive", "config": config, "tasks": [], "type": "sink"})
    assert await entry_of(node, "connector/archive") == {"config": config, "state": "RUNNING", "by": "", "restarts": {}}
    status, error = await connect(node, "POST", "connectors", {"name": "archive", "config": FILE})
    assert (status, error) == (409, {"error_code": 409, "message": "there is a connector 'archive'"})
    assert await connect(node, "GET", "connectors") == (200, ["archive"])
    assert (await connect(node, "GET", "connectors/archive/status"))[1]["connector"]["state"] == "UNASSIGNED"
    for verb, state in (("pause", "PAUSED"), ("stop", "STOPPED"), ("resume", "RUNNING")):
        assert (await connect(node, "PUT", f"connectors/archive/{verb}"))[0] in (202, 204)
        assert (await entry_of(node, "connector/archive"))["state"] == state
    status, changed = await connect(node, "PATCH", "connectors/archive/config", {"tasks.max": None, "topics": "a"})
    assert (status, changed["config"]) == (200, {**FILE, "topics": "a", "name": "archive"})
    status, changed = await connect(node, "PUT", "connectors/archive/config", FILE)
    assert (status, changed["config"]) == (200, {**FILE, "name": "archive"})
    assert await connect(node, "DELETE", "connectors/archive") == (204, None)
    assert (await connect(node, "GET", "connectors/archive"))[0] == 404
    assert (await connect(node, "PATCH", "connectors/archive/config", {}))[0] == 404
    assert (await connect(node, "PUT", "connectors/archive/config", FILE))[0] == 201


async def test_what_workers_say_is_shown(node: Node) -> None:
    await connect(node, "POST", "connectors", {"name": "a", "config": {**FILE, "tasks.max": "2"}})
    running = {"connector": "a", "task": 0, "state": "RUNNING", "records_in": 7}
    failed = {"connector": "a", "task": 1, "state": "FAILED", "trace": "no such folder"}
    await put_entry(node, "worker/w1", heartbeat(running, {**failed, "connector": "other"}))
    await put_entry(node, "worker/w2", heartbeat(failed))
    await put_entry(node, "worker/w3", heartbeat({**running, "task": "many"}))  # not a heartbeat
    _, status = await connect(node, "GET", "connectors/a/status")
    assert status == {
        "name": "a",
        "type": "sink",
        "connector": {"state": "RUNNING", "worker_id": "w1"},
        "tasks": [
            {"id": 0, "state": "RUNNING", "worker_id": "w1"},
            {"id": 1, "state": "FAILED", "worker_id": "w2", "trace": "no such folder"},
        ],
    }
    assert (await connect(node, "GET", "connectors/a/tasks/1/status"))[1]["trace"] == "no such folder"
    assert (await connect(node, "GET", "connectors/a/tasks/2/status"))[0] == 404
    _, expanded = await connect(node, "GET", "connectors?expand=status&expand=info")
    assert expanded["a"]["status"] == status and expanded["a"]["info"]["tasks"][1] == {"connector": "a", "task": 1}
    assert (await connect(node, "POST", "connectors/a/tasks/1/restart"))[0] == 204
    assert (await connect(node, "POST", "connectors/a/tasks/5/restart"))[0] == 404
    assert (await connect(node, "POST", "connectors/a/restart?includeTasks=true&onlyFailed=true"))[0] == 202
    assert (await connect(node, "POST", "connectors/a/restart"))[0] == 204
    assert (await connect(node, "POST", "connectors/a/restart?includeTasks=false&onlyFailed=false"))[0] == 204
    assert (await entry_of(node, "connector/a"))["restarts"] == {"1": 2, "connector": 2}
    _, listed = await ask(node, "GET", "api/v1/connect-workers")
    assert [(each["id"], each["host"], each["tasks"]) for each in listed["workers"]] == [
        ("w1", "h1", 2),
        ("w2", "h1", 1),
        ("w3", "h1", 1),
    ]


async def test_entries_that_others_wrote_do_no_harm(node: Node) -> None:
    """Whoever may write to the bucket may write anything there."""
    await connect(node, "POST", "connectors", {"name": "a", "config": FILE})
    wrong: dict[str, Any] = {
        "connector/b": {"config": {**FILE, "topics": 5}, "state": [], "by": 7, "restarts": [1]},
        "connector/c": {"config": 5, "restarts": {"connector": "x"}},
        "worker/w": {"host": {}, "tasks": 5, "plugins": 5},
        "offset/b/0/s": "none",
    }
    for key, value in wrong.items():
        await put_entry(node, key, value)
    status, listed = await connect(node, "GET", "connectors?expand=info&expand=status")
    assert (status, sorted(listed), listed["b"]["info"]["config"]["topics"]) == (200, ["a", "b", "c"], "5")
    assert (await connect(node, "POST", "connectors/b/restart"))[0] == 204
    assert (await connect(node, "PUT", "connectors/c/pause"))[0] == 202
    assert (await entry_of(node, "connector/b"))["restarts"] == {"connector": 1}
    assert (await connect(node, "GET", "connectors/b/offsets"))[1]["offsets"][0]["offset"] == {}
    assert (await ask(node, "GET", "api/v1/connect-workers"))[0] == 200


async def test_settings_of_a_plug_in_that_is_missing_are_not_shown(node: Node) -> None:
    await put_entry(node, "connector/a", {"config": {"connector.class": "gone", "topics": "t", "api.key": "hidden"}})
    _, shown = await connect(node, "GET", "connectors/a/config")
    assert shown == {"name": "a", "connector.class": "gone", "topics": "t", "api.key": "***"}


async def test_the_lag_of_a_transactional_sink_is_that_of_its_offsets(node: Node) -> None:
    config = {"connector.class": "sqlite-sink", "topics": "t/#,u/#", "connection.path": "a.db"}
    await connect(node, "POST", "connectors", {"name": "a", "config": config})
    assert "lag" not in (await ask(node, "GET", "api/v1/connectors/a"))[1]
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        sent = [await client.send("t/x", b"1") for _ in range(3)]
        ends = {each.partition: each.end for each in await client.partitions("t") if each.end}
        assert len(sent) == sum(ends.values())
        partition, end = next(iter(ends.items()))
        await client.commit_offsets("connect-a", "t", {partition: end - 1})
    assert (await ask(node, "GET", "api/v1/connectors/a"))[1]["lag"] == str(len(sent) - end + 1)


async def test_paths_that_there_are_not_have_errors_of_connect(node: Node) -> None:
    assert (await connect(node, "GET", ""))[0] == 200
    for verb, path in (("GET", "admin/loggers"), ("PUT", "connectors"), ("GET", "connectors/a/tasks/x/status")):
        error = {"error_code": 404, "message": f"there is no {verb} /connect/{path}"}
        assert await connect(node, verb, path) == (404, error)


async def test_offsets_of_a_source(node: Node) -> None:
    config = {"connector.class": "file-source", "directory": "in", "topic": "t"}
    assert (await connect(node, "POST", "connectors", {"name": "in", "config": config}))[0] == 201
    await put_entry(node, "offset/in/0/a%2Fb", {"line": 5})
    row = {"partition": {"task": 0, "source": "a/b"}, "offset": {"line": 5}}
    assert await connect(node, "GET", "connectors/in/offsets") == (200, {"offsets": [row]})
    assert (await connect(node, "DELETE", "connectors/in/offsets"))[0] == 400  # it is not stopped
    await connect(node, "PUT", "connectors/in/stop")
    changed = {"offsets": [{**row, "offset": {"line": 9}}, {"partition": {"source": "c"}, "offset": {"line": 1}}]}
    assert (await connect(node, "PATCH", "connectors/in/offsets", changed))[0] == 200
    assert await entry_of(node, "offset/in/0/a%2Fb") == {"line": 9} and await entry_of(node, "offset/in/0/c")
    removed = {"offsets": [{"partition": {"source": "c"}, "offset": None}]}
    assert (await connect(node, "PATCH", "connectors/in/offsets", removed))[0] == 200
    assert await entry_of(node, "offset/in/0/c") is None
    wrongs: list[dict[str, Any]] = [
        {},
        {"offsets": []},
        {"offsets": [{"partition": {"x": 1}}]},
        {"offsets": [{"offset": {}}]},
    ]
    for wrong in wrongs:
        assert (await connect(node, "PATCH", "connectors/in/offsets", wrong))[0] == 400
    assert (await connect(node, "DELETE", "connectors/in/offsets"))[0] == 200
    assert await connect(node, "GET", "connectors/in/offsets") == (200, {"offsets": []})
    await connect(node, "POST", "connectors", {"name": "out", "config": FILE, "initial_state": "STOPPED"})
    status, error = await connect(node, "DELETE", "connectors/out/offsets")
    assert status == 400 and "sluice group reset connect-out" in error["message"]


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("a/b", FILE, "letters, digits"),
        ("a", {**FILE, "connector.class": "none"}, "there is no connector 'none'"),
        ("a", {**FILE, "tasks.max": "many"}, "tasks.max: a whole number is expected"),
        ("a", {**FILE, "topics": "#"}, "topics: the first level"),
        ("a", {**FILE, "colour": "red"}, "colour: there is no such setting"),
        ("a", {**FILE, "name": "b"}, "the setting `name` is 'b'"),
        ("a", {**FILE, "topics": ["a"]}, "the value of a setting is a text"),
        ("a", {}, "connector.class: "),
    ],
)
async def test_settings_that_are_refused(node: Node, name: str, config: dict[str, Any], says: str) -> None:
    status, error = await connect(node, "POST", "connectors", {"name": name, "config": config})
    assert status == error["error_code"] == 400
    assert says in error["message"]


async def test_settings_are_checked_without_being_set(node: Node) -> None:
    path = "connector-plugins/file-sink/config/validate"
    status, found = await connect(node, "PUT", path, {**FILE, "name": "a", "tasks.max": "x"})
    rows = {row["value"]["name"]: row for row in found["configs"]}
    assert (status, found["name"], found["error_count"]) == (200, "file-sink", 1)
    assert rows["tasks.max"]["value"]["errors"] == ["a whole number is expected, not 'x'"]
    assert rows["topics"]["definition"]["type"] == "LIST" and rows["topics"]["value"]["errors"] == []
    assert await connect(node, "GET", "connectors") == (200, [])
    _, plugins = await connect(node, "GET", "connector-plugins")
    assert {each["class"] for each in plugins} == set(CONNECTORS.names())
    assert {each["type"] for each in plugins} == {"sink", "source"}
    assert (await connect(node, "GET", "connector-plugins/file-sink/config"))[0] == 200
    assert (await connect(node, "GET", "connector-plugins/none/config"))[0] == 404


async def test_passwords_are_not_shown_again(node: Node) -> None:
    config = {
        "connector.class": "http-sink",
        "topics": "t",
        "http.api.url": "https://192.0.2.1/x",
        "connection.user": "u",
    }
    secret = "connection.password"
    assert (
        await connect(
            node,
            "POST",
            "connectors",
            {"name": "h", "config": {**config, secret: "s3cret"}},
        )
    )[0] == 201
    _, shown = await connect(node, "GET", "connectors/h/config")
    assert shown[secret] == "***"
    assert (await connect(node, "PUT", "connectors/h/config", {**shown, "topics": "u"}))[0] == 200
    kept = (await entry_of(node, "connector/h"))["config"]
    assert (kept[secret], kept["topics"]) == ("s3cret", "u")


async def test_three_stars_stand_for_a_password_that_is_set_alone(node: Node) -> None:
    mask = {"transforms": "m", "transforms.m.type": "MaskField", "transforms.m.fields": "a"}
    hook = {"connector.class": "http-sink", "topics": "t/#", "http.api.url": "https://h/", **mask}
    hook["transforms.m.replacement"] = "---"
    status, error = await connect(node, "PUT", "connectors/h/config", {**hook, "webhook.secret": "***"})
    assert (status, error["message"]) == (
        400,
        "webhook.secret: *** is shown in place of a password, and there is none yet",
    )
    secret = "whsec_" + "A" * 32
    assert (await connect(node, "PUT", "connectors/h/config", {**hook, "webhook.secret": secret}))[0] == 201
    changed = {**hook, "webhook.secret": "***", "transforms.m.replacement": "***"}
    _, found = await connect(node, "PUT", "connector-plugins/http-sink/config/validate", {**changed, "name": "h"})
    assert found["error_count"] == 0
    assert (await connect(node, "PUT", "connectors/h/config", changed))[0] == 200
    kept = (await entry_of(node, "connector/h"))["config"]
    assert (kept["webhook.secret"], kept["transforms.m.replacement"]) == (secret, "***")


async def test_a_stranger_may_not_manage_connectors(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    status, error = await connect(node, "GET", "connectors")
    assert (status, error["error_code"]) == (401, 401)
    await set_rules(node, "", "deny * cluster:connectors")
