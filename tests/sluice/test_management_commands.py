"""The commands over the management surface: `topic`, `message`, `group`, `dlq`, `timer`, `txn`, `config`, `store`, and
how they reach a node on another machine."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest

from cloud_sdk import Client
from gateway.node.node import Node
from record.layout import FLAG_DELAYED, FLAG_HALF
from sluice.cli import main
from store.api import PopRequest, Start, dead_letter_queue
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.management.world import engine_of, give_up, store_messages
from tests.gateway.people import set_rules, set_user
from tests.gateway.raw import RawClient
from tests.waiting import patience, until

__all__ = ["make_node"]  # the fixture


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    return await make_node(http__auth=["password"])


class Run:
    """Runs a command beside the node that is in this loop."""

    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        self.flags = ["--data-dir", str(node.config.data_dir)]
        self._capsys = capsys
        self.error = ""

    async def __call__(self, *words: str, code: int = 0) -> list[str]:
        assert await asyncio.to_thread(main, [*words, *self.flags]) == code
        shown = self._capsys.readouterr()
        self.error = shown.err
        return shown.out.splitlines()

    async def rows(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in await self(*words, "--json", code=code)]


@pytest.fixture
def run(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(node, capsys)


async def test_topics(node: Node, run: Run) -> None:
    assert await run("topic", "publish", "home/bath/temp", "21.5", "--qos", "1", "--property", "key=k") != []
    await store_messages(node, (b"home/hall", b"\xff\x00"), (b"home/hall", b"y"))
    assert await run("topic", "list") == ["home/"]
    assert await run("topic", "list", "home", "--depth", "2") == ["bath/", "  temp (1 messages)", "hall (2 messages)"]
    assert await run("topic", "list", "home", "--limit", "1") == ["bath/"]
    assert "there are more names" in run.error
    assert await run("topic", "list", "--prefix", "home/h") == ["home/hall"]
    (row,) = await run.rows("topic", "list", "home", "--after", "bath")
    assert (row["path"], row["messages"]) == ("home/hall", 2)
    (row,) = await run.rows("topic", "get", "home/bath/temp")
    assert (row["end"], row["last"]["text"], row["last"]["properties"]) == (1, "21.5", [{"name": "key", "value": "k"}])
    lines = await run("topic", "get", "home/bath/temp")
    assert lines[0].startswith("home/bath/temp: 1 messages, about ")
    assert lines[0].endswith("/s in the last minute, offsets [0, 1)")
    assert lines[1] == "  messages of home are kept without a limit of age"
    assert lines[-1] == "  key = k"
    (line,) = await run("topic", "list", "home", "--rates", "--after", "bath")
    assert line.startswith("hall (2 messages, 0.0/s, the last 20")
    first, second = await run("topic", "browse", "home/hall")
    assert first.endswith("home/hall qos 1 from device: '2 bytes ff 00'")
    assert second.endswith(": 'y'")
    assert len(await run("topic", "browse", "home/hall", "--limit", "1")) == 1
    (row,) = await run.rows("topic", "browse", "home/hall", "--offset", "0", "--limit", "1")
    assert (row["offset"], row["payload"], "text" in row) == (0, "/wA=", False)
    assert await run("topic", "browse", "home/hall", "--since", "2100-01-01") == []
    found = [await run("topic", "browse", "home", "--partition", str(number)) for number in range(4)]
    assert sum(map(len, found)) == 3


async def test_payloads_are_shown_by_what_they_are(node: Node, run: Run) -> None:
    payloads = (b'{"a":[1]}', cbor2.dumps({"a": [1, 2.5, b"x"]}), b"\xff\x00AB", b"long " * 20)
    positions = await store_messages(node, *[(b"home/t", payload) for payload in payloads])
    shown = [(await run("message", "get", str(position)))[2:] for position in positions]
    assert shown[0] == ["  {", '    "a": [', "      1", "    ]", "  }"]
    assert shown[1][0] == """  CBOR: {"a": [1, 2.5, h'78']}"""
    assert shown[1][1].startswith("  000000  a1 61 61 83")
    assert shown[2] == ["  000000  ff 00 41 42                                      ..AB"]
    assert shown[3] == ["  " + "long " * 20]
    (row,) = await run.rows("topic", "browse", "home/t", "--offset", "1", "--limit", "1")
    assert row["cbor"] == """{"a": [1, 2.5, h'78']}"""


async def test_services_and_the_machines_of_a_trace(node: Node, run: Run) -> None:
    assert await run("service", "list") == []
    endpoint = f"127.0.0.1:{node.ports.grpc}"
    async with Client(endpoint, name="billing-1") as client, client.consumer("g", "home") as consumer, patience():
        sent = await client.send("home/t", b"1")
        await consumer.ack(await consumer.batch())
        await consumer.flush()
        (line,) = await run("service", "list", "--group", "g")
        assert " billing-1: SDK " in line
        assert ", groups g" in line
        (row,) = await run.rows("service", "list", "--name", "billing-1")
        lines = await run("service", "get", row["id"])
        assert "  1 messages sent, 1 received" in lines
        assert "  Consume: 1 calls" in lines
        assert lines[-1].startswith("  group g as billing-1: holds 0, 1 received, 1 acknowledged, 0 failed, ")
        assert any(each.startswith("  member billing-1: SDK ") for each in await run("group", "get", "g"))
        assert [each.split(":")[0] for each in await run("group", "list", "--slowest")] == ["g"]
        lines = await run("message", "trace", str(sent.position))
        assert all(" [SDK " in each and " from 127.0.0.1:" in each for each in lines)
    await run("service", "get", "none", code=1)
    assert "there is no service 'none'" in run.error


async def test_a_payload_from_standard_input(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    (row,) = await run.rows("topic", "publish", "t")
    (message,) = await run.rows("message", "get", str(row["position"]))
    assert message["payload"] == "/wo="


async def test_messages(node: Node, run: Run) -> None:
    (position,) = await store_messages(node, (b"home/t", b"x"))
    await give_up(node, b"g", b"home", 1)
    (line,) = await run("message", "find", "home", "--key", "k")
    assert line.endswith("home/t qos 1 from device: 'x'")
    assert (await run("message", "get", str(position)))[0] == line
    assert await run("message", "get", f"{position:016X}") == await run("message", "get", str(position))
    events = await run("message", "trace", str(position))
    assert [line.split()[2] for line in events] == ["stored", "leased", "dead"]
    assert "by g (m), offset 0 of home[" in events[1]
    await run("message", "get", "123456789", code=1)
    assert "sluice message get: " in run.error


async def test_groups_and_their_dead_letters(node: Node, run: Run) -> None:
    await store_messages(node, *[(b"home/t", b"%d" % number) for number in range(5)])
    await give_up(node, b"g", b"home", 3)
    for words in ((), ("--furthest-behind",)):
        (line,) = await run("group", "list", *words)
        assert line.startswith("g: lag 2 (")
        assert line.endswith(" s), 2 leased or to be retried, 0.0/s acknowledged, 3 dead letters")
    assert await run("group", "list", "--slowest") == []  # nothing was acknowledged
    lines = await run("group", "get", "g")
    assert lines[0] == "g: 4 queues, 3 dead letters"
    assert any("finished up to offset 3, 2 leased or to be retried, lag 2 (" in line for line in lines)
    assert "  not finished, by deliveries: 2 after 1" in lines
    assert "  since the node started: 5 deliveries, 0 of them again, 0 acknowledged, 3 dead letters" in lines
    await run("group", "reset", "new", "--to", "latest", code=1)
    assert (await run("group", "reset", "new", "--to", "latest", "--parent", "home"))[0].startswith("new: 4 queues")
    assert "lag 0" in (await run("group", "reset", "g", "--to", "latest"))[1]
    await run("group", "reset", "g", "--to", "2020-01-01T00:00:00Z")
    (row,) = await run.rows("group", "get", "g")
    assert sum(each["lag"] for each in row["queues"]) == 5
    await run("group", "reset", "g", "--to", "3", code=2)
    assert "an offset needs --queue" in run.error
    first, why, *_ = await run("dlq", "list", "g")
    assert first.endswith("from device: '0'")
    assert why.startswith("  forwarded at delivery 1, first at 20")
    assert await run("dlq", "requeue", "g", "1", "--topic", "again") == ["requeued 1 dead letters"]
    assert await run("dlq", "delete", "g", "0", "1", code=1) == [
        "deleted 1 dead letters; finished already, or leased by a consumer: 1"
    ]
    assert await run.rows("dlq", "delete", "g", "--all") == [{"group": "g", "deleted": 1, "missing": [], "leased": 0}]
    assert await run("dlq", "list", "g") == []
    await give_up(node, b"h", b"home", 2)
    engine = engine_of(node)
    await engine.pop(PopRequest(b"h", (dead_letter_queue(b"h"),), 1, 1 << 20, 600_000, Start.EARLIEST))
    (line,) = await run("dlq", "requeue", "h", "--all", code=1)
    assert line.startswith("requeued 1 dead letters; 1 are left: a consumer has leased them")
    await run("dlq", "delete", "g", code=2)
    await run("dlq", "requeue", "gg", "--all", code=1)
    assert "there is no group 'gg'" in run.error
    assert await run("group", "delete", "g") == ["deleted g"]
    await run("group", "get", "g", code=1)
    assert "there is no group 'g'" in run.error
    await run("group", "get", "", code=2)


async def test_held_messages(node: Node, run: Run) -> None:
    (timer,) = await store_messages(node, (b"home/a", b"x"), flags=1 | FLAG_DELAYED)
    halves = await store_messages(node, (b"home/b", b"x"), (b"home/c", b"x"), flags=1 | FLAG_HALF)
    assert await run("timer", "list") == [f"{timer:>12} home/a due 2096-10-02T07:06:40.000Z from device"]
    assert await run("timer", "recall", str(timer)) == ["recalled 1 messages"]
    assert await run("timer", "recall", str(timer), code=1) == [f"recalled 0 messages; not held: {timer}"]
    assert [row["position"] for row in await run.rows("txn", "list")] == halves
    assert await run("txn", "commit", str(halves[0])) == ["committed 1 messages"]
    assert await run.rows("txn", "rollback", str(halves[1])) == [{"rolled_back": 1, "missing": []}]


async def test_configuration_and_store(node: Node, run: Run) -> None:
    assert "mqtt.max_in_flight = 1024  # default" in await run("config", "show")
    changed = {row["name"]: row for row in await run.rows("config", "show", "--changed")}
    assert changed["http.auth"] == {"name": "http.auth", "value": '["password"]', "source": "the command line"}
    assert "mqtt.max_in_flight" not in changed
    assert await run("config", "reload") == ["read the configuration and the certificates again"]
    (row,) = await run.rows("store", "status")
    assert (row["begin"], row["failed"], len(row["segments"])) == (0, False, 1)
    assert (await run("store", "status"))[0].startswith("the log has positions [0, ")
    await run("cluster", "status", code=1)
    assert "this node is not part of a cluster" in run.error


async def test_a_node_on_another_machine(node: Node, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await set_user(node, "alice", b"wonderland")
    url = f"http://127.0.0.1:{node.ports.http}"
    run.flags = ["--host", url]
    await run("store", "status", code=1)
    assert "authentication is required: password" in run.error
    secret = tmp_path / "password"
    secret.write_text("wonderland\n")
    run.flags = ["--host", url, "--username", "alice", "--password-file", str(secret)]
    await run("store", "status", code=1)
    assert "this needs the right to GET cluster:store, and no rule allows it" in run.error
    await set_rules(node, "alice", "allow LIST,GET cluster:*")
    await run("store", "status")
    monkeypatch.setenv("MQTT_PASSWORD", "wonderland")
    run.flags = ["--host", url, "--username", "alice"]
    await run("user", "list")
    for wrong, code, says in (
        ("ftp://x", 2, "--host is http://host:port or https://host:port"),
        ("127.0.0.1:8080", 2, "--host is http://host:port or https://host:port"),
        ("http://127.0.0.1:1?x", 2, "--host is http://host:port or https://host:port"),
        ("http://[::1", 2, "Invalid IPv6 URL"),
        ("http://bob:pw@127.0.0.1:1", 2, "give --username"),
        ("http://127.0.0.1:1", 1, "cannot be reached"),
        (f"https://127.0.0.1:{node.ports.http}", 1, "cannot be reached"),
    ):
        run.flags = ["--host", wrong, "--username", "alice"]
        await run("store", "status", code=code)
        assert says in run.error
    run.flags = ["--host", f"http://127.0.0.1:{node.ports.mqtt}"]
    await run("store", "status", code=1)
    assert "Traceback" not in run.error


async def test_a_node_with_tls(make_node: MakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server", "server", "DNS:localhost")
    tls = {"http__certificate": str(certificate), "http__key": str(key), "http__client_ca": str(authority.file)}
    node = await make_node(http__auth=["certificate"], **tls)
    await set_rules(node, "alice", "allow LIST,GET cluster:*")
    run = Run(node, capsys)
    own = [str(path) for path in authority.issue("alice", "alice")]
    host = ["--host", f"https://localhost:{node.ports.http}"]
    trusted = [*host, "--ca-file", str(authority.file)]
    run.flags = [*trusted, "--cert-file", own[0], "--key-file", own[1]]
    await run("store", "status")
    await run("client", "kick", "c", code=1)
    assert "no rule allows it" in run.error
    for flags, code, says in (
        (host, 1, "cannot be reached: "),
        ([*trusted, "--cert-file", own[0]], 2, "must be given together"),
        ([*host, "--ca-file", own[1]], 2, "cannot use "),
        ([*host, "--ca-file", str(tmp_path / "none")], 2, "cannot use "),
        (trusted, 1, "broke before it answered"),
    ):
        run.flags = flags
        await run("store", "status", code=code)
        assert says in run.error


@pytest.mark.parametrize(
    "words",
    [
        ("group", "reset", "g", "--to", "tomorrow"),
        ("group", "reset", "g", "--to", str(1 << 63)),
        ("message", "get", str(1 << 63)),
        ("message", "get", "F" * 16),
        ("message", "trace", "-1"),
        ("topic", "browse", "t", "--offset", str(1 << 63)),
        ("topic", "browse", "t", "--since", "x"),
        ("topic", "publish", "t", "x", "--property", "=v"),
        ("dlq", "delete", "g", "-1"),
        ("timer", "recall", "x"),
        ("topic", "list", "--limit", str(1 << 63)),
        ("cluster", "status", "--position", str(1 << 63)),
        ("cluster", "drain", "n1", "--rate", str(1 << 32)),
    ],
)
async def test_values_that_cannot_be(run: Run, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        await run(*words)
    assert ended.value.code == 2


@pytest.mark.parametrize("words", [("topic", "get"), ("group", "get"), ("client", "get"), ("topic", "list")])
async def test_arguments_that_are_not_utf_8(run: Run, words: tuple[str, ...]) -> None:
    await run(*words, "\udcff", code=2)
    assert run.error == f"sluice {' '.join(words)}: an argument is not UTF-8\n"


async def test_no_node_runs(node: Node, run: Run, tmp_path: Path) -> None:
    await node.stop()
    await run("topic", "list", code=1)
    assert "no node runs on" in run.error
    run.flags = ["--data-dir", str(tmp_path / "none")]
    await run("topic", "list", code=1)
    assert "there is no data folder at" in run.error


async def test_bans(run: Run) -> None:
    (line,) = await run("ban", "add", "client:a/b c", "--for", "2h", "--reason", "sends nonsense")
    assert line.startswith("banned client:a/b c until 2")
    assert line.endswith("Z: sends nonsense")
    (row,) = await run.rows("ban", "add", "address:192.0.2.0/24")
    assert (row["target"], row["until_ms"], row["by"]) == ("address:192.0.2.0/24", 0, "")
    first, second = await run("ban", "list")
    assert first.startswith("address:192.0.2.0/24 without end, since ")
    assert second.startswith("client:a/b c until ")
    assert await run("ban", "end", "client:a/b c") == ["ended the ban of client:a/b c"]
    assert len(await run("ban", "list")) == 1
    assert await run("ban", "end", "client:a/b c", code=1) == []
    assert "there is no ban of client:a/b c" in run.error
    assert await run("ban", "add", "user:alice", "--until", "2001-01-01", code=1) == []
    assert "the end of a ban is in the future" in run.error
    for span in ("0h", "2", "2 h"):
        with pytest.raises(SystemExit):
            main(["ban", "add", "user:alice", "--for", span])


async def test_a_group_is_paused_and_resumed(node: Node, run: Run) -> None:
    await store_messages(node, (b"home/t", b"1"))
    await give_up(node, b"billing", b"home", 0)
    lines = await run("group", "pause", "billing")
    assert lines[1].startswith("  paused since 2")
    assert (await run("group", "list"))[0].endswith(", paused")
    assert not any("paused" in line for line in await run("group", "resume", "billing"))
    assert await run("group", "pause", "nobody", code=1) == []
    assert "there is no group 'nobody'" in run.error


async def test_a_client_is_shown_and_traced(node: Node, run: Run) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"meter", 5, keep_alive=60)
    lines = await run("client", "get", "meter")
    assert lines[1].startswith("  connected since 2")
    assert lines[1].endswith(", a clean start, keep alive 60 s, 0 bytes wait for its socket")
    tracing = asyncio.create_task(run("trace", "meter", "--seconds", "2"))
    await until(lambda: node._sessions.open_sessions[b"meter"][1].tracer is not None)
    await client.publish(b"t", b"secret", 1, 7)
    lines = await tracing
    assert "* the connection from 127.0.0.1:" in lines[0]
    assert lines[1].endswith("from the client: PUBLISH 7 qos 1 to t, 6 bytes of payload, 0 bytes of properties")
    assert "to the client: PUBACK 7 0x" in lines[2]
