"""`sluice client` and `sluice session` beside a running node: what they list and show, and what they end."""

import asyncio
import json
from typing import Any

import pytest

from gateway.node.node import Node
from sluice.cli import main
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.mqtt import wire
from tests.gateway.people import login, set_user
from tests.gateway.raw import DISCONNECT, RawClient
from tests.gateway.session.test_durable import EVER, durable, publish
from tests.waiting import until

__all__ = ["make_node"]  # the fixture


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    return await make_node()


class Run:
    """Runs `sluice session` beside the node that is in this loop."""

    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        self._node = node
        self._capsys = capsys
        self.error = ""

    async def __call__(self, *words: str, code: int = 0) -> list[str]:
        given = [
            *([] if words[0] == "client" else ["session"]),
            *words,
            "--data-dir",
            str(self._node.config.data_dir),
        ]
        assert await asyncio.to_thread(main, given) == code
        shown = self._capsys.readouterr()
        self.error = shown.err
        return shown.out.splitlines()

    async def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in await self(*words, "--json")]


@pytest.fixture
def run(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(node, capsys)


async def gone(node: Node, client_id: bytes) -> None:
    await until(lambda: client_id not in node._sessions.open_sessions and node._sessions._ending.get(client_id) is None)


async def test_list_names_the_user_of_a_session(make_node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node = await make_node("users", mqtt__auth=["anonymous", "password"])
    await set_user(node, "alice", b"wonderland")
    run = Run(node, capsys)
    away, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"away", clean=False, expiry=60)
    await away.disconnect()
    await gone(node, b"away")
    here, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"here")
    nobody, _ = await login(node.ports.mqtt, None, None, 5, b"nobody")
    assert [(row["client_id"], row["user"]) for row in await run.rows("list")] == [
        ("away", "alice"),
        ("here", "alice"),
        ("nobody", None),
    ]
    lines = await run("list")
    assert [line.split(": ")[0] for line in lines] == ["away of user alice", "here of user alice", "nobody"]
    for client in (here, nobody):
        await client.disconnect()


async def test_list_has_connected_and_offline_sessions(node: Node, run: Run) -> None:
    clean = await RawClient.connect(node.ports.mqtt, b"clean", 4)
    away = await durable(node, b"away", expiry=3600)
    await away.subscribe((b"t/+", 1), (b"t/a", 2), (b"none", 0))
    await away.disconnect()
    here = await durable(node, b"here", receive_maximum=2)
    await here.subscribe((b"t/a", 1))
    await publish(node, b"t/a", b"1", b"2", b"3")
    for _ in range(2):
        await here.message()
    await gone(node, b"away")
    await gone(node, b"publisher")
    first, second, third = await run.rows("list")
    assert (first["client_id"], first["connected"], first["subscription_count"], first["backlog"]) == (
        "away",
        False,
        3,
        6,
    )
    assert first["expiry_interval_s"] == 3600
    assert first["closed_at_ms"] > 0
    assert (second["client_id"], second["durable"], second["version"]) == ("clean", False, "3.1.1")
    assert second["address"].startswith("127.0.0.1:")
    assert (third["client_id"], third["backlog"], third["in_flight"]) == ("here", 3, 2)
    assert [row["client_id"] for row in await run.rows("client", "list")] == ["clean", "here"]
    assert [row["client_id"] for row in await run.rows("list", "--limit", "2")] == ["away", "clean"]
    assert "there are more" in run.error
    assert [row["client_id"] for row in await run.rows("list", "--after", "clean", "--limit", "1")] == ["here"]
    assert not run.error
    lines = await run("list")
    assert lines[0].startswith("away: offline since 20")
    assert lines[0].endswith(", expires 3600 s after disconnecting, 3 subscriptions, backlog 6, 0 in flight")
    assert "with MQTT 3.1.1, ends with its connection, 0 subscriptions" in lines[1]
    for client in (clean, here):
        await client.drop()


async def test_many_come_in_pages(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.node.management._PAGE", 3)
    clients = [await durable(node, b"%02d" % number) for number in range(10)]
    for client in clients[::2]:
        await client.disconnect()
    assert [row["client_id"] for row in await run.rows("list")] == [f"{number:02}" for number in range(10)]
    for client in clients:
        await client.drop()


async def test_show_has_dropped_messages_of_offline_sessions(node: Node, run: Run, monkeypatch) -> None:
    client = await durable(node, b"d")
    await client.subscribe((b"t", 1))
    await client.disconnect()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"t", b"gone", properties=b"\x02" + wire.u32(1))
    await publisher.publish(b"t", b"x")
    await publisher.disconnect()
    monkeypatch.setattr("gateway.delivery.catch_up.time", lambda: 1 << 40)
    client = await durable(node, b"d", will=(b"w", b"x"))
    await client.take(1)
    (shown,) = await run.rows("get", "d")
    assert shown["dropped"]["expired"] == 1
    assert shown["subscriptions"] == [{"filter": "t", "qos": 1, "backlog": 0}]
    assert shown["will"] == {"topic": "w", "due_ms": None}
    await client.disconnect()
    await gone(node, b"d")
    lines = await run("get", "d")
    assert lines[1:] == ["  t qos 1, backlog 0", "  dropped since the node started: 1 expired"]
    client = await durable(node, b"d")
    assert (await run.rows("get", "d"))[0]["dropped"]["expired"] == 1
    await client.drop()


async def test_kicking_ends_the_connection_and_removing_the_session(node: Node, run: Run) -> None:
    client = await durable(node, b"d", expiry=EVER)
    await client.subscribe((b"t", 1))
    assert await run("client", "kick", "d") == ["disconnected d"]
    assert (await client.expect(DISCONNECT)).reason == 0x98
    assert await run("client", "kick", "d", code=1) == []
    assert "'d' is not connected" in run.error
    client = await durable(node, b"d")
    assert client.session_present
    assert await run("end", "d") == ["ended d"]
    assert (await client.expect(DISCONNECT)).reason == 0x98
    await run("get", "d", code=1)
    assert "there is no session 'd'" in run.error
    await run("end", "d", code=1)
    client = await durable(node, b"d")
    assert not client.session_present
    await client.drop()


@pytest.mark.mqtt5("3.1.2-8")
async def test_removing_a_session_sends_the_will_that_waits(node: Node, run: Run) -> None:
    watcher = await RawClient.connect(node.ports.mqtt, b"watcher", 5)
    await watcher.subscribe((b"wills/#", 1))
    rest = wire.sized(b"\x18" + wire.u32(1000)) + wire.text(b"wills/d") + wire.text(b"gone")
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(wire.connect(5, b"d", flags=0x04, properties=b"\x11" + wire.u32(2000), rest=rest))
    await client.packet()
    await client.drop()
    await gone(node, b"d")
    assert (await run.rows("get", "d"))[0]["will"]["due_ms"] > 0
    await run("end", "d")
    assert [m.payload for m in await watcher.take(1)] == [b"gone"]
    await watcher.drop()


async def test_a_stopped_node_is_reported(make_node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node = await make_node()
    await node.stop()
    assert await asyncio.to_thread(main, ["session", "list", "--data-dir", str(node.config.data_dir)]) == 1
    assert "no node runs on" in capsys.readouterr().err


async def test_a_client_that_publishes_too_fast_is_shown_so(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await make_node("paced", mqtt__publish_rate=1)
    run = Run(node, capsys)
    fast = await RawClient.connect(node.ports.mqtt, b"fast", 5)
    slow = await RawClient.connect(node.ports.mqtt, b"slow", 5)
    fast.send(*[wire.publish(5, b"t", b"x") for _ in range(5000)])  # more than an hour of debt
    await until(lambda: node.counters.publishers_paced)
    assert [(row["client_id"], row["paced"]) for row in await run.rows("list")] == [("fast", True), ("slow", False)]
    assert ["paced by a publish rate" in line for line in await run("list")] == [True, False]
    for client in (fast, slow):
        client.writer.transport.abort()
