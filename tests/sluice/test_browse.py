"""`sluice topics` and `sluice find` against a node's gRPC front."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest

from cloud_sdk import Client, OutgoingMessage
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from sluice.cli import main
from store.config import StoreConfig
from store.engine import Engine
from tests.gateway.rocketmq.test_rocket_service import Wire

TOPICS = ["home/bath/temp", "home/bath/hum", "home/bath", "home/hall/temp", "office/x", "/odd", "home/bell\x07"]

Call = Callable[..., Awaitable[tuple[int, list[str], str]]]


@pytest.fixture
async def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Call]:
    """Runs `sluice` with words against a node that has messages: (exit code, lines, errors)."""
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0))
    port = await server.start("127.0.0.1", 0)
    async with Client(f"127.0.0.1:{port}", name="shop") as client:
        await client.send_many([OutgoingMessage(topic, b"x") for topic in TOPICS])
        await client.send_many([OutgoingMessage("orders/1", b"%d" % i, keys=["order-17"]) for i in range(150)])
        await client.send("orders/2", b"\xff", keys=["other", "order-17"], retain=True)

    async def run(*words: str) -> tuple[int, list[str], str]:
        code = await asyncio.to_thread(main, [*words, "--port", str(port)])
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err

    yield run
    await server.stop(0.2)
    await engine.close()


async def test_topics_are_browsed_a_level_at_a_time(call: Call) -> None:
    assert await call("topics") == (0, ["/", "home/", "office/", "orders/"], "")
    assert await call("topics", "home") == (0, ["bath", "bath/", r"bell\x07", "hall/"], "")
    assert await call("topics", "home/bath/") == (0, ["hum", "temp"], "")
    assert await call("topics", "/") == (0, ["odd"], "")
    assert await call("topics", "nobody") == (0, [], "")
    assert await call("topics", "--depth", "2", "--after", "home") == (
        0,
        ["office/", "  x", "orders/", "  1", "  2"],
        "",
    )
    code, lines, errors = await call("topics", "--depth", "3", "--limit", "3")
    assert (code, lines) == (0, ["/", "  odd", "home/"])
    assert "there are more" in errors


async def test_a_node_of_several_answers(call: Call) -> None:
    hosts = "127.0.0.1:1, 127.0.0.1"  # nobody serves at port 1, and the other one gets `--port`
    for _ in range(8):  # it begins at any of them
        assert await call("topics", "home", "--host", hosts) == (0, ["bath", "bath/", r"bell\x07", "hall/"], "")


async def test_topics_as_a_list_and_as_json(call: Call) -> None:
    code, lines, errors = await call("topics", "--list")
    assert (code, errors) == (0, "")
    assert lines[:3] == ["/odd", "home/bath", "home/bath/hum"]
    assert len(lines) == len(TOPICS) + 2
    assert await call("topics", "home/bath", "--list", "--json") == (
        0,
        ['{"topic": "home/bath/hum"}', '{"topic": "home/bath/temp"}'],
        "",
    )
    assert (await call("topics", "--list", "--after", "home/hall/temp"))[1] == ["office/x", "orders/1", "orders/2"]
    _, lines, _ = await call("topics", "home", "--json", "--limit", "1")
    assert json.loads(lines[0]) == {"name": "home/bath", "is_topic": True, "has_children": True}


async def test_more_topics_than_a_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.commands.messages.topics._PAGE", 2)
    assert (await call("topics"))[1] == ["/", "home/", "office/", "orders/"]
    assert len((await call("topics", "--list"))[1]) == len(TOPICS) + 2


async def test_find_prints_messages_by_key(call: Call) -> None:
    code, lines, errors = await call("find", "orders", "--key", "order-17")
    assert (code, len(lines)) == (0, 100)
    assert "there are more" in errors
    assert lines[0].endswith("Z message orders/1 qos 1 from shop: '0'")
    code, lines, errors = await call("find", "orders", "--key", "order-17", "--limit", "999", "--json")
    rows = [json.loads(line) for line in lines]
    assert (code, len(rows), errors) == (0, 151, "")
    assert (rows[149]["payload"], rows[150]["payload_base64"], rows[150]["retain"]) == ("149", "/w==", True)
    assert rows[150]["user_properties"] == [["key", "other"], ["key", "order-17"]]
    code, lines, _ = await call("find", "--id", str(rows[7]["position"]), "--json")
    assert (code, [json.loads(line) for line in lines]) == (0, [rows[7]])
    assert await call("find", "orders", "--key", "nobody's") == (0, [], "")
    code, lines, errors = await call("find", "--key", "order-17")
    assert (code, lines) == (2, [])
    assert "need PARENT" in errors


async def test_messages_are_found_by_the_ids_of_rocketmq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0))
    port = await server.start("127.0.0.1", 0)
    message_id = "0156F7E71C361B21BC024CCDBE00000000"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, Client(f"127.0.0.1:{port}") as client:
        wire = Wire(channel)
        await wire.send(b"other", message_id="01")
        await wire.send(b"sought", message_id=message_id, keys=["order-17"])
        plain = await client.send("home/bath", b"from a device")
        (found,) = await client.find("home", key="order-17")
    for words, payload in (
        (["home", "--id", message_id], "sought"),
        (["--id", f"{found.position:016X}"], "sought"),
        (["--id", f"{plain.position:016X}"], "from a device"),
    ):
        assert await asyncio.to_thread(main, ["find", *words, "--json", "--port", str(port)]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["payload"] == payload
    assert await asyncio.to_thread(main, ["find", "--id", message_id, "--port", str(port)]) == 2
    assert "need PARENT" in capsys.readouterr().err
    await server.stop(0.2)
    await engine.close()


async def test_a_failed_query_exits_with_1(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, errors = await call("find", "--id", "5")
    assert (code, lines, errors) == (1, [], "sluice find: no message begins at position 5 of the log\n")
    monkeypatch.setattr("sluice.node.grpc_client.RETRY_SECONDS", 0.1)
    for words in (["topics"], ["find", "a", "--key", "b"]):  # nobody serves at port 1
        assert await asyncio.to_thread(main, [*words, "--port", "1"]) == 1
        assert f"sluice {words[0]}: " in capsys.readouterr().err
